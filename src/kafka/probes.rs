//! Probes of paused topics and partitions. Each has a producer for itself while it lasts: one that gets no answer is purged, and nobody else's
//! record with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

use super::producer::Producer;
use super::quarantine::FAILURES_ALONE_MOST;
use super::{PURGE_PATIENCE, Publisher, Until, delivery};
use crate::message::{Outcome, Partition, Row};

/// A producer that has never had an answer for so long may never get one: another is built. A fresh one needs some time to connect.
const SILENCE: Duration = Duration::from_secs(5);

/// Producers that no probe uses at the moment, and since when each has not been answered.
#[derive(Default)]
pub struct Probes(Mutex<Vec<(Arc<Producer>, Instant)>>);

impl Probes {
    fn lock(&self) -> MutexGuard<'_, Vec<(Arc<Producer>, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Publisher {
    /// Nothing is paused any more: producers for probes are not needed.
    pub fn end_probes(&self) {
        self.probes.lock().clear();
    }

    pub(super) async fn send_probe(&self, row: &Row, partition: Partition, until: Until) -> Outcome {
        let Some((producer, silent_since)) = self.probe_producer().await else {
            return Outcome::Unsent;
        };
        let wave = producer.send(std::slice::from_ref(row), &[(0, partition.number)], until.handed_over);
        let overdue = !wave.done_by(until.answered, || false).await;
        if overdue {
            producer.purge();
            wave.done_by(Instant::now() + PURGE_PATIENCE, || false).await;
        }
        let outcome = delivery::of_report(wave.reported(0), &row.topic, partition, overdue);
        if outcome == Outcome::Acked {
            producer.acknowledged(&row.topic, partition.number);
            self.acknowledged();
        } else {
            producer.count_failure();
        }
        let silent_since = if overdue { silent_since } else { Instant::now() };
        let is_fit = !producer.is_fatal() && producer.failures() < FAILURES_ALONE_MOST;
        if is_fit && silent_since.elapsed() < SILENCE {
            self.probes.lock().push((producer, silent_since));
        }
        outcome
    }

    /// One that nobody uses, or a new one. A broker that answers "not now" is asked once more and no longer: the reason is wanted, and
    /// the next probe comes anyway.
    async fn probe_producer(&self) -> Option<(Arc<Producer>, Instant)> {
        if let Some(idle) = self.probes.lock().pop() {
            return Some(idle);
        }
        let mut config = self.config.clone();
        config.set("message.send.max.retries", "1");
        let clock = self.clock.clone();
        let built = tokio::task::spawn_blocking(move || Producer::new(&config, false, &clock)).await;
        match built {
            Ok(Ok(producer)) => Some((producer, Instant::now())),
            Ok(Err(error)) => {
                warn!(%error, "cannot build a producer for a probe; trying again");
                None
            }
            Err(_) => None,
        }
    }
}
