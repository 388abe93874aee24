//! The list of all metrics. Each has its name, kind, labels, help and recording function in one place.
//!
//! A label is written with the number of its values: `[topic: SharedString; TOPICS_MAX + 1]`. So the list states the bound of every
//! metric, and a test holds a scrape to it.

use std::time::Duration;

use metrics::{Counter, Histogram, SharedString, counter, gauge, histogram};

use super::kit::{CONSUMERS_MAX, OPERATIONS_MAX};
use super::metric::{Certificate, ClientError, Kind, Metric, Repeat, Stream};
use super::topics::TOPICS_MAX;
use crate::domain::retention::Table;

/// Makes of each entry a constant with the metric's name, its place in the list of its section, and the function that records it.
macro_rules! metrics {
    ($($section:ident {$(
        $vis:vis fn $record:ident $([$($label:ident: $label_type:ty; $values:expr),+])? ($($params:tt)*) $(-> $handle:ty)?
            => $kind:ident $constant:ident $name:literal, $help:literal;
    )*})*) => {
        $($(pub const $constant: &str = $name;)*)*

        $(pub(super) const $section: &[Metric] = &[$(Metric {
            name: $constant,
            kind: Kind::$kind,
            labels: &[$($((stringify!($label), $values)),+)?],
            help: $help,
        }),*];)*

        $($(
            #[doc = $help]
            $vis fn $record($($($label: $label_type,)+)? $($params)*) $(-> $handle)? {
                record!($kind $name [$($($label)+)?] $($params)*)
            }
        )*)*
    };
}

/// Records one metric, by its kind.
macro_rules! record {
    (TopicCounter $name:literal [$($label:ident)*]) => { counter!($name $(, stringify!($label) => $label)*) };
    (Histogram $name:literal [$($label:ident)*]) => { histogram!($name $(, stringify!($label) => $label)*) };
    (Histogram $name:literal [$($label:ident)*] $took:ident: $type:ty) => {
        histogram!($name $(, stringify!($label) => $label)*).record($took)
    };
    (Counter $name:literal [$($label:ident)*]) => { counter!($name $(, stringify!($label) => $label)*).increment(1) };
    (Counter $name:literal [$($label:ident)*] $count:ident: $type:ty) => {
        counter!($name $(, stringify!($label) => $label)*).increment(amount($count))
    };
    (GaugeByChange $name:literal [$($label:ident)*] $change:ident: $type:ty) => {
        gauge!($name $(, stringify!($label) => $label)*).increment($change)
    };
    ($kind:ident $name:literal [$($label:ident)*] $is:ident: bool) => {
        gauge!($name $(, stringify!($label) => $label)*).set(f64::from(u8::from($is)))
    };
    ($kind:ident $name:literal [$($label:ident)*] $time:ident: Duration) => {
        gauge!($name $(, stringify!($label) => $label)*).set($time.as_secs_f64())
    };
    ($kind:ident $name:literal [$($label:ident)*] $value:ident: $type:ty) => {
        gauge!($name $(, stringify!($label) => $label)*).set($value as f64)
    };
}

/// What to add to a counter. Counts are never negative; if one were, it would count as 0.
fn amount(count: impl TryInto<u64>) -> u64 {
    count.try_into().unwrap_or(0)
}

