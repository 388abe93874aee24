//! Topic metadata: how many partitions a topic has, which have a leader, and how large a batch it accepts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminOptions, ResourceSpecifier};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::metadata::MetadataPartition;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::admin::Admin;
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
/// The client's own batches are never larger than this (`batch.size`), so a topic that accepts more needs no limit.
const BATCH_SIZE: usize = 1_000_000;

#[derive(Clone, Copy, Debug)]
pub struct Topic {
    pub partitions: i32,
    /// How many bytes it accepts in one batch, if that is known.
    pub limit: Option<usize>,
}

/// What the brokers answer about a topic.
#[derive(Debug)]
struct TopicMetadata {
    partitions: i32,
    leaderless: Vec<i32>,
}

#[derive(Debug)]
struct CachedTopic {
    partitions: i32,
    /// Partitions that had no leader when the topic was looked up.
    leaderless: Vec<i32>,
    asked: Instant,
    described: Option<usize>,
    narrowed: Option<(usize, Instant)>,
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
    config: ClientConfig,
    lookup: Arc<Mutex<LookupClient>>,
    cache: Cache,
}

impl Topics {
    pub fn new(config: &ClientConfig) -> KafkaResult<Self> {
        Ok(Topics {
            config: config.clone(),
            lookup: Arc::new(Mutex::new(LookupClient {
                admin: Admin::new(config)?,
                silent_since: None,
                timeout: SILENCE_TIMEOUT,
            })),
            cache: Cache::default(),
        })
    }

    /// The topic, or the delivery of its rows if it cannot be looked up.
    pub async fn get(&self, name: &str, deadline: Instant) -> Result<Topic, Delivery> {
        if let Some(topic) = self.known(name) {
            return Ok(topic);
        }
        let TopicMetadata { partitions, leaderless } = self.ask(name, deadline).await?;
        let first_time = {
            let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            let old = cache.remove(name);
            if let Some(old) = &old
                && old.partitions != partitions
            {
                tracing::warn!(
                    topic = name,
                    before = old.partitions,
                    now = partitions,
                    "the partition count changed: from here on keys map to other partitions, and a consumer may read \
                     a key's newer rows there before its older ones here"
                );
            }
            let described = old.as_ref().and_then(|old| old.described);
            let narrowed = old.as_ref().and_then(|old| old.narrowed);
            let cached = CachedTopic {
                partitions,
                leaderless,
                asked: Instant::now(),
                described,
                narrowed,
            };
            cache.insert(name.to_owned(), cached);
            described.is_none()
        };
        if first_time {
            self.describe_in_background(name);
        }
        self.known(name).ok_or(Delivery::NotSent)
    }

