//! What this process published lately: enough to tell, after a crash of the server or a failover, which of it the server has never
//! heard of. An application that commits asynchronously can lose a row to a crash that was published already; a failover can lose any.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};
use uuid::Uuid;

use crate::domain::row::Row;
use crate::failpoint;
use crate::jitter::jittered;
use crate::metrics;
use crate::outbox::Outbox;

/// So many rows at most, and none older: retention must not be mistaken for loss.
const ROWS_MOST: usize = 100_000;
const AGE_MOST: Duration = Duration::from_secs(600);

/// The server is asked again after this long, and after twice as long each time up to the most.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(30);
/// An answer that comes later could mistake retention, which is an hour at least, for loss.
const ANSWER_WITHIN: Duration = Duration::from_secs(3000);

/// So many lost rows are named in the log.
const LOST_NAMED: usize = 10;

/// A row that Kafka has acknowledged.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    id: i64,
    message_id: Uuid,
}

#[derive(Debug, Default)]
struct Memory {
    recent: VecDeque<Sent>,
    /// Published before the server became another one: does it still have them?
    in_question: VecDeque<Sent>,
}

#[derive(Debug, Default)]
pub struct Published {
    memory: Mutex<Memory>,
    questioned: Notify,
}

/// Forgets the oldest of too many.
fn bound(rows: &mut VecDeque<Sent>) {
    let excess = rows.len().saturating_sub(ROWS_MOST);
    rows.drain(..excess);
}

impl Published {
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

    /// The server is another one than before: what was published is in question until it has answered for it.
    pub fn question(&self) {
        let mut memory = self.lock();
        let mut recent = std::mem::take(&mut memory.recent);
        recent.retain(|sent| sent.at.elapsed() < AGE_MOST);
        memory.in_question.extend(recent);
        bound(&mut memory.in_question);
        drop(memory);
        self.questioned.notify_one();
    }

    fn take_question(&self) -> VecDeque<Sent> {
        std::mem::take(&mut self.lock().in_question)
    }

    /// The server has not answered: it will be asked for these again, and for what has come into question since.
    fn put_back(&self, mut question: VecDeque<Sent>) {
        let mut memory = self.lock();
        question.append(&mut memory.in_question);
        bound(&mut question);
        memory.in_question = question;
    }

    /// Asks for what is in question until it is answered, and reports what is lost. Apart from the lease: neither waits for the other.
    pub async fn watch(&self, outbox: &Outbox, draining: &CancellationToken) {
        loop {
            tokio::select! {
                () = self.questioned.notified() => {}
                () = draining.cancelled() => return,
            }
            tokio::select! {
                () = self.until_answered(outbox) => {}
                () = draining.cancelled() => {
                    error!("stopped before the server has said whether it has lost published rows: compare with `outboxd verify`");
                    return;
                }
            }
        }
    }

    async fn until_answered(&self, outbox: &Outbox) {
        let (began, mut again) = (Instant::now(), ASK_AGAIN);
        loop {
            failpoint::hit("before_question").await;
            let question = self.take_question();
            let Err(error) = ask(outbox, &question).await else {
                return;
            };
            metrics::database_error();
            if began.elapsed() > ANSWER_WITHIN {
                error!(%error, "the server does not say whether it has lost published rows: compare with `outboxd verify`");
                return;
            }
            warn!(%error, "cannot ask the server whether it has lost published rows; asking again");
            self.put_back(question);
            sleep(jittered(again)).await;
            again = (again * 2).min(ASK_AGAIN_MAX);
        }
    }
}

/// Which of these has the server lost?
async fn ask(outbox: &Outbox, question: &VecDeque<Sent>) -> crate::outbox::Result<()> {
    if question.is_empty() {
        return Ok(());
    }
    let (ids, message_ids) = question.iter().map(|sent| (sent.id, sent.message_id)).unzip();
    let lost = outbox.lost(ids, message_ids).await?;
    if !lost.is_empty() {
        metrics::published_rows_lost(lost.len());
        error!(
            rows = lost.len(),
            first_ids = ?&lost[..lost.len().min(LOST_NAMED)],
            "the server has lost rows that are already in Kafka: `outboxd verify` compares, docs/operations.md says what to do"
        );
    }
    Ok(())
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
        let published = Published::default();
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
            "and that is another one, too"
        );
        assert!(published.take_question().is_empty(), "nothing is reported twice");
    }

    #[test]
    fn of_too_many_the_oldest_are_forgotten() {
        let published = Published::default();
        let one = row(1);
        published.remember(std::iter::once(&row(0)));
        published.remember(std::iter::repeat_n(&one, ROWS_MOST));
        published.question();
        published.remember(std::iter::once(&row(2)));
        published.question();
        let question = published.take_question();
        assert_eq!(question.len(), ROWS_MOST);
        assert_eq!((question[0].id, question[ROWS_MOST - 1].id), (1, 2));
    }
}
