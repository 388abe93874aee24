//! Flags and their environment variables, checked. Every problem with them is found before a port opens.

mod args;
mod check;
mod database;
mod filter;
mod kafka;
mod replay;
mod token;
mod ui;

use std::net::SocketAddr;
use std::time::Duration;

pub use args::{LogFormat, RetentionArgs, RunArgs};
pub use check::Check;
pub use database::DatabaseArgs;
pub use filter::{DeadFilterArgs, FilterArgs, HoldFilterArgs};
pub use kafka::KafkaArgs;
pub use replay::ReplayFilterArgs;
pub use token::TokenArgs;
pub use ui::{PublicUrl, Ui, UiArgs};

use check::parse_bytes;

use crate::domain::retention::Retention;
use crate::domain::retry::RetryPolicy;
use crate::kafka::{ClientSettings, OVERRUN};
use crate::outbox::{Database, OnPublished};
use crate::process::{Identity, host_name};
use crate::tasks::lease::LeaseSettings;
use crate::tasks::maintenance;
use crate::tasks::relay::{self, MARK_MARGIN};

/// What is wrong with the settings: one sentence for each problem, which says what to do.
#[derive(Debug, thiserror::Error)]
#[error("the configuration has {} problem(s):\n{}", .0.len(), .0.iter().map(|p| format!("  - {p}")).collect::<Vec<_>>().join("\n"))]
pub struct Problems(pub Vec<String>);

/// Settings that are valid, each and all together.
#[derive(Clone, Debug)]
pub struct Config {
    pub database: Database,
    pub schema: String,
    pub kafka: ClientSettings,
    pub migrate: bool,
    pub on_published: OnPublished,
    pub relay: relay::Settings,
    /// A larger message is not read and becomes a dead letter.
    pub message_bytes_max: usize,
    pub maintenance: maintenance::Settings,
    pub lease: LeaseSettings,
    pub poll_interval_max: Duration,
    pub shutdown_grace: Duration,
    pub listeners: Listeners,
}

/// Where this process listens.
#[derive(Clone, Debug)]
pub struct Listeners {
    /// Probes and metrics.
    pub http: SocketAddr,
    /// The page for the person on call. `None`: there is none.
    pub ui: Option<Ui>,
}

/// The schema allows headers this large, payload aside.
const MESSAGE_BYTES_MIN: usize = 64 << 10;

impl RetentionArgs {
    pub fn retention(&self, check: &mut Check) -> Retention {
        Retention {
            published: check.age("--retention", &self.retention),
            processed: check.age("--processed-retention", &self.processed_retention),
            inbox: check.age("--inbox-retention", &self.inbox_retention),
        }
    }
}

impl RunArgs {
    /// The checked settings, or every problem with them.
    pub fn validate(&self) -> Result<Config, Problems> {
        Check::run(|check| {
            let relay = self.relay(check);
            check_lease(check, relay.batch_deadline, relay.lease);
            self.config(check, relay)
        })
    }

    /// The same with a lease that may be too short, which `outboxd doctor` judges by itself.
    pub fn validate_but_lease(&self) -> Result<Config, Problems> {
        Check::run(|check| {
            let relay = self.relay(check);
            self.config(check, relay)
        })
    }

    fn config(&self, check: &mut Check, relay: relay::Settings) -> Option<Config> {
        let database = self.database.database(check);
        if self.migrate {
            self.database.check_migration(check);
        }
        let kafka = self.kafka.producer(check, &relay);
        // What may be missing comes last, so that every other problem has been listed.
        Some(Config {
            message_bytes_max: self.message_bytes_max(check, relay.in_flight_bytes),
            poll_interval_max: self.poll_interval_max(check),
            shutdown_grace: check.duration("--shutdown-grace", &self.shutdown_grace),
            maintenance: self.maintenance(check),
            listeners: self.listeners(check),
            schema: self.database.schema.clone(),
            migrate: self.migrate,
            on_published: self.on_published,
            lease: self.lease(relay.lease),
            relay,
            database: database?,
            kafka: kafka?,
        })
    }

    fn listeners(&self, check: &mut Check) -> Listeners {
        let http = check.address("--http-listen", &self.http_listen);
        Listeners {
            http,
            ui: self.ui.settings(check, &self.database, http),
        }
    }

