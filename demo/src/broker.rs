//! The Kafka of the demo: a mock inside this process, or a real one with a topic of our own.

use std::time::Duration;

use outboxd::cli::Failure;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaError;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::RDKafkaErrorCode;

pub const PARTITIONS: i32 = 6;
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the records go. The mock is gone with this value.
pub struct Broker {
    pub addresses: String,
    pub topic: String,
    /// How long a fetch may wait for records. A real broker answers as soon as there are some; the mock sleeps it
    /// out, so that it would be in every latency.
    pub fetch_wait_ms: u32,
    _mock: Option<MockCluster<'static, DefaultProducerContext>>,
}

impl Broker {
    pub fn mock() -> Result<Self, Failure> {
        let topic = "demo.orders".to_owned();
        let started = MockCluster::new(3).and_then(|mock| {
            mock.create_topic(&topic, PARTITIONS, 3)?;
            Ok(mock)
        });
        let mock = started.map_err(|error| Failure::Broken(format!("cannot start a mock broker: {error}")))?;
        Ok(Broker {
            addresses: mock.bootstrap_servers(),
            topic,
            fetch_wait_ms: 2,
            _mock: Some(mock),
        })
    }
}

/// A topic of our own on a real Kafka, under a name nobody else uses.
#[derive(Clone, Debug)]
pub struct OwnTopic {
    addresses: String,
    name: String,
}

impl OwnTopic {
    pub fn new(addresses: &str, suffix: &str) -> Self {
        OwnTopic {
            addresses: addresses.to_owned(),
            name: format!("demo.orders.{suffix}"),
        }
    }

    pub async fn create(&self) -> Result<Broker, Failure> {
        let created = async {
            let topic = NewTopic::new(&self.name, PARTITIONS, TopicReplication::Fixed(-1));
            let answers = self.admin()?.create_topics([&topic], &options()).await?;
            all_well(answers)
        };
        created.await.map_err(|error| {
            Failure::Unavailable(format!(
                "cannot create the topic {} at {}: {error}",
                self.name, self.addresses
            ))
        })?;
        Ok(Broker {
            addresses: self.addresses.clone(),
            topic: self.name.clone(),
            fetch_wait_ms: 500,
            _mock: None,
        })
    }

    pub async fn delete(&self) -> Result<(), String> {
        let deleted = async {
            let answers = self.admin()?.delete_topics(&[&self.name], &options()).await?;
            all_well(answers)
        };
        match deleted.await {
            // It was never made.
            Ok(()) | Err(KafkaError::AdminOp(RDKafkaErrorCode::UnknownTopicOrPartition)) => Ok(()),
            Err(error) => Err(format!("the topic {}: {error}", self.name)),
        }
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>, KafkaError> {
        ClientConfig::new().set("bootstrap.servers", &self.addresses).create()
    }
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(PATIENCE))
        .operation_timeout(Some(PATIENCE))
}

fn all_well(answers: Vec<rdkafka::admin::TopicResult>) -> Result<(), KafkaError> {
    for answer in answers {
        answer.map_err(|(_, code)| KafkaError::AdminOp(code))?;
    }
    Ok(())
}