    fn known(&self, name: &str) -> Option<Topic> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = cache.get(name).filter(|cached| cached.asked.elapsed() < FRESH_FOR)?;
        Some(Topic {
            partitions: cached.partitions,
            limit: cached.limit(),
        })
    }

    /// How many bytes may be in flight to one partition at once, if the topic accepts less than the client's largest batch.
    pub fn limit(&self, name: &str) -> Option<usize> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.get(name)?.limit().filter(|limit| *limit < BATCH_SIZE)
    }

    /// Did the partition have a leader when the topic was last looked up?
    pub fn has_leader(&self, name: &str, partition: i32) -> bool {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache
            .get(name)
            .is_none_or(|cached| !cached.leaderless.contains(&partition))
    }

    /// Sends smaller batches to a topic that refused one, and asks again how much it accepts.
    pub fn narrow(&self, name: &str, bytes: usize) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = cache.get_mut(name) {
            cached.narrowed = Some((bytes, Instant::now()));
        }
        drop(cache);
        self.describe_in_background(name);
    }

    /// Metadata of at least this age is requested again at the next use. What is known about the topic's limit is kept.
    pub fn expire(&self, name: &str, age: Duration) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = cache.get_mut(name)
            && cached.asked.elapsed() >= age
            && let Some(past) = Instant::now().checked_sub(FRESH_FOR)
        {
            cached.asked = past;
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
                ) => {
                    return Err(unavailable(Unavailability::Unusable, format!("topic {name}: {code}")));
                }
                Err(code) => {
                    return Err(unavailable(
                        Unavailability::Transient,
                        format!("topic {name}: cannot be looked up: {code}"),
                    ));
                }
            }
        }
    }

    async fn metadata(&self, name: &str) -> Result<TopicMetadata, Code> {
        let (lookup, config, name) = (self.lookup.clone(), self.config.clone(), name.to_owned());
        // The lookup runs to its end even if its caller stops waiting, so that a missing answer is noted.
        let answer = tokio::task::spawn_blocking(move || {
            let admin = lookup.lock().unwrap_or_else(PoisonError::into_inner).admin.clone();
            let answer = ask_brokers(&admin, &name);
            let is_silent = answer.as_ref().is_err_and(|code| is_silence(*code));
            let must_replace = lookup
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .must_replace(&admin, is_silent);
            if must_replace {
                replace_client(&lookup, &config);
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
        let admin = self.admin();
        let cache = self.cache.clone();
        let name = name.to_owned();
        tokio::spawn(async move {
            let options = AdminOptions::new().request_timeout(Some(LOOKUP_TIMEOUT));
            let Ok(described) = admin
                .client()
                .describe_configs([&ResourceSpecifier::Topic(&name)], &options)
                .await
            else {
                return;
            };
            let limit = described
                .into_iter()
                .flatten()
                .find_map(|resource| resource.get("max.message.bytes")?.value.clone()?.parse().ok());
            tracing::debug!(topic = name, limit, "asked how much the topic takes in one batch");
            let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(cached) = cache.get_mut(&name) {
                cached.described = limit;
            }
        });
    }

    fn admin(&self) -> Arc<Admin> {
        self.lookup.lock().unwrap_or_else(PoisonError::into_inner).admin.clone()
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

/// Lookups from now on use a new client.
fn replace_client(lookup: &Mutex<LookupClient>, config: &ClientConfig) {
    match Admin::new(config) {
        Ok(admin) => {
            lookup.lock().unwrap_or_else(PoisonError::into_inner).admin = admin;
            metrics::admin_client_rebuilt();
            tracing::debug!("the Kafka client that looks topics up hears nothing; trying a new one");
        }
        Err(error) => tracing::warn!(%error, "cannot build a Kafka client; keeping the old one"),
    }
}

fn ask_brokers(admin: &Admin, topic: &str) -> Result<TopicMetadata, Code> {
    let metadata = admin.client().inner().fetch_metadata(Some(topic), LOOKUP_TIMEOUT);
    let metadata = metadata.map_err(|error| code_of(&error))?;
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
            leaderless: leaderless(topic.partitions()),
        }),
    }
}

fn leaderless(partitions: &[MetadataPartition]) -> Vec<i32> {
    let without = partitions.iter().filter(|partition| partition.leader() < 0);
    without.map(MetadataPartition::id).collect()
}

/// Does this error mean that no broker has answered?
fn is_silence(code: Code) -> bool {
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::OperationTimedOut
            | Code::Resolve
            | Code::Authentication
            | Code::Unknown
    )
}

impl CachedTopic {
    fn limit(&self) -> Option<usize> {
        // A batch is a little larger than its records.
        let described = self.described.map(|limit| limit * 9 / 10);
        let narrowed = self
            .narrowed
            .filter(|(_, at)| at.elapsed() < NARROW_FOR)
            .map(|(bytes, _)| bytes);
        match (described, narrowed) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }
}

fn code_of(error: &KafkaError) -> Code {
    error.rdkafka_error_code().unwrap_or(Code::Unknown)
}

/// The delivery of the rows of a topic that cannot be looked up.
fn unavailable(fault: Unavailability, reason: String) -> Delivery {
    Delivery::Unavailable {
        fault,
        partition: None,
        reason,
        maybe_landed: false,
    }
}
