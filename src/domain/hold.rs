//! Holds, which are the rows of `outbox.hold`, and the changes that are written to them.

use std::time::Duration;

use super::decision::{Decision, HoldFate, Refusal, RowFate};
use super::in_flight::InFlightEntry;
use crate::domain::partition::Partition;
use crate::domain::row::{Row, UNORDERED_LANE};

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

/// What is written about a hold whose row was tried, or is gone: it is released, or postponed.
#[derive(Clone, Debug)]
pub struct HoldChange {
    pub hold: Hold,
    /// Otherwise it is postponed.
    pub released: bool,
    /// How long a postponed hold waits, or `None` until an operator acts.
    pub wait: Option<Duration>,
    /// Why it is postponed.
    pub reason: String,
    /// Its head, if Kafka has accepted it.
    pub published: Option<i64>,
    /// Its head, if that was refused.
    pub refused: Option<Refusal>,
    /// The in-flight entry of its head, if that was sent.
    pub entry: Option<InFlightEntry>,
}

impl HoldChange {
    /// The change that a decision makes to a hold and to its head, if that was sent with an in-flight entry. `None` if it makes
    /// none.
    pub fn new(hold: Hold, sent: Option<&(Row, InFlightEntry)>, decision: Decision) -> Option<Self> {
        let mut change = HoldChange::release(hold);
        change.entry = sent.map(|(_, entry)| *entry);
        match decision.row {
            RowFate::Published => change.published = sent.map(|(head, _)| head.id),
            RowFate::Refused(refusal) => change.refused = Some(refusal),
            RowFate::PublishedUnmarked | RowFate::Pending { .. } | RowFate::Gone => {}
        }
        match decision.hold {
            HoldFate::Release | HoldFate::ReleaseAll => {}
            HoldFate::Postpone { wait, reason } => {
                (change.released, change.wait, change.reason) = (false, wait, reason)
            }
            HoldFate::PostponeAll { .. } | HoldFate::Create(_) | HoldFate::Unchanged => return None,
        }
        Some(change)
    }

    /// The release of a hold without a change of any row.
    pub fn release(hold: Hold) -> Self {
        HoldChange {
            hold,
            released: true,
            wait: None,
            reason: String::new(),
            published: None,
            refused: None,
            entry: None,
        }
    }

    /// The row that changes with the hold.
    pub fn head(&self) -> Option<i64> {
        let refused = self.refused.as_ref().map(|refusal| refusal.id);
        self.published.or(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::row::tests::row;

    #[test]
    fn a_decision_changes_the_hold_and_the_row_that_was_sent() {
        let hold = Hold {
            lane: 3,
            topic: "orders".to_owned(),
            unit: "k:1".to_owned(),
            head_id: Some(7),
            resume_floor: 0,
            failures: 1,
            wait: 0.0,
        };
        let sent = (row(7), InFlightEntry { id: 1, slot: 2 });
        let change = |fate, hold_fate| HoldChange::new(hold.clone(), Some(&sent), Decision::new(fate, hold_fate));
        let released = change(RowFate::Published, HoldFate::ReleaseAll).expect("a change");
        assert!(released.released && released.refused.is_none());
        assert_eq!((released.head(), released.entry), (Some(7), Some(sent.1)));
        let postpone = HoldFate::Postpone {
            wait: None,
            reason: "locked".to_owned(),
        };
        let postponed = change(RowFate::PublishedUnmarked, postpone).expect("a change");
        assert!(!postponed.released && postponed.reason == "locked");
        assert_eq!((postponed.head(), postponed.entry), (None, Some(sent.1)));
        let of_all = HoldFate::PostponeAll {
            wait: Duration::ZERO,
            reason: String::new(),
        };
        let pending = RowFate::Pending { maybe_sent: true };
        assert!(
            change(pending, of_all).is_none(),
            "another statement postpones them all"
        );
    }
}
