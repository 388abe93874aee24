//! How to reach Kafka.

use clap::Args;

use super::Check;
use crate::kafka::{ClientConfig, properties};
use crate::tasks::relay;

/// How to reach Kafka. `run` and `verify` have these flags.
#[derive(Args, Clone, Debug)]
pub struct KafkaArgs {
    /// Kafka brokers, comma-separated host:port
    #[arg(long, env = "OUTBOXD_KAFKA_BROKERS", value_name = "LIST")]
    pub kafka_brokers: Option<String>,

    /// Any librdkafka property as name=value; repeat the flag, or write one per line in the variable
    #[arg(
        long = "kafka-property",
        env = "OUTBOXD_KAFKA_PROPERTIES",
        hide_env_values = true,
        value_name = "NAME=VALUE",
        value_delimiter = '\n'
    )]
    pub kafka_properties: Vec<String>,
}

impl KafkaArgs {
    /// The settings of a consumer.
    pub fn consumer(&self, check: &mut Check) -> ClientConfig {
        let (brokers, own) = self.brokers(check);
        let (config, problem) = properties::consumer_config(brokers, &own);
        check.problems(problem);
        config
    }

    /// The settings of a producer for batches of this size.
    pub fn producer(&self, check: &mut Check, relay: &relay::Settings) -> ClientConfig {
        let (brokers, own) = self.brokers(check);
        let (rows, bytes) = (relay.batch_rows * relay.tasks * 4, relay.in_flight_bytes * 4);
        let (config, problem) = properties::producer_config(brokers, relay.batch_deadline, rows, bytes, &own);
        check.problems(problem);
        config
    }

    /// The brokers, and the user's own properties.
    fn brokers(&self, check: &mut Check) -> (&str, Vec<properties::Property>) {
        let brokers = self.kafka_brokers.as_deref().unwrap_or("").trim();
        check.ensure(
            !brokers.is_empty(),
            "--kafka-brokers (OUTBOXD_KAFKA_BROKERS) is missing: where is Kafka?",
        );
        let (own, problems) = properties::parse(&self.kafka_properties);
        check.problems(problems);
        (brokers, own)
    }
}
