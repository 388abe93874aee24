//! Flags, their environment twins, and what they become. Every problem is found before a port opens.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfig;
use rdkafka::consumer::BaseConsumer;
use rdkafka::producer::BaseProducer;

use crate::identity::Identity;
use crate::janitor;
use crate::lanes::keeper::Lease;
use crate::outbox::{Database, OnPublished, Pooler, Retention};
use crate::publisher::{OVERRUN, properties};
use crate::relay::{self, MARK_MARGIN};
use crate::verdict::{OnDead, Policy};

/// What is wrong with the settings, each with what to do.
#[derive(Debug, thiserror::Error)]
#[error("the configuration has {} problem(s):\n{}", .0.len(), .0.iter().map(|p| format!("  - {p}")).collect::<Vec<_>>().join("\n"))]
pub struct Problems(pub Vec<String>);

impl Problems {
    /// Both, or what is wrong with either.
    pub fn of_both<A, B>(one: Result<A, Problems>, other: Result<B, Problems>) -> Result<(A, B), Problems> {
        match (one, other) {
            (Ok(one), Ok(other)) => Ok((one, other)),
            (Err(Problems(mut all)), Err(Problems(more))) => {
                all.extend(more);
                Err(Problems(all))
            }
            (Err(problems), Ok(_)) | (Ok(_), Err(problems)) => Err(problems),
        }
    }
}

/// How to reach the database. Shared by every subcommand.
#[derive(Args, Clone, Debug)]
pub struct DatabaseArgs {
    /// PostgreSQL connection string, e.g. postgres://relay:secret@db:5432/app?sslmode=verify-full
    #[arg(long, env = "OUTBOXD_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,

    /// CA certificate (PEM) the server must be signed by; implies TLS and verification
    #[arg(long, env = "OUTBOXD_DATABASE_TLS_CA", value_name = "FILE")]
    pub database_tls_ca: Option<PathBuf>,

    /// What stands between outboxd and PostgreSQL
    #[arg(long, env = "OUTBOXD_DATABASE_POOLER", value_enum, default_value = "none")]
    pub database_pooler: Pooler,

    /// PostgreSQL schema the outbox lives in
    #[arg(long, env = "OUTBOXD_SCHEMA", default_value = "outbox", value_name = "NAME")]
    pub schema: String,
}

/// How to reach Kafka.
#[derive(Args, Clone, Debug)]
pub struct KafkaArgs {
    /// Kafka brokers, comma-separated host:port
    #[arg(long, env = "OUTBOXD_KAFKA_BROKERS", value_name = "LIST")]
    pub kafka_brokers: Option<String>,

    /// Any librdkafka property as name=value; repeat the flag, or write one a line in the variable
    #[arg(
        long = "kafka-property",
        env = "OUTBOXD_KAFKA_PROPERTIES",
        hide_env_values = true,
        value_name = "NAME=VALUE",
        value_delimiter = '\n'
    )]
    pub kafka_properties: Vec<String>,
}

/// How long what is finished stays. Shared by `run` and `purge`.
#[derive(Args, Clone, Debug)]
pub struct RetentionArgs {
    /// How long published rows (keep) or days of history (archive) stay
    #[arg(long, env = "OUTBOXD_RETENTION", default_value = "7days", value_name = "DURATION")]
    pub retention: String,

    /// How long consumers remember a message: longer than any source can repeat it
    #[arg(
        long,
        env = "OUTBOXD_PROCESSED_RETENTION",
        default_value = "30days",
        value_name = "DURATION"
    )]
    pub processed_retention: String,

    /// How long inbox messages stay once they are done, and are known when they come again
    #[arg(
        long,
        env = "OUTBOXD_INBOX_RETENTION",
        default_value = "30days",
        value_name = "DURATION"
    )]
    pub inbox_retention: String,
}

