//! Rows that somebody else has locked, as an operator does who looks at one with `SELECT … FOR UPDATE`. A mark waits for them no longer than
//! a moment: the others are marked without them. Those that Kafka has are remembered, and are not sent again but marked when they are free.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{Relay, breather};
use crate::lanes::{Term, Unmarked};
use crate::message::Row;
use crate::metrics;
use crate::outbox::{KeylessSettlement, Result};
use crate::verdict::Verdict;

/// So long a row without a lane that is locked is left alone before its mark is tried again. Of lanes, the next batch tries.
const REST: Duration = Duration::from_millis(250);

impl Relay {
    /// As [`Relay::while_term_lasts`]. `Some(None)`: somebody else has locked what it would write, and nothing is written.
    pub(crate) async fn unless_locked<T, F>(&self, term: &Term, write: impl Fn() -> F) -> Option<Option<T>>
    where
        F: Future<Output = Result<Option<T>>>,
    {
        let write = || async {
            match write().await {
                Err(error) if error.is_locked() => Ok(Some(None)),
                written => written.map(|written| written.map(Some)),
            }
        };
        self.while_term_lasts(term, write).await
    }

    /// Which of these rows somebody else has locked. `None`: the term is over.
    pub(crate) async fn locked(&self, term: &Term, ids: &[i64]) -> Option<Vec<i64>> {
        let locked = self
            .while_term_lasts(term, || async { self.outbox.locked(ids).await.map(Some) })
            .await?;
        debug!(rows = locked.len(), "rows are locked by another transaction");
        if locked.is_empty() {
            // They are free again, or it was another lock: of the table, say, or of a lane that is being taken.
            metrics::database_error();
            sleep(breather()).await;
        }
        let lasts = self.lanes.term().is_some_and(|current| current.worker == term.worker);
        lasts.then_some(locked)
    }

    /// Takes out of the verdict what cannot be written of it. `None`: the term is over.
    pub(super) async fn leave_locked(&self, term: &Term, verdict: &mut Verdict) -> Option<()> {
        let refused = verdict.refused.iter().map(|refusal| refusal.id);
        let ids: Vec<i64> = verdict.published.iter().copied().chain(refused).collect();
        let locked = self.locked(term, &ids).await?;
        verdict.leave_locked(&locked);
        Some(())
    }

    /// Of rows that could not be marked with an earlier batch, those that still cannot.
    pub(super) async fn still_locked(&self, acknowledged: &[Row]) -> Vec<i64> {
        if acknowledged.is_empty() {
            return Vec::new();
        }
        let ids: Vec<i64> = acknowledged.iter().map(|row| row.id).collect();
        // Unless we know better: the mark finds out.
        self.outbox.locked(&ids).await.unwrap_or_default()
    }

    // ── rows without a lane ────────────────────────────────────────────────────────────────────

    pub(crate) fn remember_unmarked(&self, term: &Term, unmarked: Unmarked) {
        if !unmarked.ids.is_empty() {
            self.lanes.remember_unmarked(term.worker, unmarked);
        }
    }

    /// Marks what could not be marked with its claim, until `draining`.
    pub async fn mark_unmarked(&self, draining: &CancellationToken) {
        while !draining.is_cancelled() {
            tokio::select! {
                () = sleep(REST) => {}
                () = draining.cancelled() => return,
            }
            let Some(term) = self.lanes.term() else { continue };
            for unmarked in self.lanes.take_unmarked() {
                let left = match self.mark_free(&term, &unmarked).await {
                    Ok(left) => left,
                    Err(error) => {
                        metrics::database_error();
                        debug!(%error, "cannot mark rows that were locked; trying again");
                        unmarked
                    }
                };
                self.remember_unmarked(&term, left);
            }
        }
    }

    /// Marks those that are free, and keeps the claim of the others alive. Answers what is left.
    async fn mark_free(&self, term: &Term, unmarked: &Unmarked) -> Result<Unmarked> {
        let claimed = std::time::Instant::now();
        let locked = self.outbox.locked(&unmarked.ids).await?;
        let is_fresh = unmarked.claimed.elapsed() < self.settings.lease / 2;
        if locked.len() == unmarked.ids.len() && is_fresh {
            return Ok(unmarked.clone());
        }
        let published: Vec<i64> = unmarked.ids.iter().copied().filter(|id| !locked.contains(id)).collect();
        let settled = KeylessSettlement {
            published: &published,
            unmarked: &locked,
            ..KeylessSettlement::default()
        };
        let lease = self.settings.lease;
        let marked = self
            .outbox
            .settle_keyless(term, unmarked.claim, &settled, lease)
            .await?;
        metrics::rows_marked(marked);
        Ok(Unmarked {
            ids: locked,
            claimed,
            ..unmarked.clone()
        })
    }
}
