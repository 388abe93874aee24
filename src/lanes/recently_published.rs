//! What this process published lately: enough to tell, after a crash of the server or a failover, which of it the server has never
//! heard of. An application that commits asynchronously can lose a row to a crash that was published already; a failover can lose any.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use uuid::Uuid;

use crate::domain::row::Row;

/// So many rows at most, and none older: retention must not be mistaken for loss.
const ROWS_MAX: usize = 100_000;
const AGE_MAX: Duration = Duration::from_secs(600);

/// A row that Kafka has acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    at: Instant,
    pub id: i64,
    pub message_id: Uuid,
}

#[derive(Debug)]
pub struct RecentlyPublished {
    rows: Mutex<VecDeque<Sent>>,
    questions: UnboundedSender<VecDeque<Sent>>,
}

impl RecentlyPublished {
    /// The receiver gets the rows that come into question.
    pub fn new() -> (Self, UnboundedReceiver<VecDeque<Sent>>) {
        let (questions, receiver) = unbounded_channel();
        let rows = Mutex::default();
        (RecentlyPublished { rows, questions }, receiver)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Sent>> {
        // Every change under the lock is complete in itself.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn remember<'a>(&self, rows: impl Iterator<Item = &'a Row>) {
        let at = Instant::now();
        let sent = rows.map(|row| Sent {
            at,
            id: row.id,
            message_id: row.message_id,
        });
        Self::append(&mut self.lock(), sent);
    }

    /// Adds rows, and forgets the oldest if there are too many.
    pub fn append(rows: &mut VecDeque<Sent>, more: impl IntoIterator<Item = Sent>) {
        rows.extend(more);
        let excess = rows.len().saturating_sub(ROWS_MAX);
        rows.drain(..excess);
    }

    /// The server is another one than before. What was published is in question until it has answered for it.
    pub fn question(&self) {
        let mut recent = std::mem::take(&mut *self.lock());
        recent.retain(|sent| sent.at.elapsed() < AGE_MAX);
        // The receiver is gone if the process is stopping.
        let _ = self.questions.send(recent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::row::tests::row;

    fn ids(rows: &VecDeque<Sent>) -> Vec<i64> {
        rows.iter().map(|sent| sent.id).collect()
    }

    #[test]
    fn what_is_in_question_is_asked_for_once() {
        let (published, mut questions) = RecentlyPublished::new();
        let rows: Vec<Row> = (1..=3).map(row).collect();
        published.remember(rows[..2].iter());
        published.question();
        published.remember(rows[2..].iter());
        published.question();
        let mut next = || ids(&questions.try_recv().expect("a question"));
        assert_eq!(next(), [1, 2], "the third was published on the new server");
        assert_eq!(next(), [3], "and that is another one, too");
    }

    #[test]
    fn of_too_many_the_oldest_are_forgotten() {
        let (published, mut questions) = RecentlyPublished::new();
        let one = row(1);
        published.remember(std::iter::once(&row(0)));
        published.remember(std::iter::repeat_n(&one, ROWS_MAX));
        published.question();
        let mut question = questions.try_recv().expect("a question");
        assert_eq!((question.len(), question[0].id), (ROWS_MAX, 1));
        published.remember(std::iter::once(&row(2)));
        published.question();
        RecentlyPublished::append(&mut question, questions.try_recv().expect("a question"));
        assert_eq!(question.len(), ROWS_MAX);
        assert_eq!((question[0].id, question[ROWS_MAX - 1].id), (1, 2));
    }
}
