//! Probes of paused topics and partitions. Each uses a producer of its own: a probe without an answer is purged, and a purge
//! would affect all other records of the same producer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

use super::last_ack::LastAck;
use super::producer::{Producer, ProducerSettings};
use super::quarantine::FAILURES_MAX;
use super::{Deadlines, PURGE_TIMEOUT, delivery};
use crate::domain::delivery::Delivery;
use crate::domain::partition::Partition;
use crate::domain::row::Row;

/// A producer that has had no answer for this long may never get one, and is replaced. It is not shorter because a new one needs
/// time to connect.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A producer that no probe uses at the moment, and since when it has had no answer.
type Idle = (Arc<Producer>, Instant);

pub struct Probes {
    settings: ProducerSettings,
    idle: Mutex<Vec<Idle>>,
    last_ack: Arc<LastAck>,
}

impl Probes {
    /// The client retries a probe only once: we want its result, and the next probe follows anyway.
    pub fn new(mut settings: ProducerSettings, last_ack: Arc<LastAck>) -> Self {
        settings.config.set("message.send.max.retries", "1");
        Probes {
            settings,
            idle: Mutex::default(),
            last_ack,
        }
    }

    /// Drops the idle producers. They are not needed once nothing is paused.
    pub fn end(&self) {
        self.idle().clear();
    }

    pub async fn send(&self, row: &Row, partition: Partition, deadlines: Deadlines) -> Delivery {
        let Some((producer, silent_since)) = self.producer().await else {
            return Delivery::NotSent;
        };
        let sent = producer.send(
            std::slice::from_ref(row),
            &[(0, partition.number)],
            deadlines.handed_over,
        );
        let overdue = !sent.all_reported_by(deadlines.answered, || false).await;
        if overdue {
            producer.purge();
            sent.all_reported_by(Instant::now() + PURGE_TIMEOUT, || false).await;
        }
        let delivery = delivery::of_report(sent.reports()[0], &row.topic, partition, overdue);
        if delivery == Delivery::Acked {
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
        delivery
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
