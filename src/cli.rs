//! The command line: one file for each subcommand.

mod audit;
mod dead;
mod doctor;
mod healthcheck;
mod hold;
mod migrate;
mod operation;
mod pause;
pub mod progress;
mod purge;
mod replay;
mod resume;
mod run;
mod signals;
mod status;
mod table;
mod verify;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, Problems};
use crate::daemon;
use crate::memory;
use crate::outbox;

/// Carries committed rows of a PostgreSQL outbox table to Kafka.
///
/// Applications INSERT into outbox.message in their own transaction. outboxd publishes the row once it commits: in order per key,
/// from any number of replicas, losing none. A setting's environment variable is shown in brackets; every setting of `run` has
/// one.
///
/// Exit codes: 0 fine, 1 verify, doctor or status --check found something, 2 they could not tell, 64 bad configuration, 69 a service
/// cannot be reached, 70 a bug, 77 login refused, 78 schema missing, of an unknown version or on a read-only server, 79 permission
/// missing, 130 stopped by a signal with a part left to do.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Format of logs
    #[arg(long, env = "OUTBOXD_LOG_FORMAT", value_enum, default_value = "auto", global = true)]
    log_format: LogFormat,

    /// What is logged: error, warn, info, debug, trace, or a tracing filter
    #[arg(
        long,
        env = "OUTBOXD_LOG_LEVEL",
        default_value = "info",
        global = true,
        value_name = "LEVEL",
        value_parser = log_filter
    )]
    log_level: String,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the relay until it is told to stop
    Run(Box<crate::config::RunArgs>),
    /// Create or upgrade the schema
    Migrate(migrate::MigrateArgs),
    /// Keep back a topic, a key of it, or everything, until `outboxd resume`
    ///
    /// Rows are written as ever and wait, in order; nothing is lost, and no attempt is counted. It waits until every live worker
    /// obeys: then nothing of it is sent any more. It survives restarts. Needs outbox_operator.
    ///
    /// Exit codes: 0 it is in effect, 69 it is stored, but some worker does not obey yet.
    Pause(Box<pause::PauseArgs>),
    /// End a pause: what has waited is sent, in order
    ///
    /// It ends the pause of exactly what is named. With --all, topics and keys that were paused by themselves stay paused.
    Resume(Box<resume::ResumeArgs>),
    /// Show what is pending, held, parked and dead, and what to do about it
    Status(status::StatusArgs),
    /// Find what is wrong with PostgreSQL, Kafka and the settings, and which command fixes it
    ///
    /// For before a deployment, and for trouble. Run it as the relay is run, with `doctor` in the place of `run`: it takes the same
    /// flags and environment variables. It changes nothing and creates no topic. No check takes longer than ten seconds. Without
    /// --kafka-brokers Kafka is not asked. Every check is explained in docs/doctor.md.
    ///
    /// Exit codes: 0 no problem (advice is none), 1 a problem, 2 none, but something could not be told, 64 bad usage.
    Doctor(Box<doctor::DoctorArgs>),
    /// Compare the outbox with the topics: is anything missing, duplicated, out of order?
    ///
    /// It only reads, and may run beside the relay. Pending rows, and rows that retention has removed, are not compared; with
    /// --on-published delete nothing is left to compare. Memory use is small: about 250 bytes per row go to temporary files.
    /// Where none can be written, as in the image without a volume, up to about 250,000 rows are compared in memory.
    ///
    /// Two transactions that overlap have no order. If they write rows of one key that arrive against the order of their ids,
    /// this cannot be told from a fault, and the verdict is "undecided". If your application locks the aggregate before it
    /// writes, use --serialized-keys.
    ///
    /// Exit codes: 0 every promise held, 1 one was broken, 2 it could not be told, 64 bad usage.
    Verify(Box<verify::VerifyArgs>),
    /// Remove what is finished and old, in small steps, while everything else runs
    ///
    /// It removes published rows, days of history, markers of consumers, inbox messages that are done, and expired answers of
    /// commands. It never removes what is pending, dead, unfinished, stale or poison. `outboxd run` does the same in the
    /// background; this command does it now, and reports how much was removed.
    Purge(purge::PurgeArgs),
    /// List, send again, correct or remove messages that Kafka refused for good
    Dead(Box<dead::DeadArgs>),
    /// List what is held back, and have it tried now
    Hold(Box<hold::HoldArgs>),
    /// Send published messages again: rows that are kept, and rows of the history
    ///
    /// Messages of a key are sent in the order of their ids, each with the header possible-duplicate. Newer messages of the key may
    /// be sent in between. Where a topic is compacted, the last record of a key is the one that stays: replay the key's newest
    /// message, too.
    ///
    /// It sends at most --rate messages a second, and may be stopped: the same command again continues within a day. With
    /// --on-published delete nothing is left to replay.
    Replay(Box<replay::ReplayArgs>),
    /// List what operators did: who, when, what and why
    Audit(Box<audit::AuditArgs>),
    /// Ask a running outboxd whether it is alive; for container health checks
    Healthcheck(healthcheck::HealthcheckArgs),
}

