//! How to reach Kafka.

use std::path::PathBuf;

use clap::Args;
use secrecy::SecretString;

use super::Check;
use super::token::TokenArgs;
use crate::kafka::properties;
use crate::kafka::settings::{self, ClientSettings, UserSettings};
use crate::tasks::relay;

/// How to reach Kafka. `run`, `verify` and `doctor` have these flags.
#[derive(Args, Clone, Debug, Default)]
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
    pub kafka_properties: Vec<SecretString>,

    /// File with librdkafka properties, one name=value per line; read again while outboxd runs. --kafka-property wins over it
    #[arg(
        long,
        env = "OUTBOXD_KAFKA_PROPERTIES_FILE",
        hide_env_values = true,
        value_name = "FILE"
    )]
    pub kafka_properties_file: Option<PathBuf>,

    #[command(flatten)]
    pub token: TokenArgs,
}

impl KafkaArgs {
    /// The settings of a consumer.
    pub fn consumer(&self, check: &mut Check) -> Option<ClientSettings> {
        let (brokers, user) = (self.brokers(check), self.user_settings(check)?);
        let settings = ClientSettings::consumer(settings::of_consumer(brokers), user);
        settings.map_err(|problems| check.problems(problems)).ok()
    }

    /// The settings of a producer for batches of this size.
    pub fn producer(&self, check: &mut Check, relay: &relay::Settings) -> Option<ClientSettings> {
        let (brokers, user) = (self.brokers(check), self.user_settings(check)?);
        let (rows, bytes) = (relay.batch_rows * relay.tasks * 4, relay.in_flight_bytes * 4);
        let ours = settings::of_producer(brokers, relay.batch_deadline, rows, bytes);
        let settings = ClientSettings::producer(ours, user);
        settings.map_err(|problems| check.problems(problems)).ok()
    }

    fn brokers(&self, check: &mut Check) -> &str {
        let brokers = self.kafka_brokers.as_deref().unwrap_or("").trim();
        check.ensure(
            !brokers.is_empty(),
            "--kafka-brokers (OUTBOXD_KAFKA_BROKERS) is missing: where is Kafka?",
        );
        brokers
    }

    /// The user's own part of the settings. `None` if a source of tokens is not valid.
    fn user_settings(&self, check: &mut Check) -> Option<UserSettings> {
        let (flags, problems) = properties::of_flags(&self.kafka_properties);
        // The others are checked as well, so that all problems are listed.
        check.problems(problems);
        Some(UserSettings {
            flags,
            file: self.kafka_properties_file.clone(),
            tokens: self.token.sources(check)?,
        })
    }
}
