//! Metrics of the Kafka client that carries batches.

use std::time::Duration;

use super::list::{
    kafka_queue_bytes, kafka_queue_rows, kafka_request_retries, kafka_request_timeouts, kafka_round_trip,
    kafka_throttle,
};

/// What the client's statistics say about one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientInterval {
    /// In the queue and in flight at its end.
    pub queue_rows: u64,
    pub queue_bytes: u64,
    /// New in it.
    pub request_timeouts: u64,
    pub request_retries: u64,
    /// `None` if no batch was sent in it.
    pub brokers: Option<BrokerTimes>,
}

/// Times of the slowest broker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BrokerTimes {
    pub round_trip_p50: Duration,
    pub round_trip_p99: Duration,
    pub throttle: Duration,
}

pub fn client_interval(interval: &ClientInterval) {
    kafka_queue_rows(interval.queue_rows);
    kafka_queue_bytes(interval.queue_bytes);
    kafka_request_timeouts(interval.request_timeouts);
    kafka_request_retries(interval.request_retries);
    if let Some(brokers) = &interval.brokers {
        kafka_round_trip("0.5", brokers.round_trip_p50);
        kafka_round_trip("0.99", brokers.round_trip_p99);
        kafka_throttle(brokers.throttle);
    }
}
