//! Topics: how many partitions each has, which of them have a leader, which are paused, and how large a batch it accepts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminOptions, ResourceSpecifier};
use rdkafka::error::KafkaResult;
use rdkafka::metadata::MetadataPartition;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::admin::Admin;
use super::clients::Clients;
use super::{delivery, lock};
use crate::domain::delivery::{Delivery, Unavailability};
use crate::metrics;

/// Partition counts rarely grow, so asking every minute is enough.
const FRESH_FOR: Duration = Duration::from_secs(60);
/// A limit inferred from refusals expires, since it may have been raised.
const NARROW_FOR: Duration = Duration::from_secs(600);
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);
/// A client that gets no answer for this long may never get one again: a broker that is just starting can answer that it knows
/// the topic but no brokers, and librdkafka 2.12 then forgets all brokers for good. A new client recovers.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// In a long outage the client is replaced less often. If connecting takes long, it would never connect otherwise.
const SILENCE_TIMEOUT_MAX: Duration = Duration::from_secs(10);
/// How long a partition stays paused. Probes are more frequent, and each one that fails pauses it again.
const PAUSE_LASTS: Duration = Duration::from_secs(10);
/// The client's own batches are never larger than this (`batch.size`), so a topic that accepts more needs no limit.
const BATCH_SIZE: usize = 1_000_000;

/// Partitions that accepted nothing recently while others answered, each with the time and the reason. Nothing is sent to them:
/// one batch has waited until its deadline, and the batches of other lanes must not wait as long, one after the other.
pub type PausedPartitions = HashMap<i32, (Instant, String)>;

#[derive(Clone, Debug)]
pub struct Topic {
    pub partitions: i32,
    /// How many bytes it accepts in one batch, if that is known.
    pub limit: Option<usize>,
    /// Partitions that no route leads to: see [`Topics::paused`].
    pub paused: PausedPartitions,
}

/// What the brokers answer about a topic.
#[derive(Debug, Default)]
struct TopicMetadata {
    partitions: i32,
    leaderless: Vec<i32>,
}

#[derive(Debug, Default)]
struct CachedTopic {
    metadata: TopicMetadata,
    /// When it was looked up, or `None` if it must be looked up again.
    asked: Option<Instant>,
    described: Option<usize>,
    narrowed: Option<(usize, Instant)>,
    paused: PausedPartitions,
}

type Cache = Arc<Mutex<HashMap<String, CachedTopic>>>;

/// The client that looks topics up.
struct LookupClient {
    admin: Arc<Admin>,
    /// Since when this client, and the one that it replaced, have had no answer.
    silent_since: Option<Instant>,
    /// How long it may have no answer before it is replaced.
    timeout: Duration,
}

pub struct Topics {
    clients: Arc<Clients>,
    lookup: Arc<Mutex<LookupClient>>,
    cache: Cache,
}

impl Topics {
    pub fn new(clients: Arc<Clients>) -> KafkaResult<Self> {
        Ok(Topics {
            lookup: Arc::new(Mutex::new(LookupClient {
                admin: Admin::new(&clients)?,
                silent_since: None,
                timeout: SILENCE_TIMEOUT,
            })),
            clients,
            cache: Cache::default(),
        })
    }

    /// Whom a broker must allow to write to a topic.
    pub fn principal(&self) -> String {
        self.clients.principal()
    }

    /// The topic, or the delivery of its rows if it cannot be looked up.
    pub async fn get(&self, name: &str, deadline: Instant) -> Result<Topic, Delivery> {
        if let Some(cached) = lock(&self.cache).get(name)
            && cached.asked.is_some_and(|asked| asked.elapsed() < FRESH_FOR)
        {
            return Ok(cached.topic());
        }
        let metadata = self.ask(name, deadline).await?;
        let mut cache = lock(&self.cache);
        let cached = cache.entry(name.to_owned()).or_default();
        let (before, now) = (cached.metadata.partitions, metadata.partitions);
        if before > 0 && before != now {
            tracing::warn!(
                topic = name,
                before,
                now,
                "the partition count changed: from here on keys map to other partitions, and a consumer may read a key's newer \
                 rows there before its older ones here"
            );
        }
        (cached.metadata, cached.asked) = (metadata, Some(Instant::now()));
        if cached.described.is_none() {
            self.describe_in_background(name);
        }
        Ok(cached.topic())
    }

    /// The partitions of the topic that are paused now.
    pub fn paused(&self, name: &str) -> PausedPartitions {
        let mut cache = lock(&self.cache);
        cache
            .get_mut(name)
            .map_or_else(HashMap::new, |cached| cached.paused(Instant::now()))
    }

