//! What this process published lately: enough to tell, after a failover, which of it the new server has never heard of.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::message::Row;

/// So many rows at most, and none older: retention must not be mistaken for loss.
const ROWS_MOST: usize = 100_000;
const AGE_MOST: Duration = Duration::from_secs(600);

/// A row that Kafka has acknowledged.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    id: i64,
    message_id: Uuid,
}

#[derive(Debug, Default)]
pub struct Published(Mutex<VecDeque<Sent>>);

impl Published {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Sent>> {
        // Every change under the lock is complete in itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn remember<'a>(&self, rows: impl Iterator<Item = &'a Row>) {
        let at = Instant::now();
        let mut sent = self.lock();
        sent.extend(rows.map(|row| Sent {
            at,
            id: row.id,
            message_id: row.message_id,
        }));
        let excess = sent.len().saturating_sub(ROWS_MOST);
        sent.drain(..excess);
    }

    /// Ids and message ids of what is remembered.
    pub fn recall(&self) -> (Vec<i64>, Vec<Uuid>) {
        let sent = self.lock();
        let recent = sent.iter().filter(|sent| sent.at.elapsed() < AGE_MOST);
        recent.map(|sent| (sent.id, sent.message_id)).unzip()
    }

    /// They have been asked for once: a row is not reported twice.
    pub fn forget(&self) {
        self.lock().clear();
    }
}
