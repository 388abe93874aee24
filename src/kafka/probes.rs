//! Probes of paused topics and partitions. Each has a producer to itself while it lasts: when it gets no answer the producer is purged,
//! and no other record with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

use super::last_ack::LastAck;
use super::producer::{Producer, ProducerSettings};
use super::quarantine::FAILURES_MAX;
use super::{PURGE_TIMEOUT, Until, delivery};
use crate::domain::delivery::Delivery;
use crate::domain::partition::Partition;
use crate::domain::row::Row;

/// A producer that has had no answer for so long may never get one, and is replaced. A new one needs some time to connect.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A producer that no probe uses at the moment, and since when it has had no answer.
type Idle = (Arc<Producer>, Instant);

pub struct Probes {
    settings: ProducerSettings,
    idle: Mutex<Vec<Idle>>,
    last_ack: Arc<LastAck>,
}

impl Probes {
    /// A probe is retried only once: its result is wanted, and the next probe follows anyway.
    pub fn new(mut settings: ProducerSettings, last_ack: Arc<LastAck>) -> Self {
        settings.config.set("message.send.max.retries", "1");
        Probes {
            settings,
            idle: Mutex::default(),
            last_ack,
        }
    }

    /// Nothing is paused any more: drops the idle producers.
    pub fn end(&self) {
        self.idle().clear();
    }

    pub async fn send(&self, row: &Row, partition: Partition, until: Until) -> Delivery {
        let Some((producer, silent_since)) = self.producer().await else {
            return Delivery::NotSent;
        };
        let sent = producer.send(std::slice::from_ref(row), &[(0, partition.number)], until.handed_over);
        let overdue = !sent.all_reported_by(until.answered, || false).await;
        if overdue {
            producer.purge();
            sent.all_reported_by(Instant::now() + PURGE_TIMEOUT, || false).await;
        }
        let outcome = delivery::of_report(sent.reported(0), &row.topic, partition, overdue);
        if outcome == Delivery::Acked {
            producer.acknowledged(&row.topic, partition.number);
            self.last_ack.note();
        } else {
            producer.count_failure();
        }
        let silent_since = if overdue { silent_since } else { Instant::now() };
        let is_fit = !producer.is_fatal() && producer.failures() < FAILURES_MAX;
        if is_fit && silent_since.elapsed() < SILENCE_MAX {
            self.idle().push((producer, silent_since));
        }
        outcome
    }

    /// An idle producer, or a new one.
    async fn producer(&self) -> Option<Idle> {
        if let Some(idle) = self.idle().pop() {
            return Some(idle);
        }
        match Producer::build(&self.settings).await {
            Ok(producer) => Some((producer, Instant::now())),
            Err(error) => {
                warn!(%error, "cannot build a producer for a probe; trying again");
                None
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
