//! Checks lanes and unordered rows out for a batch, and takes back what the batch found out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::lane::Lane;
use super::{Lanes, State};
use crate::boottime;
use crate::domain::checkout::{CheckedOutLane, PollCheckout, UnorderedCheckout};
use crate::domain::floor::ScanResult;
use crate::domain::lease::Term;
use crate::domain::pause::Pauses;
use crate::domain::row::UNORDERED_LANE;
use crate::domain::watermark::Watermark;

/// What a task may claim now.
#[derive(Clone, Debug)]
pub enum Work {
    Lanes(Vec<CheckedOutLane>),
    Unordered(UnorderedCheckout),
}

impl Work {
    fn highest_start(&self) -> i64 {
        match self {
            Work::Lanes(lanes) => lanes.iter().map(|lane| lane.start).max().unwrap_or(0),
            Work::Unordered(unordered) => unordered.start,
        }
    }
}

/// The work of one batch, and the lease, watermark and pauses under which it may be done.
#[derive(Clone, Debug)]
pub struct Checkout {
    pub term: Term,
    /// Held until the batch is sent: see [`ObeyedPauses`](super::ObeyedPauses).
    pub pauses: Arc<Pauses>,
    /// The watermark before the claim: see [`ScanResult::watermark`].
    pub watermark: Watermark,
    /// A claim of lanes counts only if all of these transactions are still in progress after it: they may have ids at or below
    /// its start.
    pub bypassed: Vec<i64>,
    pub work: Work,
}

/// What a batch found out about one lane.
#[derive(Clone, Debug, Default)]
pub struct LaneReport {
    pub lane: i16,
    pub rows: usize,
    /// The claim stopped at its row limit, so there may be more rows.
    pub hit_limit: bool,
    /// The claim was cut short at this id because it had scanned enough, not by its row limit.
    pub span_end: Option<i64>,
    pub took: Duration,
    /// The byte budget left some of its rows behind.
    pub over_budget: bool,
    /// The claim took so long that publishing in time was at risk.
    pub slow: bool,
    /// `None` if the claim failed. Then nothing was found out.
    pub scan: Option<ScanResult>,
    pub highest_id: i64,
    pub sent: SentRows,
    /// Topics with new holds in this lane.
    pub held_topics: BTreeSet<String>,
    /// How long the lane must wait for its next claim.
    pub pause: Option<Duration>,
}

/// Rows of a lane by what is known of sending them, for [`Lanes::maybe_sent`].
#[derive(Clone, Debug, Default)]
pub struct SentRows {
    pub published: Vec<i64>,
    /// Not published, but a copy may have been sent.
    pub maybe_sent: Vec<i64>,
    /// See [`CheckedOutLane::acknowledged`].
    pub acknowledged: Vec<i64>,
}

/// How much one checkout may ask for.
#[derive(Clone, Copy, Debug)]
pub struct ClaimLimits {
    pub rows: usize,
    pub tasks: usize,
    /// How much longer the lease must last, so that publishing cannot outlive it.
    pub lease_left: Duration,
}

pub struct Checkouts<'a>(pub(super) &'a Lanes);

