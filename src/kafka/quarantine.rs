//! Single records whose acceptance is in doubt, sent by a producer of their own: a refusal there disturbs nobody, and is about that
//! record and nothing else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

use super::producer::Producer;
use super::{ANSWERS_AFTER_FATAL, PURGE_PATIENCE, Publisher, Until, delivery};
use crate::message::{Outcome, Partition, Row};
use crate::metrics;

/// A single record that would have less time for its answer is not sent: silence would say nothing about the producer.
const LEAST_TIME_ALONE: Duration = Duration::from_millis(200);
/// So long the first record of a topic that is sent alone is waited for before the others are: one partition that gives no answer must
/// not take their time.
const HEAD_START: Duration = Duration::from_millis(100);
/// The producer of single records is replaced after so many that were not acknowledged. With each that was refused the client counts
/// its epoch up, and after 32,767 it begins again at 0: a broker would take a new record for one it has had, and acknowledge it.
pub(super) const FAILURES_ALONE_MOST: u32 = 1000;

/// Whose turn it is to send alone to a partition.
pub type Turn = Arc<tokio::sync::Mutex<()>>;

impl Publisher {
    pub(super) async fn send_each_alone(
        self: &Arc<Self>,
        rows: &[Row],
        alone: &[(usize, Partition)],
        until: Until,
    ) -> Vec<(usize, Outcome)> {
        let mut topics: BTreeMap<&str, Vec<(usize, Partition)>> = BTreeMap::new();
        for place in alone {
            topics.entry(&rows[place.0].topic).or_default().push(*place);
        }
        let sends = topics.values().map(|alone| self.send_topic_alone(rows, alone, until));
        futures_util::future::join_all(sends).await.concat()
    }

    /// The first a little before the others. Who refused one may refuse them all, each refusal takes a while, and the batch would
    /// wait: once there was one, what has a key and is not on its way is put off.
    async fn send_topic_alone(
        self: &Arc<Self>,
        rows: &[Row],
        alone: &[(usize, Partition)],
        until: Until,
    ) -> Vec<(usize, Outcome)> {
        let refused = AtomicBool::new(false);
        let send = async |&(index, partition): &(usize, Partition)| {
            let outcome = self.send_alone(&rows[index], partition, until, &refused).await;
            (index, outcome)
        };
        let Some((first, others)) = alone.split_first() else {
            return Vec::new();
        };
        let mut first = std::pin::pin!(send(first));
        let answered = tokio::time::timeout(HEAD_START, &mut first).await;
        let others = futures_util::future::join_all(others.iter().map(&send));
        let (first, mut outcomes) = match answered {
            Ok(first) => (first, others.await),
            Err(_) => tokio::join!(first, others),
        };
        outcomes.push(first);
        outcomes
    }

    /// One record, with nothing else under way to its partition, so that an answer is about it and nothing else.
    pub(super) async fn send_alone(
        &self,
        row: &Row,
        partition: Partition,
        until: Until,
        refused: &AtomicBool,
    ) -> Outcome {
        let turn = self.turn(&row.topic, partition.number);
        let Ok(_turn) = tokio::time::timeout_at(until.handed_over.into(), turn.lock()).await else {
            return Outcome::Unsent;
        };
        if refused.load(Ordering::Relaxed) && row.lane.is_some() {
            return put_off(row);
        }
        let quarantine = self.quarantine().await;
        if until.answered.saturating_duration_since(Instant::now()) < LEAST_TIME_ALONE {
            return Outcome::Unsent;
        }
        let wave = quarantine.send(std::slice::from_ref(row), &[(0, partition.number)], until.handed_over);
        let overdue = !wave.done_by(until.answered, || false).await;
        if overdue {
            // Others have another producer from here on, and what they have given to this one is answered before it is purged.
            quarantine.retire();
            if quarantine.in_flight() > 1 {
                tokio::time::sleep(ANSWERS_AFTER_FATAL).await;
            }
            quarantine.purge();
            wave.done_by(Instant::now() + PURGE_PATIENCE, || false).await;
        }
        let outcome = delivery::of_report(wave.reported(0), &row.topic, partition, overdue);
        if outcome == Outcome::Acked {
            quarantine.acknowledged(&row.topic, partition.number);
            self.acknowledged();
        } else {
            quarantine.count_failure();
        }
        if let Outcome::Refused { .. } = outcome {
            refused.store(true, Ordering::Relaxed);
        }
        outcome
    }

    fn turn(&self, topic: &str, partition: i32) -> Turn {
        let mut alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        // Turns nobody holds are forgotten, or the map would grow with every topic ever doubted.
        alone.retain(|_, turn| Arc::strong_count(turn) > 1);
        alone.entry((topic.to_owned(), partition)).or_default().clone()
    }

    /// The producer for single records. One with a fatal error would refuse every record it is given from then on, one that
    /// gave no answer to a record may never give one again, and one that failed often would begin its epochs again.
    async fn quarantine(&self) -> Arc<Producer> {
        // Held while another is built: one is enough for all who wait.
        let mut quarantine = self.quarantine.lock().await;
        let why = if quarantine.is_fatal() {
            "a fatal error"
        } else if quarantine.is_retired() {
            "a record without an answer"
        } else if quarantine.failures() >= FAILURES_ALONE_MOST {
            "many records that were not acknowledged"
        } else {
            return quarantine.clone();
        };
        let (config, clock) = (self.config.clone(), self.clock.clone());
        let built = tokio::task::spawn_blocking(move || Producer::new(&config, false, &clock)).await;
        match built {
            Ok(Ok(next)) => {
                *quarantine = next;
                metrics::producer_rebuilt();
                warn!(why, "replaced the Kafka producer for single records");
            }
            Ok(Err(error)) => warn!(%error, "cannot build a producer; keeping the old one"),
            Err(error) => warn!(%error, "cannot build a producer; keeping the old one"),
        }
        quarantine.clone()
    }
}

fn put_off(row: &Row) -> Outcome {
    Outcome::PutOff {
        reason: format!(
            "topic {} has just refused another record: this one is sent alone as soon as its turn comes",
            row.topic
        ),
    }
}
