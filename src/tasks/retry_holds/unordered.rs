//! Probes for holds of unordered rows. These belong to no worker, so the row that is sent is claimed like any other.

use std::sync::Arc;
use std::time::Instant;

use tracing::warn;

use super::RetryHolds;
use crate::boottime;
use crate::domain::decision::{Decision, HoldFate, RowFate};
use crate::domain::hold::Hold;
use crate::domain::lease::Term;
use crate::domain::pause::Pauses;
use crate::domain::retry::Event;
use crate::domain::row::{Row, UNORDERED_LANE};
use crate::lanes::LockedRows;
use crate::metrics;
use crate::outbox::{Result, UnorderedFilter, UnorderedOutcome};
use crate::tasks::report::report_refusal;

impl RetryHolds {
    /// Probes with the oldest free row that a hold keeps back, whose topic is not paused. Returns as [`RetryHolds::probe_lane`].
    pub(super) async fn probe_unordered(
        &self,
        term: &Term,
        hold: &Hold,
        pauses: &Arc<Pauses>,
    ) -> Result<Option<HoldFate>> {
        let began = boottime::now();
        let Some((claim, mut row)) = self.claim_head(term, hold).await? else {
            // There is no row to probe with. After the release the next batch finds out whether Kafka accepts rows.
            self.release_unordered(term, hold, None).await?;
            return Ok(None);
        };
        let mut decision = if began + self.settings.lease < boottime::now() + self.settings.lease_needed() {
            // It could arrive after the claim has expired and another worker has claimed the row.
            self.decide(hold, Event::TooLate(&row), true)
        } else {
            row.possible_duplicate |= self.lanes.maybe_sent().contains(UNORDERED_LANE, row.id);
            self.send(hold, &row, pauses, began + self.settings.lease).await
        };
        let claimed = (claim, row.id);
        match self.write_unordered(term, hold, claimed, &decision).await {
            Err(error) if error.is_lock_timeout() => {
                if let Some(event) = decision.row.when_locked() {
                    decision = self.decide(hold, event, true);
                }
                self.write_unordered(term, hold, claimed, &decision).await?;
            }
            written => written?,
        }
        Ok(Some(decision.hold))
    }

    /// Writes what was decided about the row that was claimed for a hold, and about the hold.
    async fn write_unordered(
        &self,
        term: &Term,
        hold: &Hold,
        (claim, id): (i64, i64),
        decision: &Decision,
    ) -> Result<()> {
        let (ids, claimed) = ([id], Instant::now());
        let mut outcome = UnorderedOutcome::default();
        match &decision.row {
            // The mark and the release are one transaction.
            RowFate::Published => return self.release_unordered(term, hold, Some((claim, id))).await,
            // The claim is kept until the row is unlocked and can be marked.
            RowFate::PublishedUnmarked => outcome.unmarked = &ids,
            RowFate::Refused(refusal) => {
                outcome.refused = std::slice::from_ref(refusal);
                outcome.maybe_sent = if refusal.is_retried_flagged() { &ids } else { &[] };
            }
            RowFate::Pending { maybe_sent: true } => outcome.maybe_sent = &ids,
            RowFate::Pending { maybe_sent: false } | RowFate::Gone => {}
        }
        let lease = self.settings.lease;
        let write = self.outbox.write_unordered_outcome(term, claim, &outcome, lease);
        write.await?;
        let refused = outcome.refused.iter();
        refused.for_each(|refusal| report_refusal(&hold.topic, refusal));
        if !outcome.unmarked.is_empty() {
            metrics::rows_published(std::iter::once(hold.topic.as_str()));
            let ids = ids.to_vec();
            let locked = LockedRows { claim, ids, claimed };
            self.lanes.unordered().remember_locked(term.worker, locked);
        }
        match decision.hold {
            HoldFate::Release | HoldFate::ReleaseAll => self.release_unordered(term, hold, None).await,
            _ => Ok(()),
        }
    }

    /// Claims the oldest free row that a hold keeps back. `None` if there is none.
    async fn claim_head(&self, term: &Term, hold: &Hold) -> Result<Option<(i64, Row)>> {
        let filter = UnorderedFilter {
            claims_from: self.lanes.unordered().claims_from(),
            start: hold.resume_floor,
            scan_end: None,
            most: 1,
            most_in_total: 1,
            of_hold: Some(hold),
            skip_held: true,
        };
        let (lease, bytes) = (self.settings.lease, self.settings.bytes_per_task());
        let claimed = self.writer.claim_free(term, &filter, lease, bytes).await?;
        let Some((claim, mut claimed)) = claimed else {
            return Ok(None);
        };
        let Some(row) = claimed.rows.pop() else {
            // The row is gone, or it could not be read. In the latter case it may still have been sent by an earlier owner.
            let maybe_sent = claimed.dropped.iter().filter(|row| row.possible_duplicate);
            let outcome = UnorderedOutcome {
                maybe_sent: &maybe_sent.map(|row| row.id).collect::<Vec<_>>(),
                ..UnorderedOutcome::default()
            };
            self.outbox
                .write_unordered_outcome(term, claim, &outcome, lease)
                .await?;
            return Ok(None);
        };
        Ok(Some((claim, row)))
    }

    pub(super) async fn release_all_unordered(&self, term: &Term, holds: &[Hold]) {
        for hold in holds {
            if let Err(error) = self.release_unordered(term, hold, None).await {
                metrics::database_error();
                warn!(%error, topic = hold.topic, "cannot release unordered rows; trying again");
            }
        }
    }

    async fn release_unordered(&self, term: &Term, hold: &Hold, published: Option<(i64, i64)>) -> Result<()> {
        let marked = self.outbox.release_unordered_hold(term, hold, published).await?;
        metrics::rows_published(published.iter().map(|_| hold.topic.as_str()));
        metrics::rows_marked(marked);
        if let Some(stored) = self.outbox.read_unordered(term.incarnation).await? {
            self.lanes.unordered().note_stored(term.worker, stored);
        }
        Ok(())
    }
}
