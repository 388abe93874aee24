//! The rows that this process published recently. After a crash of the server or a failover they tell which published rows the
//! server has lost. A crash can lose a row whose application commits asynchronously, and a failover can lose any row.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::domain::row::Row;

/// The most rows to remember.
const ROWS_MAX: usize = 100_000;
/// Older rows are not asked for, because rows that retention has deleted must not be mistaken for lost ones.
const AGE_MAX: Duration = Duration::from_secs(600);

/// A row that Kafka has acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    at: Instant,
    pub id: i64,
    pub message_id: Uuid,
}

#[derive(Debug, Default)]
struct Memory {
    recent: VecDeque<Sent>,
    /// Rows that were published before the server became another one, and that it may have lost.
    in_question: VecDeque<Sent>,
}

#[derive(Debug, Default)]
pub struct RecentlyPublished {
    memory: Mutex<Memory>,
    questioned: Notify,
}

/// Forgets the oldest rows if there are too many.
fn bound(rows: &mut VecDeque<Sent>) {
    let excess = rows.len().saturating_sub(ROWS_MAX);
    rows.drain(..excess);
}

impl RecentlyPublished {
    fn lock(&self) -> MutexGuard<'_, Memory> {
        // Every change under the lock is complete in itself.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn remember<'a>(&self, rows: impl Iterator<Item = &'a Row>) {
        let at = Instant::now();
        let recent = &mut self.lock().recent;
        recent.extend(rows.map(|row| Sent {
            at,
            id: row.id,
            message_id: row.message_id,
        }));
        bound(recent);
    }

    /// Notes that the server is another one than before. What was published is in question until the server says what it has.
    pub fn question(&self) {
        let mut memory = self.lock();
        let mut recent = std::mem::take(&mut memory.recent);
        recent.retain(|sent| sent.at.elapsed() < AGE_MAX);
        memory.in_question.extend(recent);
        bound(&mut memory.in_question);
        drop(memory);
        self.questioned.notify_one();
    }

    /// Waits until something has come into question.
    pub async fn questioned(&self) {
        self.questioned.notified().await;
    }

    /// Takes out the rows that are in question.
    pub fn take_question(&self) -> VecDeque<Sent> {
        std::mem::take(&mut self.lock().in_question)
    }

    /// Puts rows back because the server has not answered. They are in question again, with those added since.
    pub fn put_back(&self, mut question: VecDeque<Sent>) {
        let mut memory = self.lock();
        question.append(&mut memory.in_question);
        bound(&mut question);
        memory.in_question = question;
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
    fn what_is_in_question_is_kept_until_it_is_answered_and_asked_for_once() {
        let published = RecentlyPublished::default();
        let rows: Vec<Row> = (1..=3).map(row).collect();
        published.remember(rows[..2].iter());
        published.question();
        published.remember(rows[2..].iter());
        let question = published.take_question();
        assert_eq!(ids(&question), [1, 2], "the third was published on the new server");
        published.question();
        published.put_back(question);
        assert_eq!(
            ids(&published.take_question()),
            [1, 2, 3],
            "the server became another one again"
        );
        assert!(published.take_question().is_empty(), "nothing is reported twice");
    }

    #[test]
    fn of_too_many_the_oldest_are_forgotten() {
        let published = RecentlyPublished::default();
        let one = row(1);
        published.remember(std::iter::once(&row(0)));
        published.remember(std::iter::repeat_n(&one, ROWS_MAX));
        published.question();
        published.remember(std::iter::once(&row(2)));
        published.question();
        let question = published.take_question();
        assert_eq!(question.len(), ROWS_MAX);
        assert_eq!((question[0].id, question[ROWS_MAX - 1].id), (1, 2));
    }
}
