//! What a batch takes of the book, and gives back: the lanes that are ready, those that seem to have nothing, the rows without one.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Lanes, State, Term};
use crate::domain::floor::ScanResult;
use crate::domain::id_ranges::IdRanges;
use crate::domain::row::UNORDERED_LANE;
use crate::domain::watermark::Watermark;

/// One lane of a checkout.
#[derive(Clone, Debug)]
pub struct CheckedOutLane {
    pub lane: i16,
    pub epoch: i64,
    pub floor: i64,
    /// Where the claim starts: the floor, or above it while the holders of the checkout are in progress.
    pub start: i64,
    /// Where the claim is cut short, if there is so much to walk over. All up to here is settled.
    pub scan_end: Option<i64>,
    pub most: usize,
    /// Rows in these ranges may have been sent by an owner before us that could not say.
    pub maybe_sent: IdRanges,
    pub maybe_sent_until: i64,
    pub maybe_sent_ids: HashSet<i64>,
    /// Of the unknown, those that Kafka has: somebody else had locked them when they were to be marked.
    pub acknowledged: HashSet<i64>,
    /// Of these some rows are held back, or all.
    pub held_topics: Arc<BTreeSet<String>>,
}

/// The unordered rows, of which every task may claim some.
#[derive(Clone, Copy, Debug)]
pub struct UnorderedCheckout {
    pub floor: i64,
    /// See [`CheckedOutLane::start`].
    pub start: i64,
    /// See [`CheckedOutLane::scan_end`].
    pub scan_end: Option<i64>,
    pub most: usize,
    pub maybe_sent_until: i64,
    pub has_holds: bool,
    /// See [`Lanes::claims_from`].
    pub claims_from: i64,
}

/// What a task may claim now.
#[derive(Clone, Debug)]
pub enum Work {
    Lanes(Vec<CheckedOutLane>),
    Unordered(UnorderedCheckout),
}

impl Work {
    /// Of all that is claimed together, from where the highest starts.
    fn highest_start(&self) -> i64 {
        match self {
            Work::Lanes(held) => held.iter().map(|held| held.start).max().unwrap_or(0),
            Work::Unordered(held) => held.start,
        }
    }
}

/// A checkout: the work, and under which lease and horizon it may be done.
#[derive(Clone, Debug)]
pub struct Checkout {
    pub term: Term,
    /// The horizon before the claim: see [`ScanResult::settled`].
    pub watermark: Watermark,
    /// A claim of lanes counts only if none of these transactions had ended: they may have ids at or below where it starts.
    pub bypassed: Vec<i64>,
    pub work: Work,
}

/// Every lane not known to have something, checked out to see whether it has; and where to look for that.
#[derive(Clone, Debug)]
pub struct PollCheckout {
    pub term: Term,
    /// See [`Checkout::settled`].
    pub watermark: Watermark,
    /// See [`Checkout::holders`].
    pub bypassed: Vec<i64>,
    pub lanes: Vec<CheckedOutLane>,
    /// The lowest floor among them, and of the unordered rows where nothing is known of those either.
    pub start: i64,
    /// What is more than so many rows is claimed lane by lane.
    pub most: usize,
    pub has_holds: bool,
    /// See [`Lanes::claims_from`].
    pub claims_from: i64,
    /// Of the floor of the unordered rows, where the look starts no higher than that.
    pub unordered_epoch: Option<i64>,
}

/// What a look shows beside the rows of its lanes.
#[derive(Clone, Copy, Debug, Default)]
pub struct PollSummary {
    /// Of those without a lane that are neither published nor dead nor held nor delayed, whoever has claimed them.
    pub lowest_unordered: Option<i64>,
}

/// What came of one lane of a checkout.
#[derive(Clone, Debug, Default)]
pub struct LaneReport {
    pub lane: i16,
    pub rows: usize,
    pub hit_limit: bool,
    /// It was cut short where it had walked far enough, not by its limit; and there.
    pub span_ended: bool,
    pub resume_at: i64,
    pub took: Duration,
    /// The byte budget left some of its rows behind.
    pub over_budget: bool,
    /// Reading it took so long that publishing it in time was at risk.
    pub slow: bool,
    /// Absent where the claim failed: then nothing was learned.
    pub scan: Option<ScanResult>,
    pub highest_id: i64,
    pub published: Vec<i64>,
    /// May have been sent, and are not published: from now on known by id.
    pub maybe_sent_ids: Vec<i64>,
    /// See [`CheckedOutLane::acknowledged`].
    pub acknowledged: Vec<i64>,
    /// Of these it now holds rows back.
    pub held_topics: BTreeSet<String>,
    /// PollResult again only after this long.
    pub pause: Option<Duration>,
}

/// How much one checkout may ask for.
#[derive(Clone, Copy, Debug)]
pub struct ClaimLimits {
    pub rows: usize,
    pub tasks: usize,
    /// The lease must last at least this much longer, or publishing could outlive it.
    pub lease_left: Duration,
}

