//! A batch of unordered rows: claim, publish, write.

use std::sync::Arc;
use std::time::Instant;

use tracing::warn;

use super::Relay;
use super::batch::{failed_report, put_paused_back, returned_maybe_sent, take_paused, unordered_report};
use super::write::Batch;
use crate::boottime;
use crate::domain::batch_outcome::BatchOutcome;
use crate::domain::checkout::UnorderedCheckout;
use crate::domain::lease::Term;
use crate::domain::pause::Pauses;
use crate::domain::row::{Row, UNORDERED_LANE};
use crate::failpoint;
use crate::lanes::{LaneReport, LockedRows};
use crate::metrics::{self, Stream};
use crate::outbox::{ClaimedRows, DroppedRow, Result, UnorderedFilter, UnorderedOutcome};

/// Unordered rows, from their claim until their outcome is written.
pub(super) struct UnorderedBatch<'a> {
    pub(super) term: &'a Term,
    checked_out: &'a UnorderedCheckout,
    /// The number of their claim.
    claim: i64,
    pub(super) rows: Vec<Row>,
    dropped: Vec<DroppedRow>,
}

impl Relay {
    /// Unordered rows need no proof of the soft floor: a row below it is found as soon as the end of its writer is noticed.
    pub(super) async fn relay_unordered(
        &self,
        term: &Term,
        checked_out: &UnorderedCheckout,
        pauses: &Arc<Pauses>,
    ) -> LaneReport {
        let (began, lease_end) = (Instant::now(), boottime::now() + self.settings.lease);
        let claimed = match self.claim_unordered(term, checked_out).await {
            Ok(claimed) => claimed,
            Err(error) => {
                self.claim_failed(&error);
                return failed_report(UNORDERED_LANE);
            }
        };
        let took = began.elapsed();
        metrics::claim_took(Stream::Unordered, took);
        let Some((claim, ClaimedRows { mut rows, dropped })) = claimed else {
            return LaneReport {
                took,
                ..unordered_report(checked_out, &[], &[], &BatchOutcome::default())
            };
        };
        rows.sort_unstable_by_key(|row| row.id);
        metrics::rows_recovered(rows.iter().filter(|row| row.possible_duplicate).count());
        for row in &mut rows {
            row.possible_duplicate |= row.id <= checked_out.maybe_sent_until;
        }
        metrics::rows_claimed(rows.len());
        failpoint::hit("after_claim_unordered").await;
        let paused = take_paused(&mut rows, pauses);
        let mut outcome = self.publish(Stream::Unordered, &rows, pauses, lease_end).await;
        put_paused_back(&mut rows, paused, pauses, &self.settings.policy, &mut outcome);
        let batch = UnorderedBatch {
            term,
            checked_out,
            claim,
            rows,
            dropped,
        };
        // This is written even if the rows were gone when they were read, because it ends the claim.
        self.write_and_report_fenced(&batch, &mut outcome).await;
        LaneReport {
            slow: self.is_slow(took),
            took,
            ..unordered_report(checked_out, &batch.rows, &batch.dropped, &outcome)
        }
    }

    /// Claims rows and reads them. `None`: none was free.
    async fn claim_unordered(
        &self,
        term: &Term,
        checked_out: &UnorderedCheckout,
    ) -> Result<Option<(i64, ClaimedRows)>> {
        let free = UnorderedFilter {
            claims_from: checked_out.claims_from,
            start: checked_out.start,
            scan_end: checked_out.scan_end,
            most: checked_out.most,
            most_in_total: 2 * checked_out.most,
            of_hold: None,
            skip_held: checked_out.has_holds,
        };
        self.writer
            .claim_free(term, &free, self.settings.lease, self.budget.bytes())
            .await
    }

    async fn write_and_report_fenced(&self, batch: &UnorderedBatch<'_>, outcome: &mut BatchOutcome) {
        failpoint::hit("after_publish_unordered").await;
        let rows = outcome.published.len();
        if self.write(Batch::Unordered(batch), outcome).await.is_none() && rows > 0 {
            metrics::rows_fenced(rows);
            warn!(
                rows,
                "the claim is gone: another worker has taken it over and sends its rows again, or the answer to its mark was lost"
            );
        }
    }

    /// Writes the outcome, once. Returns how many rows were marked. `None`: the claim was taken over. Rows that Kafka has and that are
    /// locked stay claimed.
    pub(super) async fn write_unordered(
        &self,
        batch: &UnorderedBatch<'_>,
        outcome: &BatchOutcome,
    ) -> Result<Option<u64>> {
        let UnorderedBatch { term, claim, .. } = *batch;
        if outcome.is_clean() && batch.dropped.is_empty() {
            return self.outbox.mark_unordered(term, claim, &outcome.published).await;
        }
        let floor = batch.checked_out.floor;
        let holds: Vec<_> = outcome.holds.iter().map(|hold| (hold.clone(), floor)).collect();
        let unordered_outcome = UnorderedOutcome {
            published: &outcome.published,
            unmarked: &outcome.unmarked,
            refused: &outcome.refused,
            maybe_sent: &returned_maybe_sent(&batch.dropped, outcome),
            holds: &holds,
        };
        let locked = LockedRows {
            claim,
            ids: outcome.unmarked.clone(),
            claimed: Instant::now(),
        };
        let lease = self.settings.lease;
        let marked = self
            .outbox
            .write_unordered_outcome(term, claim, &unordered_outcome, lease)
            .await?;
        if marked.is_some() {
            self.lanes.unordered().remember_locked(term.worker, locked);
        }
        Ok(marked)
    }
}
