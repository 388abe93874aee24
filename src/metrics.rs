//! The list of all metrics. Each has its name, kind, help and recording function in one place.

mod samples;

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::domain::retention::Table;
pub use samples::{OPERATIONS_MAX, backlog, commands, counted, inbox, not_sampled};

/// The value of the label `stream`: whether a batch was of keyed rows, which are ordered, or of unordered rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Ordered,
    Unordered,
}

impl Stream {
    fn label(self) -> &'static str {
        match self {
            Stream::Ordered => "ordered",
            Stream::Unordered => "unordered",
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    /// One series for each table that retention removes rows of.
    CounterByTable,
    /// One series for each consumer that the database counts by name, and one for all others.
    CounterByConsumer,
    Gauge,
    /// A gauge that is changed by a difference, not set.
    GaugeByChange,
    /// A gauge of the whole outbox. Only the worker that samples it exports it.
    SampledGauge,
    /// One series for each [`Stream`].
    Histogram,
}

struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
}

impl Metric {
    /// The unit, which is the last word of the name.
    fn unit(&self) -> Unit {
        match self.name.rsplit('_').next() {
            Some("seconds") => Unit::Seconds,
            Some("bytes") => Unit::Bytes,
            _ => Unit::Count,
        }
    }
}

/// The label of all consumers that the database does not count by name.
const OTHER_CONSUMERS: &str = "other";

/// Makes three things of each entry: a constant with the metric's name, its place in `METRICS`, and the function that records it.
macro_rules! metrics {
    ($($vis:vis fn $record:ident($($params:tt)*) => $kind:ident $constant:ident $name:literal, $help:literal;)*) => {
        $(pub const $constant: &str = $name;)*

        /// All metrics. A test scrapes a worker and expects every one of them.
        const METRICS: &[Metric] = &[$(Metric { name: $constant, kind: Kind::$kind, help: $help }),*];

        $(
            #[doc = $help]
            $vis fn $record($($params)*) {
                record!($kind $name, $($params)*);
            }
        )*
    };
}

/// Records one metric, by its kind.
macro_rules! record {
    (Counter $name:literal,) => { counter!($name).increment(1) };
    (Counter $name:literal, $count:ident: $type:ty) => { counter!($name).increment(amount($count)) };
    (CounterByTable $name:literal, $table:ident: $label:ty, $count:ident: $type:ty) => {
        counter!($name, "table" => $table.name()).increment(amount($count))
    };
    (CounterByConsumer $name:literal, $consumer:ident: $label:ty, $count:ident: $type:ty) => {
        counter!($name, "consumer" => $consumer).increment(amount($count))
    };
    (GaugeByChange $name:literal, $change:ident: $type:ty) => { gauge!($name).increment($change) };
    ($kind:ident $name:literal, $operation:ident: $label:ty, $state:ident: $other:ty, $value:ident: $type:ty) => {
        gauge!($name, "operation" => $operation, "state" => $state).set($value as f64)
    };
    (Histogram $name:literal, $stream:ident: $label:ty, $took:ident: $type:ty) => {
        histogram!($name, "stream" => $stream.label()).record($took)
    };
    ($kind:ident $name:literal, $is:ident: bool) => { gauge!($name).set(f64::from(u8::from($is))) };
    ($kind:ident $name:literal, $age:ident: Duration) => { gauge!($name).set($age.as_secs_f64()) };
    ($kind:ident $name:literal, $value:ident: $type:ty) => { gauge!($name).set($value as f64) };
}

/// What to add to a counter. Counts are never negative; if one were, it would count as 0.
fn amount(count: impl TryInto<u64>) -> u64 {
    count.try_into().unwrap_or(0)
}

