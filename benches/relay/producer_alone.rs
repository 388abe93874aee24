//! The limit that Kafka sets: the same records from memory, through a producer with the product's settings and with delivery
//! reports counted, not awaited one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outboxd::domain::partition;
use outboxd::kafka::settings;
use rdkafka::ClientContext;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, ProducerContext, ThreadedProducer};

use crate::backlog::{FILLER, Shape};
use crate::workspace::Workspace;
use crate::{Outcome, postgres_alone};

/// What a relay with default settings has in flight at most.
const IN_FLIGHT: usize = postgres_alone::BATCH * postgres_alone::TASKS;
const DEADLINE: Duration = Duration::from_secs(5);

struct Record {
    topic: String,
    partition: i32,
    key: String,
    payload: String,
}

#[derive(Default)]
struct Delivered {
    ok: AtomicUsize,
    failed: AtomicUsize,
}

struct Counting(Arc<Delivered>);

impl ClientContext for Counting {}

impl ProducerContext for Counting {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, _: ()) {
        let counter = if result.is_ok() { &self.0.ok } else { &self.0.failed };
        counter.fetch_add(1, Ordering::Release);
    }
}

pub struct ProducerAlone {
    client: ThreadedProducer<Counting>,
    delivered: Arc<Delivered>,
    records: Vec<Record>,
}

impl ProducerAlone {
    pub async fn new(workspace: &Workspace, shape: Shape, rows: i64) -> Outcome<Self> {
        let config = settings::of_producer(&workspace.servers.kafka, DEADLINE, 2 * IN_FLIGHT, 1 << 27);
        let delivered = Arc::new(Delivered::default());
        Ok(ProducerAlone {
            client: ThreadedProducer::from_config_and_context(&config, Counting(delivered.clone()))?,
            delivered,
            records: records(workspace, shape, rows).await?,
        })
    }

    /// From the first record to the last acknowledgement.
    pub fn send_all(&self) -> Outcome<Duration> {
        self.warm_up()?;
        let began = Instant::now();
        let before = self.delivered.ok.load(Ordering::Acquire);
        for (sent, record) in self.records.iter().enumerate() {
            self.wait_for(before + (sent + 1).saturating_sub(IN_FLIGHT))?;
            self.send(record)?;
        }
        self.wait_for(before + self.records.len())?;
        Ok(began.elapsed())
    }

    /// Connections and metadata are not what is measured.
    fn warm_up(&self) -> Outcome<()> {
        let before = self.delivered.ok.load(Ordering::Acquire);
        self.send(&self.records[0])?;
        self.wait_for(before + 1)
    }

    fn send(&self, record: &Record) -> Outcome<()> {
        let header = Header {
            key: "message-id",
            value: Some("4f3c2b1a-0000-4000-8000-000000000000"),
        };
        let record = BaseRecord::to(&record.topic)
            .partition(record.partition)
            .key(&record.key)
            .payload(&record.payload)
            .headers(OwnedHeaders::new_with_capacity(1).insert(header));
        self.client.send(record).map_err(|(error, _)| error.into())
    }

    fn wait_for(&self, delivered: usize) -> Outcome<()> {
        while self.delivered.ok.load(Ordering::Acquire) < delivered {
            if self.delivered.failed.load(Ordering::Acquire) > 0 {
                return Err("Kafka refused a record of the producer alone".into());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

/// The rows that a backlog of this shape would have, made by the same expressions.
async fn records(workspace: &Workspace, shape: Shape, rows: i64) -> Outcome<Vec<Record>> {
    let select = format!(
        "SELECT topic, coalesce(key, gen_random_uuid()::text), payload::text FROM ({}) AS made (topic, key, payload)",
        shape.select(&workspace.name, rows)
    );
    let made = workspace.db.query(&select, &[&FILLER.as_bytes()]).await?;
    let partitions = workspace.partitions();
    Ok(made
        .iter()
        .map(|row| {
            let key: String = row.get(1);
            Record {
                topic: row.get(0),
                partition: partition::PartitionChoice::of_key(key.as_bytes())
                    .partition(partitions)
                    .unwrap_or(0),
                key,
                payload: row.get(2),
            }
        })
        .collect())
}
