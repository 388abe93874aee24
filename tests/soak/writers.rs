//! Applications that keep writing: rows with and without keys, delayed, large and poisonous ones, in transactions that
//! commit, roll back, or stay open for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use testkit::noise;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_postgres::{Client, Error, NoTls, Transaction};
use tokio_util::sync::CancellationToken;

use crate::environment::{Environment, KEYS};

const WRITERS: u64 = 6;
/// Of one writer, between two transactions.
const INTERVAL: Duration = Duration::from_millis(70);

/// The longest a row is delayed, and the longest a transaction stays open.
pub const DELAY_MAX: Duration = Duration::from_secs(5);
pub const OPEN_MAX: Duration = Duration::from_secs(3);

/// What the rows of this kind are called in `event_type`: the only ones that may die.
pub const POISON: &str = "poison";

const LOCK_KEYS: &str = "SELECT key FROM soak_key WHERE key = ANY ($1) FOR UPDATE SKIP LOCKED";

const INSERT: &str = "
    INSERT INTO outbox.message (topic, key, payload_bytes, available_at, event_type)
    SELECT topic, key, payload, clock_timestamp() + delay * interval '1 second', kind
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::float8[], $5::text[])
        WITH ORDINALITY AS row (topic, key, payload, delay, kind, place)
    ORDER BY place";

#[derive(Default)]
pub struct Written {
    pub committed: AtomicU64,
    /// The answer to their COMMIT was lost.
    pub unknown: AtomicU64,
    pub rolled_back: AtomicU64,
}

