//! Metrics of the whole outbox. One worker samples them for all.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use metrics::describe_gauge;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

use super::{
    OTHER_CONSUMERS, backlog_capped, backlog_rows, backlog_sampled, command_conflicts, command_replays,
    command_takeovers, commands_granted, commands_in_state, consumer_conflicts, consumer_duplicates, dead_rows,
    dead_tuples, delayed_rows, held_keys, inbox_poison, inbox_takeovers, inbox_unfinished, oldest_pending,
    parked_topics, paused_partitions, sampled_gauges, vacuum_horizon_age,
};
use crate::domain::sample::{Commands, Counters, InboxSample, Sample};

/// The sampled gauges. They have a recorder of their own, because a recorder cannot forget a single series. It is dropped as a
/// whole when another worker takes over sampling, since its figures would contradict the last ones of this worker.
struct Sampled {
    recorder: PrometheusRecorder,
    /// How many commands were sampled last, for each operation that has series of its own and each of its states.
    operations: BTreeMap<String, BTreeMap<String, i64>>,
}

/// `None` before the first sample, and while another worker samples.
static SAMPLED: Mutex<Option<Sampled>> = Mutex::new(None);

fn lock_sampled() -> MutexGuard<'static, Option<Sampled>> {
    SAMPLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sampled gauges in the format of a scrape. Empty while another worker samples.
pub fn render() -> String {
    let sampled = lock_sampled();
    sampled
        .as_ref()
        .map_or_else(String::new, |sampled| sampled.recorder.handle().render())
}

impl Sampled {
    fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            for metric in sampled_gauges() {
                describe_gauge!(metric.name, metric.unit(), metric.help);
            }
        });
        Sampled {
            recorder,
            operations: BTreeMap::new(),
        }
    }

    /// Records the gauges that `set` sets as sampled ones.
    fn record(&self, set: impl FnOnce()) {
        metrics::with_local_recorder(&self.recorder, set);
    }
}

/// Drops the gauges, because another worker samples them.
pub fn not_sampled() {
    backlog_sampled(false);
    *lock_sampled() = None;
}

pub fn backlog(sample: &Sample) {
    backlog_sampled(true);
    lock_sampled().get_or_insert_with(Sampled::new).record(|| {
        backlog_rows(sample.pending);
        backlog_capped(sample.capped);
        oldest_pending(sample.oldest_seconds);
        delayed_rows(sample.delayed);
        dead_rows(sample.dead);
        held_keys(sample.held_keys);
        parked_topics(sample.parked_topics);
        paused_partitions(sample.paused_partitions);
        vacuum_horizon_age(sample.horizon_age);
        dead_tuples(sample.dead_tuples);
    });
}

/// How many operations have series of their own: the first ones sampled. All others are counted together, since a client that
/// puts an id into its operations would create series without end.
pub const OPERATIONS_MAX: usize = 20;

pub fn commands(counted: &[Commands]) {
    let mut sampled = lock_sampled();
    let sampled = sampled.get_or_insert_with(Sampled::new);
    let operations = &mut sampled.operations;
    operations
        .values_mut()
        .flat_map(BTreeMap::values_mut)
        .for_each(|count| *count = 0);
    for commands in counted {
        let is_named = operations.contains_key(&commands.operation) || operations.len() < OPERATIONS_MAX;
        let operation = if is_named { commands.operation.as_str() } else { "other" };
        let states = operations.entry(operation.to_owned()).or_default();
        *states.entry(commands.state.clone()).or_default() += commands.count;
    }
    metrics::with_local_recorder(&sampled.recorder, || {
        for (operation, states) in operations {
            for (state, count) in states {
                commands_in_state(operation.clone(), state.clone(), *count);
            }
        }
    });
}

/// Counts what is new since the last sample of this worker. What happened before its first one was counted by others.
pub fn counted(before: Option<&Counters>, now: &Counters) {
    let Some(before) = before else { return };
    commands_granted(grown(before.granted, now.granted));
    command_replays(grown(before.replayed, now.replayed));
    command_conflicts(grown(before.conflicted, now.conflicted));
    command_takeovers(grown(before.taken_over, now.taken_over));
    inbox_takeovers(grown(before.inbox_taken_over, now.inbox_taken_over));
    consumer_conflicts(grown(before.payload_conflicts, now.payload_conflicts));
    for (consumer, duplicates) in &now.duplicates {
        // A consumer without an earlier count began at zero.
        let before = before.duplicates.get(consumer).copied().unwrap_or(0);
        let name = consumer.as_deref().unwrap_or(OTHER_CONSUMERS).to_owned();
        consumer_duplicates(name, grown(before, *duplicates));
    }
}

/// The increase of a count. One that is lower than before began again at zero.
fn grown(before: i64, now: i64) -> u64 {
    let since = if now < before { 0 } else { before };
    u64::try_from(now - since).unwrap_or(0)
}

pub fn inbox(sample: &InboxSample) {
    lock_sampled().get_or_insert_with(Sampled::new).record(|| {
        inbox_unfinished(sample.unfinished);
        inbox_poison(sample.poison);
    });
}
