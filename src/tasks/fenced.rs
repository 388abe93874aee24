//! Writes that count only while the term lasts. The fence is in each statement. This module decides what happens if a write fails,
//! is fenced, or meets a row that another session has locked.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{debug, warn};

use crate::domain::in_flight::{InFlightEntry, InFlightRanges};
use crate::domain::lease::Term;
use crate::domain::retry;
use crate::domain::row::Row;
use crate::lanes::Lanes;
use crate::metrics;
use crate::outbox::{ClaimedRows, Outbox, Result, UnorderedFilter};

/// The wait after an error, before the same lanes are tried again.
pub fn short_backoff() -> Duration {
    retry::short_backoff(fastrand::f64())
}

#[derive(Clone)]
pub struct FencedWriter {
    pub outbox: Arc<Outbox>,
    pub lanes: Arc<Lanes>,
}

impl FencedWriter {
    /// Repeats a write until it is answered or the term is over, because rows that Kafka has acknowledged must not be sent again
    /// only because PostgreSQL was unreachable for a moment. Repeating it is harmless: the fence is in the statement, and so is a
    /// guard for what would be counted twice. `None`: fenced, or the term is over.
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
            if !self.is_current(term) {
                return None;
            }
            sleep(short_backoff() * failures.min(10)).await;
        }
    }

    /// As [`FencedWriter::while_term_lasts`]. `Some(None)`: another session has locked rows, and nothing is written.
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

    /// Which of these rows another session has locked. `None`: the term is over.
    pub async fn locked(&self, term: &Term, ids: &[i64]) -> Option<Vec<i64>> {
        let locked = self
            .while_term_lasts(term, || async { self.outbox.locked_rows(ids).await.map(Some) })
            .await?;
        debug!(rows = locked.len(), "rows are locked by another transaction");
        if locked.is_empty() {
            // They are unlocked again, or it was another lock: of the table, or of a lane that is being taken.
            metrics::database_error();
            warn!("what became of a batch waits for a lock of another transaction; trying again");
            sleep(short_backoff()).await;
        }
        self.is_current(term).then_some(locked)
    }

    /// Writes the in-flight entry of rows that are about to be sent, so that a successor knows of them if this process dies.
    /// `None`: the lanes are not ours any more.
    pub async fn write_entry(&self, term: &Term, lanes: &[(i16, i64)], rows: &[Row]) -> Result<Option<InFlightEntry>> {
        let in_flight = &self.lanes.in_flight;
        let (slot, ranges) = (in_flight.begin(term.worker), InFlightRanges::of(rows));
        match self.outbox.insert_in_flight(term, lanes, &ranges).await {
            Ok(Some(id)) => Ok(Some(in_flight.written(slot, id, ranges))),
            other => {
                in_flight.dropped(slot);
                other.map(|_| None)
            }
        }
    }

    /// Claims free unordered rows, and reads them. Returns the number of the claim, too. `None`: there are none.
    pub async fn claim_free(
        &self,
        term: &Term,
        free: &UnorderedFilter<'_>,
        lease: Duration,
        bytes: usize,
    ) -> Result<Option<(i64, ClaimedRows)>> {
        let recorded = self.outbox.claim_unordered(term, free, lease).await?;
        self.lanes.unordered().note_claims(term.worker, recorded.lowest);
        let Some(number) = recorded.claim else { return Ok(None) };
        let claim = self.outbox.read_claim(term, number, bytes).await?;
        Ok(Some((number, claim)))
    }

    /// A write found that its lanes have another owner.
    pub fn fenced(&self, term: &Term, rows: usize) {
        metrics::rows_fenced(rows);
        warn!(
            rows,
            "the lease had gone to another worker: marked nothing; the rows are sent again by their new owner"
        );
        self.end_term(term);
    }

    pub fn end_term(&self, term: &Term) {
        if self.lanes.ownership().end_term(term.worker) {
            metrics::leases_lost();
        }
    }

    fn is_current(&self, term: &Term) -> bool {
        self.lanes.term().is_some_and(|current| current.worker == term.worker)
    }
}
