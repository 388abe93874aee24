//! Asks Kafka, for `outboxd doctor`, how it can be reached and what it says of topics. It only reads, and no topic is created by
//! asking for it.

mod authorized;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::Client;
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::metadata::MetadataPartition;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::admin::Admin;
use super::certificate::host_of;
use super::clients::Clients;
use super::context::Context;
use crate::tls::{Verify, is_loopback};

/// How long one question waits for an answer, and how long the client is listened to before each.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);
const LISTEN_FOR: Duration = Duration::from_millis(50);
/// Any topic will do to be told of the brokers.
const ANY_TOPIC: &str = "outboxd-doctor";

/// Why no broker answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreachable {
    pub cause: Cause,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Network,
    Tls,
    Login,
}

/// Why Kafka does not answer a question about a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicRefusal {
    /// There is no such topic.
    Missing,
    /// We may not ask.
    Forbidden,
    Other(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionState {
    pub number: i32,
    pub has_leader: bool,
    pub replicas: usize,
    pub in_sync: usize,
}

/// The settings of a topic, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicSettings {
    pub max_message_bytes: Option<i64>,
    pub min_in_sync: Option<usize>,
    /// Brokers write their own time into records, and refuse no other.
    pub stamps_itself: bool,
    /// How far ahead of the broker's clock the time of a record may be, in milliseconds.
    pub ahead_max_ms: Option<i64>,
}

/// What Kafka answers about one topic.
#[derive(Clone, Debug)]
pub struct TopicAnswers {
    pub partitions: Result<Vec<PartitionState>, TopicRefusal>,
    /// `None`: the brokers do not tell.
    pub may_write: Result<Option<bool>, TopicRefusal>,
    pub settings: Result<TopicSettings, TopicRefusal>,
}

/// How connections are protected, and who we are to the brokers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protection {
    pub brokers: String,
    /// No broker that is named is on another machine.
    pub is_local: bool,
    pub is_encrypted: bool,
    /// Brokers prove their identity.
    pub is_verified: bool,
    /// The SASL mechanism, if we log in.
    pub mechanism: Option<String>,
    /// We show a certificate.
    pub has_certificate: bool,
    /// Who we are in an ACL.
    pub principal: String,
    /// How long our token is still valid, if we have one.
    pub token_left: Option<Duration>,
}

impl Clients {
    /// What the settings and the token say of security.
    pub fn protection(&self) -> Protection {
        let current = self.current();
        let security = &current.security;
        let brokers = current.config.get("bootstrap.servers").unwrap_or_default().to_owned();
        Protection {
            is_local: brokers.split(',').all(|broker| is_local(broker.trim())),
            is_encrypted: security.uses_tls,
            is_verified: security.verify == Verify::ChainAndName,
            mechanism: security.mechanism().map(str::to_owned),
            has_certificate: self.has_certificate(),
            principal: self.principal(),
            token_left: self.token_left(),
            brokers,
        }
    }

    /// Why no broker answers, explained if that can be done within this time.
    pub async fn why_unreachable(&self, within: Duration) -> Unreachable {
        let Some(failure) = self.failures.take() else {
            let reason = "the client does not say why".to_owned();
            return Unreachable {
                cause: Cause::Network,
                reason,
            };
        };
        let cause = match &failure {
            failure if failure.is_login() => Cause::Login,
            failure if failure.may_be_security() => Cause::Tls,
            _ => Cause::Network,
        };
        let explained = tokio::time::timeout(within, self.explained(&failure)).await;
        let reason = explained.unwrap_or_else(|_| failure.reason.clone());
        Unreachable { cause, reason }
    }
}

fn is_local(broker: &str) -> bool {
    is_loopback(host_of(broker))
}

pub struct Inspector {
    /// A consumer, because a producer that asks for a topic has it created where brokers create topics by themselves. It joins no
    /// group.
    client: BaseConsumer<Context>,
    admin: Arc<Admin>,
}

impl Inspector {
    /// Waits until a broker answers. Also returns how many brokers there are; `None` if none has answered. Blocks.
    pub fn connect(clients: &Clients, until: Instant) -> Result<Option<(Self, usize)>, KafkaError> {
        let inspector = Inspector::new(clients)?;
        loop {
            inspector.listen();
            let timeout = left(until).min(ASK_TIMEOUT);
            let metadata = inspector.client().fetch_metadata(Some(ANY_TOPIC), timeout);
            // A broker that has just started does not know its cluster yet.
            let brokers = metadata.map_or(0, |metadata| metadata.brokers().len());
            if brokers > 0 {
                return Ok(Some((inspector, brokers)));
            }
            if left(until).is_zero() {
                inspector.listen();
                return Ok(None);
            }
        }
    }

    fn new(clients: &Clients) -> Result<Self, KafkaError> {
        // The settings are those of a producer, and name no group.
        let (mut config, context) = clients.parts();
        config.set("client.id", "outboxd-doctor");
        config.set("allow.auto.create.topics", "false");
        Ok(Inspector {
            client: BaseConsumer::from_config_and_context(&config, context)?,
            admin: Admin::new(clients)?,
        })
    }

    /// The client for a call that does not poll: it is given its token here.
    fn client(&self) -> &Client<Context> {
        let client = self.client.client();
        client.context().refresh_token(client.native_client());
        client
    }

    /// Lets the client say what it has to say of its connections, which it only does when it is polled.
    fn listen(&self) {
        let until = Instant::now() + LISTEN_FOR;
        while !left(until).is_zero() {
            // Errors go to the context.
            let _ = self.client.poll(left(until));
        }
    }

