//! Sends single records by a separate producer, because Kafka may refuse them. A refusal there affects no other record, and is
//! certain to be about the record that was sent.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::error::KafkaResult;
use tracing::warn;

use super::producer::{Producer, ProducerSettings};
use super::{Deadlines, lock};
use crate::domain::delivery::Delivery;
use crate::domain::partition::Partition;
use crate::domain::row::Row;
use crate::metrics;

/// A record with less time than this left for its answer is not sent: a missing answer would say nothing about the producer.
const ANSWER_TIME_MIN: Duration = Duration::from_millis(200);
/// How long to wait for the first single record of a topic before the others are sent. It is short, because a partition that
/// gives no answer must not use up the time of the others.
const HEAD_START: Duration = Duration::from_millis(100);
/// The producer is replaced after this many records that were not acknowledged. The client raises its epoch with each refused
/// record, and after 32,767 it starts at 0 again. A broker would then take a new record for one that it already has, and
/// acknowledge it.
pub(super) const FAILURES_MAX: u32 = 1000;

/// Locked by the task that sends to a partition.
type SendLock = Arc<tokio::sync::Mutex<()>>;

pub struct Quarantine {
    settings: ProducerSettings,
    producer: tokio::sync::Mutex<Arc<Producer>>,
    /// By topic and partition.
    locks: Mutex<HashMap<(String, i32), SendLock>>,
}

impl Quarantine {
    pub fn new(settings: ProducerSettings) -> KafkaResult<Self> {
        Ok(Quarantine {
            producer: tokio::sync::Mutex::new(Producer::new(&settings)?),
            settings,
            locks: Mutex::default(),
        })
    }

    /// Sends each of these rows alone; `alone` has their indexes and partitions.
    pub async fn send_each(
        &self,
        rows: &[Row],
        alone: &[(usize, Partition)],
        deadlines: Deadlines,
    ) -> Vec<(usize, Delivery)> {
        let mut topics: BTreeMap<&str, Vec<(usize, Partition)>> = BTreeMap::new();
        for place in alone {
            topics.entry(&rows[place.0].topic).or_default().push(*place);
        }
        let sends = topics.values().map(|alone| self.send_topic(rows, alone, deadlines));
        futures_util::future::join_all(sends).await.concat()
    }

    /// Sends the first row a little before the others. A topic that refuses one record may refuse all of them, each refusal takes
    /// a while, and the batch would wait for them all. So after one refusal, keyed rows that have not been sent yet are deferred.
    async fn send_topic(
        &self,
        rows: &[Row],
        alone: &[(usize, Partition)],
        deadlines: Deadlines,
    ) -> Vec<(usize, Delivery)> {
        let refused = AtomicBool::new(false);
        let send = async |&(index, partition): &(usize, Partition)| {
            let delivery = self
                .send_unless_refused(&rows[index], partition, deadlines, &refused)
                .await;
            (index, delivery)
        };
        let Some((first, others)) = alone.split_first() else {
            return Vec::new();
        };
        let mut first = std::pin::pin!(send(first));
        let answered = tokio::time::timeout(HEAD_START, &mut first).await;
        let others = futures_util::future::join_all(others.iter().map(&send));
        let (first, mut deliveries) = match answered {
            Ok(first) => (first, others.await),
            Err(_) => tokio::join!(first, others),
        };
        deliveries.push(first);
        deliveries
    }

    /// Sends one record while no other is in flight to its partition, so that the answer is certain to be about it.
    pub async fn send(&self, row: &Row, partition: Partition, deadlines: Deadlines) -> Delivery {
        self.send_unless_refused(row, partition, deadlines, &AtomicBool::new(false))
            .await
    }

    async fn send_unless_refused(
        &self,
        row: &Row,
        partition: Partition,
        deadlines: Deadlines,
        refused: &AtomicBool,
    ) -> Delivery {
        let lock = self.lock_of(&row.topic, partition.number);
        let Ok(_lock) = tokio::time::timeout_at(deadlines.handed_over.into(), lock.lock()).await else {
            return Delivery::NotSent;
        };
        if refused.load(Ordering::Relaxed) && row.lane.is_some() {
            let topic = &row.topic;
            return Delivery::Deferred {
                reason: format!(
                    "topic {topic} has just refused another record: this one is sent alone as soon as its turn comes"
                ),
            };
        }
        let producer = self.producer().await;
        if deadlines.answered.saturating_duration_since(Instant::now()) < ANSWER_TIME_MIN {
            return Delivery::NotSent;
        }
        let (delivery, _) = producer.send_alone(row, partition, deadlines, true).await;
        if let Delivery::Refused { .. } = delivery {
            refused.store(true, Ordering::Relaxed);
        }
        delivery
    }

    fn lock_of(&self, topic: &str, partition: i32) -> SendLock {
        let mut locks = lock(&self.locks);
        // Locks that no task uses are dropped, since the map would grow with every topic otherwise.
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        locks.entry((topic.to_owned(), partition)).or_default().clone()
    }

    /// The producer. It is replaced after a fatal error, because it refuses every record then; after a record without an answer,
    /// because it may never get an answer again; after many failures, because its epochs would start again; and when its settings
    /// have changed.
    async fn producer(&self) -> Arc<Producer> {
        // The lock is kept while a new one is built, so that all waiting tasks get the same one.
        let mut producer = self.producer.lock().await;
        let why = if producer.is_fatal() {
            "a fatal error"
        } else if producer.is_retired() {
            "a record without an answer"
        } else if producer.failures() >= FAILURES_MAX {
            "many records that were not acknowledged"
        } else if producer.is_outdated() {
            "changed settings"
        } else {
            return producer.clone();
        };
        match Producer::build(&self.settings).await {
            Ok(next) => {
                *producer = next;
                metrics::producer_rebuilt();
                warn!(why, "replaced the Kafka producer for single records");
            }
            Err(error) => warn!(%error, "cannot build a producer; keeping the old one"),
        }
        producer.clone()
    }
}