metrics! {
    pub fn rows_claimed(count: usize) => Counter ROWS_CLAIMED "outboxd_rows_claimed_total",
        "Rows read from the outbox to be published.";
    pub fn rows_published(count: usize) => Counter ROWS_PUBLISHED "outboxd_rows_published_total",
        "Rows acknowledged by Kafka.";
    pub fn rows_marked(count: u64) => Counter ROWS_MARKED "outboxd_rows_marked_total",
        "Rows marked as published in PostgreSQL.";
    fn rows_retried(count: usize) => Counter ROWS_RETRIED "outboxd_rows_retried_total",
        "Rows that Kafka refused and that will be tried again.";
    pub fn rows_unacknowledged(count: usize) => Counter ROWS_UNACKNOWLEDGED "outboxd_rows_unacknowledged_total",
        "Rows returned unpublished through no fault of their own; no attempt was counted.";
    fn rows_dead(count: usize) => Counter ROWS_DEAD "outboxd_rows_dead_total",
        "Rows that became dead letters after their last attempt.";
    pub fn rows_fenced(count: usize) => Counter ROWS_FENCED "outboxd_rows_fenced_total",
        "Rows not marked because another worker had taken the lease.";
    pub fn rows_recovered(count: usize) => Counter ROWS_RECOVERED "outboxd_rows_recovered_total",
        "Unordered rows taken over from an expired lease.";
    pub fn possible_duplicates(count: usize) => Counter POSSIBLE_DUPLICATES "outboxd_possible_duplicates_total",
        "Records sent that may repeat an earlier copy; each says so in a header.";
    pub fn rescan_found_rows(count: i64) => Counter RESCAN_FOUND_ROWS "outboxd_rescan_found_rows_total",
        "Rows that only the periodic rescan found. Anything but 0 is a bug: please report it.";
    pub fn published_rows_lost(count: usize) => Counter PUBLISHED_ROWS_LOST "outboxd_published_rows_lost_total",
        "Rows in Kafka that PostgreSQL has lost, in a failover or in a crash with asynchronous commits.";
    pub fn rows_purged(table: Table, count: i64) => CounterByTable ROWS_PURGED "outboxd_rows_purged_total",
        "Rows removed by retention.";
    fn consumer_duplicates(consumer: String, count: u64) => CounterByConsumer CONSUMER_DUPLICATES "outboxd_consumer_duplicates_total",
        "Messages that consumers received again and ignored, since PostgreSQL last crashed or failed over; 32 consumers by name.";
    fn consumer_conflicts(count: u64) => Counter CONSUMER_CONFLICTS "outboxd_consumer_conflicts_total",
        "Message ids that consumers received again with another payload, since PostgreSQL last crashed or failed over.";
    fn inbox_takeovers(count: u64) => Counter INBOX_TAKEOVERS "outboxd_inbox_takeovers_total",
        "Inbox messages claimed again because a lease ran out, since PostgreSQL last crashed or failed over.";
    pub fn lanes_recovered(count: usize) => Counter LANES_RECOVERED "outboxd_lanes_recovered_total",
        "Lanes taken over from a worker that died.";
    pub fn leases_lost() => Counter LEASES_LOST "outboxd_leases_lost_total",
        "Times that this worker lost its lease and registered again.";
    pub fn producer_rebuilt() => Counter PRODUCER_REBUILDS "outboxd_producer_rebuilds_total",
        "Times that a Kafka producer was replaced: after a fatal error, without an answer, or after 1,000 refused single records.";
    pub fn admin_client_rebuilt() => Counter ADMIN_CLIENT_REBUILDS "outboxd_admin_client_rebuilds_total",
        "Times that the Kafka client for topic lookups was replaced because it got no answer.";
    pub fn database_error() => Counter DATABASE_ERRORS "outboxd_database_errors_total",
        "Failed SQL statements.";
    pub fn lanes_owned(count: usize) => Gauge LANES_OWNED "outboxd_lanes_owned",
        "Lanes this worker owns.";
    pub fn workers_live(count: usize) => Gauge WORKERS_LIVE "outboxd_workers_live",
        "Workers with a live lease.";
    pub fn publisher_paused(is_paused: bool) => Gauge PUBLISHER_PAUSED "outboxd_publisher_paused",
        "1 while publishing is paused because Kafka does not answer.";
    pub fn pauses(count: usize) => Gauge PAUSES "outboxd_pauses",
        "What operators have paused and this worker keeps back: topics, keys, and everything as one.";
    fn in_flight_rows(change: f64) => GaugeByChange IN_FLIGHT_ROWS "outboxd_in_flight_rows",
        "Rows being published now.";
    fn in_flight_bytes(change: f64) => GaugeByChange IN_FLIGHT_BYTES "outboxd_in_flight_bytes",
        "Bytes being published now.";
    pub fn floor_age(age: Duration) => Gauge FLOOR_AGE_SECONDS "outboxd_floor_age_seconds",
        "How long scan floors have waited for an open transaction.";
    pub fn open_writer(pid: i32) => Gauge OPEN_WRITER_PID "outboxd_open_writer_pid",
        "Backend of the transaction that scan floors wait for; 0 if there is none, or if it is prepared.";
    pub fn sequence_misconfigured(is_faulty: bool) => Gauge SEQUENCE_MISCONFIGURED "outboxd_sequence_misconfigured",
        "1 while the id sequence has a cache or counts down: scan floors do not move, and rows have no order.";
    fn backlog_sampled(is_sampled: bool) => Gauge BACKLOG_SAMPLED "outboxd_backlog_sampled",
        "1 if this worker samples the gauges of the whole outbox, such as outboxd_backlog_rows; others do not export them.";
    fn backlog_rows(count: i64) => SampledGauge BACKLOG_ROWS "outboxd_backlog_rows",
        "Pending rows, counted up to a bound.";
    fn backlog_capped(is_capped: bool) => SampledGauge BACKLOG_CAPPED "outboxd_backlog_capped",
        "1 if there are more pending rows than were counted.";
    fn oldest_pending(seconds: f64) => SampledGauge OLDEST_PENDING_SECONDS "outboxd_oldest_pending_seconds",
        "Age of the oldest pending row.";
    fn delayed_rows(count: i64) => SampledGauge DELAYED_ROWS "outboxd_delayed_rows",
        "Delayed rows that are not due yet.";
    fn dead_rows(count: i64) => SampledGauge DEAD_ROWS "outboxd_dead_rows",
        "Dead letters waiting for a decision.";
    fn held_keys(count: i64) => SampledGauge HELD_KEYS "outboxd_held_keys",
        "Keys held back behind a refused row.";
    fn parked_topics(count: i64) => SampledGauge PARKED_TOPICS "outboxd_parked_topics",
        "Topics that accept nothing now.";
    fn paused_partitions(count: i64) => SampledGauge PAUSED_PARTITIONS "outboxd_paused_partitions",
        "Partitions that accept nothing now, of topics whose other partitions do.";
    fn inbox_unfinished(count: i64) => SampledGauge INBOX_UNFINISHED_ROWS "outboxd_inbox_unfinished_rows",
        "Inbox messages that are not done, counted up to a bound.";
    fn inbox_poison(count: i64) => SampledGauge INBOX_POISON_ROWS "outboxd_inbox_poison_rows",
        "Inbox messages that failed their last attempt and wait for an operator.";
    fn vacuum_horizon_age(transactions: i64) => SampledGauge VACUUM_HORIZON_AGE_TRANSACTIONS "outboxd_vacuum_horizon_age_transactions",
        "Age in transactions of the oldest snapshot, which pins the vacuum horizon.";
    fn dead_tuples(count: i64) => SampledGauge DEAD_TUPLES "outboxd_dead_tuples",
        "Dead tuples in outbox.message.";
    pub fn claim_took(stream: Stream, took: Duration) => Histogram CLAIM_SECONDS "outboxd_claim_seconds",
        "Time to claim a batch.";
    pub fn publish_took(stream: Stream, took: Duration) => Histogram PUBLISH_SECONDS "outboxd_publish_seconds",
        "Time from handing a batch to Kafka until its last answer.";
    pub fn mark_took(stream: Stream, took: Duration) => Histogram MARK_SECONDS "outboxd_mark_seconds",
        "Time to mark a batch.";
    pub fn end_to_end(stream: Stream, age: Duration) => Histogram END_TO_END_SECONDS "outboxd_end_to_end_seconds",
        "Time from INSERT to mark of the oldest row of each batch, by the database's clock.";
    fn commands_in_state(operation: String, state: String, count: i64) => SampledGauge COMMANDS "outboxd_commands",
        "Idempotent commands that have not succeeded, by operation and state; 20 operations by name.";
    fn commands_granted(count: u64) => Counter COMMANDS_GRANTED "outboxd_commands_granted_total",
        "Attempts of idempotent commands that were granted.";
    fn command_replays(count: u64) => Counter COMMAND_REPLAYS "outboxd_command_replays_total",
        "Claims answered with a stored success.";
    fn command_conflicts(count: u64) => Counter COMMAND_CONFLICTS "outboxd_command_conflicts_total",
        "Claims refused because their key was used for another request.";
    fn command_takeovers(count: u64) => Counter COMMAND_TAKEOVERS "outboxd_command_takeovers_total",
        "Attempts of idempotent commands that were granted because the lock of the previous attempt had run out.";
    pub fn commands_orphaned(count: i64) => Counter COMMANDS_ORPHANED "outboxd_commands_orphaned_total",
        "Idempotent commands that no caller ended and that this worker failed for good.";
}

const BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// Installs the recorder and registers every metric of this worker, so that a scrape shows zeros rather than gaps.
pub fn install() -> Result<PrometheusHandle, String> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), BUCKETS)
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|error| error.to_string())?;
    METRICS.iter().for_each(register);
    Ok(handle)
}

fn register(metric: &Metric) {
    let Metric { name, kind, help } = *metric;
    let unit = metric.unit();
    match kind {
        Kind::Counter => {
            describe_counter!(name, unit, help);
            counter!(name).absolute(0);
        }
        Kind::CounterByTable => {
            describe_counter!(name, unit, help);
            for table in Table::ALL {
                counter!(name, "table" => table.name()).absolute(0);
            }
        }
        Kind::CounterByConsumer => {
            describe_counter!(name, unit, help);
            counter!(name, "consumer" => OTHER_CONSUMERS).absolute(0);
        }
        Kind::Gauge | Kind::GaugeByChange => {
            describe_gauge!(name, unit, help);
            gauge!(name).set(0.0);
        }
        Kind::SampledGauge => {}
        Kind::Histogram => {
            describe_histogram!(name, unit, help);
            for stream in [Stream::Ordered, Stream::Unordered] {
                // Registers the series. Without it a histogram is not exported before its first sample.
                drop(histogram!(name, "stream" => stream.label()));
            }
        }
    }
}

