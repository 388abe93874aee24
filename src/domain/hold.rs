//! Holds: rows of `outbox.hold`, and the changes that are written to them.

use std::time::Duration;

use super::decision::Refusal;
use crate::domain::partition::Partition;
use crate::domain::row::UNORDERED_LANE;

/// A hold as it is stored.
#[derive(Clone, Debug)]
pub struct Hold {
    pub lane: i16,
    pub topic: String,
    /// A key, an explicit partition or a paused one; empty: the whole topic.
    pub unit: String,
    /// The refused row that the others of its key wait for. `None`: a topic or a partition takes nothing, and any row may
    /// probe it.
    pub head_id: Option<i64>,
    pub resume_floor: i64,
    pub failures: i32,
    /// Seconds until it is to be tried again; negative when due.
    pub wait: f64,
}

impl Hold {
    /// The paused partition it is of, and of how many, as statements take them.
    pub fn partition(&self) -> (Option<i32>, Option<i32>) {
        Partition::of_unit(&self.unit).map_or((None, None), |paused| (Some(paused.number), Some(paused.of)))
    }

    /// Are the rows that it keeps back ordered? Those of a lane are. Holds of unordered rows belong to no worker.
    pub fn is_ordered(&self) -> bool {
        self.lane != UNORDERED_LANE
    }
}

/// A hold to insert: see `outbox.hold`.
#[derive(Clone, Debug, PartialEq)]
pub struct NewHold {
    pub lane: i16,
    pub topic: String,
    /// A key, an explicit partition or a paused one; empty: the whole topic.
    pub unit: String,
    pub head_id: Option<i64>,
    pub reason: String,
    /// One for a row that was tried, none for a row that was deferred.
    pub failures: i32,
    /// `None`: until an operator acts.
    pub wait: Option<Duration>,
}

/// A hold that is released.
#[derive(Clone, Debug)]
pub struct HoldRelease {
    pub hold: Hold,
    /// Its head, which Kafka has taken.
    pub published: Option<i64>,
    /// Its head, which is dead.
    pub refused: Option<Refusal>,
}

impl HoldRelease {
    /// Nothing is written of a row with it.
    pub fn of(hold: Hold) -> Self {
        HoldRelease {
            hold,
            published: None,
            refused: None,
        }
    }

    /// The row that is changed with it.
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
    /// `None`: until an operator acts.
    pub wait: Option<Duration>,
    /// Its head, where that was refused.
    pub refused: Option<Refusal>,
}
