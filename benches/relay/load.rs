//! An application at work: single rows, each in a transaction of its own, at a steady rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::sleep_until;

use crate::Outcome;
use crate::backlog::{FILLER, STRIDE, Shape};
use crate::servers::connect;
use crate::workspace::Workspace;

pub const INSERT: &str = "INSERT INTO outbox.message (topic, key, payload) VALUES ($1, $2, $3::text::jsonb)";

/// More than one session needs at this rate, so that a slow commit makes nobody late.
const RATE_PER_SESSION: u64 = 250;
const SESSIONS_MIN: u64 = 4;

/// One row that is committed.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    pub number: u64,
    /// When the server had answered.
    pub at: Instant,
    /// How long after its time it was begun.
    pub late: Duration,
}

pub struct Load {
    stop: Arc<AtomicBool>,
    sessions: Vec<JoinHandle<Outcome<Vec<Commit>>>>,
}

/// The same bytes as a backlog's rows.
pub fn payload(number: u64) -> String {
    let bytes = Shape::Keyed.filler_bytes();
    let from = number as usize * STRIDE % (FILLER.len() - bytes);
    format!(r#"{{"n": {number}, "fill": "{}"}}"#, &FILLER[from..from + bytes])
}

impl Load {
    /// Rows numbered from `first`, so many a second.
    pub async fn start(workspace: &Workspace, insert: &'static str, rate: u64, first: u64) -> Outcome<Self> {
        let count = rate.div_ceil(RATE_PER_SESSION).max(SESSIONS_MIN);
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(connect(&workspace.url).await?);
        }
        let began = Instant::now();
        let mut sessions = Vec::new();
        for (session, client) in clients.into_iter().enumerate() {
            let writer = Writer {
                client,
                insert,
                topic: workspace.name.clone(),
                next: session as u64,
                step: count,
                rate: rate as f64,
                began,
                first,
            };
            sessions.push(tokio::spawn(writer.write_until(stop.clone())));
        }
        Ok(Load { stop, sessions })
    }

    pub async fn stop(self) -> Outcome<Vec<Commit>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut commits = Vec::new();
        for session in self.sessions {
            commits.extend(session.await??);
        }
        Ok(commits)
    }
}

struct Writer {
    client: tokio_postgres::Client,
    insert: &'static str,
    topic: String,
    next: u64,
    step: u64,
    rate: f64,
    began: Instant,
    first: u64,
}

impl Writer {
    async fn write_until(mut self, stop: Arc<AtomicBool>) -> Outcome<Vec<Commit>> {
        let insert = self.client.prepare(self.insert).await?;
        let mut commits = Vec::new();
        loop {
            let due = self.began + Duration::from_secs_f64(self.next as f64 / self.rate);
            sleep_until(due.into()).await;
            if stop.load(Ordering::Relaxed) {
                return Ok(commits);
            }
            let late = due.elapsed();
            let number = self.first + self.next;
            let (key, payload) = (format!("key-{}", number % 1000), payload(number));
            self.client.execute(&insert, &[&self.topic, &key, &payload]).await?;
            commits.push(Commit {
                number,
                at: Instant::now(),
                late,
            });
            self.next += self.step;
        }
    }
}