/// The answer to a scrape.
pub fn render(handle: &PrometheusHandle) -> String {
    handle.run_upkeep();
    let mut text = handle.render();
    text.push_str(&samples::render());
    text
}

/// The names of all metrics.
pub fn names() -> impl Iterator<Item = &'static str> {
    METRICS.iter().map(|metric| metric.name)
}

/// The names of the metrics that only the worker that samples exports.
pub fn sampled() -> impl Iterator<Item = &'static str> {
    sampled_gauges().map(|metric| metric.name)
}

fn sampled_gauges() -> impl Iterator<Item = &'static Metric> {
    METRICS
        .iter()
        .filter(|metric| matches!(metric.kind, Kind::SampledGauge))
}

pub fn rows_refused(dead: usize, retried: usize) {
    rows_dead(dead);
    rows_retried(retried);
}

/// Counts a batch as in flight for as long as it lives.
pub struct InFlight {
    rows: f64,
    bytes: f64,
}

impl InFlight {
    pub fn new(rows: usize, bytes: usize) -> Self {
        let batch = InFlight {
            rows: rows as f64,
            bytes: bytes as f64,
        };
        in_flight_rows(batch.rows);
        in_flight_bytes(batch.bytes);
        batch
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        in_flight_rows(-self.rows);
        in_flight_bytes(-self.bytes);
    }
}
