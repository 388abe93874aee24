//! How to reach Kafka.

use std::path::PathBuf;

use clap::Args;
use secrecy::SecretString;

use super::Check;
use super::token::TokenArgs;
use crate::kafka::properties;
use crate::kafka::settings::{self, ClientSettings, UserSettings};
use crate::tasks::relay;

/// How to reach Kafka. `run` and `verify` have these flags.
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
        let (brokers, user) = (self.brokers(check), self.user_settings(check));
        checked(check, ClientSettings::consumer(settings::of_consumer(brokers), user?))
    }

    /// The settings of a producer for batches of this size.
    pub fn producer(&self, check: &mut Check, relay: &relay::Settings) -> Option<ClientSettings> {
        let (brokers, user) = (self.brokers(check), self.user_settings(check));
        let (rows, bytes) = (relay.batch_rows * relay.tasks * 4, relay.in_flight_bytes * 4);
        let ours = settings::of_producer(brokers, relay.batch_deadline, rows, bytes);
        checked(check, ClientSettings::producer(ours, user?))
    }

    fn brokers(&self, check: &mut Check) -> &str {
        let brokers = self.kafka_brokers.as_deref().unwrap_or("").trim();
        check.ensure(
            !brokers.is_empty(),
            "--kafka-brokers (OUTBOXD_KAFKA_BROKERS) is missing: where is Kafka?",
        );
        brokers
    }

    /// The user's own part of the settings. `None` if the flags have a problem.
    fn user_settings(&self, check: &mut Check) -> Option<UserSettings> {
        let (flags, problems) = properties::of_flags(&self.kafka_properties);
        let (is_valid, tokens) = (problems.is_empty(), self.token.sources(check));
        check.problems(problems);
        let user = UserSettings {
            flags,
            file: self.kafka_properties_file.clone(),
            tokens: tokens?,
        };
        is_valid.then_some(user)
    }
}

fn checked(check: &mut Check, settings: Result<ClientSettings, Vec<String>>) -> Option<ClientSettings> {
    settings.map_err(|problems| check.problems(problems)).ok()
}