impl Lanes {
    /// Check out what is ready: some lanes, or the rows without one, in turns.
    pub fn checkout(&self, claim_limits: &ClaimLimits) -> Option<Checkout> {
        let now = Instant::now();
        let mut state = self.lock();
        let term = state.term.filter(|term| term.lasts(claim_limits.lease_left))?;
        let watermark = state.tracker.watermark();
        state.unordered_turn = !state.unordered_turn;
        let work = if state.unordered_turn {
            state
                .checkout_unordered(now, claim_limits)
                .or_else(|| state.checkout_lanes(now, claim_limits))
        } else {
            state
                .checkout_lanes(now, claim_limits)
                .or_else(|| state.checkout_unordered(now, claim_limits))
        }?;
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        Some(Checkout {
            term,
            watermark,
            bypassed: state.tracker.bypassed_below(work.highest_start()),
            work,
        })
    }

    /// Check out one lane by name, for a change of its holds. `None`: not ours, or busy.
    pub fn checkout_one(&self, lane: i16, lease_left: Duration) -> Option<(Term, CheckedOutLane)> {
        let mut state = self.lock();
        let term = state.term.filter(|term| term.lasts(lease_left))?;
        let State { lanes, tracker, .. } = &mut *state;
        let lane_book = lanes.get_mut(&lane)?;
        lane_book.change_waiting = lane_book.busy;
        if lane_book.busy {
            return None;
        }
        lane_book.busy = true;
        let held = lane_book.held(lane, 1, tracker);
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        Some((term, held))
    }

    /// Check out every lane that is not known to be ready. `None`: there is none.
    pub fn checkout_for_poll(&self, claim_limits: &ClaimLimits) -> Option<PollCheckout> {
        let now = Instant::now();
        let mut state = self.lock();
        let term = state.term.filter(|term| term.lasts(claim_limits.lease_left))?;
        let watermark = state.tracker.watermark();
        // Also while a batch of them is out: what that one holds is claimed, and others need not wait for it.
        let unordered = (!state.unordered.ready).then_some((state.unordered.floor, state.unordered.stored.epoch));
        let State { lanes, tracker, .. } = &mut *state;
        let lanes: Vec<CheckedOutLane> = lanes
            .iter_mut()
            .filter(|(_, lane)| !lane.ready && lane.is_free(now))
            .map(|(number, lane)| {
                lane.busy = true;
                CheckedOutLane {
                    // A look has a bound of its own.
                    scan_end: None,
                    ..lane.held(*number, claim_limits.rows, tracker)
                }
            })
            .collect();
        let lowest = lanes.iter().map(|held| held.start).min()?;
        let start = unordered.map_or(lowest, |(floor, _)| lowest.min(floor.start(tracker)));
        let bypassed = tracker.bypassed_below(start);
        let has_holds = state.unordered.stored.has_holds || lanes.iter().any(|held| !held.held_topics.is_empty());
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        Some(PollCheckout {
            term,
            watermark,
            bypassed,
            start,
            most: claim_limits.rows,
            has_holds,
            lanes,
            claims_from: state.unordered.claims_from,
            unordered_epoch: unordered.map(|(_, epoch)| epoch),
        })
    }

    /// What a look was answered that was not cut short.
    pub fn poll_answered(&self, poll: &PollCheckout, summary: &PollSummary) {
        let mut state = self.lock();
        if state.term.is_none_or(|term| term.worker != poll.term.worker) {
            return;
        }
        if let Some(epoch) = poll.unordered_epoch {
            let scan = ScanResult {
                lowest_pending: summary.lowest_unordered,
                ..ScanResult::of_everything(poll.watermark)
            };
            state.unordered.raise_floor(epoch, scan);
        }
    }

