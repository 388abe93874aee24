//! What is remembered of one lane, and of the rows without one, between two batches.

use std::collections::HashSet;
use std::time::Instant;

use super::{Held, KeylessStored, Seen, Taken};
use crate::floor::{Floor, Settled};

/// The fewest rows asked of a lane that is believed to have some.
pub(super) const WINDOW_MIN: usize = 32;

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) epoch: i64,
    pub(super) floor: Floor,
    pub(super) stored_floor: i64,
    /// Counts how often the floor was lowered: a look from before that must not raise it again.
    pub(super) lowered: u64,
    /// How many rows the next claim asks for: doubles while claims come back full.
    pub(super) window: usize,
    pub(super) ready: bool,
    pub(super) busy: bool,
    /// A change of its holds waits for the batch to end: no new one before that.
    pub(super) wanted: bool,
    pub(super) leaving: bool,
    pub(super) has_holds: bool,
    /// So many of the next rows may have been sent by the lane's last owner.
    pub(super) suspect_rows: usize,
    /// Up to this id any row may have been sent before a failover lost its mark.
    pub(super) suspect_until: i64,
    /// Rows we sent ourselves without learning what became of them.
    pub(super) unknown: HashSet<i64>,
    pub(super) not_before: Instant,
    pub(super) served: u64,
}

#[derive(Debug, Default)]
pub(super) struct Keyless {
    pub(super) stored: KeylessStored,
    pub(super) floor: Floor,
    pub(super) ready: bool,
    pub(super) busy: usize,
    pub(super) window: usize,
    pub(super) not_before: Option<Instant>,
}

impl From<&Taken> for Lane {
    fn from(taken: &Taken) -> Self {
        Lane {
            epoch: taken.epoch,
            floor: Floor::at(taken.floor),
            stored_floor: taken.floor,
            lowered: 0,
            window: WINDOW_MIN,
            ready: true,
            busy: false,
            wanted: false,
            leaving: false,
            has_holds: taken.has_holds,
            suspect_rows: usize::try_from(taken.suspect_rows).unwrap_or(0),
            suspect_until: taken.suspect_until,
            unknown: HashSet::new(),
            not_before: Instant::now(),
            served: 0,
        }
    }
}

/// The next window after a claim: twice as much while claims are full, what was there otherwise. Rows that the byte
/// budget leaves behind were read in vain: ask for about as many as fit.
fn next_window(window: usize, seen: &Seen) -> usize {
    if seen.slow {
        (window / 2).max(1)
    } else if seen.overweight {
        (seen.rows * 2).clamp(1, window)
    } else if seen.full {
        (window * 2).min(1 << 16)
    } else {
        window.min(seen.rows.next_power_of_two().max(WINDOW_MIN))
    }
}

impl Lane {
    pub(super) fn held(&self, lane: i16, most: usize, settled: Settled) -> Held {
        Held {
            lane,
            epoch: self.epoch,
            floor: self.floor.hard(),
            start: self.floor.start(settled),
            most,
            suspect_rows: self.suspect_rows,
            suspect_until: self.suspect_until,
            unknown: self.unknown.clone(),
            has_holds: self.has_holds,
        }
    }

    pub(super) fn checkin(&mut self, seen: &Seen, now: Instant) {
        self.busy = false;
        self.has_holds |= seen.holds_added;
        for id in &seen.published {
            self.unknown.remove(id);
        }
        self.unknown.extend(&seen.unknown);
        self.not_before = now + seen.pause.unwrap_or_default();
        let Some(sight) = seen.sight else {
            // The claim failed: nothing was learned, so look again, and for less if a pause says that it hurt.
            self.ready = true;
            if seen.pause.is_some() {
                self.window = (self.window / 2).max(1);
            }
            return;
        };
        if seen.overweight && seen.rows == 0 {
            // The lanes before it took the whole byte budget: now it is first.
            self.served = 0;
        }
        self.floor.advance(sight);
        self.window = next_window(self.window, seen);
        self.ready = seen.full || seen.overweight || sight.lowest_left.is_some();
        let all_done = !self.ready;
        // What a hold keeps back was not in this claim, and may have been sent by the last owner as well as the rest.
        if !self.has_holds {
            self.suspect_rows = if all_done {
                0
            } else {
                self.suspect_rows.saturating_sub(seen.rows)
            };
        }
    }
}

impl Keyless {
    pub(super) fn checkin(&mut self, seen: &Seen, now: Instant) {
        self.busy = self.busy.saturating_sub(1);
        self.stored.has_holds |= seen.holds_added;
        self.not_before = seen.pause.map(|pause| now + pause);
        self.window = next_window(self.window, seen);
        self.ready = seen.full || seen.sight.is_none() || seen.pause.is_some();
    }
}
