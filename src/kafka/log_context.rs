//! What the client library says about its connections. Most of it is logged for debugging only, some of it once for each outage.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::{lock, statistics};

/// TLS or SASL errors less than this apart belong to one outage. The client repeats the same error every 30 seconds.
const OUTAGE_ENDS_AFTER: Duration = Duration::from_secs(120);

/// When a client of this process last failed to authenticate itself or the broker.
static LAST_SECURITY_ERROR: Mutex<Option<Instant>> = Mutex::new(None);

/// Is this the first security error of an outage? Every client reports one for every broker, again and again.
fn is_news(last: &Mutex<Option<Instant>>, now: Instant) -> bool {
    lock(last)
        .replace(now)
        .is_none_or(|last| now - last > OUTAGE_ENDS_AFTER)
}

/// The last connection error that a client of this process reported, and when.
static LAST_ERROR: Mutex<Option<(Instant, String)>> = Mutex::new(None);

/// Why a connection failed last, if that was recent. The errors of requests say only that a connection failed.
pub fn last_error() -> Option<String> {
    let last = lock(&LAST_ERROR);
    let (at, reason) = last.as_ref()?;
    (at.elapsed() < OUTAGE_ENDS_AFTER).then(|| reason.clone())
}

/// Logs the client library's messages at debug level: connection errors repeat during an outage, and the publisher warns once
/// that Kafka does not answer. Failures of TLS or SASL are warned about once for each outage, since they do not pass without a
/// fix.
pub struct LogContext;

impl ClientContext for LogContext {
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
        let code = error.rdkafka_error_code();
        statistics::count_error(code);
        // "All brokers are down" follows from the other errors and does not say why.
        if code != Some(Code::AllBrokersDown) {
            *lock(&LAST_ERROR) = Some((Instant::now(), reason.to_owned()));
        }
        if matches!(code, Some(Code::SSL | Code::Authentication)) && is_news(&LAST_SECURITY_ERROR, Instant::now()) {
            tracing::warn!(
                reason,
                "Kafka cannot be reached securely: see security.protocol and its properties"
            );
        } else {
            tracing::debug!(%error, reason, "librdkafka");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_security_error_is_told_once_for_each_outage() {
        let (last, now) = (Mutex::new(None), Instant::now());
        assert!(is_news(&last, now));
        assert!(!is_news(&last, now + OUTAGE_ENDS_AFTER));
        assert!(!is_news(&last, now + 2 * OUTAGE_ENDS_AFTER), "it continues");
        assert!(is_news(&last, now + 3 * OUTAGE_ENDS_AFTER + Duration::from_millis(1)));
    }
}
