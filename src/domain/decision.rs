//! What [`super::retry::RetryPolicy::decide`] returns: the fate of a row, the fate of its hold, and what was learned about Kafka.

use std::time::Duration;

use super::hold::NewHold;
use super::retry::Event;
use crate::domain::partition::Partition;

/// What is to be written about the row.
#[derive(Clone, Debug, PartialEq)]
pub enum RowFate {
    Published,
    /// Kafka has it. It is not sent again, and is marked once its lock is released.
    PublishedUnmarked,
    /// It is sent again, flagged as a possible duplicate if this attempt or an earlier one may have left a copy.
    Pending {
        maybe_sent: bool,
    },
    Refused(Refusal),
    Gone,
}

impl RowFate {
    /// Is it certain that Kafka has no copy of the row?
    pub fn is_certainly_not_sent(&self) -> bool {
        match self {
            RowFate::Published | RowFate::PublishedUnmarked => false,
            RowFate::Pending { maybe_sent } => !maybe_sent,
            RowFate::Refused(refusal) => !refusal.possible_duplicate,
            RowFate::Gone => true,
        }
    }

    /// The event if this fate cannot be written because another transaction has locked the row. `None` if nothing is written
    /// about the row.
    pub fn when_locked(&self) -> Option<Event<'_>> {
        match self {
            RowFate::Published => Some(Event::MarkLocked),
            RowFate::Refused(refusal) => Some(Event::RefusalLocked(refusal)),
            RowFate::PublishedUnmarked | RowFate::Pending { .. } | RowFate::Gone => None,
        }
    }
}

/// What is to be written about holds.
#[derive(Clone, Debug, PartialEq)]
pub enum HoldFate {
    Unchanged,
    Create(NewHold),
    /// Postpones the hold of this row by `wait`, or until an operator acts if that is `None`.
    Postpone {
        wait: Option<Duration>,
        reason: String,
    },
    /// Postpones the hold of this row and all others of the same topic and unit.
    PostponeAll {
        wait: Duration,
        reason: String,
    },
    Release,
    /// Releases the hold of this row and all others of the same topic and unit.
    ReleaseAll,
}

/// What the process learned about Kafka.
#[derive(Clone, Debug, PartialEq)]
pub enum KafkaFate {
    Unchanged,
    /// Other batches send nothing to the partition until it accepts a probe.
    PausePartition {
        partition: Partition,
        reason: String,
    },
    /// No batch sends anything until Kafka answers again.
    PauseEverything {
        reason: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub row: RowFate,
    pub hold: HoldFate,
    pub kafka: KafkaFate,
}

impl Decision {
    /// A decision by which nothing was learned about Kafka.
    pub fn new(row: RowFate, hold: HoldFate) -> Self {
        let kafka = KafkaFate::Unchanged;
        Decision { row, hold, kafka }
    }
}

/// The refusal of a row by Kafka.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub id: i64,
    /// How often the row had been refused before.
    pub attempts: i16,
    /// An earlier attempt may have left a copy, so the next one must be flagged.
    pub possible_duplicate: bool,
    pub reason: String,
    pub dead: bool,
    pub wait: Duration,
}

impl Refusal {
    /// Is the row sent again, flagged as a possible duplicate?
    pub fn is_retried_flagged(&self) -> bool {
        self.possible_duplicate && !self.dead
    }
}
