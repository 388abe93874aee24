//! Holds, which are the rows of `outbox.hold`, and the changes that are written to them.

use std::time::Duration;

use super::decision::Refusal;
use crate::domain::partition::Partition;
use crate::domain::row::UNORDERED_LANE;

/// A hold as it is stored.
#[derive(Clone, Debug)]
pub struct Hold {
    pub lane: i16,
    pub topic: String,
    /// A key, an explicit partition or a paused one. Empty for the whole topic.
    pub unit: String,
    /// The refused row that the others of its key wait for. `None` if a topic or a partition accepts nothing; any of its rows may
    /// then be the probe.
    pub head_id: Option<i64>,
    pub resume_floor: i64,
    pub failures: i32,
    /// Seconds until it is due for a retry; negative if it is overdue.
    pub wait: f64,
}

impl Hold {
    /// The number of the paused partition and its topic's partition count, as parameters of statements.
    pub fn partition(&self) -> (Option<i32>, Option<i32>) {
        Partition::of_unit(&self.unit).map_or((None, None), |paused| (Some(paused.number), Some(paused.of)))
    }

    /// Does it keep back ordered rows, which are those of a lane? A hold of unordered rows belongs to no worker.
    pub fn is_ordered(&self) -> bool {
        self.lane != UNORDERED_LANE
    }
}

/// A hold to insert: see `outbox.hold`.
#[derive(Clone, Debug, PartialEq)]
pub struct NewHold {
    pub lane: i16,
    pub topic: String,
    /// A key, an explicit partition or a paused one. Empty for the whole topic.
    pub unit: String,
    pub head_id: Option<i64>,
    pub reason: String,
    /// 1 for a row that was sent, 0 for one that was deferred.
    pub failures: i32,
    /// How long to wait, or `None` until an operator acts.
    pub wait: Option<Duration>,
}

/// A hold that is released.
#[derive(Clone, Debug)]
pub struct HoldRelease {
    pub hold: Hold,
    /// Its head, if Kafka has accepted it.
    pub published: Option<i64>,
    /// Its head, if that is dead.
    pub refused: Option<Refusal>,
}

impl HoldRelease {
    /// The release of a hold without a change of any row.
    pub fn of(hold: Hold) -> Self {
        HoldRelease {
            hold,
            published: None,
            refused: None,
        }
    }

    /// The row that changes with the release.
    pub fn head(&self) -> Option<i64> {
        let refused = self.refused.as_ref().map(|refusal| refusal.id);
        self.published.or(refused)
    }
}

/// A hold that is tried again later.
#[derive(Clone, Debug)]
pub struct HoldPostponement {
    pub hold: Hold,
    pub reason: String,
    /// How long to wait, or `None` until an operator acts.
    pub wait: Option<Duration>,
    /// Its head, if that was refused.
    pub refused: Option<Refusal>,
}
