//! A plain consumer: reads what is in a topic, and nothing of outboxd.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};

use crate::Stopwatch;

/// A record as read back.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub payload: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    pub timestamp_ms: Option<i64>,
}

impl Record {
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let header = self.headers.iter().find(|(header, _)| header == name)?;
        header.1.as_deref()
    }

    pub fn key_text(&self) -> String {
        String::from_utf8_lossy(self.key.as_deref().unwrap_or_default()).into_owned()
    }

    pub fn message_id(&self) -> String {
        String::from_utf8_lossy(self.header("message-id").expect("every record has one")).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(self.payload.as_deref().unwrap_or_default()).expect("a JSON payload")
    }
}

/// Everything in the topic now, in partition and offset order. Blocks: call it from a blocking thread or a short test.
pub fn read_topic(kafka: &str, topic: &str) -> Vec<Record> {
    let mut records = Vec::new();
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka)
        .set("group.id", "unused")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "false")
        .create()
        .expect("a consumer");
    let timeout = Duration::from_secs(20);
    let metadata = consumer.fetch_metadata(Some(topic), timeout).expect("metadata");
    let partitions = metadata.topics()[0].partitions().len() as i32;
    let mut assignment = TopicPartitionList::new();
    let mut left = 0;
    for partition in 0..partitions {
        let (low, high) = consumer
            .fetch_watermarks(topic, partition, timeout)
            .expect("watermarks");
        left += high - low;
        if high > low {
            assignment
                .add_partition_offset(topic, partition, Offset::Beginning)
                .expect("valid");
        }
    }
    if left == 0 {
        return records;
    }
    consumer.assign(&assignment).expect("assigned");
    let stopwatch = Stopwatch::start();
    while left > 0 {
        assert!(
            stopwatch.without_steal() < Duration::from_secs(60),
            "{left} records of {topic} are still unread"
        );
        match consumer.poll(Duration::from_millis(200)) {
            // On a busy machine the client may lose its connection, and connects again by itself.
            None | Some(Err(KafkaError::MessageConsumption(Code::BrokerTransportFailure | Code::AllBrokersDown))) => {}
            Some(message) => {
                records.push(record(&message.expect("a record")));
                left -= 1;
            }
        }
    }
    records.sort_by_key(|record| (record.partition, record.offset));
    records
}

/// Reads the topic again and again until it holds at least `count` records.
pub async fn read_until(kafka: &str, topic: &str, count: usize, within: Duration) -> Vec<Record> {
    let what = format!("{count} records in {topic}");
    crate::eventually(within, &what, async || {
        let (kafka, topic) = (kafka.to_owned(), topic.to_owned());
        let records = tokio::task::spawn_blocking(move || read_topic(&kafka, &topic))
            .await
            .expect("reads");
        (records.len() >= count).then_some(records)
    })
    .await
}

/// Puts a record into a topic, as somebody else might: partition, key, payload, headers and time are the record's.
pub async fn plant(kafka: &str, topic: &str, record: &Record) {
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", kafka)
        .create()
        .expect("a producer");
    let headers = record
        .headers
        .iter()
        .fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header {
                key,
                value: value.as_ref(),
            })
        });
    let mut planted = FutureRecord::to(topic).partition(record.partition).headers(headers);
    planted.key = record.key.as_deref();
    planted.payload = record.payload.as_deref();
    planted.timestamp = record.timestamp_ms;
    producer
        .send(planted, Duration::from_secs(20))
        .await
        .expect("Kafka takes it");
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let headers = message.headers().map(|headers| {
        let owned = headers
            .iter()
            .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)));
        owned.collect()
    });
    Record {
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(<[u8]>::to_vec),
        payload: message.payload().map(<[u8]>::to_vec),
        headers: headers.unwrap_or_default(),
        timestamp_ms: message.timestamp().to_millis(),
    }
}
