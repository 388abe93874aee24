//! A look at everything that seems to have nothing, and the way of what it finds.

use std::time::Instant;

use tracing::warn;

use super::batch::{discarded_report, empty_report, with_rows};
use super::{Relay, before_claim};
use crate::domain::watermark::Watermark;
use crate::lanes::{CheckedOutLane, PollCheckout, Term};
use crate::metrics;
use crate::outbox::{ClaimedRows, PollAnswer, Result};
use crate::tasks::relay::poll_schedule::{PollResult, PollSlot};

/// The most rows a look walks before it says that it does not know.
const SCAN_MAX: usize = 1000;

/// What a look found, and the lanes that have it: still checked out.
struct PollHit {
    term: Term,
    watermark: Watermark,
    lanes: Vec<CheckedOutLane>,
    claim: ClaimedRows,
}

impl Relay {
    /// Asks for what lanes without a known backlog have, and relays it: a claim of them all in one walk along the ids.
    pub(super) async fn poll(&self, slot: PollSlot<'_>) {
        let began = Instant::now();
        let Some(sighted) = self.sighted(slot).await else {
            return;
        };
        let PollHit {
            term,
            watermark,
            lanes,
            claim,
        } = sighted;
        let report = self.relay_claim(&term, watermark, &lanes, claim, began).await;
        self.lanes.checkin(&term, report);
    }

    /// Takes a look. `None`: nothing is to be relayed, and nothing is checked out any more.
    async fn sighted(&self, slot: PollSlot<'_>) -> Option<PollHit> {
        let Some(poll) = self.lanes.checkout_for_poll(&self.claim_limits()) else {
            slot.over(self.poll_without_lanes());
            return None;
        };
        let found = match self.found(&poll).await {
            Ok(Some(found)) => found,
            Ok(None) => {
                self.lanes.put_back(&poll.term, &poll.lanes);
                slot.over(PollResult::Found);
                return None;
            }
            Err(error) => {
                metrics::database_error();
                if slot.is_first_failure() {
                    warn!(%error, "cannot look for rows; trying again");
                }
                self.lanes.put_back(&poll.term, &poll.lanes);
                slot.over(PollResult::Failed);
                return None;
            }
        };
        if found.unordered || found.cut {
            self.lanes.try_unordered();
        }
        if found.cut {
            self.lanes.request_watermark();
            let report = poll.lanes.iter().map(|held| discarded_report(held.lane)).collect();
            self.lanes.checkin(&poll.term, report);
            slot.over(PollResult::Overflow);
            return None;
        }
        self.lanes.poll_answered(&poll, &found.summary);
        let watermark = poll.watermark;
        let is_empty = found.claim.is_empty();
        slot.over(if is_empty && !found.unordered {
            PollResult::Empty
        } else {
            PollResult::Found
        });
        let (lanes, empty) = with_rows(poll.lanes, &found.claim);
        let report = empty.iter().map(|lane| empty_report(*lane, watermark)).collect();
        if is_empty {
            self.lanes.checkin(&poll.term, report);
            return None;
        }
        self.lanes.checkin_some(&poll.term, report);
        Some(PollHit {
            term: poll.term,
            watermark,
            lanes,
            claim: found.claim,
        })
    }

    /// Every lane of ours is known to be ready or is at work. Unordered rows have an index of their own: a claim tells.
    fn poll_without_lanes(&self) -> PollResult {
        self.lanes.try_unordered();
        if self.lanes.owned() > 0 {
            PollResult::Overflow
        } else {
            PollResult::Empty
        }
    }

    /// `None`: as in [`Relay::claim_lanes`].
    async fn found(&self, poll: &PollCheckout) -> Result<Option<PollAnswer>> {
        before_claim(poll.lanes.iter().any(|held| poll.start > held.floor)).await;
        let found = self.outbox.poll(poll, SCAN_MAX, self.budget.bytes()).await?;
        let proven = self.is_proven(&poll.term, &poll.bypassed).await?;
        Ok(proven.then_some(found))
    }
}
