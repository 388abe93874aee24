//! The client's settings: ours, the user's, and which of the user's we cannot accept.

use std::time::Duration;

use rdkafka::ClientConfig;

use super::{OVERRUN, record_lifetime};

/// The client takes no more.
const SOCKET_TIMEOUT_MAX: Duration = Duration::from_secs(300);

/// Properties that would break a promise, each with the reason and what to use instead.
const REFUSED: &[(&str, &str)] = &[
    ("bootstrap.servers", "use --kafka-brokers"),
    ("metadata.broker.list", "use --kafka-brokers"),
    (
        "acks",
        "always all: an acknowledged row must survive the loss of a broker",
    ),
    (
        "request.required.acks",
        "always all: an acknowledged row must survive the loss of a broker",
    ),
    (
        "enable.idempotence",
        "always on: a retry inside the client must not make a duplicate or break order",
    ),
    (
        "enable.gapless.guarantee",
        "always on for batches: nothing may pass a refused row of its key",
    ),
    ("max.in.flight", "set by outboxd: more than five in flight breaks order"),
    (
        "max.in.flight.requests.per.connection",
        "set by outboxd: more than five in flight breaks order",
    ),
    (
        "retries",
        "the batch deadline decides how long is retried: use --batch-deadline",
    ),
    (
        "message.send.max.retries",
        "the batch deadline decides how long is retried: use --batch-deadline",
    ),
    (
        "message.timeout.ms",
        "derived from --batch-deadline, so that a send never outlives its lease",
    ),
    (
        "delivery.timeout.ms",
        "derived from --batch-deadline, so that a send never outlives its lease",
    ),
    ("transactional.id", "outboxd owns transactions"),
    ("partitioner", "outboxd computes the partition as the Java client does"),
    ("queue.buffering.max.messages", "sized by outboxd: use --batch-rows"),
    (
        "queue.buffering.max.kbytes",
        "sized by outboxd: use --max-in-flight-bytes",
    ),
    ("queuing.strategy", "always fifo: order"),
    (
        "batch.size",
        "fixed by outboxd: the search for a refused row relies on it",
    ),
    ("message.max.bytes", "the topic's own limit decides"),
    ("delivery.report.only.error", "every row needs its report"),
];

/// Why the property is not the user's to set, if so.
pub fn refusal(name: &str) -> Option<&'static str> {
    REFUSED
        .iter()
        .find(|(refused, _)| *refused == name)
        .map(|(_, reason)| *reason)
}

/// The settings of every producer.
pub fn client_config(
    brokers: &str,
    deadline: Duration,
    rows: usize,
    bytes: usize,
    own: &[(String, String)],
) -> ClientConfig {
    let mut config = ClientConfig::new();
    let longest_send = (deadline + OVERRUN).min(SOCKET_TIMEOUT_MAX).as_millis().to_string();
    config
        .set("bootstrap.servers", brokers)
        .set("client.id", "outboxd")
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("message.timeout.ms", record_lifetime(deadline).as_millis().to_string())
        // The batch is formed already: waiting for more only adds latency.
        .set("linger.ms", "0")
        .set("compression.type", "lz4")
        .set("batch.size", "1000000")
        // Not a limit of ours: the topic decides, and its refusal is the reason we report.
        .set("message.max.bytes", "100000000")
        .set("queue.buffering.max.messages", rows.max(1).to_string())
        .set(
            "queue.buffering.max.kbytes",
            // Above the largest record: one larger than the whole queue could never be sent.
            (bytes / 1024).clamp(128 * 1024, 2_000_000).to_string(),
        )
        .set("socket.keepalive.enable", "true")
        // A broker that is silent for longer than any send may take is connected to anew. The client's own defaults, up to a
        // minute, would let publishing stand still long after a silent network has mended.
        .set("socket.timeout.ms", &longest_send)
        .set("socket.connection.setup.timeout.ms", &longest_send)
        .set("api.version.request.timeout.ms", &longest_send)
        .set("reconnect.backoff.max.ms", "2000")
        .set("topic.metadata.refresh.interval.ms", "60000");
    for (name, value) in own {
        config.set(name, value);
    }
    config
}

/// The settings of a consumer that reads topics once, from where it is told to, and little at a time.
pub fn consumer_config(brokers: &str, own: &[(String, String)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("client.id", "outboxd-verify")
        // Never joined, nothing is committed; the client wants a name all the same.
        .set("group.id", "outboxd-verify")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // An offset that is gone is an error, not a reason to start somewhere else.
        .set("auto.offset.reset", "error")
        .set("enable.partition.eof", "true")
        // Counted before they are unpacked: a few compressed kilobytes may be many.
        .set("fetch.message.max.bytes", "131072")
        .set("fetch.max.bytes", "1048576")
        .set("queued.min.messages", "10000")
        .set("queued.max.messages.kbytes", "4096")
        // Where rows are large the queue is full after a few: the client would rest for a second each time.
        .set("fetch.queue.backoff.ms", "5")
        .set("socket.keepalive.enable", "true");
    for (name, value) in own {
        config.set(name, value);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_a_promise_is_refused_with_a_reason_and_the_rest_is_not() {
        assert!(refusal("acks").is_some_and(|why| why.contains("survive")));
        assert!(refusal("enable.idempotence").is_some());
        assert!(refusal("message.timeout.ms").is_some());
        assert_eq!(refusal("sasl.username"), None);
        assert_eq!(refusal("compression.type"), None);
    }

    #[test]
    fn the_client_accepts_our_settings() {
        let config = client_config("localhost:9092", Duration::from_secs(5), 4000, 1 << 25, &[]);
        assert!(config.create_native_config().is_ok());
    }
}
