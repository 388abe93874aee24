//! Remembers what this process owns: its term, the lanes it has leased, and what is known of their rows.
//!
//! A worker process leases lanes under one [`Term`]: an identity in `outbox.worker`, valid for one incarnation of the server and
//! renewed by one row. Each part of the memory has a handle of its own, such as [`Lanes::checkouts`]. One mutex guards them all,
//! because a checkout reads term, watermark and floors at one instant.
//!
//! Invariant: a lane is checked out by at most one task at a time, and only that task moves its floor.

mod checkout;
mod floors;
mod holds;
mod in_flight;
mod lane;
mod maybe_sent;
mod ownership;
mod pauses;
mod recently_published;
mod unordered;
mod watermark;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use uuid::Uuid;

use self::in_flight::InFlight;
use self::lane::Lane;
use self::unordered::UnorderedLane;
use crate::boottime;
use crate::clock::Clock;
use crate::domain::lease::Term;
use crate::domain::watermark::{Sequence, WatermarkTracker};

pub use self::checkout::{Checkout, Checkouts, ClaimLimits, LaneReport, SentRows, Work};
pub use self::floors::Floors;
pub use self::holds::Holds;
pub use self::maybe_sent::{Acknowledged, MaybeSentRows};
pub use self::ownership::Ownership;
pub use self::pauses::{ObeyedPauses, obeying};
pub use self::recently_published::{RecentlyPublished, Sent};
pub use self::unordered::{LockedRows, Unordered, UnorderedScan};
pub use self::watermark::WatermarkState;

#[derive(Debug, Default)]
struct State {
    term: Option<Term>,
    lanes: BTreeMap<i16, Lane>,
    unordered: UnorderedLane,
    tracker: WatermarkTracker,
    /// The highest id that any claim has read.
    highest_claimed: i64,
    watermark_requested: bool,
    /// How ids were drawn at the last check of the watermark.
    sequence: Option<Sequence>,
    /// Counts checkouts of lanes, so that the least recently served lanes come first.
    served: u64,
    /// Lanes and unordered rows are checked out in turns.
    is_turn_of_unordered: bool,
}

#[derive(Debug, Default)]
pub struct Lanes {
    state: Mutex<State>,
    /// Notified when something may have become ready or a lane was checked in.
    changed: Notify,
    /// How many checkouts of any term have not been checked in.
    outstanding: AtomicUsize,
    /// The id sequence was restarted while this process ran, and stored floors have not been rebuilt yet.
    floors_are_void: AtomicBool,
    pub in_flight: InFlight,
    pub pauses: ObeyedPauses,
    pub clock: Arc<Clock>,
}

