//! The task that marks rows which could not be marked with their batch because another session had locked them, as an operator does
//! with `SELECT … FOR UPDATE`. Kafka has these rows, so they are remembered and not sent again. This task marks them once they are
//! unlocked, and batches continue meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::debug;

use super::Shutdown;
use crate::domain::lease::Term;
use crate::domain::retry::LOCKED_ROW_WAIT;
use crate::lanes::{Acknowledged, Lanes, LockedRows};
use crate::metrics;
use crate::outbox::{Error, Outbox, Result, UnorderedOutcome};

pub struct MarkLocked {
    pub outbox: Arc<Outbox>,
    pub lanes: Arc<Lanes>,
    /// How long a claim of unordered rows lasts.
    pub lease: Duration,
}

impl MarkLocked {
    /// Runs until `shutdown.draining`.
    pub async fn run(&self, shutdown: &Shutdown) {
        while !shutdown.draining.is_cancelled() {
            tokio::select! {
                () = sleep(LOCKED_ROW_WAIT) => {}
                () = shutdown.draining.cancelled() => return,
            }
            self.mark_unlocked().await;
        }
    }

    /// Marks the rows that are unlocked by now.
    pub async fn mark_unlocked(&self) {
        let Some(term) = self.lanes.term() else { return };
        if let Err(error) = self.mark_unlocked_of_lanes(&term).await {
            cannot_mark(&error);
        }
        for rows in self.lanes.unordered().take_locked(term.worker) {
            let left = match self.mark_unlocked_of_claim(&term, &rows).await {
                Ok(left) => left,
                Err(error) => {
                    cannot_mark(&error);
                    rows
                }
            };
            self.lanes.unordered().remember_locked(term.worker, left);
        }
    }

    async fn mark_unlocked_of_lanes(&self, term: &Term) -> Result<()> {
        let mut waiting = self.lanes.maybe_sent().acknowledged();
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
            // The release of a hold has raised an epoch in the meantime, and the next attempt has the new one. Or a lane is not
            // ours any more, which its next batch finds out.
            return Ok(());
        }
        // Rows that were not marked were removed by the session that had locked them.
        for Acknowledged { lane, id, .. } in waiting {
            self.lanes.maybe_sent().forget(lane, id);
        }
        Ok(())
    }

    /// Marks rows of a claim that are unlocked, and renews the claim for the others. Returns what is left.
    async fn mark_unlocked_of_claim(&self, term: &Term, rows: &LockedRows) -> Result<LockedRows> {
        let claimed = Instant::now();
        let locked = self.outbox.locked_rows(&rows.ids).await?;
        let is_fresh = rows.claimed.elapsed() < self.lease / 2;
        if locked.len() == rows.ids.len() && is_fresh {
            return Ok(rows.clone());
        }
        let published: Vec<i64> = rows.ids.iter().copied().filter(|id| !locked.contains(id)).collect();
        let outcome = UnorderedOutcome {
            published: &published,
            unmarked: &locked,
            ..UnorderedOutcome::default()
        };
        let marked = self
            .outbox
            .write_unordered_outcome(term, rows.claim, &outcome, self.lease)
            .await?;
        metrics::rows_marked(marked.unwrap_or(0));
        Ok(LockedRows {
            // If the claim was taken over, its rows are the other worker's.
            ids: marked.map_or_else(Vec::new, |_| locked),
            claimed,
            ..rows.clone()
        })
    }
}

fn cannot_mark(error: &Error) {
    metrics::database_error();
    debug!(%error, "cannot mark rows that were locked; trying again");
}
