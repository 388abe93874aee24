//! The consumer: reads the topic from its beginning and tells the ledger what arrives.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use outboxd::cli::Failure;
use outboxd::domain::row::POSSIBLE_DUPLICATE;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaResult;
use rdkafka::message::Headers as _;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::application::read;
use crate::broker::{Broker, PARTITIONS};
use crate::ledger::Ledger;

const POLL: Duration = Duration::from_millis(50);
/// How long the last records may take, once nothing more is sent.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads on a thread of its own until finished or dropped.
pub struct Consumer {
    reading: JoinHandle<KafkaResult<()>>,
    stop: DropGuard,
}

struct Reader {
    consumer: BaseConsumer,
    topic: String,
    ledger: Arc<Mutex<Ledger>>,
}

impl Consumer {
    pub fn start(broker: &Broker, ledger: Arc<Mutex<Ledger>>) -> Result<Self, Failure> {
        let reader = Reader::new(broker, ledger).map_err(failed)?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        Ok(Consumer {
            reading: tokio::task::spawn_blocking(move || reader.run(&stopped)),
            stop: stop.drop_guard(),
        })
    }

    /// Reads what is in the topic by now, to its end: a late repeat counts too.
    pub async fn finish(self) -> Result<(), Failure> {
        drop(self.stop);
        match self.reading.await {
            Ok(read) => read.map_err(failed),
            Err(error) => Err(Failure::Broken(format!("the consumer panicked: {error}"))),
        }
    }
}

fn failed(error: rdkafka::error::KafkaError) -> Failure {
    Failure::Unavailable(format!("the consumer cannot read: {error}"))
}

impl Reader {
    fn new(broker: &Broker, ledger: Arc<Mutex<Ledger>>) -> KafkaResult<Self> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &broker.addresses)
            .set("group.id", &broker.topic)
            .set("enable.auto.commit", "false")
            .set("fetch.wait.max.ms", broker.fetch_wait_ms.to_string())
            .create()?;
        let mut partitions = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            partitions.add_partition_offset(&broker.topic, partition, Offset::Beginning)?;
        }
        // Assigned, not subscribed: there is no group to wait for.
        consumer.assign(&partitions)?;
        Ok(Reader {
            consumer,
            topic: broker.topic.clone(),
            ledger,
        })
    }

    fn run(&self, stop: &CancellationToken) -> KafkaResult<()> {
        let mut read = [0; PARTITIONS as usize];
        while !stop.is_cancelled() {
            self.poll(&mut read);
        }
        let mut ends = read;
        for (partition, end) in ends.iter_mut().enumerate() {
            (_, *end) = self
                .consumer
                .fetch_watermarks(&self.topic, partition as i32, PATIENCE)?;
        }
        let give_up = Instant::now() + PATIENCE;
        while read.iter().zip(&ends).any(|(read, end)| read < end) && Instant::now() < give_up {
            self.poll(&mut read);
        }
        Ok(())
    }

    /// Takes one record, if there is one, and notes how far its partition is read.
    fn poll(&self, read_until: &mut [i64]) {
        // An error passes, or the records do not come and count as missing.
        let Some(Ok(record)) = self.consumer.poll(POLL) else {
            return;
        };
        let now = Instant::now();
        let flagged = record
            .headers()
            .is_some_and(|headers| headers.iter().any(|header| header.key == POSSIBLE_DUPLICATE));
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        match record.payload().and_then(read) {
            Some(id) => ledger.arrived(id, flagged, now),
            None => ledger.stranger(),
        }
        if let Some(until) = read_until.get_mut(record.partition() as usize) {
            *until = record.offset() + 1;
        }
    }
}
