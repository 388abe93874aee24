//! Which floors of lanes are to be stored.

use std::sync::atomic::Ordering;

use super::Lanes;
use crate::domain::lease::FloorUpdate;

pub struct Floors<'a>(pub(super) &'a Lanes);

impl Floors<'_> {
    /// Lanes whose floor has moved since it was stored, or whose rows that may have been sent are all published by now.
    pub fn to_store(&self) -> Vec<FloorUpdate> {
        let state = self.0.lock();
        let moved = state.lanes.iter().filter_map(|(number, lane)| {
            let is_done = !lane.stored.maybe_sent.is_empty() && lane.maybe_sent.is_empty();
            let floor = lane.floor.hard();
            (floor > lane.stored.floor || is_done).then(|| FloorUpdate {
                lane: *number,
                epoch: lane.epoch,
                floor,
                done: is_done.then(|| lane.stored.maybe_sent.clone()),
            })
        });
        moved.collect()
    }

    /// Notes which of the updates that were asked for are stored: lane, epoch and floor.
    pub fn stored(&self, asked: &[FloorUpdate], stored: &[(i16, i64, i64)]) {
        let mut state = self.0.lock();
        for (number, epoch, floor) in stored {
            let Some(lane) = state.lanes.get_mut(number).filter(|lane| lane.epoch == *epoch) else {
                continue;
            };
            if lane.floor.hard() >= *floor {
                lane.stored.floor = *floor;
            }
            let update = asked.iter().find(|update| update.lane == *number);
            // If a batch has stored other ranges in the meantime, they stay.
            if update.and_then(|update| update.done.as_ref()) == Some(&lane.stored.maybe_sent) {
                lane.stored.maybe_sent.clear();
            }
        }
    }

    /// Are stored floors to be rebuilt, because the id sequence was restarted?
    pub fn are_void(&self) -> bool {
        self.0.floors_are_void.load(Ordering::Acquire)
    }

    pub fn rebuilt(&self) {
        self.0.floors_are_void.store(false, Ordering::Release);
    }
}
