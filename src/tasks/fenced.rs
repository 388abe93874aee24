//! Writes that count only while our term lasts: the fence is in each statement, and here is what becomes of one that fails,
//! is fenced off, or meets a row that another transaction has locked.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{debug, warn};

use crate::domain::retry;
use crate::domain::row::Row;
use crate::lanes::{InFlightRanges, Lanes, Record, Term};
use crate::metrics;
use crate::outbox::{ClaimedRows, Outbox, Result, UnorderedFilter};

/// After an error, before the same lanes are tried again.
pub fn short_backoff() -> Duration {
    retry::short_backoff(fastrand::f64())
}

#[derive(Clone)]
pub struct FencedWriter {
    pub outbox: Arc<Outbox>,
    pub lanes: Arc<Lanes>,
}

impl FencedWriter {
    /// Repeats a write until it is answered or the term is over: what Kafka has acknowledged must not be sent again
    /// only because PostgreSQL was away for a moment. Repeating is harmless: the fence is in the statement, and what it would
    /// count twice is guarded by what was seen.
    pub async fn while_term_lasts<T, F>(&self, term: &Term, write: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<Option<T>>>,
    {
        let mut failures = 0u32;
        loop {
            match write().await {
                Ok(done) => return done,
                Err(error) => {
                    metrics::database_error();
                    if failures == 0 {
                        warn!(%error, "cannot write what became of a batch; trying again while the lease lasts");
                    }
                    failures += 1;
                }
            }
            if !self.lasts(term) {
                return None;
            }
            sleep(short_backoff() * failures.min(10)).await;
        }
    }

    /// As [`FencedWriter::while_term_lasts`]. `Some(None)`: another transaction has locked what it would write, and nothing
    /// is written.
    pub async fn unless_locked<T, F>(&self, term: &Term, write: impl Fn() -> F) -> Option<Option<T>>
    where
        F: Future<Output = Result<Option<T>>>,
    {
        let write = || async {
            match write().await {
                Err(error) if error.is_lock_timeout() => Ok(Some(None)),
                written => written.map(|written| written.map(Some)),
            }
        };
        self.while_term_lasts(term, write).await
    }

    /// Which of these rows another transaction has locked. `None`: the term is over.
    pub async fn locked(&self, term: &Term, ids: &[i64]) -> Option<Vec<i64>> {
        let locked = self
            .while_term_lasts(term, || async { self.outbox.locked_rows(ids).await.map(Some) })
            .await?;
        debug!(rows = locked.len(), "rows are locked by another transaction");
        if locked.is_empty() {
            // They are free again, or it was another lock: of the table, say, or of a lane that is being taken.
            metrics::database_error();
            warn!("what became of a batch waits for a lock of another transaction; trying again");
            sleep(short_backoff()).await;
        }
        self.lasts(term).then_some(locked)
    }

    /// Writes down what is about to be sent, for whoever takes over from us should we die. `None`: the lanes are not ours any
    /// more.
    pub async fn record(&self, term: &Term, lanes: &[(i16, i64)], rows: &[Row]) -> Result<Option<Record>> {
        let (place, ranges) = (self.lanes.begin_entry(term.worker), InFlightRanges::of(rows));
        match self.outbox.insert_in_flight(term, lanes, &ranges).await {
            Ok(Some(id)) => Ok(Some(self.lanes.entry_written(place, id, ranges))),
            other => {
                self.lanes.entry_dropped(place);
                other.map(|_| None)
            }
        }
    }

    /// Claims free unordered rows, whichever they are, and reads them; answers the number of the claim. `None`: there
    /// are none.
    pub async fn claim_free(
        &self,
        term: &Term,
        free: &UnorderedFilter<'_>,
        lease: Duration,
        bytes: usize,
    ) -> Result<Option<(i64, ClaimedRows)>> {
        let recorded = self.outbox.claim_unordered(term, free, lease).await?;
        self.lanes.note_claims(term.worker, recorded.lowest);
        let Some(number) = recorded.claim else { return Ok(None) };
        let claim = self.outbox.read_claim(term, number, bytes).await?;
        Ok(Some((number, claim)))
    }

    /// A write found that the lanes have another owner: the term is over.
    pub fn fenced(&self, term: &Term, rows: usize) {
        metrics::rows_fenced(rows);
        warn!(
            rows,
            "the lease had gone to another worker: marked nothing; the rows are sent again by their new owner"
        );
        if self.lanes.end_term(term.worker) {
            metrics::leases_lost();
        }
    }

    fn lasts(&self, term: &Term) -> bool {
        self.lanes.term().is_some_and(|current| current.worker == term.worker)
    }
}
