//! The producer that carries batches, and a spare one: building a producer takes half a second, and every lane would wait.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::error::KafkaResult;
use tracing::warn;

use super::producer::{Producer, ProducerSettings};
use super::reports::SentRecords;
use super::{ANSWERS_AFTER_FATAL, PURGE_TIMEOUT, lock};
use crate::metrics;

/// How long answers to overdue records are awaited before everything is purged.
const LATE_ANSWERS: Duration = Duration::from_secs(1);

pub struct MainProducer {
    settings: ProducerSettings,
    current: Mutex<Arc<Producer>>,
    spare: Arc<Mutex<Option<Arc<Producer>>>>,
}

impl MainProducer {
    pub fn new(settings: ProducerSettings) -> KafkaResult<Self> {
        Ok(MainProducer {
            current: Mutex::new(Producer::new(&settings)?),
            spare: Arc::new(Mutex::new(Some(Producer::new(&settings)?))),
            settings,
        })
    }

    /// The producer for a batch. It may be a retired one, if no other could be built when it was retired.
    pub fn get(&self) -> Arc<Producer> {
        let producer = lock(&self.current).clone();
        if !producer.is_retired() {
            return producer;
        }
        self.replace(&producer, "the producer had been given up");
        lock(&self.current).clone()
    }

    /// Replaces a producer that was built from earlier settings. What it carries is finished over its connections.
    pub async fn renew(&self) {
        let old = lock(&self.current).clone();
        if !old.is_outdated() {
            return;
        }
        match Producer::build(&self.settings).await {
            Ok(next) => {
                *lock(&self.spare) = Some(next);
                self.replace(&old, "its settings have changed");
            }
            // They were accepted when they were read. It is built when the old one is given up.
            Err(error) => warn!(%error, "cannot build a producer from the changed settings; keeping the old one"),
        }
    }

    /// Waits for the reports of what was sent together. False if the deadline passed; then records without an answer have been
    /// purged.
    pub async fn finish(&self, producer: &Arc<Producer>, sent: &SentRecords, deadline: Instant) -> bool {
        if sent.all_reported_by(deadline, || producer.is_fatal()).await {
            return true;
        }
        let fatal = producer.is_fatal();
        let why = if fatal {
            "the producer hit a fatal error"
        } else {
            "a batch got no answer before its deadline"
        };
        self.replace(producer, why);
        // Counted from the deadline, not from now: a process that was suspended beyond it has no time left.
        let last_wait = if fatal {
            Instant::now() + ANSWERS_AFTER_FATAL
        } else {
            deadline + LATE_ANSWERS
        };
        if sent.all_reported_by(last_wait, || false).await {
            return true;
        }
        producer.purge();
        sent.all_reported_by(Instant::now() + PURGE_TIMEOUT, || false).await;
        fatal
    }

    /// Replaces a producer that has a fatal error. It is purged a little later, because other tasks may wait for reports that
    /// only a purge brings.
    pub fn replace_if_fatal(&self, producer: &Arc<Producer>) {
        if !producer.is_fatal() {
            return;
        }
        self.replace(producer, "the producer hit a fatal error");
        let producer = producer.clone();
        tokio::spawn(async move {
            tokio::time::sleep(ANSWERS_AFTER_FATAL).await;
            producer.purge();
        });
    }

    /// Puts the spare in the producer's place and builds a new spare in the background.
    fn replace(&self, old: &Arc<Producer>, why: &str) {
        old.retire();
        let mut current = lock(&self.current);
        if !Arc::ptr_eq(&current, old) {
            return;
        }
        let spare = lock(&self.spare).take().filter(|spare| !spare.is_outdated());
        let next = match spare.map_or_else(|| Producer::new(&self.settings), Ok) {
            Ok(next) => next,
            Err(error) => {
                // A producer was built from these settings before. Memory or threads may be missing now, and available next time.
                warn!(%error, "cannot build a producer; keeping the old one");
                return;
            }
        };
        *current = next;
        drop(current);
        metrics::producer_rebuilt();
        warn!(why, "replaced the Kafka producer");
        let (settings, spare) = (self.settings.clone(), self.spare.clone());
        tokio::task::spawn_blocking(move || match Producer::new(&settings) {
            Ok(next) => *lock(&spare) = Some(next),
            Err(error) => warn!(%error, "cannot build a spare producer; the next one is built when needed"),
        });
    }
}
