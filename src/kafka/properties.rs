//! The client's settings: ours, the user's, and those that we do not accept from the user.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfig;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;
use rdkafka::producer::BaseProducer;

use super::{OVERRUN, record_lifetime};

/// The client accepts no larger value.
const SOCKET_TIMEOUT_MAX: Duration = Duration::from_secs(300);

/// Properties that would break a promise, with the reason and what to use instead.
const REFUSED: &[(&[&str], &str)] = &[
    (&["bootstrap.servers", "metadata.broker.list"], "use --kafka-brokers"),
    (
        &["acks", "request.required.acks"],
        "always all: an acknowledged row must survive the loss of a broker",
    ),
    (
        &["enable.idempotence"],
        "always on: a retry inside the client must not make a duplicate or break order",
    ),
    (
        &["enable.gapless.guarantee"],
        "always on for batches: nothing may pass a refused row of its key",
    ),
    (
        &["max.in.flight", "max.in.flight.requests.per.connection"],
        "set by outboxd: more than five in flight breaks order",
    ),
    (
        &["retries", "message.send.max.retries"],
        "the batch deadline decides how long is retried: use --batch-deadline",
    ),
    (
        &["message.timeout.ms", "delivery.timeout.ms"],
        "derived from --batch-deadline, so that a send never outlives its lease",
    ),
    (&["transactional.id"], "outboxd owns transactions"),
    (
        &["partitioner"],
        "outboxd computes the partition as the Java client does",
    ),
    (&["queue.buffering.max.messages"], "sized by outboxd: use --batch-rows"),
    (
        &["queue.buffering.max.kbytes"],
        "sized by outboxd: use --max-in-flight-bytes",
    ),
    (&["queuing.strategy"], "always fifo: order"),
    (
        &["batch.size"],
        "fixed by outboxd: the search for a refused row relies on it",
    ),
    (&["message.max.bytes"], "the topic's own limit decides"),
    (&["delivery.report.only.error"], "every row needs its report"),
];

/// Why the user may not set this property, if so.
fn refusal(name: &str) -> Option<&'static str> {
    let (_, reason) = REFUSED.iter().find(|(names, _)| names.contains(&name))?;
    Some(reason)
}

/// A property that the user gave: its name and its value.
pub type Property = (String, String);

/// Parses properties given as `name=value`. Also returns the problems of those that we do not accept.
pub fn parse(given: &[String]) -> (Vec<Property>, Vec<String>) {
    let mut own = Vec::new();
    let mut problems = Vec::new();
    for property in given.iter().filter(|property| !property.trim().is_empty()) {
        // The value may be a secret: only the name is ever repeated.
        let Some((name, value)) = property.trim().split_once('=') else {
            problems.push("--kafka-property needs the form name=value".to_owned());
            continue;
        };
        match refusal(name) {
            Some(reason) => problems.push(format!("--kafka-property {name} is not yours to set: {reason}")),
            None => own.push((name.to_owned(), value.to_owned())),
        }
    }
    (own, problems)
}

/// Our settings together with the user's own, and why the client does not accept them, if so. The client reads some settings,
/// such as certificates and the SASL mechanism, only when it is created, so one is created and dropped.
fn with_own<C: FromClientConfig>(mut config: ClientConfig, own: &[Property]) -> (ClientConfig, Option<String>) {
    config.extend(own.iter().cloned());
    let problem = match config.create_native_config() {
        Err(error) => Some(problem(error, own)),
        // Nothing more needs checking if all settings are ours.
        Ok(_) if own.is_empty() => None,
        Ok(_) => {
            // Without brokers the client does not connect.
            let mut offline = config.clone();
            offline.remove("bootstrap.servers");
            C::from_config(&offline).err().map(|error| problem(error, own))
        }
    };
    (config, problem)
}

fn problem(error: KafkaError, own: &[Property]) -> String {
    match error {
        KafkaError::ClientConfig(_, reason, name, _) => format!("--kafka-property {name} is not accepted: {reason}"),
        KafkaError::ClientCreation(reason) => match property_in(&reason, own) {
            Some(name) => format!("--kafka-property {name} is not accepted: {reason}"),
            None => format!("the Kafka client does not accept its --kafka-property settings: {reason}"),
        },
        other => format!("the Kafka client does not accept its settings: {other}"),
    }
}

/// The property that the client's reason is about: it contains its name, or quotes its value.
fn property_in<'a>(reason: &str, own: &'a [Property]) -> Option<&'a str> {
    let words = reason.split(|c: char| c.is_whitespace() || c == ':');
    let named = own.iter().find(|(name, _)| reason.contains(name));
    let quoted = || {
        own.iter()
            .find(|(_, value)| !value.is_empty() && words.clone().any(|word| word == value))
    };
    named.or_else(quoted).map(|(name, _)| name.as_str())
}

