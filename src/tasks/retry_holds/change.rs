//! Writes what was decided about holds, between two batches of their lane.

use std::time::Duration;

use tokio::time::sleep;
use tracing::info;

use super::RetryHolds;
use crate::domain::checkout::CheckedOutLane;
use crate::domain::decision::{Decision, HoldFate, RowFate};
use crate::domain::hold::{Hold, HoldPostponement, HoldRelease};
use crate::domain::in_flight::InFlightEntry;
use crate::domain::lease::{LoweredLane, Term};
use crate::domain::retry::Event;
use crate::failpoint;
use crate::metrics;
use crate::tasks::relay::MARK_MARGIN;
use crate::tasks::report::report_unless_locked;

/// A change of a hold that is to be written.
pub enum HoldChange {
    Release(HoldRelease),
    Postpone(HoldPostponement),
}

impl HoldChange {
    /// The change that a decision makes to the hold and to its head, if that was sent. `None` if it makes none.
    pub fn new(hold: Hold, head: Option<i64>, decision: Decision) -> Option<Self> {
        let published = head.filter(|_| decision.row == RowFate::Published);
        let refused = match decision.row {
            RowFate::Refused(refusal) => Some(refusal),
            _ => None,
        };
        match decision.hold {
            HoldFate::Release | HoldFate::ReleaseAll => Some(HoldChange::Release(HoldRelease {
                hold,
                published,
                refused,
            })),
            HoldFate::Postpone { wait, reason } => Some(HoldChange::Postpone(HoldPostponement {
                hold,
                reason,
                wait,
                refused,
            })),
            HoldFate::PostponeAll { .. } | HoldFate::Create(_) | HoldFate::Unchanged => None,
        }
    }
}

/// A change of a hold, and the in-flight entry of its head, if that was sent.
pub type ChangeWithEntry = (HoldChange, Option<InFlightEntry>);

impl RetryHolds {
    /// Writes changes of the holds of one lane as soon as no batch has the lane checked out.
    pub(super) async fn change(&self, term: &Term, lane: i16, changes: Vec<ChangeWithEntry>) {
        let Some((term, lane)) = self.checkout(term, lane).await else {
            return;
        };
        failpoint::hit("before_hold_change").await;
        let (mut releases, mut postponements) = (Vec::new(), Vec::new());
        for (change, entry) in changes {
            match change {
                HoldChange::Release(release) => releases.push((release, entry)),
                HoldChange::Postpone(postponement) => postponements.push((postponement, entry)),
            }
        }
        // A release raises the epoch, so it comes last.
        let written = async {
            self.postpone(&term, &lane, postponements).await?;
            self.release(&term, &lane, releases).await
        };
        if written.await.is_none() {
            // The lane has another owner, or the answer to a release was lost and its epoch is unknown. A new term reads it
            // again. This term ends before the lane is put back, so that no batch claims from its old floor.
            self.writer.fenced(&term, 0);
        }
        self.lanes.checkouts().put_back(&term, &[lane]);
    }

    /// Returns `None` if the write was fenced. If another transaction has locked some heads, their refusals are not written.
    async fn postpone(
        &self,
        term: &Term,
        lane: &CheckedOutLane,
        postponements: Vec<(HoldPostponement, Option<InFlightEntry>)>,
    ) -> Option<()> {
        let (mut postponements, entries) = with_entries(postponements);
        while !postponements.is_empty() {
            // Heads that may have been sent are known by id, and remain so when their entries are deleted.
            let maybe_sent = self.lanes.maybe_sent().of_lane_to_store(lane.lane);
            let fence = (lane.lane, lane.epoch);
            let write = || async {
                let write = self
                    .outbox
                    .postpone_holds(term, fence, &postponements, &entries, &maybe_sent);
                Ok(write.await?.then_some(()))
            };
            let written = self.writer.unless_locked(term, write).await;
            let refused = || postponements.iter().filter_map(|change| change.refused.as_ref());
            report_unless_locked(&written, refused());
            if written?.is_some() {
                self.lanes.in_flight.done(&entries);
                self.lanes.maybe_sent().stored(term.worker, maybe_sent);
                break;
            }
            let heads: Vec<i64> = refused().map(|refusal| refusal.id).collect();
            let locked = self.writer.locked(term, &heads).await?;
            for postponement in &mut postponements {
                if let Some(refusal) = &postponement.refused
                    && locked.contains(&refusal.id)
                    && let Some(without_refusal) = self.when_locked(&postponement.hold, Event::RefusalLocked(refusal))
                {
                    *postponement = without_refusal;
                }
            }
        }
        Some(())
    }

