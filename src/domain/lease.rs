//! Leases: the term of a worker, the lanes it takes and returns, and what is stored of them.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::boot_instant::BootInstant;
use super::maybe_sent::MaybeSent;

/// One lease of this process. A term that was lost (expired, fenced, server restarted) is never continued: the process registers
/// anew, and the fence refuses whatever the old term still had in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    pub worker: Uuid,
    /// When the server started. Ids, locks and floors of another incarnation mean nothing in this term.
    pub incarnation: SystemTime,
    /// Counts from before the call that took or renewed the lease.
    pub ends: BootInstant,
}

impl Term {
    /// Does the lease last longer than `left` from `now`?
    pub fn lasts(&self, now: BootInstant, left: Duration) -> bool {
        now + left < self.ends
    }
}

/// A lane as it was taken from the database.
#[derive(Clone, Debug)]
pub struct TakenLane {
    pub lane: i16,
    pub epoch: i64,
    pub floor: i64,
    pub maybe_sent: MaybeSent,
    /// What the database has of `maybe_sent`.
    pub stored_maybe_sent: Vec<i64>,
    /// The owner that did not return the lane.
    pub last_owner: Option<Uuid>,
    /// Topics with holds in this lane.
    pub held_topics: BTreeSet<String>,
}

/// A lane that is returned, with what its next owner must know.
#[derive(Clone, Debug, PartialEq)]
pub struct ReturnedLane {
    pub lane: i16,
    pub epoch: i64,
    pub floor: i64,
    /// Ranges of ids that may have been sent, as they are stored.
    pub maybe_sent: Vec<i64>,
}

/// A lane whose stored floor is out of date.
#[derive(Clone, Debug, PartialEq)]
pub struct FloorUpdate {
    pub lane: i16,
    pub epoch: i64,
    pub floor: i64,
    /// The stored ranges of ids that may have been sent, if all of them are published by now.
    pub done: Option<Vec<i64>>,
}

/// Where a lane stands after a hold was released.
#[derive(Clone, Copy, Debug)]
pub struct LoweredLane {
    pub epoch: i64,
    pub floor: i64,
}

/// The stored state of the unordered rows, which all workers share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UnorderedState {
    pub floor: i64,
    pub epoch: i64,
    /// Any row up to this id may have been sent before a failover lost its mark.
    pub maybe_sent_until: i64,
    pub has_holds: bool,
}
