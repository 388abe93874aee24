//! Every metric: name, help, buckets, once. A leaf anyone may call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::outbox::{Commands, Counted, InboxSample, Table};

/// Which way a batch went: the only label that is not a plain state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Lanes,
    Keyless,
}

impl Stream {
    fn label(self) -> &'static str {
        match self {
            Stream::Lanes => "lanes",
            Stream::Keyless => "keyless",
        }
    }
}

enum Kind {
    Counter,
    /// One series for each table that retention removes rows of.
    CounterByTable,
    /// One series for each consumer that the database counts by name, and one for all others.
    CounterByConsumer,
    Gauge,
    /// Of the whole outbox, sampled by one worker: no other has it.
    SampledGauge,
    Histogram,
}

use Kind::{Counter, CounterByConsumer, CounterByTable, Gauge, Histogram, SampledGauge};

/// The consumer of duplicates that the database does not count by name.
const OTHER_CONSUMERS: &str = "other";

/// The whole list: a test scrapes and finds every one of them.
const METRICS: &[(&str, Kind, Unit, &str)] = &[
    (
        "outboxd_rows_claimed_total",
        Counter,
        Unit::Count,
        "Rows read from the outbox to be published.",
    ),
    (
        "outboxd_rows_published_total",
        Counter,
        Unit::Count,
        "Rows acknowledged by Kafka.",
    ),
    (
        "outboxd_rows_marked_total",
        Counter,
        Unit::Count,
        "Rows marked as published in PostgreSQL.",
    ),
    (
        "outboxd_rows_retried_total",
        Counter,
        Unit::Count,
        "Rows Kafka refused that will be tried again.",
    ),
    (
        "outboxd_rows_deferred_total",
        Counter,
        Unit::Count,
        "Rows not published for no fault of theirs; no attempt counted.",
    ),
    (
        "outboxd_rows_dead_total",
        Counter,
        Unit::Count,
        "Rows given up after their last attempt.",
    ),
    (
        "outboxd_rows_fenced_total",
        Counter,
        Unit::Count,
        "Marks refused because the lease had gone to another worker.",
    ),
    (
        "outboxd_rows_recovered_total",
        Counter,
        Unit::Count,
        "Rows without a key taken over from an expired lease.",
    ),
    (
        "outboxd_possible_duplicates_total",
        Counter,
        Unit::Count,
        "Records sent that may repeat an earlier copy; each carries a header saying so.",
    ),
    (
        "outboxd_rows_forgotten_total",
        Counter,
        Unit::Count,
        "Rows only the safety net found. Anything but 0 is a bug: please report it.",
    ),
    (
        "outboxd_published_rows_lost_total",
        Counter,
        Unit::Count,
        "Rows in Kafka that PostgreSQL has lost, in a failover or in a crash with asynchronous commits.",
    ),
    (
        "outboxd_rows_purged_total",
        CounterByTable,
        Unit::Count,
        "Rows removed by retention.",
    ),
    (
        "outboxd_consumer_duplicates_total",
        CounterByConsumer,
        Unit::Count,
        "Messages consumers met again and ignored, since PostgreSQL last crashed or failed over; 32 consumers by name.",
    ),
    (
        "outboxd_consumer_conflicts_total",
        Counter,
        Unit::Count,
        "Message ids consumers met again with another payload, since PostgreSQL last crashed or failed over.",
    ),
    (
        "outboxd_inbox_takeovers_total",
        Counter,
        Unit::Count,
        "Inbox messages claimed again because a lease ran out, since PostgreSQL last crashed or failed over.",
    ),
    (
        "outboxd_lanes_recovered_total",
        Counter,
        Unit::Count,
        "Lanes taken over from a worker that died.",
    ),
    (
        "outboxd_terms_lost_total",
        Counter,
        Unit::Count,
        "Times this worker lost its lease and registered anew.",
    ),
    (
        "outboxd_producer_rebuilds_total",
        Counter,
        Unit::Count,
        "Times a Kafka producer was replaced: after a fatal error, no answer, or a thousand refusals of single records.",
    ),
    (
        "outboxd_lookup_client_rebuilds_total",
        Counter,
        Unit::Count,
        "Times the Kafka client that looks topics up was replaced because it heard nothing.",
    ),
    (
        "outboxd_database_errors_total",
        Counter,
        Unit::Count,
        "Statements that failed.",
    ),
    ("outboxd_lanes_owned", Gauge, Unit::Count, "Lanes this worker owns."),
    ("outboxd_workers_live", Gauge, Unit::Count, "Workers with a live lease."),
    (
        "outboxd_publisher_paused",
        Gauge,
        Unit::Count,
        "1 while Kafka does not answer and publishing waits.",
    ),
    (
        "outboxd_in_flight_rows",
        Gauge,
        Unit::Count,
        "Rows being published now.",
    ),
    (
        "outboxd_in_flight_bytes",
        Gauge,
        Unit::Bytes,
        "Bytes being published now.",
    ),
    (
        "outboxd_floor_age_seconds",
        Gauge,
        Unit::Seconds,
        "How long the scan floor has waited for an open transaction.",
    ),
    (
        "outboxd_floor_holder_pid",
        Gauge,
        Unit::Count,
        "Backend of the transaction that the scan floor waits for; 0 where there is none, or it is prepared.",
    ),
    (
        "outboxd_sequence_faulty",
        Gauge,
        Unit::Count,
        "1 while the id sequence has a cache or counts down: scan floors stand still, and rows have no order.",
    ),
    (
        "outboxd_backlog_sampled",
        Gauge,
        Unit::Count,
        "1 where this worker samples the backlog gauges below; unknown is not zero.",
    ),
    (
        "outboxd_backlog_rows",
        SampledGauge,
        Unit::Count,
        "Pending rows, counted up to a bound.",
    ),
    (
        "outboxd_backlog_capped",
        SampledGauge,
        Unit::Count,
        "1 when there are more pending rows than were counted.",
    ),
    (
        "outboxd_oldest_pending_seconds",
        SampledGauge,
        Unit::Seconds,
        "Age of the oldest pending row.",
    ),
    (
        "outboxd_delayed_rows",
        SampledGauge,
        Unit::Count,
        "Rows whose time has not come.",
    ),
    (
        "outboxd_dead_rows",
        SampledGauge,
        Unit::Count,
        "Dead letters waiting for a decision.",
    ),
    (
        "outboxd_held_keys",
        SampledGauge,
        Unit::Count,
        "Keys held back behind a refused row.",
    ),
    (
        "outboxd_parked_topics",
        SampledGauge,
        Unit::Count,
        "Topics that take nothing now.",
    ),
    (
        "outboxd_paused_partitions",
        SampledGauge,
        Unit::Count,
        "Partitions that take nothing now, of topics whose other partitions do.",
    ),
    (
        "outboxd_inbox_unfinished_rows",
        SampledGauge,
        Unit::Count,
        "Inbox messages not yet done, counted up to a bound.",
    ),
    (
        "outboxd_inbox_poison_rows",
        SampledGauge,
        Unit::Count,
        "Inbox messages that failed their last attempt and wait for a person.",
    ),
    (
        "outboxd_vacuum_horizon_age_transactions",
        SampledGauge,
        Unit::Count,
        "How far back the oldest snapshot pins the vacuum horizon.",
    ),
    (
        "outboxd_dead_tuples",
        SampledGauge,
        Unit::Count,
        "Dead tuples in outbox.message.",
    ),
    (
        "outboxd_claim_seconds",
        Histogram,
        Unit::Seconds,
        "Time to claim a batch.",
    ),
    (
        "outboxd_publish_seconds",
        Histogram,
        Unit::Seconds,
        "Time from handing a batch to Kafka until its last answer.",
    ),
    (
        "outboxd_mark_seconds",
        Histogram,
        Unit::Seconds,
        "Time to mark a batch.",
    ),
    (
        "outboxd_end_to_end_seconds",
        Histogram,
        Unit::Seconds,
        "Time from INSERT to mark, by the database's clock; one sample per batch: its oldest row.",
    ),
    (
        "outboxd_commands",
        SampledGauge,
        Unit::Count,
        "Idempotent commands that have not succeeded, by operation and state; the busiest operations by name.",
    ),
    (
        "outboxd_commands_granted_total",
        Counter,
        Unit::Count,
        "Attempts of idempotent commands that were granted.",
    ),
    (
        "outboxd_command_replays_total",
        Counter,
        Unit::Count,
        "Claims answered with a stored success.",
    ),
    (
        "outboxd_command_conflicts_total",
        Counter,
        Unit::Count,
        "Claims refused because their key was used for another request.",
    ),
    (
        "outboxd_command_takeovers_total",
        Counter,
        Unit::Count,
        "Attempts of idempotent commands granted over one whose lock had run out.",
    ),
    (
        "outboxd_commands_orphaned_total",
        Counter,
        Unit::Count,
        "Commands nobody ended that this worker has failed for good.",
    ),
];

const BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// Installs the recorder and registers every metric of this worker, so that a scrape shows zeros rather than gaps.
pub fn install() -> Result<PrometheusHandle, String> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), BUCKETS)
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|error| error.to_string())?;
    for (name, kind, unit, help) in METRICS {
        match kind {
            Counter => {
                describe_counter!(*name, *unit, *help);
                counter!(*name).absolute(0);
            }
            CounterByTable => {
                describe_counter!(*name, *unit, *help);
                for table in Table::ALL {
                    counter!(*name, "table" => table.name()).absolute(0);
                }
            }
            CounterByConsumer => {
                describe_counter!(*name, *unit, *help);
                counter!(*name, "consumer" => OTHER_CONSUMERS).absolute(0);
            }
            Gauge => {
                describe_gauge!(*name, *unit, *help);
                gauge!(*name).set(0.0);
            }
            SampledGauge => {}
            Histogram => {
                describe_histogram!(*name, *unit, *help);
                for stream in [Stream::Lanes, Stream::Keyless] {
                    // Registers the series; a histogram without samples shows nothing otherwise.
                    drop(histogram!(*name, "stream" => stream.label()));
                }
            }
        }
    }
    Ok(handle)
}

/// What a scrape is answered with.
pub fn render(handle: &PrometheusHandle) -> String {
    handle.run_upkeep();
    let mut text = handle.render();
    if let Some(sampled) = lock_sampled().as_ref() {
        text.push_str(&sampled.recorder.handle().render());
    }
    text
}

