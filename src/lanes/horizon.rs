//! The horizon as the term's book keeps it: how far floors may come, and when it should move.

use std::sync::atomic::Ordering;

use uuid::Uuid;

use super::Lanes;
use crate::domain::watermark::{Horizon, Settled};
use crate::outbox::Writing;

impl Lanes {
    /// How many ids lie between the soft horizon and the highest id claimed: what every claim reads again.
    pub fn gap(&self) -> i64 {
        let inner = self.lock();
        if inner.horizon_wanted {
            return i64::MAX;
        }
        inner.highest_seen - inner.horizon.settled().soft
    }

    /// Floors are too far behind to look cheaply: move the horizon whatever was claimed here.
    pub fn want_horizon(&self) {
        self.lock().horizon_wanted = true;
        self.changed.notify_waiters();
    }

    /// Work on the horizon of this term; ignored if the term is over.
    pub fn with_horizon(&self, worker: Uuid, change: impl FnOnce(&mut Horizon)) {
        let mut inner = self.lock();
        if inner.term.is_some_and(|term| term.worker == worker) {
            change(&mut inner.horizon);
            inner.horizon_wanted = false;
        }
    }

    /// No floor and no look of this term was ever above this.
    pub fn highest_known(&self) -> i64 {
        let inner = self.lock();
        let floors = inner.lanes.values().map(|lane| lane.floor.hard());
        let highest = floors.fold(inner.keyless.floor.hard(), i64::max);
        highest.max(inner.horizon.highest_id())
    }

    /// Ids are drawn like this. True: not any more from where they were, and the term is over. What has been seen of ids so far means
    /// nothing.
    pub fn is_restarted(&self, worker: Uuid, highest_known: i64, writing: &Writing) -> bool {
        let mut inner = self.lock();
        if inner.term.is_none_or(|term| term.worker != worker) {
            return false;
        }
        let last = inner.sequence.replace(writing.sequence);
        let is_restarted =
            writing.highest_id < highest_known || last.is_some_and(|last| writing.sequence.is_restart_of(&last));
        drop(inner);
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
    pub fn holders_ended(&self, worker: Uuid, ended: &[i64]) {
        self.with_horizon(worker, |horizon| horizon.end(ended));
    }

    pub fn settled(&self) -> Settled {
        self.lock().horizon.settled()
    }

    /// What the soft horizon rests on.
    pub fn holders(&self) -> Vec<i64> {
        self.lock().horizon.holders()
    }
}