/// The settings of `outboxd run`. A database URL and a broker list are enough.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub database: DatabaseArgs,

    #[command(flatten)]
    pub kafka: KafkaArgs,

    /// Create or upgrade the schema before starting
    #[arg(long, env = "OUTBOXD_MIGRATE")]
    pub migrate: bool,

    /// What happens to a row once Kafka has it
    #[arg(long, env = "OUTBOXD_ON_PUBLISHED", value_enum, default_value = "keep")]
    pub on_published: OnPublished,

    #[command(flatten)]
    pub retention: RetentionArgs,

    /// Fail idempotent commands for good whose lock ran out so long ago and that nobody ended [default: never]
    #[arg(long, env = "OUTBOXD_END_ORPHANED_COMMANDS_AFTER", value_name = "DURATION")]
    pub end_orphaned_commands_after: Option<String>,

    /// How often Kafka may refuse a row before it becomes a dead letter; outages never count
    #[arg(long, env = "OUTBOXD_MAX_ATTEMPTS", default_value = "5", value_name = "N")]
    pub max_attempts: String,

    /// First wait after a refusal; it doubles each time
    #[arg(
        long,
        env = "OUTBOXD_RETRY_BACKOFF_MIN",
        default_value = "1s",
        value_name = "DURATION"
    )]
    pub retry_backoff_min: String,

    /// Longest wait between two attempts
    #[arg(
        long,
        env = "OUTBOXD_RETRY_BACKOFF_MAX",
        default_value = "60s",
        value_name = "DURATION"
    )]
    pub retry_backoff_max: String,

    /// What a dead letter does to its key: let it go on, or hold it until an operator decides
    #[arg(long, env = "OUTBOXD_ON_DEAD", value_enum, default_value = "continue")]
    pub on_dead: OnDead,

    /// Worker tasks: batches in flight at once
    #[arg(long, env = "OUTBOXD_TASKS", default_value = "3", value_name = "N")]
    pub tasks: String,

    /// Most rows in one batch
    #[arg(long, env = "OUTBOXD_BATCH_ROWS", default_value = "2000", value_name = "N")]
    pub batch_rows: String,

    /// Most bytes of rows in memory, over all tasks; the Kafka client copies what is under way
    #[arg(
        long,
        env = "OUTBOXD_MAX_IN_FLIGHT_BYTES",
        default_value = "6MiB",
        value_name = "BYTES"
    )]
    pub max_in_flight_bytes: String,

    /// Largest message: a larger one is not read and becomes a dead letter [default: --max-in-flight-bytes]
    #[arg(long, env = "OUTBOXD_MAX_MESSAGE_BYTES", value_name = "BYTES")]
    pub max_message_bytes: Option<String>,

    /// How long Kafka has to acknowledge a batch
    #[arg(long, env = "OUTBOXD_BATCH_DEADLINE", default_value = "5s", value_name = "DURATION")]
    pub batch_deadline: String,

    /// How long a worker that died keeps its rows from the others
    #[arg(long, env = "OUTBOXD_LEASE", default_value = "15s", value_name = "DURATION")]
    pub lease: String,

    /// Longest wait between two looks for new rows when idle
    #[arg(
        long,
        env = "OUTBOXD_POLL_INTERVAL_MAX",
        default_value = "2500ms",
        value_name = "DURATION"
    )]
    pub poll_interval_max: String,

    /// How long a stop may take to finish what is in flight
    #[arg(long, env = "OUTBOXD_SHUTDOWN_GRACE", default_value = "25s", value_name = "DURATION")]
    pub shutdown_grace: String,

    /// Where /metrics, /livez and /readyz listen
    #[arg(
        long,
        env = "OUTBOXD_HTTP_LISTEN",
        default_value = "0.0.0.0:9090",
        value_name = "ADDRESS"
    )]
    pub http_listen: String,

    /// This worker's name in status and logs [default: the host name]
    #[arg(long, env = "OUTBOXD_WORKER_NAME", value_name = "NAME")]
    pub worker_name: Option<String>,

    /// UID of the pod, from the downward API (metadata.uid): after a crash the restarted container takes over at once, without
    /// waiting for the lease
    #[arg(long, env = "OUTBOXD_POD_UID", value_name = "UID")]
    pub pod_uid: Option<String>,
}

/// How logs look.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// Readable in a terminal, JSON otherwise
    Auto,
    Text,
    Json,
}

/// Settings that hold together.
#[derive(Clone, Debug)]
pub struct Config {
    pub database: Database,
    pub schema: String,
    pub kafka: ClientConfig,
    pub migrate: bool,
    pub on_published: OnPublished,
    pub relay: relay::Settings,
    /// A larger message is not read, and becomes a dead letter.
    pub message_bytes_max: usize,
    pub janitor: janitor::Settings,
    pub lease: Lease,
    pub poll_interval_max: Duration,
    pub shutdown_grace: Duration,
    pub http_listen: SocketAddr,
}