impl Lanes {
    pub fn ownership(&self) -> Ownership<'_> {
        Ownership(self)
    }

    pub fn checkouts(&self) -> Checkouts<'_> {
        Checkouts(self)
    }

    pub fn holds(&self) -> Holds<'_> {
        Holds(self)
    }

    pub fn maybe_sent(&self) -> MaybeSentRows<'_> {
        MaybeSentRows(self)
    }

    pub fn floors(&self) -> Floors<'_> {
        Floors(self)
    }

    pub fn unordered(&self) -> Unordered<'_> {
        Unordered(self)
    }

    pub fn watermark(&self) -> WatermarkState<'_> {
        WatermarkState(self)
    }

    pub fn term(&self) -> Option<Term> {
        self.lock().term
    }

    /// The term, if its lease lasts at least `left` from now.
    pub fn live_term(&self, left: Duration) -> Option<Term> {
        self.term().filter(|term| term.lasts(boottime::now(), left))
    }

    /// Waits until something may have changed since the call.
    pub fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    pub fn notify_all(&self) {
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is complete in itself, and a panic elsewhere ends the process anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, unless the term of this worker is over.
    fn of_term(&self, worker: Uuid) -> Option<MutexGuard<'_, State>> {
        let state = self.lock();
        let is_current = state.term.is_some_and(|term| term.worker == worker);
        is_current.then_some(state)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;
    use std::time::SystemTime;

    use super::lane::CLAIM_SIZE_MIN;
    use super::*;
    use crate::domain::checkout::PollCheckout;
    use crate::domain::floor::ScanResult;
    use crate::domain::id_ranges::IdRanges;
    use crate::domain::lease::{LoweredLane, TakenLane, UnorderedState};
    use crate::domain::maybe_sent::MaybeSent;
    use crate::domain::row::UNORDERED_LANE;
    use crate::domain::watermark::{Watermark, Writers};

    pub(crate) const CLAIM_LIMITS: ClaimLimits = ClaimLimits {
        rows: 1000,
        tasks: 2,
        lease_left: Duration::ZERO,
    };

    /// A term of a minute that owns the first lanes. In each of them, these ranges may have been sent.
    pub(crate) fn owning_maybe_sent(count: i16, maybe_sent: &[i64]) -> (Lanes, Term) {
        let lanes = Lanes::default();
        let term = Term {
            worker: Uuid::from_u128(1),
            incarnation: SystemTime::UNIX_EPOCH,
            ends: boottime::now() + Duration::from_secs(60),
        };
        lanes.ownership().begin_term(term, UnorderedState::default());
        let taken: Vec<_> = (0..count)
            .map(|lane| TakenLane {
                lane,
                epoch: 1,
                floor: 0,
                maybe_sent: MaybeSent {
                    ranges: IdRanges::from_flat(maybe_sent),
                    ..MaybeSent::default()
                },
                stored_maybe_sent: maybe_sent.to_vec(),
                last_owner: None,
                held_topics: BTreeSet::new(),
            })
            .collect();
        lanes.ownership().add(term.worker, &taken);
        (lanes, term)
    }

    pub(crate) fn owning(count: i16) -> (Lanes, Term) {
        owning_maybe_sent(count, &[])
    }

    fn lanes_of(checkout: &Checkout) -> Vec<i16> {
        match &checkout.work {
            Work::Lanes(lanes) => lanes.iter().map(|lane| lane.lane).collect(),
            Work::Unordered(_) => vec![UNORDERED_LANE],
        }
    }

    fn take_lanes(lanes: &Lanes) -> Option<Checkout> {
        (0..2).find_map(|_| {
            lanes
                .checkouts()
                .next(&CLAIM_LIMITS)
                .filter(|c| matches!(c.work, Work::Lanes(_)))
        })
    }

    #[test]
    fn claims_are_read_from_the_lowest_number_that_this_term_knows() {
        let (lanes, term) = owning(1);
        assert_eq!(lanes.unordered().claims_from(), 0);
        lanes.unordered().note_claims(term.worker, 7);
        // An older answer that comes late takes nothing back, nor does another term's count.
        lanes.unordered().note_claims(term.worker, 5);
        lanes.unordered().note_claims(Uuid::from_u128(2), 9);
        assert_eq!(lanes.unordered().claims_from(), 7);
        let work = (0..2).find_map(|_| {
            Some(lanes.checkouts().next(&CLAIM_LIMITS)?.work).filter(|work| matches!(work, Work::Unordered(_)))
        });
        assert!(matches!(work, Some(Work::Unordered(unordered)) if unordered.claims_from == 7));
        // The checkouts above may have included the lane. Make it idle, so that a poll includes it.
        let mut state = lanes.lock();
        state
            .lanes
            .values_mut()
            .for_each(|lane| (lane.usage.checked_out, lane.ready) = (false, false));
        drop(state);
        assert_eq!(
            lanes
                .checkouts()
                .for_poll(&CLAIM_LIMITS)
                .expect("an idle lane")
                .claims_from,
            7
        );
        lanes.ownership().begin_term(term, UnorderedState::default());
        assert_eq!(
            lanes.unordered().claims_from(),
            0,
            "another server may number claims from the start"
        );
    }

    #[test]
    fn a_lane_is_checked_out_once_until_it_is_checked_in() {
        let (lanes, term) = owning(4);
        let first = take_lanes(&lanes).expect("ready");
        let second = take_lanes(&lanes).expect("ready");
        let (a, b) = (lanes_of(&first), lanes_of(&second));
        assert!(a.iter().all(|lane| !b.contains(lane)), "{a:?} {b:?}");
        assert!(take_lanes(&lanes).is_none(), "all four are checked out");
        let report = a
            .iter()
            .map(|lane| LaneReport {
                lane: *lane,
                ..LaneReport::default()
            })
            .collect();
        lanes.checkouts().checkin(&term, report);
        assert_eq!(lanes_of(&take_lanes(&lanes).expect("checked in")), a);
    }

    #[test]
    fn a_lane_is_not_returned_while_the_head_of_a_hold_is_open_but_is_claimed_from() {
        let (lanes, term) = owning(2);
        assert!(lanes.holds().open_head(term.worker, 0) && lanes.holds().open_head(term.worker, 0));
        let out = take_lanes(&lanes).expect("ready");
        assert_eq!(lanes_of(&out), [0]);
        lanes.checkouts().checkin(&term, vec![all_done(0, out.watermark)]);
        lanes.ownership().set_surplus(1);
        let surplus = |lanes: &Lanes| {
            lanes
                .lock()
                .lanes
                .iter()
                .find(|(_, lane)| lane.usage.surplus)
                .map(|(number, _)| *number)
        };
        assert_eq!(surplus(&lanes), Some(1), "the lane that is not in use comes first");
        lanes.ownership().set_surplus(2);
        assert!(!lanes.holds().open_head(term.worker, 0), "it is about to be returned");
        assert_eq!(lanes.ownership().remove_surplus().len(), 1);
        assert_eq!(lanes.ownership().remove_idle(), (Vec::new(), 1));
        lanes.holds().close_heads(Uuid::from_u128(2), 0, 2);
        lanes.holds().close_heads(term.worker, 0, 1);
        assert!(
            lanes.ownership().remove_surplus().is_empty(),
            "one head is still open, and another term closes nothing"
        );
        lanes.holds().close_heads(term.worker, 0, 1);
        assert_eq!(lanes.ownership().remove_surplus().len(), 1);
        assert!(!lanes.holds().open_head(term.worker, 0), "it is gone");
    }

    #[test]
    fn a_lane_with_a_row_that_waits_for_its_mark_is_the_last_to_leave() {
        let (lanes, term) = owning(3);
        lanes.maybe_sent().remember_acknowledged(Uuid::from_u128(2), 1, 30);
        assert!(lanes.maybe_sent().acknowledged().is_empty(), "of another term");
        lanes.maybe_sent().remember_acknowledged(term.worker, 0, 30);
        let waiting = Acknowledged {
            lane: 0,
            epoch: lanes.ownership().epoch(0).expect("ours"),
            id: 30,
        };
        assert_eq!(
            (lanes.maybe_sent().acknowledged(), lanes.maybe_sent().acknowledged_of(0)),
            (vec![waiting], vec![30])
        );
        lanes.ownership().set_surplus(2);
        let left: Vec<i16> = lanes
            .ownership()
            .remove_surplus()
            .iter()
            .map(|returned| returned.lane)
            .collect();
        assert_eq!(left, [1, 2], "its next owner would send that row again");
        lanes.maybe_sent().forget(0, 30);
        assert!(lanes.maybe_sent().acknowledged().is_empty());
    }

    #[test]
    fn nothing_is_checked_out_under_a_lease_that_ends_too_soon() {
        let (lanes, _) = owning(4);
        lanes.ownership().renewed(boottime::now() + Duration::from_secs(5));
        let long = ClaimLimits {
            lease_left: Duration::from_secs(6),
            ..CLAIM_LIMITS
        };
        assert!(lanes.checkouts().next(&long).is_none());
        assert!(lanes.checkouts().next(&CLAIM_LIMITS).is_some());
    }

    #[test]
    fn what_a_lost_term_learned_changes_nothing() {
        let (lanes, old) = owning(1);
        let checkout = take_lanes(&lanes).expect("ready");
        assert!(lanes.ownership().end_term(old.worker));
        let (fresh, term) = owning(1);
        drop(fresh);
        lanes.ownership().begin_term(
            Term {
                worker: Uuid::from_u128(2),
                ..term
            },
            UnorderedState::default(),
        );
        lanes.checkouts().checkin(
            &checkout.term,
            vec![LaneReport {
                lane: 0,
                highest_id: 9,
                ..LaneReport::default()
            }],
        );
        assert_eq!(lanes.watermark().gap(), 0);
        assert_eq!(lanes.ownership().count(), 0);
    }

    /// The report of a lane whose rows are all published.
    pub(crate) fn all_done(lane: i16, watermark: Watermark) -> LaneReport {
        LaneReport {
            lane,
            scan: Some(ScanResult::of_everything(watermark)),
            ..LaneReport::default()
        }
    }

    /// All lanes were claimed from and have nothing below this watermark.
    pub(crate) fn idle_at(watermark: i64, count: i16) -> (Lanes, Term) {
        let (lanes, term) = owning(count);
        lanes
            .watermark()
            .update(term.worker, |tracker| tracker.observe(watermark, &Writers::new()));
        while let Some(out) = take_lanes(&lanes) {
            let report = lanes_of(&out)
                .into_iter()
                .map(|lane| all_done(lane, out.watermark))
                .collect();
            lanes.checkouts().checkin(&out.term, report);
        }
        (lanes, term)
    }

    fn numbers(poll: &PollCheckout) -> Vec<i16> {
        poll.lanes.iter().map(|lane| lane.lane).collect()
    }

    #[test]
    fn a_poll_checks_out_every_lane_that_has_nothing_from_the_lowest_floor_on() {
        let (lanes, term) = idle_at(50, 3);
        lanes.checkouts().one(1, Duration::ZERO).expect("idle");
        lanes
            .holds()
            .released(&term, 1, LoweredLane { epoch: 2, floor: 10 }, None);
        lanes.checkouts().checkin(
            &term,
            vec![all_done(
                1,
                Watermark {
                    hard: 20,
                    soft: 20,
                    generation: 0,
                },
            )],
        );
        let before = lanes.checkouts().outstanding();
        let (_, one) = lanes.checkouts().one(2, Duration::ZERO).expect("idle");
        let poll = lanes.checkouts().for_poll(&CLAIM_LIMITS).expect("idle lanes");
        assert_eq!(numbers(&poll), [0, 1]);
        assert_eq!((poll.start, poll.most), (20, CLAIM_LIMITS.rows));
        assert!(
            lanes.checkouts().one(0, Duration::ZERO).is_none(),
            "a floor is moved only by the task that has the lane"
        );
        assert_eq!(lanes.checkouts().outstanding(), before + 2);
        lanes.checkouts().put_back(&term, &[one]);
        lanes.checkouts().put_back(&poll.term, &poll.lanes);
        assert_eq!(lanes.checkouts().outstanding(), before);
        assert!(take_lanes(&lanes).is_none(), "nothing was found out: none is ready");
        assert_eq!(
            numbers(&lanes.checkouts().for_poll(&CLAIM_LIMITS).expect("idle lanes")),
            [1, 2],
            "a change of holds waits for lane 0"
        );
    }

    #[test]
    fn lanes_that_a_poll_found_empty_are_free_while_the_others_are_still_checked_out() {
        let (lanes, term) = idle_at(50, 2);
        let before = lanes.checkouts().outstanding();
        let poll = lanes.checkouts().for_poll(&CLAIM_LIMITS).expect("idle lanes");
        lanes.checkouts().checkin_some(&term, vec![all_done(0, poll.watermark)]);
        assert_eq!(lanes.checkouts().outstanding(), before + 1);
        assert_eq!(
            numbers(&lanes.checkouts().for_poll(&CLAIM_LIMITS).expect("an idle lane")),
            [0]
        );
    }

    #[test]
    fn there_is_no_poll_under_a_lease_that_ends_too_soon_or_of_what_is_ready() {
        let (lanes, term) = owning(2);
        assert!(lanes.checkouts().for_poll(&CLAIM_LIMITS).is_none(), "all is ready");
        let (idle, _) = idle_at(50, 2);
        idle.ownership().renewed(boottime::now() + Duration::from_secs(5));
        let long = ClaimLimits {
            lease_left: Duration::from_secs(6),
            ..CLAIM_LIMITS
        };
        assert!(idle.checkouts().for_poll(&long).is_none());
        assert!(lanes.ownership().end_term(term.worker) && lanes.checkouts().for_poll(&CLAIM_LIMITS).is_none());
    }

    #[test]
    fn a_lane_of_heavy_rows_asks_for_few_and_one_that_got_nothing_is_first_next_time() {
        let (lanes, term) = owning(2);
        let out = take_lanes(&lanes).expect("ready");
        let report = |lane, rows| LaneReport {
            lane,
            rows,
            hit_limit: true,
            over_budget: true,
            scan: Some(ScanResult {
                watermark: Watermark::default(),
                scanned_to: Some(0),
                lowest_pending: None,
            }),
            ..LaneReport::default()
        };
        lanes.checkouts().checkin(&out.term, vec![report(0, 3)]);
        let out = take_lanes(&lanes).expect("the other lane");
        assert_eq!(lanes_of(&out), [1]);
        lanes.checkouts().checkin(&term, vec![report(1, 0)]);
        let first = take_lanes(&lanes).expect("ready");
        assert_eq!(lanes_of(&first), [1]);
        let state = lanes.lock();
        assert_eq!((state.lanes[&0].claim_size, state.lanes[&1].claim_size), (6, 1));
    }

    #[test]
    fn a_deep_lane_asks_for_more_and_a_shallow_one_still_gets_its_turn() {
        let (lanes, term) = owning(2);
        for _ in 0..12 {
            let Some(out) = take_lanes(&lanes) else { continue };
            let report = lanes_of(&out)
                .into_iter()
                .map(|lane| LaneReport {
                    lane,
                    rows: if lane == 0 { 5000 } else { 1 },
                    hit_limit: lane == 0,
                    scan: Some(ScanResult {
                        watermark: Watermark::default(),
                        scanned_to: Some(0),
                        lowest_pending: None,
                    }),
                    ..LaneReport::default()
                })
                .collect();
            lanes.checkouts().checkin(&term, report);
            if let Some(poll) = lanes.checkouts().for_poll(&CLAIM_LIMITS) {
                let report = poll.lanes.iter().map(|lane| LaneReport {
                    lane: lane.lane,
                    ..LaneReport::default()
                });
                lanes.checkouts().checkin(&term, report.collect());
            }
        }
        let state = lanes.lock();
        assert!(state.lanes[&0].claim_size > 1000);
        assert_eq!(state.lanes[&1].claim_size, CLAIM_SIZE_MIN);
    }
}
