//! What [`super::retry::RetryPolicy::decide`] answers: the fate of a row, of the holds it has to do with, and what was
//! learned about Kafka.

use std::time::Duration;

use super::hold::NewHold;
use super::retry::Event;
use crate::domain::partition::Partition;

/// What is to be written about the row.
#[derive(Clone, Debug, PartialEq)]
pub enum RowFate {
    Published,
    /// Kafka has it. It is marked by itself when it is free, and is not sent again.
    PublishedUnmarked,
    /// It is sent again, flagged where a copy may be there, from this try or an earlier one.
    Pending {
        maybe_sent: bool,
    },
    Refused(Refusal),
    Gone,
}

impl RowFate {
    /// Is it certain that Kafka has no copy of it?
    pub fn is_certainly_not_sent(&self) -> bool {
        match self {
            RowFate::Published | RowFate::PublishedUnmarked => false,
            RowFate::Pending { maybe_sent } => !maybe_sent,
            RowFate::Refused(refusal) => !refusal.possible_duplicate,
            RowFate::Gone => true,
        }
    }

    /// What it means that this could not be written, since another transaction has locked the row. `None`: nothing is written
    /// of the row.
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
    /// The hold of this row. `wait`: `None` until an operator acts.
    Postpone {
        wait: Option<Duration>,
        reason: String,
    },
    /// With it all others of the same topic and unit.
    PostponeAll {
        wait: Duration,
        reason: String,
    },
    Release,
    /// With it all others of the same topic and unit.
    ReleaseAll,
}

/// What the process learned about Kafka.
#[derive(Clone, Debug, PartialEq)]
pub enum KafkaFate {
    Unchanged,
    /// Other batches send nothing there until a probe is taken.
    PausePartition {
        partition: Partition,
        reason: String,
    },
    /// Nobody sends anything until Kafka answers again.
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
    /// Nothing was learned about Kafka.
    pub fn new(row: RowFate, hold: HoldFate) -> Self {
        let kafka = KafkaFate::Unchanged;
        Decision { row, hold, kafka }
    }
}

/// A row Kafka refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub id: i64,
    /// How often it had been refused before.
    pub attempts: i16,
    /// A copy of it may be there from an earlier try: the next one must say so.
    pub possible_duplicate: bool,
    pub reason: String,
    pub dead: bool,
    pub wait: Duration,
}

impl Refusal {
    /// It is tried again, and a copy may be there.
    pub fn stays_suspect(&self) -> bool {
        self.possible_duplicate && !self.dead
    }
}