metrics! {
    RELAY {
        pub fn rows_claimed(count: usize) => Counter ROWS_CLAIMED "outboxd_rows_claimed_total",
            "Rows read from the outbox to be published.";
        pub(super) fn rows_published[topic: SharedString; TOPICS_MAX + 1]() -> Counter
            => TopicCounter ROWS_PUBLISHED "outboxd_rows_published_total",
            "Rows acknowledged by Kafka.";
        pub(super) fn last_publish(time: Duration) => Gauge LAST_PUBLISH "outboxd_last_publish_timestamp_seconds",
            "When Kafka last acknowledged a row to this worker, in seconds since 1970; 0 before the first.";
        pub fn rows_marked(count: u64) => Counter ROWS_MARKED "outboxd_rows_marked_total",
            "Rows marked as published in PostgreSQL.";
        pub(super) fn rows_retried[topic: SharedString; TOPICS_MAX + 1]() -> Counter
            => TopicCounter ROWS_RETRIED "outboxd_rows_retried_total",
            "Rows that Kafka refused and that will be tried again.";
        pub fn rows_unacknowledged(count: usize) => Counter ROWS_UNACKNOWLEDGED "outboxd_rows_unacknowledged_total",
            "Rows returned unpublished through no fault of their own; no attempt was counted.";
        pub(super) fn rows_dead[topic: SharedString; TOPICS_MAX + 1]() -> Counter
            => TopicCounter ROWS_DEAD "outboxd_rows_dead_total",
            "Rows that became dead letters after their last attempt.";
        pub fn rows_fenced(count: usize) => Counter ROWS_FENCED "outboxd_rows_fenced_total",
            "Rows not marked because another worker had taken the lease.";
        pub fn rows_recovered(count: usize) => Counter ROWS_RECOVERED "outboxd_rows_recovered_total",
            "Unordered rows taken over from an expired lease.";
        pub(super) fn possible_duplicates_of[cause: Repeat; Repeat::COUNT](count: usize)
            => Counter POSSIBLE_DUPLICATES "outboxd_possible_duplicates_total",
            "Records sent that may repeat an earlier copy, by cause; each says so in a header.";
        pub fn rescan_found_rows(count: i64) => Counter RESCAN_FOUND_ROWS "outboxd_rescan_found_rows_total",
            "Rows that only the periodic rescan found. Anything but 0 is a bug: please report it.";
        pub fn published_rows_lost(count: usize) => Counter PUBLISHED_ROWS_LOST "outboxd_published_rows_lost_total",
            "Rows in Kafka that PostgreSQL has lost, in a failover or in a crash with asynchronous commits.";
        pub fn rows_purged[table: Table; Table::ALL.len()](count: i64) => Counter ROWS_PURGED "outboxd_rows_purged_total",
            "Rows removed by retention.";
        pub fn lanes_owned(count: usize) => Gauge LANES_OWNED "outboxd_lanes_owned",
            "Lanes this worker owns.";
        pub fn workers_live(count: usize) => Gauge WORKERS_LIVE "outboxd_workers_live",
            "Workers with a live lease.";
        pub fn lanes_recovered(count: usize) => Counter LANES_RECOVERED "outboxd_lanes_recovered_total",
            "Lanes taken over from a worker that died.";
        pub fn leases_lost() => Counter LEASES_LOST "outboxd_leases_lost_total",
            "Times that this worker lost its lease and registered again.";
        pub fn publisher_paused(is_paused: bool) => Gauge PUBLISHER_PAUSED "outboxd_publisher_paused",
            "1 while publishing is paused because Kafka does not answer.";
        pub fn pauses(count: usize) => Gauge PAUSES "outboxd_pauses",
            "What operators have paused and this worker keeps back: topics, keys, and everything as one.";
        pub(super) fn in_flight_rows(change: f64) => GaugeByChange IN_FLIGHT_ROWS "outboxd_in_flight_rows",
            "Rows being published now.";
        pub(super) fn in_flight_bytes(change: f64) => GaugeByChange IN_FLIGHT_BYTES "outboxd_in_flight_bytes",
            "Bytes being published now.";
        pub fn claim_took[stream: Stream; 2](took: Duration) => Histogram CLAIM_SECONDS "outboxd_claim_seconds",
            "Time to claim a batch.";
        pub fn publish_took[stream: Stream; 2](took: Duration) => Histogram PUBLISH_SECONDS "outboxd_publish_seconds",
            "Time from handing a batch to Kafka until its last answer.";
        pub fn mark_took[stream: Stream; 2](took: Duration) => Histogram MARK_SECONDS "outboxd_mark_seconds",
            "Time to mark a batch.";
        pub(super) fn end_to_end[topic: SharedString; TOPICS_MAX + 1]() -> Histogram
            => Histogram END_TO_END_SECONDS "outboxd_end_to_end_seconds",
            "Time from INSERT to mark of the oldest row of each topic in a batch, by the database's clock. Rows that were delayed, redriven or replayed are left out.";
        pub fn floor_age(age: Duration) => Gauge FLOOR_AGE_SECONDS "outboxd_floor_age_seconds",
            "How long scan floors have waited for an open transaction.";
        pub fn open_writer(pid: i32) => Gauge OPEN_WRITER_PID "outboxd_open_writer_pid",
            "Backend of the transaction that scan floors wait for; 0 if there is none, or if it is prepared.";
        pub fn sequence_misconfigured(is_faulty: bool) => Gauge SEQUENCE_MISCONFIGURED "outboxd_sequence_misconfigured",
            "1 while the id sequence has a cache or counts down: scan floors do not move, and rows have no order.";
        pub fn database_error() => Counter DATABASE_ERRORS "outboxd_database_errors_total",
            "Failed SQL statements.";
        pub(super) fn database_connections[state: &'static str; 3](count: usize)
            => Gauge DATABASE_CONNECTIONS "outboxd_database_connections",
            "Connections of this worker's pool that are used and idle, and tasks that are waiting for one, at the scrape.";
        pub(super) fn database_connections_max(count: usize) => Gauge DATABASE_CONNECTIONS_MAX "outboxd_database_connections_max",
            "How many connections this worker's pool opens at most.";
        pub(super) fn build_info[version: &'static str; 1, revision: &'static str; 1](one: u8)
            => Gauge BUILD_INFO "outboxd_build_info",
            "Always 1; the labels say what runs.";
        pub fn certificate_not_before[certificate: Certificate; Certificate::COUNT](time: Duration)
            => Gauge CERTIFICATE_NOT_BEFORE "outboxd_certificate_not_before_timestamp_seconds",
            "From when the certificate is valid whose end outboxd_certificate_not_after_timestamp_seconds shows, in seconds since 1970; 0 if there is none.";
        pub fn certificate_not_after[certificate: Certificate; Certificate::COUNT](time: Duration)
            => Gauge CERTIFICATE_NOT_AFTER "outboxd_certificate_not_after_timestamp_seconds",
            "When the certificate expires, in seconds since 1970; 0 if there is none. Of several servers the first to expire counts, and of several CAs in a file the last. Read about once an hour.";
    }

    KAFKA {
        pub(super) fn kafka_round_trip[quantile: &'static str; 2](time: Duration)
            => Gauge KAFKA_ROUND_TRIP_SECONDS "outboxd_kafka_round_trip_seconds",
            "Time from a request to the broker's answer, of the slowest broker, in the last interval in which batches were sent; 0 before the first.";
        pub(super) fn kafka_throttle(time: Duration) => Gauge KAFKA_THROTTLE_SECONDS "outboxd_kafka_throttle_seconds",
            "The longest time for which a broker made the client wait because of a quota, in the last interval in which batches were sent.";
        pub(super) fn kafka_queue_rows(count: u64) => Gauge KAFKA_QUEUE_ROWS "outboxd_kafka_queue_rows",
            "Rows in the client's queue and in flight to the brokers.";
        pub(super) fn kafka_queue_bytes(count: u64) => Gauge KAFKA_QUEUE_BYTES "outboxd_kafka_queue_bytes",
            "Bytes of rows in the client's queue and in flight to the brokers.";
        pub(super) fn kafka_request_timeouts(count: u64)
            => Counter KAFKA_REQUEST_TIMEOUTS "outboxd_kafka_request_timeouts_total",
            "Requests to brokers that were not answered in time.";
        pub(super) fn kafka_request_retries(count: u64)
            => Counter KAFKA_REQUEST_RETRIES "outboxd_kafka_request_retries_total",
            "Requests to brokers that the client repeated.";
        pub fn kafka_error[reason: ClientError; ClientError::COUNT]() => Counter KAFKA_ERRORS "outboxd_kafka_errors_total",
            "Errors that the Kafka clients of this worker reported. One outage causes many, of every client and for every broker.";
        pub fn producer_rebuilt() => Counter PRODUCER_REBUILDS "outboxd_producer_rebuilds_total",
            "Times that a Kafka producer was replaced: after a fatal error, without an answer, after 1,000 refused single records, or because its settings have changed.";
        pub fn admin_client_rebuilt() => Counter ADMIN_CLIENT_REBUILDS "outboxd_admin_client_rebuilds_total",
            "Times that the Kafka client for topic lookups was replaced because it got no answer or its settings have changed.";
    }

    OUTBOX {
        pub(super) fn backlog_sampled(is_sampled: bool) => Gauge BACKLOG_SAMPLED "outboxd_backlog_sampled",
            "1 if this worker samples the gauges of the whole outbox, such as outboxd_backlog_rows; others do not export them.";
        pub(super) fn backlog_rows[topic: String; TOPICS_MAX + 1](count: i64)
            => SampledGauge BACKLOG_ROWS "outboxd_backlog_rows",
            "Pending rows. The first 10,000 rows that may be pending and the last 2,500 are counted, and those between are estimated. Rows whose delay is over are counted up to 10,000.";
        pub(super) fn backlog_estimated(is_estimated: bool) => SampledGauge BACKLOG_ESTIMATED "outboxd_backlog_estimated",
            "1 if outboxd_backlog_rows is estimated from a sample of the table.";
        pub(super) fn oldest_pending[topic: String; TOPICS_MAX + 1](seconds: f64)
            => SampledGauge OLDEST_PENDING_SECONDS "outboxd_oldest_pending_seconds",
            "Age of the oldest pending row, from the end of its delay if it had one; while the backlog is estimated, of the oldest one in the sample.";
        pub(super) fn oldest_unheld[topic: String; TOPICS_MAX + 1](seconds: f64)
            => SampledGauge OLDEST_UNHELD_SECONDS "outboxd_oldest_unheld_seconds",
            "Age of the oldest pending row that neither a hold nor a pause keeps back, from the end of its delay if it had one. While a partition of a topic is paused, all rows of the topic count as held.";
        pub(super) fn delayed_rows(count: i64) => SampledGauge DELAYED_ROWS "outboxd_delayed_rows",
            "Delayed rows that are not due yet, counted up to 10,000.";
        pub(super) fn dead_rows[topic: String; TOPICS_MAX + 1](count: i64) => SampledGauge DEAD_ROWS "outboxd_dead_rows",
            "Dead letters waiting for a decision, the oldest 10,000.";
        pub(super) fn held_keys(count: i64) => SampledGauge HELD_KEYS "outboxd_held_keys",
            "Keys held back behind a refused row.";
        pub(super) fn parked_topics(count: i64) => SampledGauge PARKED_TOPICS "outboxd_parked_topics",
            "Topics that accept nothing now.";
        pub(super) fn paused_partitions(count: i64) => SampledGauge PAUSED_PARTITIONS "outboxd_paused_partitions",
            "Partitions that accept nothing now, of topics whose other partitions do.";
        pub(super) fn oldest_pause(seconds: f64) => SampledGauge OLDEST_PAUSE_SECONDS "outboxd_oldest_pause_seconds",
            "Age of the oldest pause of an operator; 0 if nothing is paused.";
        pub(super) fn vacuum_horizon_age(transactions: i64)
            => SampledGauge VACUUM_HORIZON_AGE_TRANSACTIONS "outboxd_vacuum_horizon_age_transactions",
            "Age in transactions of the oldest snapshot, which pins the vacuum horizon.";
        pub(super) fn dead_tuples(count: i64) => SampledGauge DEAD_TUPLES "outboxd_dead_tuples",
            "Dead tuples in outbox.message.";
    }

    KIT {
        pub(super) fn commands_in_state[operation: String; OPERATIONS_MAX + 1, state: String; 5](count: i64)
            => SampledGauge COMMANDS "outboxd_commands",
            "Idempotent commands that have not succeeded, by operation and state, counted up to 10,000 of each kind; 20 operations by name.";
        pub(super) fn commands_granted(count: u64) => Counter COMMANDS_GRANTED "outboxd_commands_granted_total",
            "Attempts of idempotent commands that were granted.";
        pub(super) fn command_replays(count: u64) => Counter COMMAND_REPLAYS "outboxd_command_replays_total",
            "Claims answered with a stored success.";
        pub(super) fn command_conflicts(count: u64) => Counter COMMAND_CONFLICTS "outboxd_command_conflicts_total",
            "Claims refused because their key was used for another request.";
        pub(super) fn command_takeovers(count: u64) => Counter COMMAND_TAKEOVERS "outboxd_command_takeovers_total",
            "Attempts of idempotent commands that were granted because the lock of the previous attempt had run out.";
        pub fn commands_orphaned(count: i64) => Counter COMMANDS_ORPHANED "outboxd_commands_orphaned_total",
            "Idempotent commands that no caller ended and that this worker failed for good.";
        pub(super) fn command_took[outcome: SharedString; 3]() -> Histogram
            => Histogram COMMAND_SECONDS "outboxd_command_seconds",
            "Time from the grant of an attempt to its end. The buckets and the count are exact; the sum takes each attempt for the middle of its bucket.";
        pub(super) fn consumer_duplicates[consumer: String; CONSUMERS_MAX + 1](count: u64)
            => Counter CONSUMER_DUPLICATES "outboxd_consumer_duplicates_total",
            "Messages that consumers received again and ignored.";
        pub(super) fn consumer_conflicts(count: u64) => Counter CONSUMER_CONFLICTS "outboxd_consumer_conflicts_total",
            "Message ids that consumers received again with another payload.";
        pub(super) fn inbox_takeovers(count: u64) => Counter INBOX_TAKEOVERS "outboxd_inbox_takeovers_total",
            "Inbox messages claimed again because a lease ran out.";
        pub(super) fn inbox_took[consumer: SharedString; CONSUMERS_MAX + 1, outcome: SharedString; 3]() -> Histogram
            => Histogram INBOX_SECONDS "outboxd_inbox_seconds",
            "Time from the receipt of an inbox message until it was done, discarded, or poison. A message whose transaction commits more than five seconds after it was finished is not counted.";
        pub(super) fn inbox_unfinished(count: i64) => SampledGauge INBOX_UNFINISHED_ROWS "outboxd_inbox_unfinished_rows",
            "Inbox messages that are not done, counted up to 10,000 of those that wait for one of their key and of the others.";
        pub(super) fn inbox_poison(count: i64) => SampledGauge INBOX_POISON_ROWS "outboxd_inbox_poison_rows",
            "Inbox messages that failed their last attempt and wait for an operator, counted up to 10,000.";
    }
}