impl Checkouts<'_> {
    /// Checks out what is ready: some lanes or the unordered rows, in turns. `None` also while everything is paused.
    pub fn next(&self, limits: &ClaimLimits) -> Option<Checkout> {
        let now = Instant::now();
        let pauses = self.pauses()?;
        let mut state = self.0.lock();
        let term = state.live_term(limits.lease_left)?;
        let watermark = state.tracker.watermark();
        state.is_turn_of_unordered = !state.is_turn_of_unordered;
        let work = if state.is_turn_of_unordered {
            state
                .checkout_unordered(now, limits)
                .or_else(|| state.checkout_lanes(now, limits))
        } else {
            state
                .checkout_lanes(now, limits)
                .or_else(|| state.checkout_unordered(now, limits))
        }?;
        self.0.outstanding.fetch_add(1, Ordering::AcqRel);
        Some(Checkout {
            term,
            pauses,
            watermark,
            bypassed: state.tracker.bypassed_below(work.highest_start()),
            work,
        })
    }

    /// Checks out this lane, for a change of its holds. `None`: it is not ours, or it is checked out already. In the second case no
    /// other batch gets it before this change.
    pub fn one(&self, lane: i16, lease_left: Duration) -> Option<(Term, CheckedOutLane)> {
        let mut state = self.0.lock();
        let term = state.live_term(lease_left)?;
        let State { lanes, tracker, .. } = &mut *state;
        let of_lane = lanes.get_mut(&lane)?;
        of_lane.usage.change_waiting = of_lane.usage.checked_out;
        if of_lane.usage.checked_out {
            return None;
        }
        self.0.outstanding.fetch_add(1, Ordering::AcqRel);
        Some((term, of_lane.checkout(lane, 1, tracker)))
    }

    /// Checks out every lane that is not known to be ready. `None`: there is none, or everything is paused.
    pub fn for_poll(&self, limits: &ClaimLimits) -> Option<PollCheckout> {
        let now = Instant::now();
        let pauses = self.pauses()?;
        let mut state = self.0.lock();
        let term = state.live_term(limits.lease_left)?;
        let watermark = state.tracker.watermark();
        // A poll asks for unordered rows even while a batch of them is in progress, because the rows of that batch are claimed.
        let unordered = (!state.unordered.ready).then_some((state.unordered.floor, state.unordered.stored.epoch));
        let State { lanes, tracker, .. } = &mut *state;
        let idle = lanes.iter_mut().filter(|(_, lane)| !lane.ready && lane.is_free(now));
        let lanes: Vec<CheckedOutLane> = idle
            .map(|(number, lane)| CheckedOutLane {
                // A poll has its own limit for how far it scans.
                scan_end: None,
                ..lane.checkout(*number, limits.rows, tracker)
            })
            .collect();
        let lowest = lanes.iter().map(|lane| lane.start).min()?;
        let start = unordered.map_or(lowest, |(floor, _)| lowest.min(floor.start(tracker)));
        let bypassed = tracker.bypassed_below(start);
        let has_holds = state.unordered.stored.has_holds || lanes.iter().any(|lane| !lane.held_topics.is_empty());
        self.0.outstanding.fetch_add(1, Ordering::AcqRel);
        Some(PollCheckout {
            term,
            pauses,
            watermark,
            bypassed,
            start,
            most: limits.rows,
            has_holds,
            lanes,
            claims_from: state.unordered.claims_from,
            unordered_epoch: unordered.map(|(_, epoch)| epoch),
        })
    }

    /// The pauses that a batch must obey. `None`: everything is paused.
    fn pauses(&self) -> Option<Arc<Pauses>> {
        let pauses = self.0.pauses.current();
        (!pauses.cover_everything()).then_some(pauses)
    }

    /// Checks lanes in with what a batch found out about them. The checkout is over.
    pub fn checkin(&self, term: &Term, reports: Vec<LaneReport>) {
        self.0.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.checkin_some(term, reports);
    }

    /// Checks some lanes of a checkout in. The others are still checked out.
    pub fn checkin_some(&self, term: &Term, reports: Vec<LaneReport>) {
        let now = Instant::now();
        let Some(mut state) = self.0.of_term(term.worker) else {
            return;
        };
        for report in reports {
            state.highest_claimed = state.highest_claimed.max(report.highest_id);
            if report.lane == UNORDERED_LANE {
                state.unordered.checkin(&report, now);
            } else if let Some(lane) = state.lanes.get_mut(&report.lane) {
                lane.checkin(&report, now);
            }
        }
        drop(state);
        self.0.notify_all();
    }

    /// Checks lanes in as they were, because nothing was found out about them. The checkout is over.
    pub fn put_back(&self, term: &Term, lanes: &[CheckedOutLane]) {
        self.0.outstanding.fetch_sub(1, Ordering::AcqRel);
        if let Some(mut state) = self.0.of_term(term.worker) {
            for checked_out in lanes {
                if let Some(lane) = state.lanes.get_mut(&checked_out.lane) {
                    lane.usage.checked_out = false;
                }
            }
        }
        self.0.notify_all();
    }

    /// How many checkouts of any term have not been checked in.
    pub fn outstanding(&self) -> usize {
        self.0.outstanding.load(Ordering::Acquire)
    }

    /// When the next pause ends of a lane that may have pending rows, or of the unordered rows if there may be some. Everything
    /// else that makes something ready is announced by [`Lanes::changed`].
    pub fn next_ready_at(&self, now: Instant) -> Option<Instant> {
        let state = self.0.lock();
        let lanes = state.lanes.values().filter(|lane| lane.ready);
        let unordered = state.unordered.not_before.filter(|_| state.unordered.ready);
        let pauses = lanes.map(|lane| lane.not_before).chain(unordered);
        pauses.filter(|ends| *ends > now).min()
    }
}

