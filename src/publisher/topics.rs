//! What is known of topics: how many partitions, how large a batch they take.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminOptions, ResourceSpecifier};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::admin::Admin;
use super::sick;
use crate::message::{Outcome, TopicFault};

/// Partition counts grow seldom; asking every minute is enough.
const FRESH_FOR: Duration = Duration::from_secs(60);
/// A limit inferred from refusals is doubted after a while: somebody may have raised it.
const NARROW_FOR: Duration = Duration::from_secs(600);
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);
/// The client's own batches are never larger than this (`batch.size`), so a topic that takes more needs no care.
const BATCH_SIZE: usize = 1_000_000;

#[derive(Clone, Copy, Debug)]
pub struct Topic {
    pub partitions: i32,
    /// The most bytes it takes in one batch, where that is known.
    pub limit: Option<usize>,
}

#[derive(Debug)]
struct Entry {
    partitions: i32,
    asked: Instant,
    described: Option<usize>,
    narrowed: Option<(usize, Instant)>,
}

type Entries = Arc<Mutex<HashMap<String, Entry>>>;

pub struct Topics {
    config: ClientConfig,
    admin: Mutex<Arc<Admin>>,
    entries: Entries,
}

impl Topics {
    pub fn new(config: &ClientConfig) -> KafkaResult<Self> {
        Ok(Topics {
            config: config.clone(),
            admin: Mutex::new(Admin::new(config)?),
            entries: Entries::default(),
        })
    }

    /// The topic, or what not knowing it means for a row.
    pub async fn get(&self, name: &str, deadline: Instant) -> Result<Topic, Outcome> {
        if let Some(topic) = self.known(name) {
            return Ok(topic);
        }
        let partitions = self.ask(name, deadline).await?;
        let first_time = {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            let old = entries.remove(name);
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
            let entry = Entry {
                partitions,
                asked: Instant::now(),
                described,
                narrowed,
            };
            entries.insert(name.to_owned(), entry);
            described.is_none()
        };
        if first_time {
            self.describe_in_background(name);
        }
        self.known(name).ok_or(Outcome::Unsent)
    }

    fn known(&self, name: &str) -> Option<Topic> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(name).filter(|entry| entry.asked.elapsed() < FRESH_FOR)?;
        Some(Topic {
            partitions: entry.partitions,
            limit: entry.limit(),
        })
    }

    /// How many bytes may be on their way to one partition at once, where the topic takes less than our batches.
    pub fn limit(&self, name: &str) -> Option<usize> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.get(name)?.limit().filter(|limit| *limit < BATCH_SIZE)
    }

    /// A batch of this topic was refused: send less at once, and ask again what it takes.
    pub fn narrow(&self, name: &str, bytes: usize) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get_mut(name) {
            entry.narrowed = Some((bytes, Instant::now()));
        }
        drop(entries);
        self.describe_in_background(name);
    }

    /// Ask anew next time; what was learned about its limit stays.
    pub fn forget(&self, name: &str) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get_mut(name)
            && let Some(past) = Instant::now().checked_sub(FRESH_FOR)
        {
            entry.asked = past;
        }
    }

    async fn ask(&self, name: &str, deadline: Instant) -> Result<i32, Outcome> {
        let give_up = deadline.min(Instant::now() + LOOKUP_TIMEOUT);
        loop {
            let asked = tokio::time::timeout_at(give_up.into(), self.metadata(name)).await;
            match asked.unwrap_or(Err(Code::OperationTimedOut)) {
                Ok(partitions) => return Ok(partitions),
                // A topic that is just being created has no leader for a moment.
                Err(Code::LeaderNotAvailable) if Instant::now() < give_up => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(
                    code @ (Code::UnknownTopicOrPartition
                    | Code::UnknownTopic
                    | Code::TopicAuthorizationFailed
                    | Code::InvalidTopic),
                ) => {
                    return Err(sick(TopicFault::Unusable, format!("topic {name}: {code}")));
                }
                Err(code) => {
                    return Err(sick(
                        TopicFault::Transient,
                        format!("topic {name}: cannot be looked up: {code}"),
                    ));
                }
            }
        }
    }

    async fn metadata(&self, name: &str) -> Result<i32, Code> {
        let admin = self.admin();
        let name = name.to_owned();
        let asked = tokio::task::spawn_blocking(move || {
            let metadata = admin
                .client()
                .inner()
                .fetch_metadata(Some(&name), LOOKUP_TIMEOUT)
                .map_err(|error| code_of(&error))?;
            if metadata.brokers().is_empty() {
                // A broker that has just started and has not heard of its cluster.
                return Err(Code::AllBrokersDown);
            }
            let topic = metadata.topics().first().ok_or(Code::UnknownTopicOrPartition)?;
            match topic.error() {
                Some(error) => Err(error.into()),
                None if topic.partitions().is_empty() => Err(Code::LeaderNotAvailable),
                None => Ok(topic.partitions().len() as i32),
            }
        });
        asked.await.unwrap_or(Err(Code::Unknown))
    }

    /// Does any broker answer at all?
    pub async fn reachable(&self, topic: &str) -> bool {
        match self.metadata(topic).await {
            Ok(_) => true,
            Err(code) => !matches!(
                code,
                Code::BrokerTransportFailure
                    | Code::AllBrokersDown
                    | Code::OperationTimedOut
                    | Code::Resolve
                    | Code::Authentication
                    | Code::Unknown
            ),
        }
    }

    /// Where describing is not permitted, or not possible, the limit stays unknown and refusals teach it.
    fn describe_in_background(&self, name: &str) {
        let admin = self.admin();
        let entries = self.entries.clone();
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
            let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(entry) = entries.get_mut(&name) {
                entry.described = limit;
            }
        });
    }

    /// Whoever asks from now on asks through a client that has no past.
    pub fn start_over(&self) {
        match Admin::new(&self.config) {
            Ok(admin) => *self.admin.lock().unwrap_or_else(PoisonError::into_inner) = admin,
            Err(error) => tracing::warn!(%error, "cannot build a Kafka client; keeping the old one"),
        }
    }

    fn admin(&self) -> Arc<Admin> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Entry {
    fn limit(&self) -> Option<usize> {
        // A batch carries some bytes around its records.
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
