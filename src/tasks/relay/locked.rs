//! Rows that somebody else has locked, as an operator does who looks at one with `SELECT … FOR UPDATE`. A mark waits for them no longer than
//! a moment: the others are marked without them. Those that Kafka has are remembered, and are not sent again but marked by a task of their own
//! when they are free.

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Relay;
use crate::domain::batch_outcome::BatchOutcome;
use crate::domain::retry::LOCKED_ROW_WAIT;
use crate::lanes::{Acknowledged, LockedRows, Term};
use crate::metrics;
use crate::outbox::{Error, Result, UnorderedOutcome};

impl Relay {
    /// Takes out of what is to be written what cannot be. `None`: the term is over.
    pub(super) async fn leave_locked(&self, term: &Term, verdict: &mut BatchOutcome) -> Option<()> {
        let refused = verdict.refused.iter().map(|refusal| refusal.id);
        let ids: Vec<i64> = verdict.published.iter().copied().chain(refused).collect();
        let locked = self.writer.locked(term, &ids).await?;
        verdict.leave_locked(&locked, &self.settings.policy);
        Some(())
    }

    /// Marks what could not be marked with its batch, until `draining`.
    pub async fn mark_unmarked(&self, draining: &CancellationToken) {
        while !draining.is_cancelled() {
            tokio::select! {
                () = sleep(LOCKED_ROW_WAIT) => {}
                () = draining.cancelled() => return,
            }
            self.mark_free().await;
        }
    }

    /// Of all rows that wait for their mark, those that are free again.
    pub async fn mark_free(&self) {
        let Some(term) = self.lanes.term() else { return };
        if let Err(error) = self.mark_free_of_lanes(&term).await {
            cannot_mark(&error);
        }
        for unmarked in self.lanes.take_unmarked(term.worker) {
            let left = match self.mark_free_of_claim(&term, &unmarked).await {
                Ok(left) => left,
                Err(error) => {
                    cannot_mark(&error);
                    unmarked
                }
            };
            self.remember_unmarked(&term, left);
        }
    }

    /// Beside the batches of their lanes, which leave them alone.
    async fn mark_free_of_lanes(&self, term: &Term) -> Result<()> {
        let mut waiting = self.lanes.acknowledged();
        if waiting.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = waiting.iter().map(|row| row.id).collect();
        let locked = self.outbox.locked_rows(&ids).await?;
        waiting.retain(|row| !locked.contains(&row.id));
        if waiting.is_empty() {
            return Ok(());
        }
        let mut lanes: Vec<(i16, i64)> = waiting.iter().map(|row| (row.lane, row.epoch)).collect();
        lanes.dedup();
        let ids: Vec<i64> = waiting.iter().map(|row| row.id).collect();
        let marked = self.outbox.mark_lanes(term, &lanes, &ids, &[]).await?;
        metrics::rows_marked(marked);
        if marked < ids.len() as u64 && self.outbox.count_owned_lanes(term, &lanes).await? < lanes.len() {
            // A release has raised an epoch meanwhile, or the lane has gone, which its next batch finds out.
            return Ok(());
        }
        // The others were removed by whoever had locked them.
        for Acknowledged { lane, id, .. } in waiting {
            self.lanes.forget_maybe_sent_id(lane, id);
        }
        Ok(())
    }

    // ── unordered rows ────────────────────────────────────────────────────────────────────

    pub(crate) fn remember_unmarked(&self, term: &Term, unmarked: LockedRows) {
        if !unmarked.ids.is_empty() {
            self.lanes.remember_unmarked(term.worker, unmarked);
        }
    }

    /// Marks those that are free, and keeps the claim of the others alive. Answers what is left.
    async fn mark_free_of_claim(&self, term: &Term, unmarked: &LockedRows) -> Result<LockedRows> {
        let claimed = std::time::Instant::now();
        let locked = self.outbox.locked_rows(&unmarked.ids).await?;
        let is_fresh = unmarked.claimed.elapsed() < self.settings.lease / 2;
        if locked.len() == unmarked.ids.len() && is_fresh {
            return Ok(unmarked.clone());
        }
        let published: Vec<i64> = unmarked.ids.iter().copied().filter(|id| !locked.contains(id)).collect();
        let outcome = UnorderedOutcome {
            published: &published,
            unmarked: &locked,
            ..UnorderedOutcome::default()
        };
        let lease = self.settings.lease;
        let marked = self
            .outbox
            .write_unordered_outcome(term, unmarked.claim, &outcome, lease)
            .await?;
        metrics::rows_marked(marked);
        Ok(LockedRows {
            ids: locked,
            claimed,
            ..unmarked.clone()
        })
    }
}

fn cannot_mark(error: &Error) {
    metrics::database_error();
    debug!(%error, "cannot mark rows that were locked; trying again");
}
