//! The horizon as the term's book keeps it: how far floors may come, and when it should move.

use std::sync::atomic::Ordering;

use uuid::Uuid;

use super::Lanes;
use crate::domain::watermark::{Watermark, WatermarkTracker};
use crate::outbox::WriterSnapshot;

impl Lanes {
    /// How many ids lie between the soft horizon and the highest id claimed: what every claim reads again.
    pub fn gap(&self) -> i64 {
        let state = self.lock();
        if state.watermark_requested {
            return i64::MAX;
        }
        state.highest_seen - state.tracker.watermark().soft
    }

    /// Floors are too far behind to look cheaply: move the horizon whatever was claimed here.
    pub fn request_watermark(&self) {
        self.lock().watermark_requested = true;
        self.changed.notify_waiters();
    }

    /// Work on the horizon of this term; ignored if the term is over.
    pub fn update_watermark(&self, worker: Uuid, change: impl FnOnce(&mut WatermarkTracker)) {
        let mut state = self.lock();
        if state.term.is_some_and(|term| term.worker == worker) {
            change(&mut state.tracker);
            state.watermark_requested = false;
        }
    }

    /// No floor and no look of this term was ever above this.
    pub fn highest_known(&self) -> i64 {
        let state = self.lock();
        let floors = state.lanes.values().map(|lane| lane.floor.hard());
        let highest = floors.fold(state.unordered.floor.hard(), i64::max);
        highest.max(state.tracker.highest_id())
    }

    /// Ids are drawn like this. True: not any more from where they were, and the term is over. What has been seen of ids so far means
    /// nothing.
    pub fn is_restarted(&self, worker: Uuid, highest_known: i64, writing: &WriterSnapshot) -> bool {
        let mut state = self.lock();
        if state.term.is_none_or(|term| term.worker != worker) {
            return false;
        }
        let last = state.sequence.replace(writing.sequence);
        let is_restarted =
            writing.highest_id < highest_known || last.is_some_and(|last| writing.sequence.is_restart_of(&last));
        drop(state);
        if is_restarted {
            self.floors_void.store(true, Ordering::Release);
            self.end_term(worker);
        }
        is_restarted
    }

    /// Are stored floors to be built anew?
    pub fn floors_are_void(&self) -> bool {
        self.floors_void.load(Ordering::Acquire)
    }

    pub fn floors_rebuilt(&self) {
        self.floors_void.store(false, Ordering::Release);
    }

    /// These holders have ended.
    pub fn writers_ended(&self, worker: Uuid, ended: &[i64]) {
        self.update_watermark(worker, |tracker| tracker.end(ended));
    }

    pub fn watermark(&self) -> Watermark {
        self.lock().tracker.watermark()
    }

    /// What the soft horizon rests on.
    pub fn bypassed(&self) -> Vec<i64> {
        self.lock().tracker.bypassed()
    }
}
