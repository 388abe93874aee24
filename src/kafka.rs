//! The only user of the Kafka client. It takes rows and returns the [`Delivery`] of each of them.
//!
//! There are three producers: the *main* one carries batches; a *spare* stands by, because building a producer takes half a
//! second and every lane would wait; the *quarantine* sends single records that Kafka may refuse, so that a refusal affects no
//! other record. Probes of paused topics and partitions have producers of their own, each for one probe at a time. A separate
//! client looks topics up and sends nothing. We do not rely on any client to recover by itself: one that gets no answer is
//! replaced, and so is one whose settings have changed. These rules keep a key in order through a partial failure:
//!
//! - The partition is computed here, as the Java client would compute it.
//! - The first record that a producer sends to a partition is sent alone and waited for: a broker accepts any first sequence
//!   number from a producer it does not know, and would accept row 2 after it refused row 1.
//! - After that the gapless guarantee holds: nothing that this producer sends behind a refused record is accepted.
//! - An acknowledgement has an offset. One without an offset is only inferred by the client, which may be wrong while several
//!   tasks send their first record.
//! - A publish has a deadline inside the lease and shorter than the client's timeout: an expired record could be overtaken by the
//!   one behind it.

mod admin;
mod certificate;
mod clients;
pub mod consumer;
mod context;
mod delivery;
mod failures;
pub mod inspect;
mod main_producer;
mod oauth;
mod partition_batches;
mod probes;
mod producer;
pub mod properties;
mod quarantine;
mod reports;
mod route;
mod security;
pub mod settings;
mod statistics;
mod topics;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::domain::delivery::Delivery;
use crate::domain::partition::Partition;
use crate::domain::row::Row;
use crate::jitter::jittered;
use crate::metrics;
use crate::tls::InUse;
use main_producer::MainProducer;
use partition_batches::PartitionBatches;
use probes::Probes;
use producer::{ProducerSettings, Purpose};
use quarantine::Quarantine;
use route::{KnownTopics, Route, earlier_of_unit};
use topics::Topics;

pub use clients::Clients;
pub use producer::headers;
pub use rdkafka::error::KafkaError;
pub use settings::ClientSettings;

/// After a fatal error some reports come only after a purge, but answers that are on their way should arrive first: a record
/// purged in flight has to be sent again, as a possible duplicate.
const ANSWERS_AFTER_FATAL: Duration = Duration::from_millis(250);
/// How long the reports of purged records are waited for. They usually come at once.
const PURGE_TIMEOUT: Duration = Duration::from_secs(1);

/// Metadata of this age is good enough for a single row. Thousands of keys of one topic may be tried again together, and the
/// brokers should not be asked for each.
const METADATA_AGE_MAX: Duration = Duration::from_secs(1);

/// How long a publish can overrun its deadline. The lease must allow for it.
pub const OVERRUN: Duration = Duration::from_secs(2);

/// How long a record may live in the client, counted from when it was handed over. It is longer than a batch and its overrun, so
/// that their deadlines come first.
pub fn record_lifetime(batch_deadline: Duration) -> Duration {
    batch_deadline + OVERRUN + Duration::from_millis(500)
}

/// The deadlines of a publish.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deadlines {
    /// No record is handed to the client after this: if the process is suspended, its records must have expired when the lease is
    /// over.
    pub handed_over: Instant,
    /// Answers are awaited until this, and for [`OVERRUN`] more.
    pub answered: Instant,
}

pub struct Publisher {
    main: MainProducer,
    quarantine: Quarantine,
    probes: Probes,
    topics: Topics,
    clients: Arc<Clients>,
    /// Is publishing paused because Kafka does not answer at all?
    paused: watch::Sender<bool>,
    last_ack: Arc<Mutex<Option<Instant>>>,
}