/// How many rows each lane of a batch may claim: an equal part, and at least one. A lane that asks for fewer leaves room in the
/// batch. No other lane gets that room, because a lane asks for few rows only until its claims come back full: each of those
/// doubles what it asks for.
fn claim_quota(rows: usize, lanes: usize) -> usize {
    (rows / lanes).max(1)
}

impl State {
    fn live_term(&self, lease_left: Duration) -> Option<Term> {
        self.term.filter(|term| term.lasts(boottime::now(), lease_left))
    }

    fn checkout_lanes(&mut self, now: Instant, limits: &ClaimLimits) -> Option<Work> {
        // One task gets an equal part of all lanes, so that the other tasks find some, too.
        let count = self.lanes.len().div_ceil(limits.tasks);
        let ready = self.lanes.iter_mut();
        let mut ready: Vec<(i16, &mut Lane)> = ready
            .filter(|(_, lane)| lane.ready && lane.is_free(now))
            .map(|(number, lane)| (*number, lane))
            .collect();
        // The least recently served lanes come first.
        ready.sort_by_key(|(_, lane)| lane.served);
        ready.truncate(count);
        if ready.is_empty() {
            return None;
        }
        let quota = claim_quota(limits.rows, ready.len());
        self.served += 1;
        let checkout = |(number, lane): (i16, &mut Lane)| {
            lane.served = self.served;
            lane.checkout(number, lane.claim_size.min(quota), &self.tracker)
        };
        Some(Work::Lanes(ready.into_iter().map(checkout).collect()))
    }