/// The names of all metrics.
pub fn names() -> impl Iterator<Item = &'static str> {
    METRICS.iter().map(|(name, ..)| *name)
}

/// The names of those that only the worker that samples shows.
pub fn sampled() -> impl Iterator<Item = &'static str> {
    let sampled = METRICS.iter().filter(|(_, kind, ..)| matches!(kind, SampledGauge));
    sampled.map(|(name, ..)| *name)
}

pub fn rows_claimed(count: usize) {
    counter!("outboxd_rows_claimed_total").increment(count as u64);
}

pub fn rows_published(count: usize) {
    counter!("outboxd_rows_published_total").increment(count as u64);
}

pub fn rows_marked(count: u64) {
    counter!("outboxd_rows_marked_total").increment(count);
}

pub fn rows_refused(dead: usize, retried: usize) {
    counter!("outboxd_rows_dead_total").increment(dead as u64);
    counter!("outboxd_rows_retried_total").increment(retried as u64);
}

pub fn rows_deferred(count: usize) {
    counter!("outboxd_rows_deferred_total").increment(count as u64);
}

pub fn rows_fenced(count: usize) {
    counter!("outboxd_rows_fenced_total").increment(count as u64);
}

pub fn rows_recovered(count: usize) {
    counter!("outboxd_rows_recovered_total").increment(count as u64);
}

pub fn rows_forgotten(count: i64) {
    counter!("outboxd_rows_forgotten_total").increment(count.unsigned_abs());
}

