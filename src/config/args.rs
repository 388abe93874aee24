//! The flags and their environment variables, as clap reads them. Durations and sizes stay text, so that `config` can list a
//! wrong one together with all other problems.

use clap::{Args, ValueEnum};

use crate::domain::retry::OnDead;
use crate::outbox::OnPublished;

use super::{DatabaseArgs, KafkaArgs, UiArgs};

/// How long finished rows are kept. `run` and `purge` have these flags.
#[derive(Args, Clone, Debug)]
pub struct RetentionArgs {
    /// How long published rows (keep) or days of history (archive) are kept
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

    /// How long inbox messages are kept once they are done, and recognized when they are delivered again
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

    /// Fail idempotent commands for good that no caller ended and whose lock ran out this long ago [default: never]
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

    /// What a dead letter does to its key: let it continue, or hold it until an operator decides
    #[arg(long, env = "OUTBOXD_ON_DEAD", value_enum, default_value = "continue")]
    pub on_dead: OnDead,

    /// Worker tasks: batches in flight at once
    #[arg(long, env = "OUTBOXD_TASKS", default_value = "3", value_name = "N")]
    pub tasks: String,

    /// Maximum number of rows in one batch
    #[arg(long, env = "OUTBOXD_BATCH_ROWS", default_value = "2000", value_name = "N")]
    pub batch_rows: String,

    /// Maximum size of the rows in memory, over all tasks; the Kafka client copies what is in flight
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

    /// How long the rows of a worker that died are kept from the others
    #[arg(long, env = "OUTBOXD_LEASE", default_value = "15s", value_name = "DURATION")]
    pub lease: String,

    /// Longest wait between two polls for new rows when idle
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

    #[command(flatten)]
    pub ui: UiArgs,

    /// This worker's name in status and logs [default: the host name]
    #[arg(long, env = "OUTBOXD_WORKER_NAME", value_name = "NAME")]
    pub worker_name: Option<String>,

    /// UID of the pod, from the downward API (metadata.uid): after a crash the restarted container takes over at once, without
    /// waiting for the lease
    #[arg(long, env = "OUTBOXD_POD_UID", value_name = "UID")]
    pub pod_uid: Option<String>,
}

/// The format of logs.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// Readable in a terminal, JSON otherwise
    Auto,
    Text,
    Json,
}