/// Longer than anybody means, and far from where sums of durations overflow.
const DURATION_MOST: Duration = Duration::from_secs(3650 * 24 * 3600);

/// The headers alone may be as large.
const MESSAGE_BYTES_MIN: usize = 64 << 10;

/// Collects problems instead of stopping at the first.
#[derive(Default)]
struct Check(Vec<String>);

impl Check {
    fn duration(&mut self, flag: &str, value: &str) -> Duration {
        let duration = humantime::parse_duration(value).unwrap_or_else(|error| {
            self.0.push(format!(
                "{flag} {value:?} is not a duration ({error}); write e.g. 500ms, 15s, 7days"
            ));
            Duration::ZERO
        });
        self.ensure(duration <= DURATION_MOST, || {
            format!("{flag} {value:?} is longer than ten years")
        });
        duration.min(DURATION_MOST)
    }

    /// How old something is before maintenance touches it.
    fn age(&mut self, flag: &str, value: &str) -> Duration {
        let age = self.duration(flag, value);
        self.ensure(age >= janitor::RETENTION_LEAST, || {
            format!("{flag} must be at least 1h")
        });
        age
    }

    fn number(&mut self, flag: &str, value: &str, least: usize, most: usize) -> usize {
        match value.parse() {
            Ok(number) if (least..=most).contains(&number) => number,
            _ => {
                self.0
                    .push(format!("{flag} {value:?} is not a whole number from {least} to {most}"));
                least
            }
        }
    }

    fn bytes(&mut self, flag: &str, value: &str) -> usize {
        let sane = |bytes: &usize| (1 << 20..=1 << 40).contains(bytes);
        parse_bytes(value).filter(sane).unwrap_or_else(|| {
            self.0.push(format!(
                "{flag} {value:?} is not a size from 1MiB to 1024GiB; write e.g. 6MiB"
            ));
            1 << 20
        })
    }

    /// Does a Kafka client accept these settings?
    fn accepted<C: FromClientConfig>(&mut self, config: &ClientConfig, own: &[(String, String)]) {
        self.0.extend(properties::problem::<C>(config, own));
    }

    fn ensure(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.0.push(problem());
        }
    }
}