/// Why a command failed. Each kind has its exit code.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Config(#[from] Problems),
    #[error("{0}")]
    Database(#[from] outbox::Error),
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Broken(String),
    #[error("{0}")]
    Found(String),
    #[error("a promise was broken: {0}")]
    PromiseBroken(String),
    #[error("undecided: {0}")]
    Undecided(String),
    #[error("{0}")]
    Usage(String),
    #[error("{0}. Operators need the role outbox_operator")]
    OperatorOnly(String),
    #[error("{0}")]
    Stopped(String),
}

impl From<daemon::Error> for Failure {
    fn from(error: daemon::Error) -> Self {
        match error {
            daemon::Error::Database(error) => Failure::Database(error),
            daemon::Error::Unavailable(reason) => Failure::Unavailable(reason),
            daemon::Error::Broken(reason) => Failure::Broken(reason),
        }
    }
}

impl Failure {
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Found(_) | Failure::PromiseBroken(_) => 1,
            Failure::Undecided(_) => 2,
            Failure::Config(_) | Failure::Usage(_) => 64,
            Failure::Unavailable(_) => 69,
            Failure::Broken(_) => 70,
            Failure::Database(error) => match error.kind() {
                outbox::Kind::Setting => 64,
                outbox::Kind::Transient => 69,
                outbox::Kind::Login => 77,
                outbox::Kind::Schema => 78,
                outbox::Kind::Permission => 79,
            },
            Failure::OperatorOnly(_) => 79,
            Failure::Stopped(_) => 130,
        }
    }
}

/// Parses the arguments, runs the command, and reports a failure.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come as an error, too, and are none.
            let code = if error.use_stderr() { 64 } else { 0 };
            // If the terminal is closed, there is nowhere to report that.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("outboxd: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    init_logs(&cli);
    memory::limit_heaps();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Broken(format!("cannot start: {error}")))?;
    let done = runtime.block_on(dispatch(cli.command));
    // Blocking lookups of the Kafka client may still wait for a broker. The process does not wait for them.
    runtime.shutdown_background();
    done
}

async fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(args) => run::run(&args).await,
        Command::Migrate(args) => migrate::migrate(&args).await,
        Command::Pause(args) => pause::pause(&args).await,
        Command::Resume(args) => resume::resume(&args).await,
        Command::Status(args) => status::status(&args).await,
        Command::Doctor(args) => doctor::doctor(&args).await,
        Command::Verify(args) => verify::verify(&args).await,
        Command::Purge(args) => purge::purge(&args).await,
        Command::Dead(args) => dead::dead(&args).await,
        Command::Hold(args) => hold::hold(&args).await,
        Command::Replay(args) => replay::replay(&args).await,
        Command::Audit(args) => audit::audit(&args).await,
        Command::Healthcheck(args) => healthcheck::healthcheck(&args),
    }
}

/// Refuses a word that is no level: the filter would take it for the name of a module, and nothing would ever be logged.
fn log_filter(text: &str) -> Result<String, String> {
    let is_word = text.chars().all(char::is_alphanumeric);
    let is_level = text.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
    if is_word && !is_level {
        return Err(
            "write error, warn, info, debug, trace or off, or a filter such as info,outboxd::lanes=debug".to_owned(),
        );
    }
    EnvFilter::try_new(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

fn init_logs(cli: &Cli) {
    let filter = EnvFilter::new(&cli.log_level);
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    let in_terminal = std::io::stderr().is_terminal();
    let json = match cli.log_format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !in_terminal,
    };
    if json {
        builder.json().flatten_event(true).init();
    } else {
        let colour = in_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        builder.with_ansi(colour).init();
    }
}