    /// Asks everything about topics. What is not answered in time is refused as such. Blocks.
    pub fn topics(&self, names: &[String], until: Instant) -> Vec<TopicAnswers> {
        let partitions = names.iter().map(|name| self.partitions(name, until));
        let partitions: Vec<_> = partitions.collect();
        let known: Vec<&str> = names
            .iter()
            .zip(&partitions)
            .filter_map(|(name, partitions)| partitions.is_ok().then_some(name.as_str()))
            .collect();
        let mut may_write = self.may_write(&known, until).into_iter();
        let mut settings = self.settings(&known, until).into_iter();
        let answers = partitions.into_iter().map(|partitions| match partitions {
            Err(refusal) => TopicAnswers {
                may_write: Err(refusal.clone()),
                settings: Err(refusal.clone()),
                partitions: Err(refusal),
            },
            Ok(partitions) => TopicAnswers {
                partitions: Ok(partitions),
                may_write: may_write.next().unwrap_or_else(not_answered),
                settings: settings.next().unwrap_or_else(not_answered),
            },
        });
        answers.collect()
    }

    fn partitions(&self, topic: &str, until: Instant) -> Result<Vec<PartitionState>, TopicRefusal> {
        let metadata = self.client().fetch_metadata(Some(topic), left(until));
        let metadata = metadata.map_err(|error| TopicRefusal::Other(error.to_string()))?;
        let topic = metadata.topics().first().ok_or(TopicRefusal::Missing)?;
        match topic.error() {
            Some(error) => Err(refusal(error.into())),
            None => Ok(topic.partitions().iter().map(state).collect()),
        }
    }

    fn may_write(&self, topics: &[&str], until: Instant) -> Vec<Result<Option<bool>, TopicRefusal>> {
        match authorized::may_write(self.client(), topics, left(until)) {
            Ok(answers) => answers.into_iter().map(|answer| answer.map_err(refusal)).collect(),
            Err(error) => topics
                .iter()
                .map(|_| Err(TopicRefusal::Other(error.to_string())))
                .collect(),
        }
    }

    fn settings(&self, topics: &[&str], until: Instant) -> Vec<Result<TopicSettings, TopicRefusal>> {
        let options = AdminOptions::new().request_timeout(Some(left(until)));
        let resources: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
        let described = self.admin.client().describe_configs(&resources, &options);
        match tokio::runtime::Handle::current().block_on(described) {
            Ok(answers) => answers
                .into_iter()
                .map(|answer| answer.map_err(refusal).and_then(|resource| topic_settings(&resource)))
                .collect(),
            Err(error) => topics
                .iter()
                .map(|_| Err(TopicRefusal::Other(error.to_string())))
                .collect(),
        }
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn not_answered<T>() -> Result<T, TopicRefusal> {
    Err(TopicRefusal::Other("Kafka left the topic out of its answer".to_owned()))
}

fn refusal(code: Code) -> TopicRefusal {
    match code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic => TopicRefusal::Missing,
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => TopicRefusal::Forbidden,
        code => TopicRefusal::Other(code.to_string()),
    }
}

fn state(partition: &MetadataPartition) -> PartitionState {
    PartitionState {
        number: partition.id(),
        has_leader: partition.leader() >= 0,
        replicas: partition.replicas().len(),
        in_sync: partition.isr().len(),
    }
}

/// A topic of which brokers may tell nothing comes without settings. The client library drops the reason, but the topic is there, so
/// it is a missing ACL.
fn topic_settings(resource: &ConfigResource) -> Result<TopicSettings, TopicRefusal> {
    if resource.entries.is_empty() {
        return Err(TopicRefusal::Forbidden);
    }
    let text = |name: &str| resource.get(name)?.value.as_deref();
    Ok(TopicSettings {
        max_message_bytes: text("max.message.bytes").and_then(|value| value.parse().ok()),
        min_in_sync: text("min.insync.replicas").and_then(|value| value.parse().ok()),
        stamps_itself: text("message.timestamp.type") == Some("LogAppendTime"),
        ahead_max_ms: text("message.timestamp.after.max.ms").and_then(|value| value.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::properties::Property;
    use crate::kafka::settings::{self, ClientSettings, UserSettings};

    fn protection(properties: &[(&str, &str)]) -> Protection {
        let flags = properties
            .iter()
            .map(|(name, value)| Property::flag(name, value))
            .collect();
        let user = UserSettings {
            flags,
            ..UserSettings::default()
        };
        let ours = settings::of_producer("kafka:9092, 127.0.0.1:9093", Duration::from_secs(5), 4000, 1 << 25);
        let settings = ClientSettings::producer(ours, user).expect("valid");
        Clients::new(settings).protection()
    }

    #[test]
    fn how_connections_are_protected_follows_from_the_settings() {
        let plain = protection(&[("sasl.username", "unused")]);
        assert_eq!(
            (plain.principal.as_str(), plain.is_encrypted),
            ("User:ANONYMOUS", false)
        );
        assert_eq!((plain.mechanism, plain.is_local), (None, false));
        let scram = protection(&[
            ("security.protocol", "SASL_SSL"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.username", "relay"),
            ("sasl.password", "s3cret"),
        ]);
        assert_eq!((scram.principal.as_str(), scram.is_encrypted), ("User:relay", true));
        assert_eq!(
            (scram.mechanism.as_deref(), scram.is_verified),
            (Some("SCRAM-SHA-512"), true)
        );
        let lax = protection(&[
            ("security.protocol", "ssl"),
            ("ssl.endpoint.identification.algorithm", "none"),
        ]);
        assert!(lax.is_encrypted && !lax.is_verified && !lax.has_certificate);
    }

    #[test]
    fn this_machine_is_known_by_its_names() {
        assert!(
            ["localhost:9092", "127.0.0.1:9093", "[::1]:9094"]
                .into_iter()
                .all(is_local)
        );
        assert!(!is_local("kafka:9092"));
    }
}
