//! The horizon as the term's book keeps it: how far floors may come, and when it should move.

use uuid::Uuid;

use super::Lanes;
use crate::floor::{Horizon, Settled};

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