    /// How many bytes may be in flight to one partition at once, if the topic accepts less than the client's largest batch.
    pub fn limit(&self, name: &str) -> Option<usize> {
        let limit = lock(&self.cache).get(name)?.limit();
        limit.filter(|limit| *limit < BATCH_SIZE)
    }

    /// Did the partition have a leader when the topic was last looked up?
    pub fn has_leader(&self, name: &str, partition: i32) -> bool {
        lock(&self.cache)
            .get(name)
            .is_none_or(|cached| !cached.metadata.leaderless.contains(&partition))
    }

    /// Sends smaller batches to a topic that refused one, and asks again how much it accepts.
    pub fn narrow(&self, name: &str, bytes: usize) {
        if let Some(cached) = lock(&self.cache).get_mut(name) {
            cached.narrowed = Some((bytes, Instant::now()));
        }
        self.describe_in_background(name);
    }

    /// Nothing is sent to the partition until it accepts a probe, or for a while. This is logged once, not for each lane that finds out.
    pub fn pause(&self, name: &str, partition: i32, reason: &str) {
        let mut cache = lock(&self.cache);
        let cached = cache.entry(name.to_owned()).or_default();
        if cached.pause(partition, reason, Instant::now()) {
            tracing::warn!(
                topic = name,
                partition,
                reason,
                "partition paused: it is tried again by itself; other partitions continue"
            );
        }
    }

    /// The partition accepts records.
    pub fn resume(&self, name: &str, partition: i32) {
        if let Some(cached) = lock(&self.cache).get_mut(name) {
            cached.paused.remove(&partition);
        }
    }

    /// Metadata of at least this age is requested again at the next use. What is known about the topic's limit is kept.
    pub fn expire(&self, name: &str, age: Duration) {
        if let Some(cached) = lock(&self.cache).get_mut(name) {
            cached.asked = cached.asked.filter(|asked| asked.elapsed() < age);
        }
    }

    async fn ask(&self, name: &str, deadline: Instant) -> Result<TopicMetadata, Delivery> {
        let until = deadline.min(Instant::now() + LOOKUP_TIMEOUT);
        loop {
            let asked = tokio::time::timeout_at(until.into(), self.metadata(name)).await;
            match asked.unwrap_or(Err(Code::OperationTimedOut)) {
                Ok(metadata) => return Ok(metadata),
                // A topic that is just being created has no leader for a moment.
                Err(Code::LeaderNotAvailable) if Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(
                    code @ (Code::UnknownTopicOrPartition
                    | Code::UnknownTopic
                    | Code::TopicAuthorizationFailed
                    | Code::InvalidTopic),
                ) => return Err(delivery::unusable(name, code, false, || self.principal())),
                Err(code) => {
                    let reason = format!("topic {name}: cannot be looked up: {code}");
                    return Err(Delivery::unavailable(Unavailability::Transient, None, reason, false));
                }
            }
        }
    }

    async fn metadata(&self, name: &str) -> Result<TopicMetadata, Code> {
        let (lookup, clients, name) = (self.lookup.clone(), self.clients.clone(), name.to_owned());
        // The lookup runs to its end even if its caller stops waiting, so that a missing answer is noted.
        let answer = tokio::task::spawn_blocking(move || {
            let admin = current_client(&lookup, &clients);
            let answer = ask_brokers(&admin, &name);
            let is_silent = answer.as_ref().is_err_and(|code| is_silence(*code));
            let must_replace = lock(&lookup).must_replace(&admin, is_silent);
            if must_replace {
                tracing::debug!("the Kafka client that looks topics up hears nothing; trying a new one");
                replace_client(&lookup, &clients);
            }
            answer
        });
        answer.await.unwrap_or(Err(Code::Unknown))
    }

    /// Does any broker answer at all?
    pub async fn reachable(&self, topic: &str) -> bool {
        !self.metadata(topic).await.is_err_and(is_silence)
    }

    /// Asks how large a batch the topic accepts. If we may not ask, the limit stays unknown until a batch is refused.
    fn describe_in_background(&self, name: &str) {
        let (admin, cache, name) = (lock(&self.lookup).admin.clone(), self.cache.clone(), name.to_owned());
        tokio::spawn(async move {
            let options = AdminOptions::new().request_timeout(Some(LOOKUP_TIMEOUT));
            let topic = ResourceSpecifier::Topic(&name);
            let Ok(described) = admin.client().describe_configs([&topic], &options).await else {
                return;
            };
            let limit = described
                .into_iter()
                .flatten()
                .find_map(|resource| resource.get("max.message.bytes")?.value.clone()?.parse().ok());
            tracing::debug!(topic = name, limit, "asked how much the topic takes in one batch");
            if let Some(cached) = lock(&cache).get_mut(&name) {
                cached.described = limit;
            }
        });
    }
}

