//! A batch of checked-out lanes: claim, in-flight entry, publish, write.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use tracing::{debug, warn};

use super::batch::{
    RowsByLane, discarded_report, failed_report, flag_possible_duplicates, in_order, lane_report, maybe_sent_by_lane,
    put_acknowledged_back, put_paused_back, take_acknowledged, take_paused, with_epochs, with_floors,
};
use super::write::Batch;
use super::{Relay, before_claim};
use crate::domain::batch_outcome::BatchOutcome;
use crate::domain::checkout::CheckedOutLane;
use crate::domain::in_flight::InFlightEntry;
use crate::domain::lease::Term;
use crate::domain::pause::Pauses;
use crate::domain::row::Row;
use crate::domain::watermark::Watermark;
use crate::failpoint;
use crate::lanes::{Checkout, LaneReport};
use crate::metrics::{self, Stream};
use crate::outbox::{ClaimedRows, LaneOutcome, Result};

/// Under what the rows of a claim may be sent.
#[derive(Clone, Copy)]
pub(super) struct Conditions<'a> {
    pub(super) term: &'a Term,
    /// As it was before the claim.
    pub(super) watermark: Watermark,
    pub(super) pauses: &'a Arc<Pauses>,
}

/// Rows of checked-out lanes, from their claim until their outcome is written.
pub(super) struct LaneBatch<'a> {
    pub(super) term: &'a Term,
    pauses: &'a Arc<Pauses>,
    pub(super) checked_out: &'a [CheckedOutLane],
    pub(super) rows: Vec<Row>,
    /// The lanes that its rows are in, with their epochs.
    lanes: Vec<(i16, i64)>,
    /// `None` if none of its rows is sent.
    entry: Option<InFlightEntry>,
}

impl Relay {
    pub(super) async fn relay_lanes(&self, checkout: &Checkout, lanes: &[CheckedOutLane]) -> Vec<LaneReport> {
        let began = Instant::now();
        match self.claim_lanes(checkout, lanes).await {
            Ok(Some(claim)) => {
                let conditions = Conditions {
                    term: &checkout.term,
                    watermark: checkout.watermark,
                    pauses: &checkout.pauses,
                };
                self.relay_claim(conditions, lanes, claim, began).await
            }
            Ok(None) => lanes.iter().map(|lane| discarded_report(lane.lane)).collect(),
            Err(error) => {
                self.claim_failed(&error);
                lanes.iter().map(|lane| failed_report(lane.lane)).collect()
            }
        }
    }

    /// `None`: the claim is discarded, because a bypassed writer has ended.
    async fn claim_lanes(&self, checkout: &Checkout, lanes: &[CheckedOutLane]) -> Result<Option<ClaimedRows>> {
        let Checkout { term, bypassed, .. } = checkout;
        before_claim(lanes.iter().any(|lane| lane.start > lane.floor)).await;
        let claim = self
            .outbox
            .claim_lanes(term, lanes, self.settings.batch_rows, self.budget.bytes())
            .await?;
        let proven = self.is_proven(term, bypassed).await?;
        Ok(proven.then_some(claim))
    }

    /// Publishes and marks what was claimed of these lanes.
    pub(super) async fn relay_claim(
        &self,
        conditions: Conditions<'_>,
        lanes: &[CheckedOutLane],
        claim: ClaimedRows,
        began: Instant,
    ) -> Vec<LaneReport> {
        let took = began.elapsed();
        metrics::claim_took(Stream::Ordered, took);
        failpoint::hit("after_claim").await;
        let over_budget: HashSet<i16> = claim.dropped.iter().filter_map(|row| row.lane).collect();
        let more_delayed = claim.delayed() >= self.settings.batch_rows;
        let (mut rows, cuts) = in_order(claim, lanes);
        flag_possible_duplicates(&mut rows, lanes);
        metrics::rows_claimed(rows.len());
        let mut batch = LaneBatch {
            term: conditions.term,
            pauses: conditions.pauses,
            checked_out: lanes,
            lanes: with_epochs(lanes, &rows),
            rows,
            entry: None,
        };
        let outcome = match self.publish_and_write(&mut batch).await {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return Vec::new(),
            Err(error) => {
                self.claim_failed(&error);
                return lanes.iter().map(|lane| failed_report(lane.lane)).collect();
            }
        };
        let rows = RowsByLane::new(&batch.rows);
        let report = |lane: &CheckedOutLane| {
            let report = lane_report(lane, &rows, &cuts, conditions.watermark, &outcome);
            LaneReport {
                hit_limit: report.hit_limit || more_delayed,
                over_budget: over_budget.contains(&lane.lane),
                slow: self.is_slow(took),
                took,
                ..report
            }
        };
        lanes.iter().map(report).collect()
    }