pub struct Writers {
    pub written: Arc<Written>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Writers {
    pub fn start(environment: &Arc<Environment>, seed: u64) -> Self {
        let (written, stop) = (Arc::new(Written::default()), CancellationToken::new());
        let mut tasks = JoinSet::new();
        for number in 0..WRITERS {
            let writer = Writer {
                environment: environment.clone(),
                draw: Rng::with_seed(seed.wrapping_add(1 + number)),
                written: written.clone(),
            };
            tasks.spawn(writer.write(stop.clone()));
        }
        Writers { written, stop, tasks }
    }

    /// Writes no more once this returns.
    pub async fn stop(self) -> Arc<Written> {
        self.stop.cancel();
        self.tasks.join_all().await;
        self.written
    }
}

struct Row {
    topic: String,
    key: Option<String>,
    payload: Vec<u8>,
    delay: Option<f64>,
    kind: &'static str,
}

struct Writer {
    environment: Arc<Environment>,
    draw: Rng,
    written: Arc<Written>,
}

impl Writer {
    async fn write(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            if let Ok((mut client, connection)) =
                tokio_postgres::connect(&self.environment.world.database_url, NoTls).await
            {
                tokio::spawn(connection);
                let mut next = Instant::now();
                while !stop.is_cancelled() && self.transact(&mut client).await.is_ok() {
                    next = (next + INTERVAL).max(Instant::now());
                    sleep_until(next).await;
                }
            }
            // The server is away, or was: so are we for a moment.
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// One transaction. An error means that the connection is gone, and with it whatever did not commit.
    async fn transact(&mut self, client: &mut Client) -> Result<(), Error> {
        let transaction = client.transaction().await?;
        let wanted: Vec<String> = (0..self.draw.usize(1..=10)).map(|_| self.key()).collect();
        let locked = transaction.query(LOCK_KEYS, &[&wanted]).await?;
        let keys: Vec<String> = locked.iter().map(|row| row.get(0)).collect();
        let rows = self.rows(&keys);
        insert(&transaction, &rows).await?;
        if self.draw.u8(..100) < 2 {
            let open = self.draw.f64() * OPEN_MAX.as_secs_f64();
            sleep(Duration::from_secs_f64(open)).await;
        }
        self.end(transaction, rows.len() as u64).await
    }

    async fn end(&mut self, transaction: Transaction<'_>, rows: u64) -> Result<(), Error> {
        if self.draw.u8(..100) < 8 {
            self.written.rolled_back.fetch_add(rows, Ordering::Relaxed);
            return transaction.rollback().await;
        }
        let ended = transaction.commit().await;
        let count = if ended.is_ok() {
            &self.written.committed
        } else {
            &self.written.unknown
        };
        count.fetch_add(rows, Ordering::Relaxed);
        ended
    }

    fn key(&mut self) -> String {
        format!("key-{}", self.draw.usize(..KEYS))
    }

    fn rows(&mut self, keys: &[String]) -> Vec<Row> {
        match self.draw.u16(..1000) {
            0..4 => self.large(keys),
            4..20 => self.poison(keys),
            20..100 => self.delayed(),
            100..200 => self.narrow(keys),
            200..350 => self.unordered(),
            _ => self.keyed(keys),
        }
    }

    /// A row of at most `most` bytes that compression makes no smaller.
    fn row(&mut self, topic: &str, key: Option<&String>, most: usize) -> Row {
        Row {
            topic: topic.to_owned(),
            key: key.cloned(),
            payload: noise(self.draw.usize(20..most)),
            delay: None,
            kind: "plain",
        }
    }

    fn keyed(&mut self, keys: &[String]) -> Vec<Row> {
        let topic = self.environment.topics.orders.clone();
        let twice = keys.iter().chain(keys);
        twice.map(|key| self.row(&topic, Some(key), 400)).collect()
    }

    fn unordered(&mut self) -> Vec<Row> {
        let topic = self.environment.topics.orders.clone();
        let count = self.draw.usize(1..20);
        (0..count).map(|_| self.row(&topic, None, 400)).collect()
    }

    /// Small enough by themselves for a topic that takes small batches.
    fn narrow(&mut self, keys: &[String]) -> Vec<Row> {
        let topic = self.environment.topics.narrow.clone();
        let lines = keys.iter().map(Some).chain([None, None]);
        lines.map(|key| self.row(&topic, key, 1_000)).collect()
    }

    fn large(&mut self, keys: &[String]) -> Vec<Row> {
        let topic = self.environment.topics.orders.clone();
        let mut row = self.row(&topic, keys.first(), 400);
        row.payload = noise(self.draw.usize(100_000..900_000));
        vec![row]
    }

    /// A key of its own for each: a delayed row joins the line of its key when it is due, which is another order than that
    /// of the ids.
    fn delayed(&mut self) -> Vec<Row> {
        let topic = self.environment.topics.orders.clone();
        let count = self.draw.usize(1..6);
        let mut rows: Vec<Row> = (0..count).map(|_| self.row(&topic, None, 400)).collect();
        for row in &mut rows {
            row.delay = Some(self.draw.f64() * DELAY_MAX.as_secs_f64());
            row.key = self.draw.bool().then(|| format!("later-{}", uuid::Uuid::new_v4()));
        }
        rows
    }

    /// A row that is refused for good, between two of the same key that are not.
    fn poison(&mut self, keys: &[String]) -> Vec<Row> {
        let topic = self.environment.topics.small.clone();
        let mut rows: Vec<Row> = (0..3).map(|_| self.row(&topic, keys.first(), 400)).collect();
        rows[1].payload = noise(5_000);
        rows[1].kind = POISON;
        rows
    }
}

async fn insert(transaction: &Transaction<'_>, rows: &[Row]) -> Result<u64, Error> {
    let topics: Vec<_> = rows.iter().map(|row| &row.topic).collect();
    let keys: Vec<_> = rows.iter().map(|row| row.key.as_ref()).collect();
    let payloads: Vec<_> = rows.iter().map(|row| row.payload.as_slice()).collect();
    let delays: Vec<_> = rows.iter().map(|row| row.delay).collect();
    let kinds: Vec<_> = rows.iter().map(|row| row.kind).collect();
    transaction
        .execute(INSERT, &[&topics, &keys, &payloads, &delays, &kinds])
        .await
}
