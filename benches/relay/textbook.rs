//! The relay of most tutorials: a status column with an index, a batch set to processing with SKIP LOCKED, produced, awaited, set
//! to published. Prepared statements, acks=all, all records of a batch in flight at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Row, Statement};

use crate::Outcome;
use crate::backlog::{FILLER, Shape};
use crate::servers::connect;
use crate::workspace::Workspace;

const TABLE: &str = "
    CREATE SCHEMA textbook;
    CREATE TABLE textbook.outbox (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        topic text NOT NULL, key text, payload jsonb NOT NULL,
        status text NOT NULL DEFAULT 'pending',
        created_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz
    );
    CREATE INDEX ON textbook.outbox (status, id)";

const CLAIM: &str = "
    UPDATE textbook.outbox SET status = 'processing'
    WHERE id IN (SELECT id FROM textbook.outbox WHERE status = 'pending' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
    RETURNING id, topic, key, payload::text";

const MARK: &str = "UPDATE textbook.outbox SET status = 'published', published_at = now() WHERE id = ANY ($1)";

pub const INSERT: &str = "INSERT INTO textbook.outbox (topic, key, payload) VALUES ($1, $2, $3::text::jsonb)";

const BATCH: i64 = 100;
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub struct Textbook {
    db: Client,
    claim: Statement,
    mark: Statement,
    producer: FutureProducer,
}

impl Textbook {
    /// Its table, beside the outbox of the workspace.
    pub async fn create(workspace: &Workspace) -> Outcome<()> {
        Ok(workspace.db.batch_execute(TABLE).await?)
    }

    pub async fn fill(workspace: &Workspace, shape: Shape, rows: i64) -> Outcome<()> {
        let select = shape.select(&workspace.name, rows);
        let insert = format!("INSERT INTO textbook.outbox (topic, key, payload) {select}");
        workspace.checkpoint().await?;
        workspace.db.execute(&insert, &[&FILLER.as_bytes()]).await?;
        workspace.vacuum_analyze("textbook.outbox").await
    }

    pub async fn new(workspace: &Workspace) -> Outcome<Self> {
        let db = connect(&workspace.url).await?;
        Ok(Textbook {
            claim: db.prepare(CLAIM).await?,
            mark: db.prepare(MARK).await?,
            db,
            producer: ClientConfig::new()
                .set("bootstrap.servers", &workspace.servers.kafka)
                .set("acks", "all")
                .set("enable.idempotence", "true")
                // As the product's: waiting for more to send would be the client's doing, not the textbook's.
                .set("linger.ms", "0")
                .set("compression.type", "lz4")
                .create()?,
        })
    }

    /// Until nothing is pending; from the first claim to the last mark.
    pub async fn drain(&self) -> Outcome<Duration> {
        let began = Instant::now();
        while self.relay_batch().await? > 0 {}
        Ok(began.elapsed())
    }

    /// Relays what comes, until told to stop.
    pub fn run(self, stop: Arc<AtomicBool>) -> JoinHandle<Outcome<()>> {
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                if self.relay_batch().await? == 0 {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
            Ok(())
        })
    }

    async fn relay_batch(&self) -> Outcome<usize> {
        let rows = self.db.query(&self.claim, &[&BATCH]).await?;
        if rows.is_empty() {
            return Ok(0);
        }
        try_join_all(rows.iter().map(|row| self.publish(row))).await?;
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        self.db.execute(&self.mark, &[&ids]).await?;
        Ok(rows.len())
    }

    async fn publish(&self, row: &Row) -> Outcome<()> {
        let mut record = FutureRecord::to(row.get(1)).payload(row.get::<_, &str>(3));
        if let Some(key) = row.get::<_, Option<&str>>(2) {
            record = record.key(key);
        }
        let sent = self.producer.send(record, Duration::from_secs(30)).await;
        sent.map(drop).map_err(|(error, _)| error.into())
    }
}
