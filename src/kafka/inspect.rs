//! Asks Kafka, for `outboxd doctor`, how it can be reached and what it says of topics. It only reads, and no topic is created by
//! asking for it.

mod authorized;

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::OAuthToken;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::metadata::MetadataPartition;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{ClientConfig, ClientContext};

use super::admin::Admin;
use super::clients::Clients;
use super::context::Context;
use super::lock;
use super::settings::ClientSettings;

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

/// Ordered by how much it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

/// How connections are protected, and who we are to the brokers, by the settings of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Security {
    pub brokers: String,
    /// No broker that is named is on another machine.
    pub is_local: bool,
    pub is_encrypted: bool,
    /// Brokers prove their identity.
    pub is_verified: bool,
    /// The SASL mechanism, and the login where it has one.
    pub mechanism: Option<String>,
    pub login: Option<String>,
    pub has_certificate: bool,
    /// Who we are in an ACL.
    pub principal: String,
}

impl Security {
    pub fn of(settings: &ClientSettings) -> Self {
        Self::read(&settings.read.config, settings.read.security.principal(None))
    }

    fn read(config: &ClientConfig, principal: String) -> Self {
        let get = |name: &str| config.get(name).map(str::to_owned);
        let protocol = get("security.protocol").unwrap_or_default().to_lowercase();
        let is_off = |name: &str, off: &str| config.get(name).is_some_and(|value| value.eq_ignore_ascii_case(off));
        let brokers = get("bootstrap.servers").unwrap_or_default();
        let mechanism = || get("sasl.mechanisms").or_else(|| get("sasl.mechanism"));
        let is_unverified = is_off("enable.ssl.certificate.verification", "false")
            || is_off("ssl.endpoint.identification.algorithm", "none");
        Security {
            is_local: brokers.split(',').all(|broker| is_local(broker.trim())),
            is_encrypted: protocol.ends_with("ssl"),
            is_verified: !is_unverified,
            mechanism: mechanism().filter(|_| protocol.starts_with("sasl")),
            login: get("sasl.username"),
            has_certificate: config.get("ssl.certificate.location").is_some()
                || config.get("ssl.keystore.location").is_some(),
            principal,
            brokers,
        }
    }
}

fn is_local(broker: &str) -> bool {
    ["localhost:", "127.", "[::1]:"]
        .iter()
        .any(|here| broker.starts_with(here))
}

/// Remembers the reason that says most about why connections fail.
struct Listener {
    context: Context,
    reason: Mutex<Option<Unreachable>>,
}

impl ClientContext for Listener {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = Context::ENABLE_REFRESH_OAUTH_TOKEN;

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.context.log(level, facility, message);
    }

    fn generate_oauth_token(&self, properties: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.context.generate_oauth_token(properties)
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let cause = match error.rdkafka_error_code() {
            // It follows from the other errors and does not say why.
            Some(Code::AllBrokersDown) => return,
            Some(Code::SSL) => Cause::Tls,
            Some(Code::Authentication) => Cause::Login,
            _ => Cause::Network,
        };
        let mut known = lock(&self.reason);
        if known.as_ref().is_none_or(|known| known.cause <= cause) {
            let reason = reason.to_owned();
            *known = Some(Unreachable { cause, reason });
        }
    }
}

impl ConsumerContext for Listener {}

pub struct Inspector {
    /// A consumer, because a producer that asks for a topic has it created where brokers create topics by themselves. It joins no
    /// group.
    client: BaseConsumer<Listener>,
    admin: Arc<Admin>,
    /// Who we are in an ACL.
    pub principal: String,
}

impl Unreachable {
    fn network(reason: impl ToString) -> Self {
        Unreachable {
            cause: Cause::Network,
            reason: reason.to_string(),
        }
    }
}

impl Inspector {
    /// Waits until a broker answers. Also returns how many brokers there are. Blocks.
    pub fn connect(clients: &Arc<Clients>, until: Instant) -> Result<(Self, usize), Unreachable> {
        let inspector = Inspector::new(clients).map_err(Unreachable::network)?;
        loop {
            inspector.listen();
            let timeout = left(until).min(ASK_TIMEOUT);
            let metadata = inspector.client.fetch_metadata(Some(ANY_TOPIC), timeout);
            // A broker that has just started does not know its cluster yet.
            let brokers = metadata.map_or(0, |metadata| metadata.brokers().len());
            if brokers > 0 {
                return Ok((inspector, brokers));
            }
            if left(until).is_zero() {
                inspector.listen();
                let reason = lock(&inspector.client.context().reason).clone();
                return Err(reason.unwrap_or_else(|| Unreachable::network("the client does not say why")));
            }
        }
    }

