//! Polls all lanes without a known backlog, and publishes what it finds.

use std::time::Instant;

use tracing::warn;

use super::batch::{discarded_report, empty_report, with_rows};
use super::ordered::Conditions;
use super::poll_schedule::{PollResult, PollSlot};
use super::{Relay, before_claim};
use crate::domain::checkout::{CheckedOutLane, PollCheckout};
use crate::metrics;
use crate::outbox::{ClaimedRows, PollAnswer, Result};

/// The most rows that a poll scans before it gives up.
const SCAN_MAX: usize = 1000;

/// What a poll found, and the lanes that have it, which are still checked out.
struct PollHit {
    checkout: PollCheckout,
    lanes: Vec<CheckedOutLane>,
    claim: ClaimedRows,
}

impl Relay {
    /// Polls the lanes without a known backlog, and publishes what they have. The poll claims from all of them in one scan along
    /// the ids.
    pub(super) async fn poll(&self, slot: PollSlot<'_>) {
        let began = Instant::now();
        if let Some(PollHit { checkout, lanes, claim }) = self.poll_for_hit(slot).await {
            let conditions = Conditions {
                term: &checkout.term,
                watermark: checkout.watermark,
                pauses: &checkout.pauses,
            };
            let reports = self.relay_claim(conditions, &lanes, claim, began).await;
            self.lanes.checkouts().checkin(&checkout.term, reports);
        }
    }

    /// `None`: there is nothing to publish, and nothing is checked out any more.
    async fn poll_for_hit(&self, slot: PollSlot<'_>) -> Option<PollHit> {
        let Some(mut checkout) = self.lanes.checkouts().for_poll(&self.claim_limits()) else {
            slot.done(self.poll_without_lanes());
            return None;
        };
        let found = match self.ask(&checkout).await {
            Ok(Some(found)) => found,
            Ok(None) => return self.put_back(&checkout, slot, PollResult::Found),
            Err(error) => {
                metrics::database_error();
                if slot.is_first_failure() {
                    warn!(%error, "cannot poll for rows; trying again");
                }
                return self.put_back(&checkout, slot, PollResult::Failed);
            }
        };
        if found.unordered || found.cut {
            self.lanes.unordered().set_ready();
        }
        let checkouts = self.lanes.checkouts();
        if found.cut {
            self.lanes.watermark().request();
            let reports = checkout.lanes.iter().map(|lane| discarded_report(lane.lane));
            checkouts.checkin(&checkout.term, reports.collect());
            slot.done(PollResult::Overflow);
            return None;
        }
        self.lanes.unordered().polled(&checkout, found.lowest_unordered);
        let is_empty = found.claim.is_empty();
        slot.done(if is_empty && !found.unordered {
            PollResult::Empty
        } else {
            PollResult::Found
        });
        let (lanes, empty) = with_rows(std::mem::take(&mut checkout.lanes), &found.claim);
        let reports = empty
            .iter()
            .map(|lane| empty_report(*lane, checkout.watermark))
            .collect();
        if is_empty {
            checkouts.checkin(&checkout.term, reports);
            return None;
        }
        checkouts.checkin_some(&checkout.term, reports);
        let claim = found.claim;
        Some(PollHit { checkout, lanes, claim })
    }

    fn put_back(&self, checkout: &PollCheckout, slot: PollSlot<'_>, result: PollResult) -> Option<PollHit> {
        self.lanes.checkouts().put_back(&checkout.term, &checkout.lanes);
        slot.done(result);
        None
    }

    /// Every lane of ours is ready or checked out, or everything has just been paused. A claim of unordered rows finds out whether
    /// there are any.
    fn poll_without_lanes(&self) -> PollResult {
        self.lanes.unordered().set_ready();
        if self.lanes.ownership().count() > 0 {
            PollResult::Overflow
        } else {
            PollResult::Empty
        }
    }

    /// `None`: the answer is discarded, because a bypassed writer has ended.
    async fn ask(&self, checkout: &PollCheckout) -> Result<Option<PollAnswer>> {
        before_claim(checkout.lanes.iter().any(|lane| checkout.start > lane.floor)).await;
        let found = self.outbox.poll(checkout, SCAN_MAX, self.budget.bytes()).await?;
        let proven = self.is_proven(&checkout.term, &checkout.bypassed).await?;
        Ok(proven.then_some(found))
    }
}