    fn relay(&self, check: &mut Check) -> relay::Settings {
        let settings = relay::Settings {
            tasks: check.number("--tasks", &self.tasks, 1, 64),
            batch_rows: check.number("--batch-rows", &self.batch_rows, 1, 100_000),
            in_flight_bytes: check.bytes("--max-in-flight-bytes", &self.max_in_flight_bytes),
            batch_deadline: check.duration("--batch-deadline", &self.batch_deadline),
            lease: check.duration("--lease", &self.lease),
            policy: self.policy(check),
        };
        check.ensure(
            settings.batch_deadline >= Duration::from_millis(500),
            "--batch-deadline must be at least 500ms",
        );
        settings
    }

    fn poll_interval_max(&self, check: &mut Check) -> Duration {
        let interval = check.duration("--poll-interval-max", &self.poll_interval_max);
        check.ensure(
            interval >= Duration::from_millis(1),
            "--poll-interval-max must be at least 1ms",
        );
        interval
    }

    fn maintenance(&self, check: &mut Check) -> maintenance::Settings {
        let orphaned_after = self.end_orphaned_commands_after.as_deref();
        maintenance::Settings {
            on_published: self.on_published,
            retention: self.retention.retention(check),
            end_orphaned_after: orphaned_after.map(|age| check.age("--end-orphaned-commands-after", age)),
        }
    }

    fn lease(&self, duration: Duration) -> LeaseSettings {
        LeaseSettings {
            worker_name: self.worker_name.clone().unwrap_or_else(host_name),
            identity: Identity::of_this_process(self.pod_uid.clone().filter(|uid| !uid.trim().is_empty())),
            duration,
        }
    }

    /// A message must not be larger than what may be in memory at once.
    fn message_bytes_max(&self, check: &mut Check, in_flight: usize) -> usize {
        let Some(value) = &self.max_message_bytes else {
            return in_flight;
        };
        let bytes = parse_bytes(value).filter(|bytes| (MESSAGE_BYTES_MIN..=in_flight).contains(bytes));
        let problem = || {
            format!(
                "--max-message-bytes {value:?} is not a size from 64KiB to --max-in-flight-bytes {:?}; write e.g. 1MiB",
                self.max_in_flight_bytes
            )
        };
        check.ok(bytes.ok_or_else(problem)).unwrap_or(in_flight)
    }

    fn policy(&self, check: &mut Check) -> RetryPolicy {
        let policy = RetryPolicy {
            max_attempts: check.number("--max-attempts", &self.max_attempts, 1, 1000) as i16,
            backoff_min: check.duration("--retry-backoff-min", &self.retry_backoff_min),
            backoff_max: check.duration("--retry-backoff-max", &self.retry_backoff_max),
            on_dead: self.on_dead,
        };
        let (min, max) = (&self.retry_backoff_min, &self.retry_backoff_max);
        check.ensure(
            policy.backoff_min <= policy.backoff_max,
            format!("--retry-backoff-min {min} is longer than --retry-backoff-max {max}"),
        );
        policy
    }
}

impl Config {
    /// The shortest lease that the batch deadline permits.
    pub fn lease_min(&self) -> Duration {
        lease_min(self.relay.batch_deadline)
    }
}

/// A send must be over, and its mark written, before another worker can take the lease. The lease is longer by a quarter, so that
/// a renewal may be a fifth of it late.
fn lease_min(deadline: Duration) -> Duration {
    (deadline + OVERRUN + MARK_MARGIN).mul_f64(1.25)
}

fn check_lease(check: &mut Check, deadline: Duration, lease: Duration) {
    let needed = lease_min(deadline);
    check.ensure(
        lease >= needed,
        format!(
            "--lease {lease:?} is too short for --batch-deadline {deadline:?}: a batch could be published after its \
             lease has passed on; it must be at least {needed:?}"
        ),
    );
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use clap::Parser;
    use proptest::prelude::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        run: RunArgs,
    }

    pub fn validate(args: &[&str]) -> Result<Config, Problems> {
        let args = ["outboxd"].into_iter().chain(args.iter().copied());
        Command::try_parse_from(args).expect("parses").run.validate()
    }

    pub const ENOUGH: [&str; 4] = ["--database-url", "postgres://u@h/db", "--kafka-brokers", "k:9092"];

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
