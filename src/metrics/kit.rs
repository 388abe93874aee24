//! Metrics of the SQL for applications: idempotent commands, consumers, the inbox. The database counts, and one worker asks it.

use super::list::{
    command_conflicts, command_replays, command_takeovers, command_took, commands_granted, commands_in_state,
    consumer_conflicts, consumer_duplicates, inbox_poison, inbox_takeovers, inbox_took, inbox_unfinished,
};
use super::metric::OTHER;
use super::{samples, upkeep};
use crate::domain::sample::{Commands, Counters, DurationCount, FinishedMessages, InboxSample};

/// How many operations have series of their own: the first ones sampled. All others are counted together, since a client that
/// puts an id into its operations would create series without end.
pub const OPERATIONS_MAX: usize = 20;
/// How many consumers the database counts by name.
pub const CONSUMERS_MAX: usize = 32;

/// The upper bounds of the durations that the database counts commands by, in seconds. The same as in
/// `outbox.idempotency_durations`.
pub const COMMAND_BUCKETS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];
/// The upper bounds of the durations that inbox messages are grouped by, in seconds.
pub const INBOX_BUCKETS: &[f64] = super::BUCKETS;

const COMMAND_OUTCOMES: [&str; 3] = ["succeeded", "failed_retryable", "failed_final"];
const INBOX_OUTCOMES: [&str; 3] = ["done", "discarded", "poison"];

/// Most values that a histogram is given before they are folded into its buckets. Each takes memory until then.
const VALUES_MAX: usize = 10_000;

/// Registers the histograms whose labels are known here.
pub fn register() {
    for outcome in COMMAND_OUTCOMES {
        drop(command_took(outcome.into()));
    }
    for outcome in INBOX_OUTCOMES {
        drop(inbox_took(OTHER.into(), outcome.into()));
    }
}

/// Records how many commands that have not succeeded are in which state.
pub fn commands(counted: &[Commands]) {
    samples::record(|sampled| {
        let operations = &mut sampled.operations;
        operations
            .values_mut()
            .flat_map(|states| states.values_mut())
            .for_each(|count| *count = 0);
        for commands in counted {
            let is_named = operations.contains_key(&commands.operation) || operations.len() < OPERATIONS_MAX;
            let operation = if is_named { commands.operation.as_str() } else { OTHER };
            let states = operations.entry(operation.to_owned()).or_default();
            *states.entry(commands.state.clone()).or_default() += commands.count;
        }
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
    for now in &now.duplicates {
        let of_consumer = before.duplicates.iter().find(|before| before.consumer == now.consumer);
        // A consumer without an earlier count began at zero.
        let before = of_consumer.map_or(0, |before| before.count);
        let name = now.consumer.as_deref().unwrap_or(OTHER).to_owned();
        consumer_duplicates(name, grown(before, now.count));
    }
    for (before, now) in before.durations.iter().zip(&now.durations) {
        record_commands(now, grown(before.count, now.count));
    }
}

/// Records commands that ended in this way after about this time.
fn record_commands(duration: &DurationCount, count: u64) {
    let Some(outcome) = COMMAND_OUTCOMES
        .into_iter()
        .find(|outcome| *outcome == duration.outcome)
    else {
        return;
    };
    let middle = middle_of_bucket(duration.at_most_seconds);
    record_many(&command_took(outcome.into()), middle, count);
}

/// The middle of the bucket with this upper bound, or a value above all of them.
fn middle_of_bucket(at_most: Option<f64>) -> f64 {
    let Some(at_most) = at_most else {
        return COMMAND_BUCKETS.last().map_or(0.0, |last| last * 2.0);
    };
    let below = COMMAND_BUCKETS.iter().rev().find(|bound| **bound < at_most);
    below.map_or(at_most / 2.0, |below| f64::midpoint(*below, at_most))
}

/// Counts inbox messages that were finished since the last call.
pub fn finished(finished: &FinishedMessages) {
    for group in &finished.groups {
        let consumer = group.consumer.clone().unwrap_or_else(|| OTHER.to_owned());
        let Some(outcome) = INBOX_OUTCOMES.into_iter().find(|outcome| *outcome == group.outcome) else {
            continue;
        };
        let count = u64::try_from(group.count).unwrap_or(0);
        // All of a group are in one bucket, and so is their average.
        let average = group.seconds / (count.max(1) as f64);
        record_many(&inbox_took(consumer.into(), outcome.into()), average, count);
    }
}

fn record_many(histogram: &metrics::Histogram, value: f64, count: u64) {
    let mut left = usize::try_from(count).unwrap_or(usize::MAX);
    while left > 0 {
        let now = left.min(VALUES_MAX);
        histogram.record_many(value, now);
        left -= now;
        if left > 0 {
            upkeep();
        }
    }
}

/// The increase of a count. One that is lower than before began again at zero.
fn grown(before: i64, now: i64) -> u64 {
    let since = if now < before { 0 } else { before };
    u64::try_from(now - since).unwrap_or(0)
}

pub fn inbox(sample: &InboxSample) {
    samples::record(|_| {
        inbox_unfinished(sample.unfinished);
        inbox_poison(sample.poison);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_was_reset_has_grown_from_zero() {
        assert_eq!((grown(3, 10), grown(10, 10), grown(10, 4)), (7, 0, 4));
    }

    #[test]
    fn a_command_counts_in_its_own_bucket() {
        let bounds = COMMAND_BUCKETS.iter().copied();
        let mut below = 0.0;
        for at_most in bounds {
            let middle = middle_of_bucket(Some(at_most));
            assert!(below < middle && middle < at_most, "{middle} for {below} to {at_most}");
            below = at_most;
        }
        assert!(middle_of_bucket(None) > below);
    }
}
