//! The unordered rows: nobody's in particular, so what is known of them is shared with all other workers.

use std::time::Instant;

use uuid::Uuid;

use super::Lanes;
use super::lane_state::Unordered;
use crate::domain::floor::{Floor, ScanResult};
use crate::domain::watermark::Watermark;

/// The stored state of the unordered rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UnorderedState {
    pub floor: i64,
    pub epoch: i64,
    /// Up to this id any row may have been sent before a failover lost its mark.
    pub maybe_sent_until: i64,
    pub has_holds: bool,
}

/// Rows of a claim without a lane that Kafka has and that could not be marked: somebody else has locked them.
#[derive(Clone, Debug, PartialEq)]
pub struct LockedRows {
    pub claim: i64,
    pub ids: Vec<i64>,
    /// When the claim was last written: its lease begins there.
    pub claimed: Instant,
}

/// What a look at the table has to know that is to raise the floor of the unordered rows.
#[derive(Clone, Debug)]
pub struct UnorderedScan {
    pub start: i64,
    /// See [`super::CheckedOutLane::scan_end`].
    pub scan_end: Option<i64>,
    pub watermark: Watermark,
    /// The look counts only if none of these transactions had ended.
    pub bypassed: Vec<i64>,
    /// Of the floor.
    pub epoch: i64,
}

impl Unordered {
    /// This is the stored floor. False: it was, before what is known already, and may be above rows that have come free since.
    fn note_stored(&mut self, floor: i64, epoch: i64) -> bool {
        if epoch < self.stored.epoch {
            return false;
        }
        if epoch > self.stored.epoch {
            self.floor = Floor::at(floor);
            self.ready = true;
        }
        (self.stored.floor, self.stored.epoch) = (floor, epoch);
        true
    }

    /// By what a look at the table saw, unless somebody has lowered it since: then the epoch is another one.
    pub(super) fn raise_floor(&mut self, epoch: i64, scan: ScanResult) {
        if self.stored.epoch == epoch {
            self.floor.advance(scan);
        }
    }
}

impl Lanes {
    /// There may be unordered rows.
    pub fn try_unordered(&self) {
        self.lock().unordered.ready = true;
        self.changed.notify_waiters();
    }

    /// Floor and epoch of the unordered rows, as this process knows them.
    pub fn unordered_floor(&self) -> (Floor, i64) {
        let state = self.lock();
        (state.unordered.floor, state.unordered.stored.epoch)
    }

    /// That floor is about to be raised.
    pub fn unordered_scan(&self) -> UnorderedScan {
        let mut state = self.lock();
        state.unordered.lag = 0;
        let start = state.unordered.floor.start(&state.tracker);
        let watermark = state.tracker.watermark();
        UnorderedScan {
            start,
            scan_end: state.unordered.span.scan_end(start, watermark),
            watermark,
            bypassed: state.tracker.bypassed_below(start),
            epoch: state.unordered.stored.epoch,
        }
    }

    /// How many unordered rows have been claimed since somebody set out to raise their floor: every claim reads them again. Looks
    /// that raise it in passing do not count.
    pub fn unordered_lag(&self) -> usize {
        self.lock().unordered.lag
    }

    /// Has the floor of the unordered rows moved since it was read?
    pub fn unordered_moved(&self) -> bool {
        let state = self.lock();
        state.unordered.floor.hard() > state.unordered.stored.floor
    }

    /// What the database says of the unordered rows. Another process may have lowered the floor.
    pub fn unordered_read(&self, worker: Uuid, stored: UnorderedState) {
        let mut state = self.lock();
        if state.term.is_none_or(|term| term.worker != worker) {
            return;
        }
        if state.unordered.note_stored(stored.floor, stored.epoch) {
            state.unordered.stored = stored;
        }
    }

    /// The same of the floor alone.
    pub fn unordered_floor_read(&self, worker: Uuid, floor: i64, epoch: i64) {
        let mut state = self.lock();
        if state.term.is_some_and(|term| term.worker == worker) {
            state.unordered.note_stored(floor, epoch);
        }
    }

    /// Raise the unordered floor by what its own look at the table saw, under `epoch`.
    pub fn raise_unordered_floor(&self, worker: Uuid, epoch: i64, scan: ScanResult) {
        let mut state = self.lock();
        if state.term.is_some_and(|term| term.worker == worker) {
            state.unordered.raise_floor(epoch, scan);
        }
    }

    /// These are to be marked later.
    pub fn remember_unmarked(&self, worker: Uuid, unmarked: LockedRows) {
        let mut state = self.lock();
        if state.term.is_some_and(|term| term.worker == worker) {
            state.unordered.unmarked.push(unmarked);
        }
    }

    /// All of them: from now on they are the caller's.
    pub fn take_unmarked(&self, worker: Uuid) -> Vec<LockedRows> {
        let mut state = self.lock();
        if state.term.is_none_or(|term| term.worker != worker) {
            return Vec::new();
        }
        std::mem::take(&mut state.unordered.unmarked)
    }

    /// No claim of unordered rows has a lower number, nor ever will: claims are numbered in turn.
    pub fn claims_from(&self) -> i64 {
        self.lock().unordered.claims_from
    }

    /// The lowest number of any claim that one of ours has seen.
    pub fn note_claims(&self, worker: Uuid, lowest: i64) {
        let mut state = self.lock();
        if state.term.is_some_and(|term| term.worker == worker) {
            state.unordered.claims_from = state.unordered.claims_from.max(lowest);
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::domain::row::UNORDERED_LANE;
    use crate::lanes::LaneReport;
    use crate::lanes::tests::{CLAIM_LIMITS, owning_maybe_sent};

    #[test]
    fn what_is_stored_of_the_rows_without_a_lane_is_never_replaced_by_what_was_before() {
        let (lanes, term) = owning_maybe_sent(1, &[]);
        let stored = |epoch, floor| UnorderedState {
            epoch,
            floor,
            ..UnorderedState::default()
        };
        lanes.unordered_read(term.worker, stored(2, 10));
        assert_eq!(lanes.unordered_floor(), (Floor::at(10), 2), "lowered by another worker");
        lanes.unordered_read(term.worker, stored(1, 90));
        assert_eq!(
            lanes.unordered_floor(),
            (Floor::at(10), 2),
            "an older answer that comes late"
        );
        lanes.unordered_floor_read(term.worker, 90, 1);
        lanes.unordered_read(Uuid::from_u128(2), stored(3, 0));
        lanes.unordered_floor_read(Uuid::from_u128(2), 0, 3);
        assert_eq!(lanes.unordered_floor(), (Floor::at(10), 2), "nor of another term");
        lanes.unordered_floor_read(term.worker, 5, 3);
        assert_eq!(lanes.unordered_floor(), (Floor::at(5), 3), "lowered again");
    }

    #[test]
    fn what_is_claimed_of_the_rows_without_a_lane_is_counted_until_their_floor_is_raised() {
        let (lanes, term) = owning_maybe_sent(0, &[]);
        let claim = |rows| {
            lanes.checkout(&CLAIM_LIMITS).expect("ready");
            let report = LaneReport {
                lane: UNORDERED_LANE,
                rows,
                hit_limit: true,
                ..LaneReport::default()
            };
            lanes.checkin(&term, vec![report]);
        };
        claim(600);
        claim(500);
        assert_eq!(lanes.unordered_lag(), 1100);
        lanes.unordered_scan();
        assert_eq!(lanes.unordered_lag(), 0);
    }
}