    /// Give a checkout back with what was learned.
    pub fn checkin(&self, term: &Term, report: Vec<LaneReport>) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.checkin_some(term, report);
    }

    /// Give some lanes of a checkout back; the rest of it is still out.
    pub fn checkin_some(&self, term: &Term, report: Vec<LaneReport>) {
        let now = Instant::now();
        let mut state = self.lock();
        if state.term.is_none_or(|current| current.worker != term.worker) {
            return;
        }
        for report in report {
            state.highest_seen = state.highest_seen.max(report.highest_id);
            if report.lane == UNORDERED_LANE {
                state.unordered.checkin(&report, now);
            } else if let Some(lane) = state.lanes.get_mut(&report.lane) {
                lane.checkin(&report, now);
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Give lanes of a checkout back as they were: nothing was learned of them.
    pub fn put_back(&self, term: &Term, lanes: &[CheckedOutLane]) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        let mut state = self.lock();
        if state.term.is_some_and(|current| current.worker == term.worker) {
            for held in lanes {
                if let Some(lane) = state.lanes.get_mut(&held.lane) {
                    lane.busy = false;
                }
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// How many checkouts are under way.
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Acquire)
    }
}

/// How many rows each lane of a batch may claim: an equal part, and at least one. A lane that asks for fewer leaves room in the batch. No
/// other lane gets that room, because a lane asks for few rows only until it fills a claim: it doubles what it asks for each time.
fn claim_quota(rows: usize, lanes: usize) -> usize {
    (rows / lanes).max(1)
}

impl State {
    fn checkout_lanes(&mut self, now: Instant, claim_limits: &ClaimLimits) -> Option<Work> {
        let mut ready: Vec<_> = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.ready && lane.is_free(now))
            .map(|(number, lane)| (lane.served, *number))
            .collect();
        if ready.is_empty() {
            return None;
        }
        // The least recently served lanes come first. The rest is left to the other tasks.
        ready.sort_unstable();
        ready.truncate(self.lanes.len().div_ceil(claim_limits.tasks));
        let quota = claim_quota(claim_limits.rows, ready.len());
        self.served += 1;
        let served = self.served;
        let held = ready
            .iter()
            .filter_map(|(_, number)| {
                let lane = self.lanes.get_mut(number)?;
                lane.busy = true;
                lane.served = served;
                Some(lane.held(*number, lane.window.min(quota), &self.tracker))
            })
            .collect();
        Some(Work::Lanes(held))
    }

    fn checkout_unordered(&mut self, now: Instant, claim_limits: &ClaimLimits) -> Option<Work> {
        let unordered = &mut self.unordered;
        let due = unordered.not_before.is_none_or(|at| at <= now);
        if !unordered.ready || !due || unordered.busy >= claim_limits.tasks {
            return None;
        }
        unordered.busy += 1;
        let start = unordered.floor.start(&self.tracker).max(unordered.resume);
        Some(Work::Unordered(UnorderedCheckout {
            floor: unordered.floor.hard(),
            start,
            scan_end: unordered.span.scan_end(start, self.tracker.watermark()),
            most: unordered.window.min(claim_limits.rows),
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
    use crate::domain::watermark::Writers;
    use crate::lanes::tests::{CLAIM_LIMITS, all_done, idle_at, owning};

    #[test]
    fn a_look_raises_the_floor_of_the_rows_without_a_lane_where_it_asks_for_them() {
        let (lanes, term) = idle_at(50, 1);
        let unordered_floor = || lanes.unordered_floor().0.hard();
        lanes.lock().unordered.ready = false;
        let look = |summary: PollSummary| {
            let poll = lanes.checkout_for_poll(&CLAIM_LIMITS).expect("an idle lane");
            lanes.poll_answered(&poll, &summary);
            lanes.checkin(&term, vec![all_done(0, poll.watermark)]);
            poll.start
        };
        assert_eq!(look(found(Some(20))), 0);
        assert_eq!(unordered_floor(), 19);
        assert_eq!(look(found(None)), 19);
        assert_eq!(unordered_floor(), 50);
        lanes.update_watermark(term.worker, |tracker| tracker.observe(60, &Writers::new()));
        lanes.lock().unordered.ready = true;
        assert_eq!(look(found(None)), 50);
        assert_eq!(unordered_floor(), 50, "the poll did not ask for those");
        lanes.lock().unordered.ready = false;
        let poll = lanes.checkout_for_poll(&CLAIM_LIMITS).expect("an idle lane");
        lanes.unordered_floor_read(term.worker, 5, 1);
        lanes.poll_answered(&poll, &found(None));
        assert_eq!(unordered_floor(), 5, "another worker has lowered it in the meantime");
        lanes.put_back(&term, &poll.lanes);
        lanes.lock().unordered.ready = false;
        let poll = lanes.checkout_for_poll(&CLAIM_LIMITS).expect("an idle lane");
        let other = PollCheckout {
            term: Term {
                worker: Uuid::from_u128(2),
                ..term
            },
            ..poll.clone()
        };
        lanes.poll_answered(&other, &found(None));
        assert_eq!(unordered_floor(), 5, "the poll of another term raises nothing");
        lanes.poll_answered(&poll, &found(None));
        assert_eq!(unordered_floor(), 60);
    }

    /// A poll that found this row as the lowest without a lane.
    fn found(lowest_unordered: Option<i64>) -> PollSummary {
        PollSummary { lowest_unordered }
    }

    /// Checks lanes out that ask for so many rows each; how many each may claim.
    fn claimed(rows: usize, windows: &[usize]) -> Vec<usize> {
        let (lanes, _) = owning(windows.len() as i16);
        let mut state = lanes.lock();
        state.unordered.ready = false;
        for (lane, window) in state.lanes.values_mut().zip(windows) {
            lane.window = *window;
        }
        drop(state);
        let limits = ClaimLimits {
            rows,
            tasks: 1,
            ..CLAIM_LIMITS
        };
        match lanes.checkout(&limits).expect("all are ready").work {
            Work::Lanes(held) => held.iter().map(|held| held.most).collect(),
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
        assert_eq!(claimed(1, &[50, 60]), [1, 1], "each lane moves on");
    }
}