/// The settings of every producer, and what is wrong with the user's part of them, if anything.
pub fn producer_config(
    brokers: &str,
    deadline: Duration,
    rows: usize,
    bytes: usize,
    own: &[Property],
) -> (ClientConfig, Option<String>) {
    let mut config = ClientConfig::new();
    let longest_send = (deadline + OVERRUN).min(SOCKET_TIMEOUT_MAX).as_millis().to_string();
    config
        .set("bootstrap.servers", brokers)
        .set("client.id", "outboxd")
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("message.timeout.ms", record_lifetime(deadline).as_millis().to_string())
        // A batch is complete when it is handed over, so waiting for more records only adds latency.
        .set("linger.ms", "0")
        .set("compression.type", "lz4")
        .set("batch.size", "1000000")
        // We set no limit of our own. The topic decides, and its refusal is the reason that we report.
        .set("message.max.bytes", "100000000")
        .set("queue.buffering.max.messages", rows.max(1).to_string())
        .set(
            "queue.buffering.max.kbytes",
            // It must exceed the largest record, since one larger than the whole queue could never be sent.
            (bytes / 1024).clamp(128 * 1024, 2_000_000).to_string(),
        )
        .set("socket.keepalive.enable", "true")
        // The client reconnects to a broker that gives no answer for longer than any send may take. With the defaults, up to a
        // minute, publishing would still stop long after a network that dropped packets works again.
        .set("socket.timeout.ms", &longest_send)
        .set("socket.connection.setup.timeout.ms", &longest_send)
        .set("api.version.request.timeout.ms", &longest_send)
        .set("reconnect.backoff.max.ms", "2000")
        .set("topic.metadata.refresh.interval.ms", "60000");
    with_own::<BaseProducer>(config, own)
}

/// The settings of a consumer that reads topics once, from given offsets, and little at a time; and what is wrong with the user's
/// part of them, if anything.
pub fn consumer_config(brokers: &str, own: &[Property]) -> (ClientConfig, Option<String>) {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("client.id", "outboxd-verify")
        // The client requires a name, though the group is never joined and nothing is committed.
        .set("group.id", "outboxd-verify")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // An offset that no longer exists is an error, not a reason to start elsewhere.
        .set("auto.offset.reset", "error")
        .set("enable.partition.eof", "true")
        // These limits count compressed bytes, so they are small: records may be much larger once they are uncompressed.
        .set("fetch.message.max.bytes", "131072")
        .set("fetch.max.bytes", "1048576")
        .set("queued.min.messages", "10000")
        .set("queued.max.messages.kbytes", "4096")
        // A few large records fill the queue, and by default the client would then pause for a second.
        .set("fetch.queue.backoff.ms", "5")
        .set("socket.keepalive.enable", "true");
    with_own::<BaseConsumer>(config, own)
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

    fn problem_with(own: &[(&str, &str)]) -> Option<String> {
        let own: Vec<_> = own
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        producer_config("localhost:9092", Duration::from_secs(5), 4000, 1 << 25, &own).1
    }

    #[test]
    fn what_a_client_refuses_only_when_it_is_made_is_named() {
        assert_eq!(
            problem_with(&[
                ("security.protocol", "ssl"),
                ("ssl.endpoint.identification.algorithm", "none")
            ]),
            None
        );
        let sasl = ("security.protocol", "sasl_plaintext");
        for (own, name) in [
            (
                &[("security.protocol", "ssl"), ("ssl.ca.location", "/nowhere/ca.pem")][..],
                "ssl.ca.location",
            ),
            (
                &[
                    ("security.protocol", "ssl"),
                    ("ssl.certificate.location", "/nowhere/c.pem"),
                ],
                "ssl.certificate.location",
            ),
            (&[sasl, ("sasl.mechanism", "GSSAPI")], "sasl.mechanism"),
            (&[sasl, ("sasl.mechanisms", "GUESSWORK")], "sasl.mechanisms"),
            (&[("compression.typ", "lz4")], "compression.typ"),
        ] {
            let problem = problem_with(own).expect(name);
            assert!(
                problem.contains(&format!("--kafka-property {name} is not accepted")),
                "{problem}"
            );
        }
    }

    #[test]
    fn the_client_accepts_our_settings() {
        let (_, problem) = producer_config("localhost:9092", Duration::from_secs(5), 4000, 1 << 25, &[]);
        assert_eq!(problem, None);
    }
}
