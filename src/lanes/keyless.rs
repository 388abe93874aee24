//! The rows without a lane: nobody's in particular, so what is known of them is shared with all other workers.

use std::time::Instant;

use uuid::Uuid;

use super::Lanes;
use super::book::Keyless;
use crate::domain::floor::{Floor, Sight};
use crate::domain::watermark::Settled;

/// The stored state of the rows without a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KeylessStored {
    pub floor: i64,
    pub epoch: i64,
    /// Up to this id any row may have been sent before a failover lost its mark.
    pub suspect_until: i64,
    pub has_holds: bool,
}

/// Rows of a claim without a lane that Kafka has and that could not be marked: somebody else has locked them.
#[derive(Clone, Debug, PartialEq)]
pub struct Unmarked {
    pub claim: i64,
    pub ids: Vec<i64>,
    /// When the claim was last written: its lease begins there.
    pub claimed: Instant,
}

/// What a look at the table has to know that is to raise the floor of the rows without a lane.
#[derive(Clone, Debug)]
pub struct KeylessToRaise {
    pub start: i64,
    /// See [`super::Held::upto`].
    pub upto: Option<i64>,
    pub settled: Settled,
    /// The look counts only if none of these transactions had ended.
    pub holders: Vec<i64>,
    /// Of the floor.
    pub epoch: i64,
}

impl Keyless {
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
    pub(super) fn raise_floor(&mut self, epoch: i64, sight: Sight) {
        if self.stored.epoch == epoch {
            self.floor.advance(sight);
        }
    }
}

impl Lanes {
    /// There may be rows without a lane.
    pub fn try_keyless(&self) {
        self.lock().keyless.ready = true;
        self.changed.notify_waiters();
    }

    /// Floor and epoch of the rows without a lane, as this process knows them.
    pub fn keyless_floor(&self) -> (Floor, i64) {
        let inner = self.lock();
        (inner.keyless.floor, inner.keyless.stored.epoch)
    }

    /// That floor is about to be raised.
    pub fn keyless_floor_to_raise(&self) -> KeylessToRaise {
        let mut inner = self.lock();
        inner.keyless.lag = 0;
        let start = inner.keyless.floor.start(&inner.horizon);
        let settled = inner.horizon.settled();
        KeylessToRaise {
            start,
            upto: inner.keyless.walk.upto(start, settled),
            settled,
            holders: inner.horizon.holders_below(start),
            epoch: inner.keyless.stored.epoch,
        }
    }

    /// How many rows without a lane have been claimed since somebody set out to raise their floor: every claim reads them again. Looks
    /// that raise it in passing do not count.
    pub fn keyless_lag(&self) -> usize {
        self.lock().keyless.lag
    }

    /// Has the floor of the rows without a lane moved since it was read?
    pub fn keyless_moved(&self) -> bool {
        let inner = self.lock();
        inner.keyless.floor.hard() > inner.keyless.stored.floor
    }

    /// What the database says of the rows without a lane. Another process may have lowered the floor.
    pub fn keyless_read(&self, worker: Uuid, stored: KeylessStored) {
        let mut inner = self.lock();
        if inner.term.is_none_or(|term| term.worker != worker) {
            return;
        }
        if inner.keyless.note_stored(stored.floor, stored.epoch) {
            inner.keyless.stored = stored;
        }
    }

    /// The same of the floor alone.
    pub fn keyless_floor_read(&self, worker: Uuid, floor: i64, epoch: i64) {
        let mut inner = self.lock();
        if inner.term.is_some_and(|term| term.worker == worker) {
            inner.keyless.note_stored(floor, epoch);
        }
    }

    /// Raise the keyless floor by what its own look at the table saw, under `epoch`.
    pub fn raise_keyless_floor(&self, worker: Uuid, epoch: i64, sight: Sight) {
        let mut inner = self.lock();
        if inner.term.is_some_and(|term| term.worker == worker) {
            inner.keyless.raise_floor(epoch, sight);
        }
    }

    /// These are to be marked later.
    pub fn remember_unmarked(&self, worker: Uuid, unmarked: Unmarked) {
        let mut inner = self.lock();
        if inner.term.is_some_and(|term| term.worker == worker) {
            inner.keyless.unmarked.push(unmarked);
        }
    }

    /// All of them: from now on they are the caller's.
    pub fn take_unmarked(&self, worker: Uuid) -> Vec<Unmarked> {
        let mut inner = self.lock();
        if inner.term.is_none_or(|term| term.worker != worker) {
            return Vec::new();
        }
        std::mem::take(&mut inner.keyless.unmarked)
    }

    /// No claim of rows without a lane has a lower number, nor ever will: claims are numbered in turn.
    pub fn claims_from(&self) -> i64 {
        self.lock().keyless.claims_from
    }

    /// The lowest number of any claim that one of ours has seen.
    pub fn saw_claims(&self, worker: Uuid, lowest: i64) {
        let mut inner = self.lock();
        if inner.term.is_some_and(|term| term.worker == worker) {
            inner.keyless.claims_from = inner.keyless.claims_from.max(lowest);
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::domain::row::KEYLESS;
    use crate::lanes::Seen;
    use crate::lanes::tests::{APPETITE, owning_suspect};

    #[test]
    fn what_is_stored_of_the_rows_without_a_lane_is_never_replaced_by_what_was_before() {
        let (lanes, term) = owning_suspect(1, &[]);
        let stored = |epoch, floor| KeylessStored {
            epoch,
            floor,
            ..KeylessStored::default()
        };
        lanes.keyless_read(term.worker, stored(2, 10));
        assert_eq!(lanes.keyless_floor(), (Floor::at(10), 2), "lowered by another worker");
        lanes.keyless_read(term.worker, stored(1, 90));
        assert_eq!(
            lanes.keyless_floor(),
            (Floor::at(10), 2),
            "an older answer that comes late"
        );
        lanes.keyless_floor_read(term.worker, 90, 1);
        lanes.keyless_read(Uuid::from_u128(2), stored(3, 0));
        lanes.keyless_floor_read(Uuid::from_u128(2), 0, 3);
        assert_eq!(lanes.keyless_floor(), (Floor::at(10), 2), "nor of another term");
        lanes.keyless_floor_read(term.worker, 5, 3);
        assert_eq!(lanes.keyless_floor(), (Floor::at(5), 3), "lowered again");
    }

    #[test]
    fn what_is_claimed_of_the_rows_without_a_lane_is_counted_until_their_floor_is_raised() {
        let (lanes, term) = owning_suspect(0, &[]);
        let claim = |rows| {
            lanes.checkout(&APPETITE).expect("ready");
            let seen = Seen {
                lane: KEYLESS,
                rows,
                full: true,
                ..Seen::default()
            };
            lanes.checkin(&term, vec![seen]);
        };
        claim(600);
        claim(500);
        assert_eq!(lanes.keyless_lag(), 1100);
        lanes.keyless_floor_to_raise();
        assert_eq!(lanes.keyless_lag(), 0);
    }
}
