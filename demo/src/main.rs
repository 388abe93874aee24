//! `outboxd-demo`: outboxd at work, with nothing to set up, and a check that its promises hold.
//!
//! An [`application`] writes orders and their messages, two [`workers`] carry them, a [`consumer`] reads them, and the
//! [`ledger`] compares. Half-way one worker is killed. Everything started here is gone at the end, however it ends.

mod application;
mod broker;
mod consumer;
mod display;
mod ledger;
mod play;
mod postgres;
mod report;
mod stage;
mod workers;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use clap::Parser;
use outboxd::cli::Failure;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use consumer::Consumer;
use display::Display;
use ledger::{Ledger, Tally};
use play::Play;
use stage::{Leftovers, Stage};

/// Interrupted, as shells number it: 128 and SIGINT.
const INTERRUPTED: u8 = 130;

/// Watch outboxd work, without Kafka or a configured database.
///
/// Exit codes: 0 every promise held, 1 one was broken, 130 interrupted; the others are those of outboxd.
#[derive(Parser, Debug)]
#[command(name = "outboxd-demo", max_term_width = 100)]
pub struct DemoArgs {
    /// How many orders the application takes; each writes one to three messages, one in ten is rolled back
    #[arg(long, default_value_t = 5_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    orders: u32,

    /// Orders per second
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,

    /// Do not kill a worker half-way
    #[arg(long)]
    no_kill: bool,

    /// Use this Kafka instead of a mock inside the process; a topic is created and deleted again
    #[arg(long, value_name = "BROKERS")]
    kafka: Option<String>,

    /// Use this PostgreSQL instead of a throwaway one; a schema is created and dropped again
    /// (the roles outbox_producer, outbox_relay and outbox_operator stay)
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
}

fn main() -> ExitCode {
    let args = DemoArgs::parse();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_writer(std::io::stderr)
        .with_target(false)
        .init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&Failure::Broken(format!("cannot start: {error}"))),
    };
    let ended = runtime.block_on(demo(&args));
    // The Kafka client may still wait for a broker in a blocking call; the process need not.
    runtime.shutdown_background();
    match ended {
        Ok(code) => code,
        Err(failure) => fail(&failure),
    }
}

fn fail(failure: &Failure) -> ExitCode {
    display::say(&format!("outboxd-demo: {failure}"));
    ExitCode::from(failure.exit_code())
}

async fn demo(args: &DemoArgs) -> Result<ExitCode, Failure> {
    let interruption = Interruption::listen().map_err(|error| Failure::Broken(error.to_string()))?;
    let display = Arc::new(Display::new(args.orders as usize));
    let mut leftovers = Leftovers::default();
    let ended = tokio::select! {
        tally = perform(args, &display, &mut leftovers) => Some(tally),
        () = interruption.wait() => None,
    };
    match ended {
        None => display.freeze(),
        Some(_) => display.clear(),
    }
    leftovers.remove().await;
    let Some(tally) = ended.transpose()? else {
        display::say("outboxd-demo: interrupted");
        return Ok(ExitCode::from(INTERRUPTED));
    };
    print!("{}", report::render(&tally));
    match tally.broken() {
        broken if broken.is_empty() => Ok(ExitCode::SUCCESS),
        broken => Err(Failure::PromiseBroken(broken.join(", "))),
    }
}

/// Ctrl-C, SIGTERM, or the terminal is closed.
struct Interruption(JoinSet<()>);

impl Interruption {
    /// Listens from now on: a signal that comes before would leave things behind.
    fn listen() -> std::io::Result<Self> {
        let mut waiting = JoinSet::new();
        for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
            let mut signal = signal(kind)?;
            waiting.spawn(async move {
                signal.recv().await;
            });
        }
        Ok(Interruption(waiting))
    }

    async fn wait(mut self) {
        self.0.join_next().await;
    }
}

async fn perform(args: &DemoArgs, display: &Arc<Display>, leftovers: &mut Leftovers) -> Result<Tally, Failure> {
    let stage = Stage::set(args, display, leftovers).await?;
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let application = stage.application(args, &ledger);
    application.create_table(&stage.client).await?;
    let consumer = Consumer::start(&stage.broker, ledger.clone())?;
    let mut play = Play::new(args, display, &stage, ledger);
    play.start_workers().await?;
    let writers = application.start().await?;
    play.run(writers).await?;
    play.end().await;
    consumer.finish().await?;
    Ok(play.ledger().tally())
}
