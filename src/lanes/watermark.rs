//! The watermark of this term, and when it should move.

use std::sync::atomic::Ordering;

use uuid::Uuid;

use super::Lanes;
use crate::domain::watermark::{Watermark, WatermarkTracker, WriterSnapshot};

pub struct WatermarkState<'a>(pub(super) &'a Lanes);

impl WatermarkState<'_> {
    pub fn current(&self) -> Watermark {
        self.0.lock().tracker.watermark()
    }

    /// The open transactions that the soft watermark bypasses.
    pub fn bypassed(&self) -> Vec<i64> {
        self.0.lock().tracker.bypassed()
    }

    /// How many ids lie between the soft watermark and the highest id claimed. Every claim reads them again. It is the maximum
    /// after [`WatermarkState::request`].
    pub fn gap(&self) -> i64 {
        let state = self.0.lock();
        if state.watermark_requested {
            return i64::MAX;
        }
        state.highest_claimed - state.tracker.watermark().soft
    }

    /// Asks for a check of the watermark although nothing was claimed here, because floors are so far behind that polls are
    /// expensive.
    pub fn request(&self) {
        self.0.lock().watermark_requested = true;
        self.0.notify_all();
    }

    pub fn update(&self, worker: Uuid, change: impl FnOnce(&mut WatermarkTracker)) {
        if let Some(mut state) = self.0.of_term(worker) {
            change(&mut state.tracker);
            state.watermark_requested = false;
        }
    }

    /// These bypassed writers have ended.
    pub fn writers_ended(&self, worker: Uuid, ended: &[i64]) {
        self.update(worker, |tracker| tracker.end(ended));
    }

    /// No floor of this term is above this id, and no check of the watermark has read a higher one.
    pub fn highest_known(&self) -> i64 {
        let state = self.0.lock();
        let floors = state.lanes.values().map(|lane| lane.floor.hard());
        let highest = floors.fold(state.unordered.floor.hard(), i64::max);
        highest.max(state.tracker.highest_id())
    }

    /// Has the id sequence been restarted, so that it draws lower ids than before? Then the term ends, because all that is known
    /// of ids is void.
    pub fn is_restarted(&self, worker: Uuid, highest_known: i64, snapshot: &WriterSnapshot) -> bool {
        let Some(mut state) = self.0.of_term(worker) else {
            return false;
        };
        let last = state.sequence.replace(snapshot.sequence);
        drop(state);
        let is_restarted =
            snapshot.highest_id < highest_known || last.is_some_and(|last| snapshot.sequence.is_restart_of(&last));
        if is_restarted {
            self.0.floors_are_void.store(true, Ordering::Release);
            self.0.ownership().end_term(worker);
        }
        is_restarted
    }
}
