//! Partitions that accepted nothing recently, while others answered. Nothing is sent to them: one batch has waited until its
//! deadline for an answer, and the batches of other lanes must not wait as long, one after the other.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

/// How long a partition stays paused. Probes are more frequent, and each one that fails pauses it again.
const PAUSE_LASTS: Duration = Duration::from_secs(10);

/// Why partitions of one topic are paused.
pub type Reasons = HashMap<i32, String>;

/// By topic and partition, when it accepted nothing and why.
type Topics = HashMap<String, HashMap<i32, (Instant, String)>>;

#[derive(Default)]
pub struct PausedPartitions(Mutex<Topics>);

impl PausedPartitions {
    /// The partition accepted nothing just now. This is logged once, not for each lane that finds out.
    pub fn pause(&self, topic: &str, partition: i32, reason: &str, now: Instant) {
        let mut topics = self.lock();
        let partitions = topics.entry(topic.to_owned()).or_default();
        if partitions.insert(partition, (now, reason.to_owned())).is_none() {
            warn!(
                topic,
                partition, reason, "partition paused: it is tried again by itself; other partitions continue"
            );
        }
    }

    /// The partition accepts records.
    pub fn resume(&self, topic: &str, partition: i32) {
        let mut topics = self.lock();
        if let Some(partitions) = topics.get_mut(topic) {
            partitions.remove(&partition);
            if partitions.is_empty() {
                topics.remove(topic);
            }
        }
    }

    /// Which partitions of a topic are paused, and why.
    pub fn of_topic(&self, topic: &str, now: Instant) -> Reasons {
        let mut topics = self.lock();
        let Some(partitions) = topics.get_mut(topic) else {
            return Reasons::new();
        };
        partitions.retain(|_, (at, _)| now.saturating_duration_since(*at) < PAUSE_LASTS);
        let reason = |(partition, (_, reason)): (&i32, &(Instant, String))| (*partition, reason.clone());
        let reasons = partitions.iter().map(reason).collect();
        if partitions.is_empty() {
            topics.remove(topic);
        }
        reasons
    }

    fn lock(&self) -> MutexGuard<'_, Topics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_paused_until_it_takes_records_or_for_a_while() {
        let (paused, now) = (PausedPartitions::default(), Instant::now());
        paused.pause("t", 1, "no leader", now);
        paused.pause("t", 2, "no leader", now + PAUSE_LASTS / 2);
        assert_eq!(paused.of_topic("t", now)[&1], "no leader");
        assert!(paused.of_topic("u", now).is_empty());
        let later = paused.of_topic("t", now + PAUSE_LASTS);
        assert_eq!(later.into_keys().collect::<Vec<_>>(), [2]);
        paused.pause("t", 2, "no leader", now + PAUSE_LASTS);
        assert_eq!(paused.of_topic("t", now + PAUSE_LASTS * 3 / 2).len(), 1, "said again");
        paused.resume("t", 2);
        assert!(paused.of_topic("t", now).is_empty());
        assert!(paused.lock().is_empty(), "and nothing is left of it");
    }
}