pub fn published_rows_lost(count: usize) {
    counter!("outboxd_published_rows_lost_total").increment(count as u64);
}

pub fn rows_purged(table: Table, count: i64) {
    counter!("outboxd_rows_purged_total", "table" => table.name()).increment(count.unsigned_abs());
}

pub fn possible_duplicates(count: usize) {
    counter!("outboxd_possible_duplicates_total").increment(count as u64);
}

pub fn lanes_recovered(count: usize) {
    counter!("outboxd_lanes_recovered_total").increment(count as u64);
}

pub fn terms_lost() {
    counter!("outboxd_terms_lost_total").increment(1);
}

pub fn producer_rebuilt() {
    counter!("outboxd_producer_rebuilds_total").increment(1);
}

pub fn lookup_client_rebuilt() {
    counter!("outboxd_lookup_client_rebuilds_total").increment(1);
}

pub fn database_error() {
    counter!("outboxd_database_errors_total").increment(1);
}

pub fn lanes_owned(count: usize) {
    gauge!("outboxd_lanes_owned").set(count as f64);
}

pub fn workers_live(count: usize) {
    gauge!("outboxd_workers_live").set(count as f64);
}

pub fn publisher_paused(paused: bool) {
    gauge!("outboxd_publisher_paused").set(f64::from(u8::from(paused)));
}

pub fn floor_age(age: Duration) {
    gauge!("outboxd_floor_age_seconds").set(age.as_secs_f64());
}

pub fn floor_holder(pid: i32) {
    gauge!("outboxd_floor_holder_pid").set(f64::from(pid));
}

pub fn sequence_faulty(is_faulty: bool) {
    gauge!("outboxd_sequence_faulty").set(f64::from(u8::from(is_faulty)));
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
        gauge!("outboxd_in_flight_rows").increment(batch.rows);
        gauge!("outboxd_in_flight_bytes").increment(batch.bytes);
        batch
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        gauge!("outboxd_in_flight_rows").decrement(self.rows);
        gauge!("outboxd_in_flight_bytes").decrement(self.bytes);
    }
}

/// The sampled gauges. They have a recorder of their own, because a recorder cannot forget a single series: it is dropped as a
/// whole when another worker samples, whose figures would contradict what was true here last.
struct Sampled {
    recorder: PrometheusRecorder,
    /// The operations named so far, and the states each was seen in.
    operations: BTreeMap<String, BTreeSet<String>>,
}

/// `None` before the first sample, and where another worker samples.
static SAMPLED: Mutex<Option<Sampled>> = Mutex::new(None);

fn lock_sampled() -> MutexGuard<'static, Option<Sampled>> {
    SAMPLED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sampled {
    fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            for (name, _, unit, help) in METRICS.iter().filter(|(_, kind, ..)| matches!(kind, SampledGauge)) {
                describe_gauge!(*name, *unit, *help);
            }
        });
        Sampled {
            recorder,
            operations: BTreeMap::new(),
        }
    }

    /// Every gauge that `set` sets becomes one of the sampled ones.
    fn record(&self, set: impl FnOnce()) {
        metrics::with_local_recorder(&self.recorder, set);
    }
}

/// Another worker samples: the gauges are there, and here no more.
pub fn not_sampled() {
    gauge!("outboxd_backlog_sampled").set(0.0);
    *lock_sampled() = None;
}

pub fn backlog(sample: &crate::outbox::Sample) {
    gauge!("outboxd_backlog_sampled").set(1.0);
    lock_sampled().get_or_insert_with(Sampled::new).record(|| {
        gauge!("outboxd_backlog_rows").set(sample.pending as f64);
        gauge!("outboxd_backlog_capped").set(f64::from(u8::from(sample.capped)));
        gauge!("outboxd_oldest_pending_seconds").set(sample.oldest_seconds);
        gauge!("outboxd_delayed_rows").set(sample.delayed as f64);
        gauge!("outboxd_dead_rows").set(sample.dead as f64);
        gauge!("outboxd_held_keys").set(sample.held_keys as f64);
        gauge!("outboxd_parked_topics").set(sample.parked_topics as f64);
        gauge!("outboxd_paused_partitions").set(sample.paused_partitions as f64);
        gauge!("outboxd_vacuum_horizon_age_transactions").set(sample.horizon_age as f64);
        gauge!("outboxd_dead_tuples").set(sample.dead_tuples as f64);
    });
}