    fn checkout_unordered(&mut self, now: Instant, limits: &ClaimLimits) -> Option<Work> {
        let unordered = &mut self.unordered;
        let is_due = unordered.not_before.is_none_or(|at| at <= now);
        if !unordered.ready || !is_due || unordered.checked_out >= limits.tasks {
            return None;
        }
        unordered.checked_out += 1;
        let start = unordered.floor.start(&self.tracker).max(unordered.resume);
        Some(Work::Unordered(UnorderedCheckout {
            floor: unordered.floor.hard(),
            start,
            scan_end: unordered.span.scan_end(start, self.tracker.watermark()),
            most: unordered.claim_size.min(limits.rows),
            maybe_sent_until: unordered.stored.maybe_sent_until,
            has_holds: unordered.stored.has_holds,
            claims_from: unordered.claims_from,
        }))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::domain::pause::Pause;
    use crate::domain::watermark::Writers;
    use crate::lanes::tests::{CLAIM_LIMITS, all_done, idle_at, owning};

    #[test]
    fn a_poll_raises_the_floor_of_the_unordered_rows_if_it_asks_for_them() {
        let (lanes, term) = idle_at(50, 1);
        let unordered_floor = || lanes.unordered().floor().0.hard();
        lanes.lock().unordered.ready = false;
        let polled = |lowest| {
            let poll = lanes.checkouts().for_poll(&CLAIM_LIMITS).expect("an idle lane");
            lanes.unordered().polled(&poll, lowest);
            lanes.checkouts().checkin(&term, vec![all_done(0, poll.watermark)]);
            poll.start
        };
        assert_eq!(polled(Some(20)), 0);
        assert_eq!(unordered_floor(), 19);
        assert_eq!(polled(None), 19);
        assert_eq!(unordered_floor(), 50);
        lanes
            .watermark()
            .update(term.worker, |tracker| tracker.observe(60, &Writers::new()));
        lanes.lock().unordered.ready = true;
        assert_eq!(polled(None), 50);
        assert_eq!(unordered_floor(), 50, "the poll did not ask for those");
        lanes.lock().unordered.ready = false;
        let poll = lanes.checkouts().for_poll(&CLAIM_LIMITS).expect("an idle lane");
        lanes.unordered().note_stored_floor(term.worker, 5, 1);
        lanes.unordered().polled(&poll, None);
        assert_eq!(unordered_floor(), 5, "another worker has lowered it in the meantime");
        lanes.checkouts().put_back(&term, &poll.lanes);
        lanes.lock().unordered.ready = false;
        let poll = lanes.checkouts().for_poll(&CLAIM_LIMITS).expect("an idle lane");
        let other = PollCheckout {
            term: Term {
                worker: Uuid::from_u128(2),
                ..term
            },
            ..poll.clone()
        };
        lanes.unordered().polled(&other, None);
        assert_eq!(unordered_floor(), 5, "the poll of another term raises nothing");
        lanes.unordered().polled(&poll, None);
        assert_eq!(unordered_floor(), 60);
    }

    #[test]
    fn nothing_is_checked_out_while_everything_is_paused_and_a_batch_holds_the_pauses_it_obeys() {
        let (lanes, _) = owning(2);
        let batch = lanes.checkouts().next(&CLAIM_LIMITS).expect("ready");
        let everything = Pause {
            topic: None,
            key: None,
            reason: "maintenance".to_owned(),
        };
        lanes.pauses.replace(Pauses::new(1, [everything]));
        assert_eq!((batch.pauses.version, lanes.pauses.in_effect()), (0, 0));
        assert!(lanes.checkouts().next(&CLAIM_LIMITS).is_none());
        assert!(lanes.checkouts().for_poll(&CLAIM_LIMITS).is_none());
        drop(batch);
        assert_eq!(lanes.pauses.in_effect(), 1);
        lanes.pauses.replace(Pauses::new(2, []));
        let next = lanes.checkouts().next(&CLAIM_LIMITS).expect("ready");
        assert_eq!(next.pauses.version, 2);
    }

    /// Checks out lanes that ask for this many rows each. Returns how many each may claim.
    fn claimed(rows: usize, sizes: &[usize]) -> Vec<usize> {
        let (lanes, _) = owning(sizes.len() as i16);
        let mut state = lanes.lock();
        state.unordered.ready = false;
        for (lane, size) in state.lanes.values_mut().zip(sizes) {
            lane.claim_size = *size;
        }
        drop(state);
        let limits = ClaimLimits {
            rows,
            tasks: 1,
            ..CLAIM_LIMITS
        };
        match lanes.checkouts().next(&limits).expect("all are ready").work {
            Work::Lanes(lanes) => lanes.iter().map(|lane| lane.most).collect(),
            Work::Unordered(_) => panic!("unordered rows are not ready"),
        }
    }

    #[test]
    fn the_lanes_of_a_batch_claim_equal_parts_and_no_more_than_they_ask_for() {
        assert_eq!(claimed(1000, &[1 << 16; 4]), [250; 4]);
        assert_eq!(
            claimed(1000, &[1 << 16; 3]),
            [333; 3],
            "no batch is larger than it may be"
        );
        assert_eq!(claimed(800, &[100, 1500]), [100, 400]);
        assert_eq!(claimed(1, &[50, 60]), [1, 1], "each lane makes progress");
    }
}