impl Publisher {
    /// Connects lazily: the first batch finds out that Kafka is unreachable. Record timestamps are read from `clock`.
    pub fn new(clients: Arc<Clients>, clock: Arc<Clock>) -> Result<Arc<Self>, KafkaError> {
        let single = ProducerSettings {
            clients: clients.clone(),
            purpose: Purpose::SingleRecords,
            clock,
            last_ack: Arc::default(),
        };
        let batches = ProducerSettings {
            purpose: Purpose::Batches,
            ..single.clone()
        };
        Ok(Arc::new(Publisher {
            main: MainProducer::new(batches)?,
            quarantine: Quarantine::new(single.clone())?,
            topics: Topics::new(clients.clone())?,
            clients,
            paused: watch::channel(false).0,
            last_ack: single.last_ack.clone(),
            probes: Probes::new(single),
        }))
    }

    /// Keeps tokens and settings up to date until it is told to stop.
    pub async fn follow_settings(&self, stop: &CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.clients.follow() => {}
            () = self.renew_main() => {}
            () = self.give_tokens() => {}
        }
    }

    /// Replaces the main producer when the settings have changed, before a batch has to wait for it. The other clients are replaced
    /// when they are used next.
    async fn renew_main(&self) {
        let mut generation = 0;
        loop {
            self.clients.changed_since(generation).await;
            generation = self.clients.generation();
            self.main.renew().await;
        }
    }

    /// Gives each new token to all clients.
    async fn give_tokens(&self) {
        let mut token = 0;
        loop {
            token = self.clients.token_after(token).await;
            let clients = self.clients.clone();
            // A client that ends meanwhile is closed there, which blocks.
            let given = tokio::task::spawn_blocking(move || clients.give_token()).await;
            given.unwrap_or_else(|error| tracing::debug!(%error, "cannot give the next token to the Kafka clients"));
        }
    }

    /// The certificates in use, and when they expire. `None`: nobody knows.
    pub async fn certificates(&self) -> Option<InUse> {
        self.clients.certificates().await
    }

    /// Resolves while Kafka is believed to answer.
    pub async fn ready(&self) {
        let mut paused = self.paused.subscribe();
        // The sender lives as long as `self`.
        let _ = paused.wait_for(|paused| !paused).await;
    }

    pub fn is_paused(&self) -> bool {
        *self.paused.borrow()
    }

    /// Has any record of this process been acknowledged since then?
    pub fn answered_since(&self, then: Instant) -> bool {
        lock(&self.last_ack).is_some_and(|at| at >= then)
    }

    /// Publishes rows, which must be in row order, and returns the delivery of each.
    pub async fn publish(&self, rows: &[Row], deadlines: Deadlines) -> Vec<Delivery> {
        let mut known = KnownTopics::of(rows, &self.topics, deadlines.answered).await;
        known.skip_paused(&self.topics);
        let routes = known.routes(rows);
        let mut deliveries = vec![Delivery::NotSent; rows.len()];
        let mut batches = PartitionBatches::new(rows, &self.topics);
        let mut alone = Vec::new();
        for (index, route) in routes.iter().enumerate() {
            match route {
                Err(delivery) => deliveries[index] = delivery.clone(),
                Ok(route) if route.alone => alone.push((index, route.partition)),
                Ok(route) => batches.push(index, route.partition),
            }
        }
        let sent = self.send_batches(rows, batches, &routes, deadlines);
        let quarantined = self.quarantine.send_each(rows, &alone, deadlines);
        let (sent, quarantined) = tokio::join!(sent, quarantined);
        for (index, delivery) in sent.into_iter().chain(quarantined) {
            deliveries[index] = delivery;
        }
        deliveries
    }

    /// Sends the batches by the main producer, and then each record that it refused in quarantine. The client puts records of
    /// several tasks into one produce batch, which fails as a whole, so a refusal by the main producer may be about the record of
    /// another task. In quarantine the answer is about the record that was sent. Order is kept, because the gapless guarantee
    /// lets nothing behind a refused record through.
    async fn send_batches(
        &self,
        rows: &[Row],
        batches: PartitionBatches<'_>,
        routes: &[Result<Route, Delivery>],
        deadlines: Deadlines,
    ) -> Vec<(usize, Delivery)> {
        let mut deliveries = batches.send(&self.main, deadlines).await;
        let refused: Vec<_> = deliveries
            .extract_if(.., |(_, delivery)| matches!(delivery, Delivery::Refused { .. }))
            .collect();
        if refused.is_empty() {
            return deliveries;
        }
        let acked: HashSet<usize> = deliveries
            .iter()
            .filter(|(_, delivery)| *delivery == Delivery::Acked)
            .map(|(index, _)| *index)
            .collect();
        let alone: Vec<_> = refused
            .iter()
            .filter(|(index, _)| earlier_of_unit(rows, *index).all(|earlier| acked.contains(&earlier)))
            .filter_map(|(index, _)| Some((*index, routes[*index].as_ref().ok()?.partition)))
            .collect();
        deliveries.extend(self.quarantine.send_each(rows, &alone, deadlines).await);
        deliveries
    }

    /// Sends one row alone, in quarantine, with fresh metadata of its topic.
    pub async fn send_head(&self, row: &Row, deadlines: Deadlines) -> Delivery {
        match self.route_one(row, deadlines, true).await {
            Ok(partition) => self.quarantine.send(row, partition, deadlines).await,
            Err(delivery) => delivery,
        }
    }

    /// Sends one row of a paused topic or partition, by a producer that carries nothing else meanwhile.
    pub async fn probe(&self, row: &Row, deadlines: Deadlines) -> Delivery {
        let partition = match self.route_one(row, deadlines, false).await {
            Ok(partition) => partition,
            Err(delivery) => return delivery,
        };
        let delivery = if self.topics.has_leader(&row.topic, partition.number) {
            self.probes.send(row, partition, deadlines).await
        } else {
            delivery::transient(&row.topic, partition, "it has no leader", false)
        };
        match &delivery {
            Delivery::Unavailable { reason, .. } => self.pause_partition(&row.topic, partition, reason),
            Delivery::Acked | Delivery::Refused { .. } => self.topics.resume(&row.topic, partition.number),
            _ => {}
        }
        delivery
    }

    /// Drops the producers of probes. They are not needed once nothing is paused.
    pub fn end_probes(&self) {
        self.probes.end();
    }

    /// The partition accepted nothing while others answered. Nothing is sent to it until it accepts a probe.
    pub fn pause_partition(&self, topic: &str, partition: Partition, reason: &str) {
        self.topics.pause(topic, partition.number, reason);
    }

    /// The partition of a row by fresh metadata of its topic, or why the row must not be sent now.
    async fn route_one(&self, row: &Row, deadlines: Deadlines, skip_paused: bool) -> Result<Partition, Delivery> {
        self.topics.expire(&row.topic, METADATA_AGE_MAX);
        let rows = std::slice::from_ref(row);
        let mut known = KnownTopics::of(rows, &self.topics, deadlines.answered).await;
        if skip_paused {
            known.skip_paused(&self.topics);
        }
        known.route(row).map(|route| route.partition)
    }

    /// Makes all tasks wait, because Kafka does not answer, until it answers again.
    pub fn pause(self: &Arc<Self>, reason: &str, topic: &str) {
        if self.paused.send_replace(true) {
            return;
        }
        metrics::publisher_paused(true);
        warn!(
            reason,
            connection = self.clients.last_failure(),
            "Kafka does not answer; publishing is paused until it does. No attempt is counted"
        );
        let publisher = self.clone();
        let topic = topic.to_owned();
        tokio::spawn(async move { publisher.wait_for_kafka(&topic).await });
    }

    async fn wait_for_kafka(&self, topic: &str) {
        let since = Instant::now();
        let mut wait = Duration::from_millis(200);
        while !self.topics.reachable(topic).await {
            tokio::time::sleep(jittered(wait)).await;
            wait = (wait * 2).min(Duration::from_secs(3));
        }
        info!(
            seconds = since.elapsed().as_secs(),
            "Kafka answers again; publishing continues"
        );
        metrics::publisher_paused(false);
        self.paused.send_replace(false);
    }
}

/// A panic of another task ends the process, so a poisoned lock is taken like any other.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