/// Operations that have series of their own: the first so many that were busy. Others are counted together, or a client that
/// puts an id into its operations would make series without end.
pub const OPERATIONS_MAX: usize = 20;

pub fn commands(counted: &[Commands]) {
    let mut sampled = lock_sampled();
    let sampled = sampled.get_or_insert_with(Sampled::new);
    let named = &mut sampled.operations;
    let mut counts: BTreeMap<(String, String), i64> = BTreeMap::new();
    for (operation, states) in named.iter() {
        counts.extend(states.iter().map(|state| ((operation.clone(), state.clone()), 0)));
    }
    for commands in counted {
        let is_named = named.contains_key(&commands.operation) || named.len() < OPERATIONS_MAX;
        let operation = if is_named { commands.operation.as_str() } else { "other" };
        named
            .entry(operation.to_owned())
            .or_default()
            .insert(commands.state.clone());
        *counts
            .entry((operation.to_owned(), commands.state.clone()))
            .or_default() += commands.count;
    }
    sampled.record(|| {
        for ((operation, state), count) in counts {
            gauge!("outboxd_commands", "operation" => operation, "state" => state).set(count as f64);
        }
    });
}

/// What is new since the last sample of this worker. What came before its first one is not its to count.
pub fn counted(before: Option<&Counted>, now: &Counted) {
    let Some(before) = before else { return };
    for (name, before, now) in [
        ("outboxd_commands_granted_total", before.granted, now.granted),
        ("outboxd_command_replays_total", before.replayed, now.replayed),
        ("outboxd_command_conflicts_total", before.conflicted, now.conflicted),
        ("outboxd_command_takeovers_total", before.taken_over, now.taken_over),
        (
            "outboxd_inbox_takeovers_total",
            before.inbox_taken_over,
            now.inbox_taken_over,
        ),
        (
            "outboxd_consumer_conflicts_total",
            before.payload_conflicts,
            now.payload_conflicts,
        ),
    ] {
        counter!(name).increment(grown(before, now));
    }
    for (consumer, duplicates) in &now.duplicates {
        // A consumer that was not there before began at zero.
        let before = before.duplicates.get(consumer).copied().unwrap_or(0);
        let name = consumer.as_deref().unwrap_or(OTHER_CONSUMERS).to_owned();
        counter!("outboxd_consumer_duplicates_total", "consumer" => name).increment(grown(before, *duplicates));
    }
}

/// A count that is lower than before began again at zero.
fn grown(before: i64, now: i64) -> u64 {
    let since = if now < before { 0 } else { before };
    u64::try_from(now - since).unwrap_or(0)
}

pub fn commands_orphaned(count: i64) {
    counter!("outboxd_commands_orphaned_total").increment(count.unsigned_abs());
}

pub fn inbox(sample: &InboxSample) {
    lock_sampled().get_or_insert_with(Sampled::new).record(|| {
        gauge!("outboxd_inbox_unfinished_rows").set(sample.unfinished as f64);
        gauge!("outboxd_inbox_poison_rows").set(sample.poison as f64);
    });
}

pub fn claim_took(stream: Stream, took: Duration) {
    histogram!("outboxd_claim_seconds", "stream" => stream.label()).record(took);
}

pub fn publish_took(stream: Stream, took: Duration) {
    histogram!("outboxd_publish_seconds", "stream" => stream.label()).record(took);
}

pub fn mark_took(stream: Stream, took: Duration) {
    histogram!("outboxd_mark_seconds", "stream" => stream.label()).record(took);
}

pub fn end_to_end(stream: Stream, age: Duration) {
    histogram!("outboxd_end_to_end_seconds", "stream" => stream.label()).record(age);
}
