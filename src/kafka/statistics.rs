//! What the client library reports about itself, as metrics: its statistics, and its errors by reason.
//!
//! Only the producers of batches have statistics: the main one, its spare, and one that was replaced and finishes. The library
//! writes them as JSON, with an entry for each partition, of which only a few figures are read.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::types::RDKafkaErrorCode as Code;
use serde::Deserialize;

use super::lock;
use crate::metrics::{self, BrokerTimes, ClientError, ClientInterval};

const INTERVAL: &str = "statistics.interval.ms";
const DEFAULT_INTERVAL_MS: &str = "15000";
/// A client that has reported nothing for so many intervals is gone.
const GONE_AFTER_INTERVALS: u32 = 4;

/// The settings without the interval, because the client that looks topics up never reads its statistics, and would collect them.
pub fn without_interval(config: &ClientConfig) -> ClientConfig {
    let mut config = config.clone();
    config.remove(INTERVAL);
    config
}

/// Has a client report statistics as often as the settings say.
pub fn set_interval(config: &mut ClientConfig, settings: &ClientConfig) {
    config.set(INTERVAL, settings.get(INTERVAL).unwrap_or(DEFAULT_INTERVAL_MS));
}

/// After how long a client with these settings is gone if it has reported nothing.
pub fn gone_after(config: &ClientConfig) -> Duration {
    let interval = config.get(INTERVAL).unwrap_or(DEFAULT_INTERVAL_MS).parse();
    GONE_AFTER_INTERVALS * Duration::from_millis(interval.unwrap_or_default())
}

/// Records what a client reports.
pub fn record(json: &[u8], gone_after: Duration) {
    match serde_json::from_slice(json) {
        Ok(statistics) => {
            let interval = lock(&CLIENTS).note(statistics, Instant::now(), gone_after);
            metrics::client_interval(&interval);
        }
        Err(error) => tracing::debug!(%error, "cannot read the statistics of the Kafka client"),
    }
}

/// Counts an error that a client reports.
pub fn count_error(code: Option<Code>) {
    metrics::kafka_error(match code {
        Some(Code::Authentication) => ClientError::Authentication,
        Some(Code::SSL) => ClientError::Tls,
        Some(Code::Resolve) => ClientError::Resolve,
        Some(Code::BrokerTransportFailure | Code::NetworkException) => ClientError::Connection,
        Some(Code::OperationTimedOut | Code::RequestTimedOut | Code::MessageTimedOut) => ClientError::Timeout,
        Some(Code::AllBrokersDown) => ClientError::AllBrokersDown,
        Some(Code::Fatal) => ClientError::Fatal,
        _ => ClientError::Other,
    });
}

#[derive(Deserialize)]
struct Statistics {
    /// Unique in the process.
    name: String,
    msg_cnt: u64,
    msg_size: u64,
    /// Records that it has sent since it was built.
    txmsgs: i64,
    brokers: HashMap<String, Broker>,
}

#[derive(Deserialize)]
struct Broker {
    /// Negative for a bootstrap address, whose broker is not known yet.
    nodeid: i32,
    req_timeouts: u64,
    txretries: u64,
    /// In microseconds.
    rtt: Window,
    /// In milliseconds.
    throttle: Window,
}

/// A distribution over the last interval.
#[derive(Deserialize)]
struct Window {
    cnt: i64,
    p50: i64,
    p99: i64,
    max: i64,
    /// Values that are too large for the percentiles, such as a round trip of more than half a second.
    outofrange: i64,
}

impl Window {
    fn p50(&self) -> u64 {
        self.unless_too_large(self.p50, 50)
    }

    fn p99(&self) -> u64 {
        self.unless_too_large(self.p99, 1)
    }

    /// A percentile; the largest value instead if more than this percentage of all values is too large for it.
    fn unless_too_large(&self, percentile: i64, above_percent: i64) -> u64 {
        let is_too_large = self.outofrange * 100 > self.cnt * above_percent;
        let value = if is_too_large { self.max } else { percentile };
        value.unsigned_abs()
    }
}

/// What one client reported last.
struct Client {
    name: String,
    at: Instant,
    sent: i64,
    queue_rows: u64,
    queue_bytes: u64,
    request_timeouts: u64,
    request_retries: u64,
}

struct Clients(Vec<Client>);

static CLIENTS: Mutex<Clients> = Mutex::new(Clients(Vec::new()));

impl Clients {
    /// Notes what a client reports, and returns what is new of it. The queues of all clients are added up.
    fn note(&mut self, statistics: Statistics, now: Instant, gone_after: Duration) -> ClientInterval {
        let brokers = statistics.brokers.values();
        let client = Client {
            at: now,
            sent: statistics.txmsgs,
            queue_rows: statistics.msg_cnt,
            queue_bytes: statistics.msg_size,
            request_timeouts: brokers.clone().map(|broker| broker.req_timeouts).sum(),
            request_retries: brokers.clone().map(|broker| broker.txretries).sum(),
            name: statistics.name,
        };
        let before = self.0.iter().find(|before| before.name == client.name);
        let (sent, timeouts, retries) = before.map_or((0, 0, 0), |before| {
            (before.sent, before.request_timeouts, before.request_retries)
        });
        let mut interval = ClientInterval {
            // A broker that has left takes its counts with it.
            request_timeouts: client.request_timeouts.saturating_sub(timeouts),
            request_retries: client.request_retries.saturating_sub(retries),
            brokers: (client.sent > sent).then(|| slowest(brokers)),
            ..ClientInterval::default()
        };
        self.0
            .retain(|other| other.name != client.name && now - other.at < gone_after);
        self.0.push(client);
        interval.queue_rows = self.0.iter().map(|client| client.queue_rows).sum();
        interval.queue_bytes = self.0.iter().map(|client| client.queue_bytes).sum();
        interval
    }
}