    /// How a hold is postponed if nothing can be written about its head, because another transaction has locked it.
    fn when_locked(&self, hold: &Hold, event: Event<'_>) -> Option<HoldPostponement> {
        match HoldChange::new(hold.clone(), None, self.decide(hold, event, true)) {
            Some(HoldChange::Postpone(postponement)) => Some(postponement),
            Some(HoldChange::Release(_)) | None => None,
        }
    }

    /// Returns `None` if the write was fenced. If another transaction has locked some heads, their holds are postponed instead.
    async fn release(
        &self,
        term: &Term,
        lane: &CheckedOutLane,
        mut releases: Vec<(HoldRelease, Option<InFlightEntry>)>,
    ) -> Option<()> {
        while !releases.is_empty() {
            let (holds, entries) = with_entries(releases.clone());
            let write = || self.outbox.release_holds(term, lane.lane, lane.epoch, &holds, &entries);
            let written = self.writer.unless_locked(term, write).await;
            report_unless_locked(&written, holds.iter().filter_map(|release| release.refused.as_ref()));
            if let Some(lowered) = written? {
                self.lanes.in_flight.done(&entries);
                failpoint::hit("after_hold_release").await;
                self.note_released(term, lane.lane, lowered, &holds).await;
                break;
            }
            let heads: Vec<i64> = holds.iter().filter_map(HoldRelease::head).collect();
            let locked = self.writer.locked(term, &heads).await?;
            let is_locked = |(release, _): &mut (HoldRelease, _)| release.head().is_some_and(|id| locked.contains(&id));
            let waiting = releases.extract_if(.., is_locked).collect();
            self.postpone_locked(term, lane, waiting).await?;
        }
        Some(())
    }

    /// Postpones holds whose heads another transaction has locked. The outcome of these heads is written later.
    async fn postpone_locked(
        &self,
        term: &Term,
        lane: &CheckedOutLane,
        releases: Vec<(HoldRelease, Option<InFlightEntry>)>,
    ) -> Option<()> {
        let published = releases.iter().filter_map(|(release, _)| release.published);
        metrics::rows_published(published.clone().count());
        published.for_each(|id| {
            self.lanes
                .maybe_sent()
                .remember_acknowledged(term.worker, lane.lane, id)
        });
        let postponements = releases.into_iter().filter_map(|(release, entry)| {
            let refused = release.refused.as_ref();
            let event = refused.map_or(Event::MarkLocked, Event::RefusalLocked);
            Some((self.when_locked(&release.hold, event)?, entry))
        });
        self.postpone(term, lane, postponements.collect()).await
    }

    async fn note_released(&self, term: &Term, lane: i16, lowered: LoweredLane, releases: &[HoldRelease]) {
        let published = releases.iter().filter_map(|release| release.published);
        let count = published.clone().count();
        metrics::rows_published(count);
        metrics::rows_marked(count as u64);
        published.for_each(|id| self.lanes.maybe_sent().forget(lane, id));
        // If the query fails, the lane keeps the held topics that it had. This only costs some reading.
        let held_topics = self.outbox.held_topics(lane).await.ok();
        self.lanes.holds().released(term, lane, lowered, held_topics);
        // A topic or partition is held in many lanes, and its release is logged once, by its probe.
        for HoldRelease { hold, .. } in releases.iter().filter(|release| release.hold.head_id.is_some()) {
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

/// Separates changes that are written together from their in-flight entries.
fn with_entries<T>(changes: Vec<(T, Option<InFlightEntry>)>) -> (Vec<T>, Vec<InFlightEntry>) {
    let (holds, entries): (Vec<T>, Vec<Option<InFlightEntry>>) = changes.into_iter().unzip();
    (holds, entries.into_iter().flatten().collect())
}
