//! The term of this process and the lanes in it.

use uuid::Uuid;

use super::lane::Lane;
use super::unordered::UnorderedLane;
use super::{Lanes, State};
use crate::domain::boot_instant::BootInstant;
use crate::domain::lease::{ReturnedLane, TakenLane, Term, UnorderedState};

pub struct Ownership<'a>(pub(super) &'a Lanes);

impl Ownership<'_> {
    /// Begins a new term, which starts with no lanes. Nothing of the old term is kept.
    pub fn begin_term(&self, term: Term, unordered: UnorderedState) {
        *self.0.lock() = State {
            term: Some(term),
            unordered: UnorderedLane::from(unordered),
            ..State::default()
        };
    }

    pub fn renewed(&self, ends: BootInstant) {
        if let Some(term) = &mut self.0.lock().term {
            term.ends = ends;
        }
        // Tasks that found the remaining lease too short can continue.
        self.0.notify_all();
    }

    /// Ends the term: a fence refused a write, the lease ran out, or the server is another one. False: it was over already.
    pub fn end_term(&self, worker: Uuid) -> bool {
        let ended = match self.0.of_term(worker) {
            Some(mut state) => {
                *state = State::default();
                true
            }
            None => false,
        };
        self.0.notify_all();
        ended
    }

    pub fn add(&self, worker: Uuid, taken: &[TakenLane]) {
        let Some(mut state) = self.0.of_term(worker) else {
            return;
        };
        state
            .lanes
            .extend(taken.iter().map(|lane| (lane.lane, Lane::from(lane))));
        drop(state);
        self.0.notify_all();
    }

    pub fn count(&self) -> usize {
        self.0.lock().lanes.len()
    }

    pub fn owns(&self, lane: i16) -> bool {
        self.0.lock().lanes.contains_key(&lane)
    }

    /// The current epoch of a lane.
    pub fn epoch(&self, lane: i16) -> Option<i64> {
        self.0.lock().lanes.get(&lane).map(|lane| lane.epoch)
    }

    /// Marks this many lanes as surplus: first those that are already, then idle ones. If the number is lower than before, some
    /// lanes are kept after all.
    pub fn set_surplus(&self, count: usize) {
        let mut state = self.0.lock();
        let mut lanes: Vec<&mut Lane> = state.lanes.values_mut().collect();
        // A successor sends again what could not be marked, so such lanes go last. The sort keeps lanes in the order of their
        // numbers otherwise.
        lanes.sort_by_key(|lane| {
            let waits_for_mark = !lane.acknowledged.is_empty();
            (!lane.usage.surplus, lane.usage.is_busy(), waits_for_mark, lane.ready)
        });
        for (place, lane) in lanes.into_iter().enumerate() {
            lane.usage.surplus = place < count;
        }
        drop(state);
        self.0.notify_all();
    }

    pub fn has_surplus(&self) -> bool {
        self.0.lock().lanes.values().any(|lane| lane.usage.surplus)
    }

    /// Removes the surplus lanes that are not busy, so that they can be returned.
    pub fn remove_surplus(&self) -> Vec<ReturnedLane> {
        self.remove_where(|lane| lane.usage.surplus && !lane.usage.is_busy())
    }

    /// Removes every lane that is not busy. Returns them, and how many lanes are left.
    pub fn remove_idle(&self) -> (Vec<ReturnedLane>, usize) {
        let removed = self.remove_where(|lane| !lane.usage.is_busy());
        (removed, self.count())
    }

    fn remove_where(&self, is_returned: impl Fn(&Lane) -> bool) -> Vec<ReturnedLane> {
        let mut removed = Vec::new();
        self.0.lock().lanes.retain(|number, lane| {
            let is_returned = is_returned(lane);
            if is_returned {
                removed.push(lane.returned(*number));
            }
            !is_returned
        });
        removed
    }
}