/// Of each time the longest of any broker that was asked something.
fn slowest<'a>(brokers: impl Iterator<Item = &'a Broker>) -> BrokerTimes {
    let asked = brokers.filter(|broker| broker.nodeid >= 0 && broker.rtt.cnt > 0);
    asked.fold(BrokerTimes::default(), |slowest, broker| BrokerTimes {
        round_trip_p50: slowest.round_trip_p50.max(Duration::from_micros(broker.rtt.p50())),
        round_trip_p99: slowest.round_trip_p99.max(Duration::from_micros(broker.rtt.p99())),
        throttle: slowest
            .throttle
            .max(Duration::from_millis(broker.throttle.max.unsigned_abs())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE_AFTER: Duration = Duration::from_secs(60);

    fn statistics(name: &str, sent: i64, queue: u64, brokers: &[(i32, u64, u64)]) -> Statistics {
        let window = |cnt: u64, p50: u64, max: u64| {
            let p99 = p50 * 3;
            format!(r#"{{"cnt": {cnt}, "p50": {p50}, "p99": {p99}, "max": {max}, "outofrange": 0, "p75": 1}}"#)
        };
        let broker = |(id, rtt, timeouts): &(i32, u64, u64)| {
            let (rtt, throttle) = (window(u64::from(*rtt > 0), *rtt, rtt * 4), window(1, 0, 20));
            format!(
                r#""b{id}": {{"nodeid": {id}, "req_timeouts": {timeouts}, "txretries": 2, "rtt": {rtt}, "throttle": {throttle}}}"#
            )
        };
        let brokers: Vec<String> = brokers.iter().map(broker).collect();
        let json = format!(
            r#"{{"name": "{name}", "msg_cnt": {queue}, "msg_size": {}, "txmsgs": {sent}, "topics": {{}}, "brokers": {{{}}}}}"#,
            queue * 100,
            brokers.join(",")
        );
        serde_json::from_str(&json).expect("what the client writes")
    }

    #[test]
    fn the_slowest_broker_counts_and_one_that_was_not_asked_does_not() {
        let (mut clients, now) = (Clients(Vec::new()), Instant::now());
        let interval = clients.note(
            statistics("p", 5, 0, &[(1, 500, 0), (2, 900, 0), (3, 0, 0), (-1, 5000, 0)]),
            now,
            GONE_AFTER,
        );
        let times = interval.brokers.expect("it has sent");
        assert_eq!(times.round_trip_p50, Duration::from_micros(900));
        assert_eq!(times.round_trip_p99, Duration::from_micros(2700));
        assert_eq!(times.throttle, Duration::from_millis(20));
    }

    #[test]
    fn round_trips_too_long_for_the_percentiles_are_not_hidden() {
        let window = |outofrange| Window {
            cnt: 1000,
            p50: 5,
            p99: 400,
            max: 9000,
            outofrange,
        };
        let both = |outofrange| (window(outofrange).p50(), window(outofrange).p99());
        assert_eq!(
            [both(0), both(10), both(11), both(501)],
            [(5, 400), (5, 400), (5, 9000), (9000, 9000)]
        );
    }

    #[test]
    fn what_happened_since_the_last_report_of_the_same_client_is_new() {
        let (mut clients, now) = (Clients(Vec::new()), Instant::now());
        let of_main = |sent, timeouts| statistics("main", sent, 7, &[(1, 500, timeouts)]);
        let first = clients.note(of_main(10, 3), now, GONE_AFTER);
        assert_eq!((first.request_timeouts, first.request_retries), (3, 2));
        clients.note(statistics("spare", 0, 1, &[(1, 1, 1)]), now, GONE_AFTER);
        let second = clients.note(of_main(10, 4), now, GONE_AFTER);
        assert_eq!((second.request_timeouts, second.request_retries), (1, 0));
        assert_eq!(second.brokers, None, "it has sent nothing since");
        assert_eq!((second.queue_rows, second.queue_bytes), (8, 800), "of both");
        let later = clients.note(of_main(10, 4), now + GONE_AFTER, GONE_AFTER);
        assert_eq!(later.queue_rows, 7, "the other is gone");
    }

    #[test]
    fn only_clients_that_are_told_to_report_statistics() {
        let mut config = ClientConfig::new();
        set_interval(&mut config, &ClientConfig::new());
        assert_eq!(config.get(INTERVAL), Some(DEFAULT_INTERVAL_MS));
        let mut settings = ClientConfig::new();
        settings.set(INTERVAL, "500");
        set_interval(&mut config, &settings);
        assert_eq!(config.get(INTERVAL), Some("500"));
        assert_eq!(without_interval(&config).get(INTERVAL), None);
        assert_eq!(gone_after(&config), Duration::from_secs(2));
        assert_eq!(gone_after(&ClientConfig::new()), GONE_AFTER);
    }
}
