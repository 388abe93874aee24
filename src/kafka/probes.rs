//! Probes of paused topics and partitions. Each uses a producer of its own: a probe without an answer is purged, and a purge
//! would affect all other records of the same producer.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::warn;

use super::producer::{Producer, ProducerSettings, Purpose};
use super::quarantine::FAILURES_MAX;
use super::{Deadlines, lock};
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
}

impl Probes {
    pub fn new(mut settings: ProducerSettings) -> Self {
        settings.purpose = Purpose::Probes;
        let idle = Mutex::default();
        Probes { settings, idle }
    }

    /// Drops the idle producers. They are not needed once nothing is paused.
    pub fn end(&self) {
        lock(&self.idle).clear();
    }

    pub async fn send(&self, row: &Row, partition: Partition, deadlines: Deadlines) -> Delivery {
        let Some((producer, mut silent_since)) = self.producer().await else {
            return Delivery::NotSent;
        };
        let (delivery, overdue) = producer.send_alone(row, partition, deadlines, false).await;
        if !overdue {
            silent_since = Instant::now();
        }
        let is_fit = !producer.is_fatal() && producer.failures() < FAILURES_MAX;
        if is_fit && silent_since.elapsed() < SILENCE_MAX {
            lock(&self.idle).push((producer, silent_since));
        }
        delivery
    }

    /// An idle producer, or a new one.
    async fn producer(&self) -> Option<Idle> {
        let reused = {
            let mut idle = lock(&self.idle);
            idle.retain(|(producer, _)| !producer.is_outdated());
            idle.pop()
        };
        if let Some(idle) = reused {
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
}
