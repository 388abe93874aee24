//! What every client of the library is given: where its messages and errors go, and its tokens.
//!
//! Most of what the library says is logged for debugging only: connection errors repeat during an outage, and the publisher warns
//! once that Kafka does not answer.

use std::error::Error;
use std::sync::Arc;

use rdkafka::ClientContext;
use rdkafka::client::{NativeClient, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::KafkaError;

use super::failures::Failures;
use super::oauth::Login;
use super::statistics;

/// What the library says when a client gets no token from us.
const NO_TOKEN: &str = "Failed to acquire SASL OAUTHBEARER token";

pub struct Context {
    /// The number of the settings that the client was built from.
    pub generation: u64,
    failures: Arc<Failures>,
    login: Login,
}

impl Context {
    pub fn new(generation: u64, failures: Arc<Failures>, login: Login) -> Self {
        Context {
            generation,
            failures,
            login,
        }
    }

    /// Gives the client the newest token, unless it has that.
    pub fn refresh_token(&self, client: &NativeClient) {
        self.login.refresh(client);
    }
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::error!(facility, said = message, "librdkafka");
            }
            RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning => {
                tracing::debug!(facility, said = message, "librdkafka")
            }
            _ => tracing::trace!(facility, said = message, "librdkafka"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "librdkafka");
        let code = error.rdkafka_error_code();
        statistics::count_error(code);
        // Why there is no token has been said where it was to be fetched.
        if reason.starts_with(NO_TOKEN) {
            return;
        }
        self.failures.note(self.generation, code, reason);
    }

    fn generate_oauth_token(&self, _properties: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.login.answer().map_err(Into::into)
    }
}

impl ConsumerContext for Context {}