impl LookupClient {
    /// Notes whether the client got an answer. True once when it has had none for too long.
    fn must_replace(&mut self, admin: &Arc<Admin>, is_silent: bool) -> bool {
        if !Arc::ptr_eq(&self.admin, admin) {
            return false;
        }
        if !is_silent {
            (self.silent_since, self.timeout) = (None, SILENCE_TIMEOUT);
            return false;
        }
        let since = *self.silent_since.get_or_insert_with(Instant::now);
        let must_replace = since.elapsed() >= self.timeout;
        if must_replace {
            self.silent_since = Some(Instant::now());
            self.timeout = (self.timeout * 2).min(SILENCE_TIMEOUT_MAX);
        }
        must_replace
    }
}

/// The client to look topics up with: another one if the settings have changed.
fn current_client(lookup: &Mutex<LookupClient>, clients: &Clients) -> Arc<Admin> {
    let admin = lock(lookup).admin.clone();
    if admin.generation() == clients.generation() {
        return admin;
    }
    replace_client(lookup, clients);
    lock(lookup).admin.clone()
}

/// Lookups from now on use a new client.
fn replace_client(lookup: &Mutex<LookupClient>, clients: &Clients) {
    match Admin::new(clients) {
        Ok(admin) => {
            lock(lookup).admin = admin;
            metrics::admin_client_rebuilt();
        }
        Err(error) => tracing::warn!(%error, "cannot build a Kafka client; keeping the old one"),
    }
}

fn ask_brokers(admin: &Admin, topic: &str) -> Result<TopicMetadata, Code> {
    let metadata = admin.client().inner().fetch_metadata(Some(topic), LOOKUP_TIMEOUT);
    let metadata = metadata.map_err(|error| error.rdkafka_error_code().unwrap_or(Code::Unknown))?;
    if metadata.brokers().is_empty() {
        // The broker has just started and does not know its cluster yet.
        return Err(Code::AllBrokersDown);
    }
    let topic = metadata.topics().first().ok_or(Code::UnknownTopicOrPartition)?;
    match topic.error() {
        Some(error) => Err(error.into()),
        None if topic.partitions().is_empty() => Err(Code::LeaderNotAvailable),
        None => Ok(TopicMetadata {
            partitions: topic.partitions().len() as i32,
            leaderless: topic
                .partitions()
                .iter()
                .filter(|partition| partition.leader() < 0)
                .map(MetadataPartition::id)
                .collect(),
        }),
    }
}

/// Does this error mean that no broker has answered?
fn is_silence(code: Code) -> bool {
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::OperationTimedOut
            | Code::Resolve
            | Code::SSL
            | Code::Authentication
            | Code::Unknown
    )
}

impl CachedTopic {
    fn topic(&self) -> Topic {
        Topic {
            partitions: self.metadata.partitions,
            limit: self.limit(),
            paused: HashMap::new(),
        }
    }

    fn paused(&mut self, now: Instant) -> PausedPartitions {
        self.paused
            .retain(|_, (since, _)| now.saturating_duration_since(*since) < PAUSE_LASTS);
        self.paused.clone()
    }

    fn limit(&self) -> Option<usize> {
        // A batch is a little larger than its records.
        let described = self.described.map(|limit| limit * 9 / 10);
        let narrowed = self.narrowed.filter(|(_, at)| at.elapsed() < NARROW_FOR);
        let narrowed = narrowed.map(|(bytes, _)| bytes);
        described.into_iter().chain(narrowed).min()
    }

    /// Returns whether the partition was not paused before.
    fn pause(&mut self, partition: i32, reason: &str, now: Instant) -> bool {
        self.paused.insert(partition, (now, reason.to_owned())).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_paused_for_a_while_unless_it_is_paused_again() {
        let (mut cached, now) = (CachedTopic::default(), Instant::now());
        let paused_at = |cached: &mut CachedTopic, now| {
            let mut partitions: Vec<i32> = cached.paused(now).into_keys().collect();
            partitions.sort_unstable();
            partitions
        };
        assert!(cached.pause(1, "no leader", now));
        assert!(cached.pause(2, "no leader", now + PAUSE_LASTS / 2));
        assert_eq!(cached.paused(now)[&1].1, "no leader");
        assert_eq!(paused_at(&mut cached, now), [1, 2]);
        assert_eq!(paused_at(&mut cached, now + PAUSE_LASTS), [2]);
        assert!(!cached.pause(2, "no leader", now + PAUSE_LASTS), "it is logged once");
        assert_eq!(paused_at(&mut cached, now + PAUSE_LASTS * 3 / 2), [2], "paused again");
        assert!(paused_at(&mut cached, now + PAUSE_LASTS * 2).is_empty());
        assert!(cached.paused.is_empty(), "and nothing is left of it");
    }
}
