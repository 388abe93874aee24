//! Writes what became of holds, between two batches of their lane.

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
use crate::tasks::report::report_refusal;

/// What is to be written about a hold.
pub enum HoldChange {
    Release(HoldRelease),
    Postpone(HoldPostponement),
}

impl HoldChange {
    /// What was decided about the row that a hold waits for. `None`: nothing is to be written about the hold.
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

/// What is to be written about a hold, and the record of its head, where that was sent.
pub type Recorded = (HoldChange, Option<InFlightEntry>);

impl RetryHolds {
    pub(super) async fn change(&self, term: &Term, lane: i16, changes: Vec<Recorded>) {
        let Some((term, held)) = self.lane_between_batches(term, lane).await else {
            return;
        };
        failpoint::hit("before_hold_change").await;
        let (mut released, mut postponed) = (Vec::new(), Vec::new());
        for (change, record) in changes {
            match change {
                HoldChange::Release(hold) => released.push((hold, record)),
                HoldChange::Postpone(hold) => postponed.push((hold, record)),
            }
        }
        // A release raises the epoch, so it comes last.
        let changed = self.postpone(&term, &held, postponed).await && self.release(&term, &held, released).await;
        if !changed {
            // Or the answer to a release was lost, and we no longer know the lane: a new term reads it again. Ended before
            // the lane is given back, or somebody claims from where it stood.
            self.writer.fenced(&term, 0);
        }
        self.lanes.checkouts().put_back(&term, &[held]);
    }

    /// False: fenced.
    async fn postpone(
        &self,
        term: &Term,
        held: &CheckedOutLane,
        postponed: Vec<(HoldPostponement, Option<InFlightEntry>)>,
    ) -> bool {
        let (mut holds, records) = with_records(postponed);
        while !holds.is_empty() {
            // Heads of which a copy may be there are known by id, and go on to be when their records are gone.
            let maybe_sent = self.lanes.maybe_sent().of_lane_to_store(held.lane);
            let lane = (held.lane, held.epoch);
            let write = || async {
                let written = self
                    .outbox
                    .postpone_holds(term, lane, &holds, &records, &maybe_sent)
                    .await?;
                Ok(written.then_some(()))
            };
            let written = self.writer.unless_locked(term, write).await;
            if !matches!(written, Some(None)) {
                let refused = holds.iter().filter_map(|later| later.refused.as_ref());
                refused.for_each(report_refusal);
            }
            match written {
                None => return false,
                Some(Some(())) => {
                    self.lanes.in_flight.done(&records);
                    self.lanes.maybe_sent().stored(term.worker, maybe_sent);
                    return true;
                }
                Some(None) => {
                    let refused = holds.iter().filter_map(|later| later.refused.as_ref());
                    let heads: Vec<i64> = refused.map(|refusal| refusal.id).collect();
                    let Some(locked) = self.writer.locked(term, &heads).await else {
                        return false;
                    };
                    for later in &mut holds {
                        if let Some(refusal) = &later.refused
                            && locked.contains(&refusal.id)
                            && let Some(instead) = self.when_locked(&later.hold, Event::RefusalLocked(refusal))
                        {
                            *later = instead;
                        }
                    }
                }
            }
        }
        true
    }

    /// What is written about a hold instead, while another transaction has locked its row.
    fn when_locked(&self, hold: &Hold, event: Event<'_>) -> Option<HoldPostponement> {
        match HoldChange::new(hold.clone(), None, self.decide(hold, event, true)) {
            Some(HoldChange::Postpone(later)) => Some(later),
            Some(HoldChange::Release(_)) | None => None,
        }
    }

    /// False: fenced. Where another transaction has locked heads, their holds are postponed, and the others released without
    /// them.
    async fn release(
        &self,
        term: &Term,
        held: &CheckedOutLane,
        mut released: Vec<(HoldRelease, Option<InFlightEntry>)>,
    ) -> bool {
        while !released.is_empty() {
            let (holds, records) = with_records(released.clone());
            let write = || self.outbox.release_holds(term, held.lane, held.epoch, &holds, &records);
            let written = self.writer.unless_locked(term, write).await;
            if !matches!(written, Some(None)) {
                let refused = holds.iter().filter_map(|released| released.refused.as_ref());
                refused.for_each(report_refusal);
            }
            match written {
                None => return false,
                Some(Some(lowered)) => {
                    self.lanes.in_flight.done(&records);
                    failpoint::hit("after_hold_release").await;
                    self.released(term, held.lane, lowered, &holds).await;
                    return true;
                }
                Some(None) => {
                    let heads: Vec<i64> = holds.iter().filter_map(HoldRelease::head).collect();
                    let Some(locked) = self.writer.locked(term, &heads).await else {
                        return false;
                    };
                    let is_locked = |(one, _): &mut (HoldRelease, _)| one.head().is_some_and(|id| locked.contains(&id));
                    let waiting = released.extract_if(.., is_locked).collect();
                    if !self.postpone_locked(term, held, waiting).await {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// What became of these heads is written when they are free.
    async fn postpone_locked(
        &self,
        term: &Term,
        held: &CheckedOutLane,
        waiting: Vec<(HoldRelease, Option<InFlightEntry>)>,
    ) -> bool {
        let published = waiting.iter().filter_map(|(released, _)| released.published);
        metrics::rows_published(published.clone().count());
        published.for_each(|id| {
            self.lanes
                .maybe_sent()
                .remember_acknowledged(term.worker, held.lane, id)
        });
        let postponed = waiting.into_iter().filter_map(|(released, record)| {
            let event = released
                .refused
                .as_ref()
                .map_or(Event::MarkLocked, Event::RefusalLocked);
            Some((self.when_locked(&released.hold, event)?, record))
        });
        self.postpone(term, held, postponed.collect()).await
    }

    async fn released(&self, term: &Term, lane: i16, lowered: LoweredLane, released: &[HoldRelease]) {
        let published = released.iter().filter_map(|released| released.published);
        let count = published.clone().count();
        metrics::rows_published(count);
        metrics::rows_marked(count as u64);
        published.for_each(|id| self.lanes.maybe_sent().forget(lane, id));
        // Unless we know which are left, assume that all are: it costs a little reading.
        let held_topics = self.outbox.held_topics(lane).await.ok();
        self.lanes.holds().released(term, lane, lowered, held_topics);
        // Of what is paused in many lanes it is said once.
        for HoldRelease { hold, .. } in released.iter().filter(|released| released.hold.head_id.is_some()) {
            info!(topic = hold.topic, unit = hold.unit, "released: its rows flow again");
        }
    }

    async fn lane_between_batches(&self, term: &Term, lane: i16) -> Option<(Term, CheckedOutLane)> {
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

/// Holds that are changed together, and the records that go with that.
fn with_records<T>(changes: Vec<(T, Option<InFlightEntry>)>) -> (Vec<T>, Vec<InFlightEntry>) {
    let (holds, records): (Vec<T>, Vec<Option<InFlightEntry>>) = changes.into_iter().unzip();
    (holds, records.into_iter().flatten().collect())
}