    /// `None`: the lanes are not ours any more.
    async fn publish_and_write(&self, batch: &mut LaneBatch<'_>) -> Result<Option<BatchOutcome>> {
        if batch.rows.is_empty() {
            return Ok(Some(BatchOutcome::default()));
        }
        let acknowledged = take_acknowledged(&mut batch.rows, batch.checked_out);
        let paused = take_paused(&mut batch.rows, batch.pauses);
        if !batch.rows.is_empty() {
            batch.entry = self.writer.write_entry(batch.term, &batch.lanes, &batch.rows).await?;
            if batch.entry.is_none() {
                warn!("the lease had gone to another worker, or was over: sent nothing of what was claimed");
                self.writer.end_term(batch.term);
                return Ok(None);
            }
        }
        let lease_end = self.lease_end(batch.term);
        let mut outcome = self
            .publish(Stream::Ordered, &batch.rows, batch.pauses, lease_end)
            .await;
        let policy = &self.settings.policy;
        put_paused_back(&mut batch.rows, paused, batch.pauses, policy, &mut outcome);
        put_acknowledged_back(&mut batch.rows, acknowledged, &mut outcome);
        failpoint::hit("after_publish").await;
        if batch.entry.is_none() && outcome.holds.is_empty() {
            // All of its rows still wait for their marks, and it is stored already that they may have been sent.
            return Ok(Some(outcome));
        }
        if self.write(Batch::Lanes(batch), &mut outcome).await.is_none() {
            self.writer.fenced(batch.term, outcome.published.len());
            return Ok(None);
        }
        self.lanes.in_flight.done(batch.entry.as_slice());
        Ok(Some(outcome))
    }

    /// Writes the outcome, once. Returns how many rows were marked. `None`: fenced.
    pub(super) async fn write_lanes(&self, batch: &LaneBatch<'_>, outcome: &BatchOutcome) -> Result<Option<u64>> {
        let maybe_sent = maybe_sent_by_lane(&batch.rows, outcome);
        self.remember_maybe_sent(batch.term, &maybe_sent, outcome);
        if outcome.refused.is_empty() && outcome.holds.is_empty() && outcome.maybe_sent.is_empty() {
            return self.mark_lanes(batch, &outcome.published).await;
        }
        let maybe_sent = self.lanes.maybe_sent().to_store(&maybe_sent);
        let lane_outcome = LaneOutcome {
            published: &outcome.published,
            refused: &outcome.refused,
            holds: &with_floors(&outcome.holds, batch.checked_out),
            entries: batch.entry.as_slice(),
            maybe_sent: &maybe_sent,
        };
        let is_ours = self
            .outbox
            .write_lane_outcome(batch.term, &batch.lanes, &lane_outcome)
            .await?;
        if is_ours {
            self.lanes.maybe_sent().stored(batch.term.worker, maybe_sent);
        }
        Ok(is_ours.then_some(outcome.published.len() as u64))
    }

    /// Called before the outcome is written, because a hold that is written with it may be retried at once, even if our answer is
    /// lost.
    fn remember_maybe_sent(&self, term: &Term, maybe_sent: &[(i16, i64)], outcome: &BatchOutcome) {
        for (lane, id) in maybe_sent {
            self.lanes.maybe_sent().remember(*lane, *id);
            if outcome.unmarked.contains(id) {
                self.lanes.maybe_sent().remember_acknowledged(term.worker, *lane, *id);
            }
        }
    }

    /// Marks rows of a batch. Returns how many were marked. `None`: fenced.
    async fn mark_lanes(&self, batch: &LaneBatch<'_>, ids: &[i64]) -> Result<Option<u64>> {
        let LaneBatch { term, lanes, entry, .. } = batch;
        let marked = self.outbox.mark_lanes(term, lanes, ids, entry.as_slice()).await?;
        if marked == ids.len() as u64 {
            return Ok(Some(marked));
        }
        if self.outbox.count_owned_lanes(term, lanes).await? < lanes.len() {
            return Ok(None);
        }
        // A mark that is repeated because its answer was lost finds its rows marked. An operator may also have removed some.
        debug!(asked = ids.len(), marked, "some rows were already marked or gone");
        Ok(Some(marked))
    }
}
