//! What is seen from outside, once a second: the lag, the replicas' weight and counters, their connections.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, block_in_place};
use tokio::time::{MissedTickBehavior, interval};
use tokio_postgres::{Client, Error, NoTls};
use tokio_util::sync::CancellationToken;

use crate::environment::Environment;
use crate::progress::Progress;

/// Of everything drawn so many samples ago it is known whether it committed: no transaction here stays open for as long.
const DECIDED_AFTER: usize = 60;

/// A delayed row is late from when it is due. Other rows are late from their INSERT: also while their own transaction, or a lock on
/// the table, holds them up.
const BACKLOG: &str = "
    SELECT (SELECT last_value FROM outbox.message_id_seq) AS tail,
           min(id) AS lowest,
           count(*) FILTER (WHERE coalesce(available_at, created_at) <= clock_timestamp()) AS due,
           coalesce(extract(epoch FROM max(clock_timestamp() - coalesce(available_at, created_at))), 0)::float8 AS lag,
           (SELECT count(*) FROM pg_stat_activity WHERE usename = $2) AS connections
    FROM outbox.message
    WHERE id > $1 AND published_at IS NULL AND dead_at IS NULL";

#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    pub due: i64,
    pub lag_seconds: f64,
    pub connections: i64,
}

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Since the start.
    pub at: Duration,
    /// `None`: the database does not answer.
    pub backlog: Option<Backlog>,
    pub published: f64,
    /// Rows being published, by all replicas that answer.
    pub in_flight: f64,
}

pub struct Sampler {
    stop: CancellationToken,
    task: JoinHandle<Vec<Sample>>,
}

impl Sampler {
    pub fn start(environment: &Arc<Environment>, start: Instant, progress: &Arc<Progress>) -> Self {
        let stop = CancellationToken::new();
        let sampler = SamplerTask {
            environment: environment.clone(),
            session: None,
            tails: VecDeque::new(),
            floor: 0,
        };
        let task = tokio::spawn(sampler.run(start, progress.clone(), stop.clone()));
        Sampler { stop, task }
    }

    pub async fn stop(self) -> Vec<Sample> {
        self.stop.cancel();
        self.task.await.expect("the sampler did not panic")
    }
}

struct SamplerTask {
    environment: Arc<Environment>,
    session: Option<Client>,
    /// The last ids drawn, as of the last samples.
    tails: VecDeque<i64>,
    /// Nothing at or below it is pending. Its own, and not the relays': theirs are under test.
    floor: i64,
}

impl SamplerTask {
    async fn run(mut self, start: Instant, progress: Arc<Progress>, stop: CancellationToken) -> Vec<Sample> {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut samples = Vec::new();
        while !stop.is_cancelled() {
            ticks.tick().await;
            let in_flight = block_in_place(|| {
                let replicas = self.environment.replicas.iter();
                let in_flight = replicas.map(|replica| {
                    replica.weigh();
                    replica.scrape().unwrap_or(0.0)
                });
                in_flight.sum()
            });
            let sample = Sample {
                at: start.elapsed(),
                backlog: self.backlog().await,
                published: self.published(),
                in_flight,
            };
            progress.show(&sample);
            samples.push(sample);
        }
        samples
    }

    fn published(&self) -> f64 {
        let lives = self.environment.replicas.iter().flat_map(|replica| replica.lives());
        lives.map(|life| life.counters.published).sum()
    }

    async fn backlog(&mut self) -> Option<Backlog> {
        let session = match self.session.take() {
            Some(session) => session,
            None => self.connect().await.ok()?,
        };
        let row = session
            .query_one(BACKLOG, &[&self.floor, &self.environment.relay_login])
            .await;
        if !session.is_closed() {
            self.session = Some(session);
        }
        let row = row.ok()?;
        self.raise_floor(row.get("tail"), row.get("lowest"));
        Some(Backlog {
            due: row.get("due"),
            lag_seconds: row.get("lag"),
            connections: row.get("connections"),
        })
    }

    async fn connect(&self) -> Result<Client, Error> {
        let (client, connection) = tokio_postgres::connect(&self.environment.world.database_url, NoTls).await?;
        tokio::spawn(connection);
        // While somebody locks the table the replicas are still to be sampled.
        client.batch_execute("SET lock_timeout = '500ms'").await?;
        Ok(client)
    }

    fn raise_floor(&mut self, tail: i64, lowest: Option<i64>) {
        self.tails.push_back(tail);
        if self.tails.len() > DECIDED_AFTER {
            let decided = self.tails.pop_front().unwrap_or(0);
            self.floor = decided.min(lowest.map_or(i64::MAX, |lowest| lowest - 1));
        }
    }
}