fn parse_bytes(value: &str) -> Option<usize> {
    let split = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (number, unit) = value.split_at(split);
    let factor: usize = match unit.trim() {
        "" | "B" => 1,
        "KiB" | "K" | "k" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(factor)
}

impl DatabaseArgs {
    /// The database and schema, or every problem with them.
    pub fn validate(&self) -> Result<(Database, String), Problems> {
        self.validated(Check::default())
    }

    /// The same, for a migration.
    pub fn validate_to_migrate(&self) -> Result<(Database, String), Problems> {
        let mut check = Check::default();
        self.check_migration(&mut check);
        self.validated(check)
    }

    /// A migration holds a lock from statement to statement, so it needs a session of its own.
    fn check_migration(&self, check: &mut Check) {
        check.ensure(self.database_pooler == Pooler::None, || {
            "a migration does not pass a transaction pooler: run `outboxd migrate` with the server's own --database-url \
             and --database-pooler none"
                .to_owned()
        });
    }

    fn validated(&self, mut check: Check) -> Result<(Database, String), Problems> {
        match (self.checked(&mut check), check.0) {
            (Some(database), problems) if problems.is_empty() => Ok((database, self.schema.clone())),
            (_, problems) => Err(Problems(problems)),
        }
    }

    fn checked(&self, check: &mut Check) -> Option<Database> {
        let plain = !self.schema.is_empty()
            && self.schema.len() <= 63
            && self.schema.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && self
                .schema
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        check.ensure(plain, || {
            format!("--schema {:?} is not a plain lower-case identifier", self.schema)
        });
        if let Some(ca) = &self.database_tls_ca {
            check.ensure(ca.is_file(), || {
                format!("--database-tls-ca {} is not a file", ca.display())
            });
        }
        let Some(url) = &self.database_url else {
            check
                .0
                .push("--database-url (OUTBOXD_DATABASE_URL) is missing: where is PostgreSQL?".to_owned());
            return None;
        };
        match Database::parse(url, self.database_tls_ca.clone(), self.database_pooler) {
            Ok(database) => Some(database),
            Err(error) => {
                check.0.push(format!("--database-url cannot be used: {error}"));
                None
            }
        }
    }
}

impl KafkaArgs {
    /// The settings of a consumer, or every problem with them.
    pub fn consumer(&self) -> Result<ClientConfig, Problems> {
        let mut check = Check::default();
        let (brokers, own) = self.checked(&mut check);
        let config = properties::consumer_config(&brokers, &own);
        check.accepted::<BaseConsumer>(&config, &own);
        if check.0.is_empty() {
            Ok(config)
        } else {
            Err(Problems(check.0))
        }
    }

    /// The brokers, and the user's own properties.
    fn checked(&self, check: &mut Check) -> (String, Vec<(String, String)>) {
        let brokers = self.kafka_brokers.as_deref().unwrap_or("").trim();
        check.ensure(!brokers.is_empty(), || {
            "--kafka-brokers (OUTBOXD_KAFKA_BROKERS) is missing: where is Kafka?".to_owned()
        });
        let mut own = Vec::new();
        for property in self.kafka_properties.iter().filter(|p| !p.trim().is_empty()) {
            // The value may be a secret: only the name is ever repeated.
            let Some((name, value)) = property.trim().split_once('=') else {
                check.0.push("--kafka-property needs the form name=value".to_owned());
                continue;
            };
            match properties::refusal(name) {
                Some(reason) => check
                    .0
                    .push(format!("--kafka-property {name} is not yours to set: {reason}")),
                None => own.push((name.to_owned(), value.to_owned())),
            }
        }
        (brokers.to_owned(), own)
    }
}

impl RetentionArgs {
    /// The durations, or every problem with them.
    pub fn validate(&self) -> Result<Retention, Problems> {
        let mut check = Check::default();
        let retention = self.checked(&mut check);
        if check.0.is_empty() {
            Ok(retention)
        } else {
            Err(Problems(check.0))
        }
    }

    fn checked(&self, check: &mut Check) -> Retention {
        Retention {
            published: check.age("--retention", &self.retention),
            processed: check.age("--processed-retention", &self.processed_retention),
            inbox: check.age("--inbox-retention", &self.inbox_retention),
        }
    }
}

impl RunArgs {
    /// Settings that hold together, or every problem at once.
    pub fn validate(&self) -> Result<Config, Problems> {
        let mut check = Check::default();
        let database = self.database.checked(&mut check);
        if self.migrate {
            self.database.check_migration(&mut check);
        }
        let tasks = check.number("--tasks", &self.tasks, 1, 64);
        let batch_rows = check.number("--batch-rows", &self.batch_rows, 1, 100_000);
        let bytes = check.bytes("--max-in-flight-bytes", &self.max_in_flight_bytes);
        let message_bytes_max = self.message_bytes_max(&mut check, bytes);
        let deadline = check.duration("--batch-deadline", &self.batch_deadline);
        let lease = check.duration("--lease", &self.lease);
        let (brokers, own) = self.kafka.checked(&mut check);
        let kafka = properties::client_config(&brokers, deadline, batch_rows * tasks * 4, bytes * 4, &own);
        check.accepted::<BaseProducer>(&kafka, &own);
        let policy = self.policy(&mut check);
        check_lease(&mut check, deadline, lease);
        let poll_interval_max = check.duration("--poll-interval-max", &self.poll_interval_max);
        check.ensure(poll_interval_max >= Duration::from_millis(1), || {
            "--poll-interval-max must be at least 1ms".to_owned()
        });
        let shutdown_grace = check.duration("--shutdown-grace", &self.shutdown_grace);
        let retention = self.retention.checked(&mut check);
        let orphaned_after = self.end_orphaned_commands_after.as_deref();
        let end_orphaned_after = orphaned_after.map(|age| check.age("--end-orphaned-commands-after", age));
        let http_listen = self.http_listen.parse().unwrap_or_else(|_| {
            check.0.push(format!(
                "--http-listen {:?} is not an address; write e.g. 0.0.0.0:9090",
                self.http_listen
            ));
            SocketAddr::from(([0, 0, 0, 0], 0))
        });
        let (Some(database), true) = (database, check.0.is_empty()) else {
            return Err(Problems(check.0));
        };
        Ok(Config {
            database,
            schema: self.database.schema.clone(),
            kafka,
            migrate: self.migrate,
            on_published: self.on_published,
            relay: relay::Settings {
                tasks,
                batch_rows,
                in_flight_bytes: bytes,
                batch_deadline: deadline,
                lease,
                policy,
            },
            message_bytes_max,
            janitor: janitor::Settings {
                on_published: self.on_published,
                retention,
                end_orphaned_after,
            },
            lease: Lease {
                worker_name: self.worker_name.clone().unwrap_or_else(host_name),
                identity: Identity::of_this_process(self.pod_uid.clone().filter(|uid| !uid.trim().is_empty())),
                duration: lease,
            },
            poll_interval_max,
            shutdown_grace,
            http_listen,
        })
    }

    /// No more than may be in memory at once.
    fn message_bytes_max(&self, check: &mut Check, in_flight: usize) -> usize {
        let Some(value) = &self.max_message_bytes else {
            return in_flight;
        };
        let bytes = parse_bytes(value).filter(|bytes| (MESSAGE_BYTES_MIN..=in_flight).contains(bytes));
        bytes.unwrap_or_else(|| {
            check.0.push(format!(
                "--max-message-bytes {value:?} is not a size from 64KiB to --max-in-flight-bytes {:?}; write e.g. 1MiB",
                self.max_in_flight_bytes
            ));
            in_flight
        })
    }

    fn policy(&self, check: &mut Check) -> Policy {
        let policy = Policy {
            max_attempts: check.number("--max-attempts", &self.max_attempts, 1, 1000) as i16,
            backoff_min: check.duration("--retry-backoff-min", &self.retry_backoff_min),
            backoff_max: check.duration("--retry-backoff-max", &self.retry_backoff_max),
            on_dead: self.on_dead,
        };
        check.ensure(policy.backoff_min <= policy.backoff_max, || {
            format!(
                "--retry-backoff-min {} is longer than --retry-backoff-max {}",
                self.retry_backoff_min, self.retry_backoff_max
            )
        });
        policy
    }
}

/// A send must be over, and its mark written, before the lease can pass to somebody else.
fn check_lease(check: &mut Check, deadline: Duration, lease: Duration) {
    check.ensure(deadline >= Duration::from_millis(500), || {
        "--batch-deadline must be at least 500ms".to_owned()
    });
    // A renewal may come a fifth of the lease late and still leave enough.
    let needed = (deadline + OVERRUN + MARK_MARGIN).mul_f64(1.25);
    check.ensure(lease >= needed, || {
        format!(
            "--lease {lease:?} is too short for --batch-deadline {deadline:?}: a batch could be published after its \
             lease has passed on; it must be at least {needed:?}"
        )
    });
}

/// Connections the daemon needs at once: its tasks, one each for lease, horizon and janitor, and what retries holds.
pub fn pool_size(config: &Config) -> usize {
    config.relay.tasks + 3 + crate::hold::CONNECTIONS
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "outboxd".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use proptest::prelude::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        run: RunArgs,
    }

    fn validate(args: &[&str]) -> Result<Config, Problems> {
        let args = ["outboxd"].into_iter().chain(args.iter().copied());
        Command::try_parse_from(args).expect("parses").run.validate()
    }

    const ENOUGH: [&str; 4] = ["--database-url", "postgres://u@h/db", "--kafka-brokers", "k:9092"];

    #[test]
    fn a_database_and_brokers_are_enough() {
        let config = validate(&ENOUGH).expect("valid");
        assert_eq!(config.relay.policy.max_attempts, 5);
    }

    #[test]
    fn every_problem_is_listed_at_once() {
        let problems = validate(&[
            "--lease",
            "soon",
            "--tasks",
            "0",
            "--kafka-property",
            "acks=1",
            "--kafka-property",
            "no.such.thing=1",
            "--max-in-flight-bytes",
            "much",
            "--max-message-bytes",
            "2MiB",
            "--schema",
            "Bad Name",
            "--http-listen",
            "here",
        ])
        .expect_err("invalid");
        for word in [
            "database-url",
            "kafka-brokers",
            "--lease",
            "--tasks",
            "acks",
            "no.such.thing",
            "--max-in-flight-bytes",
            "--max-message-bytes",
            "--schema",
            "--http-listen",
        ] {
            assert!(
                problems.0.iter().any(|p| p.contains(word)),
                "{word} missing in {:#?}",
                problems.0
            );
        }
    }

    #[test]
    fn a_lease_that_a_batch_could_outlive_is_refused() {
        let args: Vec<&str> = ENOUGH
            .into_iter()
            .chain(["--lease", "8s", "--batch-deadline", "6s"])
            .collect();
        let problems = validate(&args).expect_err("contradiction");
        assert!(problems.0[0].contains("--lease"), "{:?}", problems.0);
    }

    #[test]
    fn a_migration_through_a_transaction_pooler_is_refused() {
        let pooled = [&ENOUGH[..], &["--database-pooler", "transaction"]].concat();
        validate(&pooled).expect("the relay itself passes it");
        let problems = validate(&[&pooled[..], &["--migrate"]].concat()).expect_err("no session");
        assert!(problems.0[0].contains("outboxd migrate"), "{:?}", problems.0);
    }

    #[test]
    fn a_message_may_be_as_large_as_what_is_in_memory_at_once_and_no_larger() {
        let most = |args: &[&str]| validate(&[&ENOUGH[..], args].concat()).map(|config| config.message_bytes_max);
        assert_eq!(most(&[]).expect("valid"), crate::outbox::MESSAGE_BYTES_MAX);
        assert_eq!(most(&["--max-in-flight-bytes", "9MiB"]).expect("valid"), 9 << 20);
        assert_eq!(most(&["--max-message-bytes", "6MiB"]).expect("valid"), 6 << 20);
        assert_eq!(most(&["--max-message-bytes", "64KiB"]).expect("valid"), 64 << 10);
        for refused in ["6291457", "65535", "much", "0"] {
            let problems = most(&["--max-message-bytes", refused]).expect_err(refused);
            assert!(problems.0[0].contains("--max-message-bytes"), "{:?}", problems.0);
        }
    }

    #[test]
    fn a_secret_is_not_repeated() {
        let args: Vec<&str> = ENOUGH
            .into_iter()
            .chain(["--kafka-property", "sasl.pasword=s3cret"])
            .collect();
        let problems = validate(&args).expect_err("misspelt");
        assert!(!problems.to_string().contains("s3cret"), "{problems}");
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_bytes("16MiB"), Some(16 << 20));
        assert_eq!(parse_bytes("100"), Some(100));
        assert_eq!(parse_bytes("1 parsec"), None);
    }

    proptest! {
        #[test]
        fn no_setting_makes_it_panic(lease: String, rows: String, bytes: String, schema: String, property: String) {
            let flag = |name: &str, value: &str| format!("--{name}={value}");
            let args = [flag("lease", &lease), flag("batch-rows", &rows), flag("max-in-flight-bytes", &bytes),
                flag("schema", &schema), flag("kafka-property", &property)];
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            prop_assert!(validate(&args).is_err(), "the database is missing");
        }

        #[test]
        fn settings_of_any_size_are_refused_or_hold_together(
            durations in prop::collection::vec("[0-9]{1,20}(ms|s|h|days|years)", 6),
            numbers in prop::collection::vec("[0-9]{1,20}", 3),
            bytes in "[0-9]{1,20}(|K|MiB|G)",
        ) {
            let names = ["lease", "batch-deadline", "retention", "retry-backoff-min", "retry-backoff-max", "shutdown-grace",
                "tasks", "batch-rows", "max-attempts", "max-in-flight-bytes"];
            let values = durations.iter().chain(&numbers).chain([&bytes]);
            let flags: Vec<String> = names.iter().zip(values).map(|(name, value)| format!("--{name}={value}")).collect();
            let args: Vec<&str> = ENOUGH.into_iter().chain(flags.iter().map(String::as_str)).collect();
            if let Ok(config) = validate(&args) {
                prop_assert!(config.relay.lease_needed() < config.relay.lease);
            }
        }

        #[test]
        fn no_part_of_a_password_is_repeated(around in "[ -~]{0,8}", port in "[ -~]{0,6}", rest in "[ -~]{0,12}") {
            let url = format!("postgres://u:s3cret{around}@h:{port}/db{rest}");
            let words = format!("host=h password=s3cret{around} port={port} {rest}");
            for given in [url, words] {
                let flag = format!("--database-url={given}");
                if let Err(problems) = validate(&[&flag, "--kafka-brokers", "k:9092"]) {
                    prop_assert!(!problems.to_string().contains("s3cret"), "{}", problems);
                }
            }
        }
    }
}