    fn new(clients: &Arc<Clients>) -> Result<Self, KafkaError> {
        let (mut config, context) = clients.parts();
        config.set("client.id", "outboxd-doctor");
        config.set("allow.auto.create.topics", "false");
        config.remove("group.id");
        let listener = Listener {
            context,
            reason: Mutex::default(),
        };
        Ok(Inspector {
            client: BaseConsumer::from_config_and_context(&config, listener)?,
            admin: Admin::new(clients)?,
            principal: clients.principal(),
        })
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
        let metadata = self.client.fetch_metadata(Some(topic), left(until));
        let metadata = metadata.map_err(|error| TopicRefusal::Other(error.to_string()))?;
        let topic = metadata.topics().first().ok_or(TopicRefusal::Missing)?;
        match topic.error() {
            Some(error) => Err(refusal(error.into())),
            None => Ok(topic.partitions().iter().map(state).collect()),
        }
    }

    fn may_write(&self, topics: &[&str], until: Instant) -> Vec<Result<Option<bool>, TopicRefusal>> {
        match authorized::may_write(self.client.client(), topics, left(until)) {
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
                .map(|answer| answer.map(|resource| topic_settings(&resource)).map_err(refusal))
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

fn topic_settings(resource: &ConfigResource) -> TopicSettings {
    let text = |name: &str| resource.get(name)?.value.as_deref();
    TopicSettings {
        max_message_bytes: text("max.message.bytes").and_then(|value| value.parse().ok()),
        min_in_sync: text("min.insync.replicas").and_then(|value| value.parse().ok()),
        stamps_itself: text("message.timestamp.type") == Some("LogAppendTime"),
        ahead_max_ms: text("message.timestamp.after.max.ms").and_then(|value| value.parse().ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::UserSettings;
    use super::*;

    fn security(properties: &[(&str, &str)]) -> Security {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", "kafka:9092");
        config.extend(
            properties
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_string())),
        );
        Security::read(&config, "User:relay".to_owned())
    }

    #[test]
    fn how_connections_are_protected_follows_from_the_settings() {
        assert!(!security(&[("sasl.username", "unused")]).is_encrypted);
        let scram = security(&[
            ("security.protocol", "SASL_SSL"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.username", "relay"),
        ]);
        assert_eq!(scram.login.as_deref(), Some("relay"));
        assert!(scram.is_encrypted && scram.is_verified && !scram.is_local);
        let mtls = security(&[("security.protocol", "ssl"), ("ssl.certificate.location", "c.pem")]);
        assert!(mtls.has_certificate);
        let lax = security(&[
            ("security.protocol", "ssl"),
            ("ssl.endpoint.identification.algorithm", "none"),
        ]);
        assert!(lax.is_encrypted && !lax.is_verified);
        let local = security(&[("bootstrap.servers", "localhost:9092, 127.0.0.1:9093,[::1]:9094")]);
        assert!(local.is_local);
    }

    #[test]
    fn the_reason_that_says_most_is_kept() {
        let settings = ClientSettings::consumer(ClientConfig::new(), UserSettings::default()).expect("settings");
        let listener = Listener {
            context: Clients::new(settings).parts().1,
            reason: Mutex::default(),
        };
        let heard = |code, reason: &str| {
            listener.error(KafkaError::Global(code), reason);
            lock(&listener.reason).clone().map(|known| (known.cause, known.reason))
        };
        assert_eq!(heard(Code::AllBrokersDown, "1/1 brokers are down"), None);
        let network = Some((Cause::Network, "refused".to_owned()));
        assert_eq!(heard(Code::BrokerTransportFailure, "refused"), network);
        let tls = Some((Cause::Tls, "certificate verify failed".to_owned()));
        assert_eq!(heard(Code::SSL, "certificate verify failed"), tls);
        assert_eq!(heard(Code::BrokerTransportFailure, "refused"), tls);
    }
}
