//! Writes what was decided about holds, between two batches of their lane.

use std::time::Duration;

use tokio::time::sleep;
use tracing::info;

use super::RetryHolds;
use crate::domain::checkout::CheckedOutLane;
use crate::domain::decision::Refusal;
use crate::domain::hold::HoldChange;
use crate::domain::in_flight::InFlightEntry;
use crate::domain::lease::{LoweredLane, Term};
use crate::domain::retry::Event;
use crate::failpoint;
use crate::metrics;
use crate::tasks::relay::MARK_MARGIN;
use crate::tasks::report::report_unless_locked;

impl RetryHolds {
    /// Writes changes of the holds of one lane as soon as no batch has the lane checked out.
    pub(super) async fn change(&self, term: &Term, lane: i16, changes: Vec<HoldChange>) {
        let Some((term, lane)) = self.checkout(term, lane).await else {
            return;
        };
        failpoint::hit("before_hold_change").await;
        if self.write(&term, &lane, changes).await.is_none() {
            // The lane has another owner, or the answer to a release was lost and its epoch is unknown. A new term reads it
            // again. This term ends before the lane is put back, so that no batch claims from its old floor.
            self.writer.fenced(&term, 0);
        }
        self.lanes.checkouts().put_back(&term, &[lane]);
    }

    /// Returns `None` if a write was fenced. If another transaction has locked some heads, nothing is written about these, and
    /// their holds are postponed.
    async fn write(&self, term: &Term, lane: &CheckedOutLane, mut changes: Vec<HoldChange>) -> Option<()> {
        while !changes.is_empty() {
            // A release raises the epoch, so releases come last.
            let is_last = changes.iter().all(|change| change.released);
            let (now, later): (Vec<_>, Vec<_>) = changes.into_iter().partition(|change| change.released == is_last);
            let written = if is_last {
                self.release(term, lane, &now).await?
            } else {
                self.postpone(term, lane, &now).await?
            };
            changes = later;
            if !written {
                let heads: Vec<i64> = now.iter().filter_map(HoldChange::head).collect();
                let locked = self.writer.locked(term, &heads).await?;
                let (waiting, others): (Vec<_>, Vec<_>) = now
                    .into_iter()
                    .partition(|change| change.head().is_some_and(|head| locked.contains(&head)));
                changes.extend(others);
                changes.extend(waiting.iter().filter_map(|change| self.when_locked(term, change)));
            }
        }
        Some(())
    }

    /// Returns false if nothing was written because another transaction has locked some heads, and `None` if the write was fenced.
    async fn postpone(&self, term: &Term, lane: &CheckedOutLane, changes: &[HoldChange]) -> Option<bool> {
        // Heads that may have been sent are known by id, and remain so when their entries are deleted.
        let maybe_sent = self.lanes.maybe_sent().of_lane_to_store(lane.lane);
        let (fence, entries) = ((lane.lane, lane.epoch), entries(changes));
        let write = || async {
            let write = self.outbox.postpone_holds(term, fence, changes, &entries, &maybe_sent);
            Ok(write.await?.then_some(()))
        };
        let written = self.writer.unless_locked(term, write).await;
        report_unless_locked(&written, refusals(changes));
        let is_written = written?.is_some();
        if is_written {
            self.lanes.in_flight.done(&entries);
            self.lanes.maybe_sent().stored(term.worker, maybe_sent);
        }
        Some(is_written)
    }

    /// Returns as [`RetryHolds::postpone`].
    async fn release(&self, term: &Term, lane: &CheckedOutLane, changes: &[HoldChange]) -> Option<bool> {
        let ((number, epoch), entries) = ((lane.lane, lane.epoch), entries(changes));
        let write = || self.outbox.release_holds(term, number, epoch, changes, &entries);
        let written = self.writer.unless_locked(term, write).await;
        report_unless_locked(&written, refusals(changes));
        let Some(lowered) = written? else { return Some(false) };
        self.lanes.in_flight.done(&entries);
        failpoint::hit("after_hold_release").await;
        self.note_released(term, lane.lane, lowered, changes).await;
        Some(true)
    }

    /// How a hold is postponed whose head another transaction has locked. The outcome of the head is written later.
    fn when_locked(&self, term: &Term, change: &HoldChange) -> Option<HoldChange> {
        if let Some(head) = change.published {
            metrics::rows_published(std::iter::once(change.hold.topic.as_str()));
            let lane = change.hold.lane;
            self.lanes.maybe_sent().remember_acknowledged(term.worker, lane, head);
        }
        let event = change.refused.as_ref().map_or(Event::MarkLocked, Event::RefusalLocked);
        let postponed = HoldChange::new(change.hold.clone(), None, self.decide(&change.hold, event, true))?;
        Some(HoldChange {
            entry: change.entry,
            ..postponed
        })
    }

    async fn note_released(&self, term: &Term, lane: i16, lowered: LoweredLane, changes: &[HoldChange]) {
        let published = changes.iter().filter(|change| change.published.is_some());
        metrics::rows_published(published.map(|change| change.hold.topic.as_str()));
        let marked = changes.iter().filter_map(|change| change.published);
        metrics::rows_marked(marked.clone().count() as u64);
        marked.for_each(|id| self.lanes.maybe_sent().forget(lane, id));
        // If the query fails, the lane keeps the held topics that it had. This only costs some reading.
        let held_topics = self.outbox.held_topics(lane).await.ok();
        self.lanes.holds().released(term, lane, lowered, held_topics);
        // A topic or partition is held in many lanes, and its release is logged once, by its probe.
        for HoldChange { hold, .. } in changes.iter().filter(|change| change.hold.head_id.is_some()) {
            info!(topic = hold.topic, unit = hold.unit, "released: its rows flow again");
        }
    }

    /// Waits until no batch has the lane checked out, and checks it out. `None` if the term is over or the lane was given away.
    async fn checkout(&self, term: &Term, lane: i16) -> Option<(Term, CheckedOutLane)> {
        loop {
            let changed = self.lanes.changed();
            let current = self.lanes.term()?;
            if current.worker != term.worker || !self.lanes.ownership().owns(lane) {
                return None;
            }
            if let Some(checkout) = self.lanes.checkouts().one(lane, MARK_MARGIN) {
                return Some(checkout);
            }
            tokio::select! {
                () = changed => {}
                () = sleep(Duration::from_millis(50)) => {}
            }
        }
    }
}

fn entries(changes: &[HoldChange]) -> Vec<InFlightEntry> {
    changes.iter().filter_map(|change| change.entry).collect()
}

/// Refusals of heads, each with its topic.
fn refusals(changes: &[HoldChange]) -> impl Iterator<Item = (&str, &Refusal)> {
    changes
        .iter()
        .filter_map(|change| Some((change.hold.topic.as_str(), change.refused.as_ref()?)))
}
