//! Which lanes are ours: leased, renewed, shared with the other workers, checked out by one batch at a time.
//!
//! A worker process leases lanes under one *term*: an identity in `outbox.worker`, valid for one incarnation of
//! the server, renewed by one row. A term that was lost (expired, fenced, server restarted) is never continued;
//! the process registers anew, and whatever it still had in flight is refused by the fence.
//!
//! Invariant: a lane is checked out by at most one task at a time, and only its holder changes its floor.

mod checkout;
mod in_flight;
mod lane_state;
mod recently_published;
mod unordered;
mod watermark;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::boottime::BootInstant;
use crate::clock::Clock;
use crate::domain::floor::Floor;
use crate::domain::id_ranges::IdRanges;
use crate::domain::row::UNORDERED_LANE;
use crate::domain::watermark::{Sequence, WatermarkTracker};
use in_flight::InFlight;
use lane_state::{Lane, Unordered, WINDOW_MIN};

pub use checkout::{
    CheckedOutLane, Checkout, ClaimLimits, LaneReport, PollCheckout, PollSummary, UnorderedCheckout, Work,
};
pub use in_flight::{InFlightRanges, Record};
pub use recently_published::{RecentlyPublished, Sent};
pub use unordered::{LockedRows, UnorderedScan, UnorderedState};

/// One lease of this process: see the module's doc.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    pub worker: Uuid,
    /// When the server started: ids, locks and floors of another incarnation mean nothing here.
    pub incarnation: SystemTime,
    /// Counters from before the call that took or renewed the lease, by a clock that goes on while the machine is suspended.
    pub ends: BootInstant,
}

impl Term {
    /// Does its lease last longer than this from now?
    pub fn lasts(&self, left: Duration) -> bool {
        BootInstant::now() + left < self.ends
    }
}

/// A lane as taken from the database.
#[derive(Clone, Debug)]
pub struct TakenLane {
    pub lane: i16,
    pub epoch: i64,
    pub floor: i64,
    /// See [`CheckedOutLane::suspects`].
    pub maybe_sent: IdRanges,
    /// What is stored of them.
    pub stored_maybe_sent: Vec<i64>,
    pub maybe_sent_until: i64,
    /// It did not give the lane back.
    pub last_owner: Option<Uuid>,
    /// See [`CheckedOutLane::held_topics`].
    pub held_topics: BTreeSet<String>,
}

/// A lane that is handed back, with what its next owner should know.
#[derive(Clone, Debug, PartialEq)]
pub struct ReturnedLane {
    pub lane: i16,
    pub epoch: i64,
    pub floor: i64,
    /// IdRanges of ids that may have been sent, as they are stored.
    pub maybe_sent: Vec<i64>,
}

/// A lane whose stored floor is to follow.
#[derive(Clone, Debug, PartialEq)]
pub struct FloorUpdate {
    pub lane: i16,
    pub epoch: i64,
    pub floor: i64,
    /// All that is stored of it as suspect is done with.
    pub done: Option<Vec<i64>>,
}

/// A row that Kafka has and that could not be marked yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Acknowledged {
    pub lane: i16,
    pub epoch: i64,
    pub id: i64,
}

/// Where a lane stands after a hold was released.
#[derive(Clone, Copy, Debug)]
pub struct LoweredLane {
    pub epoch: i64,
    pub floor: i64,
}

#[derive(Debug, Default)]
struct State {
    term: Option<Term>,
    lanes: BTreeMap<i16, Lane>,
    unordered: Unordered,
    tracker: WatermarkTracker,
    highest_seen: i64,
    watermark_requested: bool,
    /// As it was at the last look at the writers.
    sequence: Option<Sequence>,
    served: u64,
    unordered_turn: bool,
}

/// The shared book of what this process owns.
#[derive(Debug, Default)]
pub struct Lanes {
    state: Mutex<State>,
    /// Something may have become ready, or a lane was checked in.
    changed: Notify,
    /// Checkouts under way, whatever their term.
    outstanding: AtomicUsize,
    /// The id sequence was restarted in the life of this process, and stored floors are yet to be built anew.
    floors_void: AtomicBool,
    in_flight: Mutex<InFlight>,
    pub clock: Arc<Clock>,
}

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is complete in itself; a panic elsewhere ends the process anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_flight(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something may have changed since the call.
    pub fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    pub fn wake_all(&self) {
        self.changed.notify_waiters();
    }

    pub fn term(&self) -> Option<Term> {
        self.lock().term
    }

    /// The term, if its lease lasts at least `left` from now.
    pub fn live_term(&self, left: Duration) -> Option<Term> {
        self.term().filter(|term| term.lasts(left))
    }

    pub fn owned(&self) -> usize {
        self.lock().lanes.len()
    }

    pub fn owns(&self, lane: i16) -> bool {
        self.lock().lanes.contains_key(&lane)
    }

    /// A new term: nothing of the old one is carried over.
    pub fn begin_term(&self, term: Term, unordered: UnorderedState) {
        let mut state = self.lock();
        *state = State {
            term: Some(term),
            ..State::default()
        };
        state.unordered = Unordered {
            stored: unordered,
            floor: Floor::at(unordered.floor),
            ready: true,
            window: WINDOW_MIN,
            ..Unordered::default()
        };
    }

    pub fn renewed(&self, ends: BootInstant) {
        if let Some(term) = &mut self.lock().term {
            term.ends = ends;
        }
        // Who found the rest of the lease too short may go on.
        self.changed.notify_waiters();
    }

    /// The term is over: a fence refused us, the lease ran out, or the server is another one.
    pub fn end_term(&self, worker: Uuid) -> bool {
        let mut state = self.lock();
        let ended = state.term.is_some_and(|term| term.worker == worker);
        if ended {
            *state = State::default();
        }
        drop(state);
        self.changed.notify_waiters();
        ended
    }

    pub fn add(&self, worker: Uuid, taken: &[TakenLane]) {
        let mut state = self.lock();
        if state.term.is_none_or(|term| term.worker != worker) {
            return;
        }
        for lane in taken {
            state.lanes.insert(lane.lane, Lane::from(lane));
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// A hold of a checked-out lane was released: look again from where it began. What it still holds is of `held_topics`; `None`: of
    /// no others than before.
    pub fn lower_floor(&self, term: &Term, lane: i16, lowered: LoweredLane, held_topics: Option<BTreeSet<String>>) {
        let mut state = self.lock();
        if state.term.is_none_or(|current| current.worker != term.worker) {
            return;
        }
        if let Some(lane_state) = state.lanes.get_mut(&lane) {
            lane_state.epoch = lowered.epoch;
            lane_state.floor.lower(lowered.floor);
            lane_state.stored_floor = lane_state.stored_floor.min(lowered.floor);
            if let Some(topics) = held_topics {
                lane_state.held_topics = Arc::new(topics);
            }
            lane_state.ready = true;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// When the next pause after `now` ends that something ready waits for. Whoever waits for anything else is woken by
    /// [`Lanes::changed`].
    pub fn next_ready_at(&self, now: Instant) -> Option<Instant> {
        let state = self.lock();
        let lanes = state.lanes.values().filter(|lane| lane.ready);
        let unordered = state.unordered.not_before.filter(|_| state.unordered.ready);
        let pauses = lanes.map(|lane| lane.not_before).chain(unordered);
        pauses.filter(|ends| *ends > now).min()
    }

    pub fn has_holds(&self) -> bool {
        let state = self.lock();
        state.unordered.stored.has_holds || state.lanes.values().any(|lane| !lane.held_topics.is_empty())
    }

    /// May a copy of this head of a hold have been sent before?
    pub fn may_have_been_sent(&self, lane: i16, id: i64) -> bool {
        let state = self.lock();
        if lane == UNORDERED_LANE {
            return id <= state.unordered.stored.maybe_sent_until;
        }
        state.lanes.get(&lane).is_some_and(|lane_state| {
            lane_state.maybe_sent.contains(id)
                || id <= lane_state.maybe_sent_until
                || lane_state.maybe_sent_ids.contains(&id)
        })
    }

    /// The head of a hold of this lane is about to be sent: until [`Lanes::close_heads`] the lane is not handed over. False: it is not ours,
    /// or about to go.
    pub fn open_head(&self, worker: Uuid, lane: i16) -> bool {
        let mut state = self.lock();
        let is_current = state.term.is_some_and(|term| term.worker == worker);
        let lane_state = state
            .lanes
            .get_mut(&lane)
            .filter(|lane_state| is_current && !lane_state.surplus);
        let Some(lane_state) = lane_state else { return false };
        lane_state.open_heads += 1;
        true
    }

    /// What became of so many heads is written.
    pub fn close_heads(&self, worker: Uuid, lane: i16, count: usize) {
        let mut state = self.lock();
        if state.term.is_some_and(|term| term.worker == worker)
            && let Some(lane_state) = state.lanes.get_mut(&lane)
        {
            lane_state.open_heads = lane_state.open_heads.saturating_sub(count);
        }
    }

    /// The lane's epoch, as it stands now.
    pub fn epoch(&self, lane: i16) -> Option<i64> {
        self.lock().lanes.get(&lane).map(|lane_state| lane_state.epoch)
    }

    /// What may have been sent of these lanes, those rows included, as it is to be stored: of lanes of which more is than was stored.
    pub fn maybe_sent_to_store(&self, unknown: &[(i16, i64)]) -> Vec<(i16, Vec<i64>)> {
        let state = self.lock();
        let mut lanes: Vec<i16> = unknown.iter().map(|(lane, _)| *lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let all_maybe_sent = lanes.into_iter().filter_map(|lane| {
            let lane_state = state.lanes.get(&lane)?;
            let of_lane = unknown.iter().filter(|(of, _)| *of == lane).map(|(_, id)| *id);
            let all_maybe_sent = lane_state.all_maybe_sent(of_lane);
            (all_maybe_sent != lane_state.stored_maybe_sent).then_some((lane, all_maybe_sent))
        });
        all_maybe_sent.collect()
    }

    /// The same of one lane, which is checked out.
    pub fn maybe_sent_of_lane_to_store(&self, lane: i16) -> Vec<(i16, Vec<i64>)> {
        let state = self.lock();
        let lane_state = state.lanes.get(&lane);
        let all_maybe_sent =
            lane_state.map(|lane_state| (lane_state.all_maybe_sent([]), &lane_state.stored_maybe_sent));
        let changed = all_maybe_sent.filter(|(all_maybe_sent, stored)| all_maybe_sent != *stored);
        changed
            .map(|(all_maybe_sent, _)| (lane, all_maybe_sent))
            .into_iter()
            .collect()
    }

    pub fn maybe_sent_stored(&self, worker: Uuid, stored: Vec<(i16, Vec<i64>)>) {
        let mut state = self.lock();
        if state.term.is_none_or(|term| term.worker != worker) {
            return;
        }
        for (lane, maybe_sent) in stored {
            if let Some(lane_state) = state.lanes.get_mut(&lane) {
                lane_state.stored_maybe_sent = maybe_sent;
            }
        }
    }

    pub fn remember_maybe_sent_id(&self, lane: i16, id: i64) {
        if let Some(lane_state) = self.lock().lanes.get_mut(&lane) {
            lane_state.maybe_sent_ids.insert(id);
        }
    }

    pub fn forget_maybe_sent_id(&self, lane: i16, id: i64) {
        if let Some(lane_state) = self.lock().lanes.get_mut(&lane) {
            lane_state.forget(id);
        }
    }

    /// Kafka has this row, which is unknown so far: somebody else has locked it, so it is marked later, and not sent again.
    pub fn remember_acknowledged(&self, worker: Uuid, lane: i16, id: i64) {
        let mut state = self.lock();
        if state.term.is_some_and(|term| term.worker == worker)
            && let Some(lane_state) = state.lanes.get_mut(&lane)
        {
            lane_state.acknowledged.insert(id);
        }
    }

    /// All of them that wait for their mark, with their lanes and the epochs of these.
    pub fn acknowledged(&self) -> Vec<Acknowledged> {
        let state = self.lock();
        let lanes = state.lanes.iter();
        let of_lane = |(lane, lane_state): (&i16, &Lane)| {
            let (lane, epoch) = (*lane, lane_state.epoch);
            let rows = lane_state
                .acknowledged
                .iter()
                .map(move |id| Acknowledged { lane, epoch, id: *id });
            rows.collect::<Vec<_>>()
        };
        lanes.flat_map(of_lane).collect()
    }

    /// Of one lane.
    pub fn acknowledged_of(&self, lane: i16) -> Vec<i64> {
        let state = self.lock();
        let lane_state = state.lanes.get(&lane);
        lane_state
            .map(|lane_state| lane_state.acknowledged.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Lanes whose floors have moved since they were stored, or of which nothing is suspect any more.
    pub fn floors_to_store(&self) -> Vec<FloorUpdate> {
        let state = self.lock();
        let moved = state.lanes.iter().filter_map(|(number, lane)| {
            let is_done =
                !lane.stored_maybe_sent.is_empty() && lane.maybe_sent.is_empty() && lane.maybe_sent_ids.is_empty();
            let floor = lane.floor.hard();
            (floor > lane.stored_floor || is_done).then(|| FloorUpdate {
                lane: *number,
                epoch: lane.epoch,
                floor,
                done: is_done.then(|| lane.stored_maybe_sent.clone()),
            })
        });
        moved.collect()
    }

    /// These could be stored, of those that were asked for.
    pub fn floors_stored(&self, asked: &[FloorUpdate], stored: &[(i16, i64, i64)]) {
        let mut state = self.lock();
        for (number, epoch, floor) in stored {
            let Some(lane) = state.lanes.get_mut(number).filter(|lane| lane.epoch == *epoch) else {
                continue;
            };
            if lane.floor.hard() >= *floor {
                lane.stored_floor = *floor;
            }
            let done = asked.iter().find(|moved| moved.lane == *number);
            // Unless a batch has written more of it meanwhile.
            if done.and_then(|moved| moved.done.as_ref()) == Some(&lane.stored_maybe_sent) {
                lane.stored_maybe_sent.clear();
            }
        }
    }

    /// Mark `count` lanes as leaving, idle ones first; or, with fewer to leave, let them stay again.
    pub fn set_surplus(&self, count: usize) {
        let mut state = self.lock();
        let mut order: Vec<_> = state
            .lanes
            .iter()
            .map(|(number, lane)| {
                // Who takes a lane over sends again what could not be marked.
                let waits_for_mark = !lane.acknowledged.is_empty();
                (!lane.surplus, lane.is_in_use(), waits_for_mark, lane.ready, *number)
            })
            .collect();
        order.sort_unstable();
        for (place, (.., number)) in order.iter().enumerate() {
            if let Some(lane) = state.lanes.get_mut(number) {
                lane.surplus = place < count;
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Are any lanes waiting to be given up?
    pub fn any_surplus(&self) -> bool {
        self.lock().lanes.values().any(|lane| lane.surplus)
    }

    /// Remove the leaving lanes of which nothing is under way, to be handed back.
    pub fn remove_surplus(&self) -> Vec<ReturnedLane> {
        self.remove_where(|lane| lane.surplus && !lane.is_in_use())
    }

    /// Remove every lane of which nothing is under way; how many are left.
    pub fn remove_idle(&self) -> (Vec<ReturnedLane>, usize) {
        let removed = self.remove_where(|lane| !lane.is_in_use());
        (removed, self.owned())
    }

    fn remove_where(&self, gone: impl Fn(&Lane) -> bool) -> Vec<ReturnedLane> {
        let mut state = self.lock();
        let mut removed = Vec::new();
        state.lanes.retain(|number, lane| {
            if !gone(lane) {
                return true;
            }
            removed.push(ReturnedLane {
                lane: *number,
                epoch: lane.epoch,
                floor: lane.floor.hard(),
                maybe_sent: lane.all_maybe_sent([]),
            });
            false
        });
        removed
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::domain::floor::ScanResult;
    use crate::domain::watermark::{Watermark, Writers};

    pub(crate) const CLAIM_LIMITS: ClaimLimits = ClaimLimits {
        rows: 1000,
        tasks: 2,
        lease_left: Duration::ZERO,
    };

    /// A term of a minute that owns the first lanes, each taken with these suspects.
    pub(crate) fn owning_maybe_sent(count: i16, maybe_sent: &[i64]) -> (Lanes, Term) {
        let lanes = Lanes::default();
        let term = Term {
            worker: Uuid::from_u128(1),
            incarnation: SystemTime::UNIX_EPOCH,
            ends: BootInstant::now() + Duration::from_secs(60),
        };
        lanes.begin_term(term, UnorderedState::default());
        let taken: Vec<_> = (0..count)
            .map(|lane| TakenLane {
                lane,
                epoch: 1,
                floor: 0,
                maybe_sent: IdRanges::from_flat(maybe_sent),
                stored_maybe_sent: maybe_sent.to_vec(),
                maybe_sent_until: 0,
                last_owner: None,
                held_topics: BTreeSet::new(),
            })
            .collect();
        lanes.add(term.worker, &taken);
        (lanes, term)
    }

    pub(crate) fn owning(count: i16) -> (Lanes, Term) {
        owning_maybe_sent(count, &[])
    }

    fn lanes_of(checkout: &Checkout) -> Vec<i16> {
        match &checkout.work {
            Work::Lanes(held) => held.iter().map(|h| h.lane).collect(),
            Work::Unordered(_) => vec![UNORDERED_LANE],
        }
    }

    fn take_lanes(lanes: &Lanes) -> Option<Checkout> {
        (0..2).find_map(|_| {
            lanes
                .checkout(&CLAIM_LIMITS)
                .filter(|c| matches!(c.work, Work::Lanes(_)))
        })
    }

    #[test]
    fn claims_are_looked_for_from_the_lowest_that_this_term_has_seen() {
        let (lanes, term) = owning(1);
        assert_eq!(lanes.claims_from(), 0);
        lanes.note_claims(term.worker, 7);
        // An older answer that comes late takes nothing back, nor does another term's count.
        lanes.note_claims(term.worker, 5);
        lanes.note_claims(Uuid::from_u128(2), 9);
        assert_eq!(lanes.claims_from(), 7);
        let work = (0..2)
            .find_map(|_| Some(lanes.checkout(&CLAIM_LIMITS)?.work).filter(|work| matches!(work, Work::Unordered(_))));
        assert!(matches!(work, Some(Work::Unordered(held)) if held.claims_from == 7));
        // Whether the lane was among those checked out above or not, it is free, and nobody knows of rows in it.
        let mut state = lanes.lock();
        state
            .lanes
            .values_mut()
            .for_each(|lane| (lane.busy, lane.ready) = (false, false));
        drop(state);
        assert_eq!(
            lanes
                .checkout_for_poll(&CLAIM_LIMITS)
                .expect("an idle lane")
                .claims_from,
            7
        );
        lanes.begin_term(term, UnorderedState::default());
        assert_eq!(lanes.claims_from(), 0, "another server may number anew");
    }

    #[test]
    fn a_lane_is_checked_out_once_until_it_is_checked_in() {
        let (lanes, term) = owning(4);
        let first = take_lanes(&lanes).expect("ready");
        let second = take_lanes(&lanes).expect("ready");
        let (a, b) = (lanes_of(&first), lanes_of(&second));
        assert!(a.iter().all(|lane| !b.contains(lane)), "{a:?} {b:?}");
        assert!(take_lanes(&lanes).is_none(), "all four are out");
        let report = a
            .iter()
            .map(|lane| LaneReport {
                lane: *lane,
                ..LaneReport::default()
            })
            .collect();
        lanes.checkin(&term, report);
        assert_eq!(lanes_of(&take_lanes(&lanes).expect("back")), a);
    }

    #[test]
    fn a_lane_stays_ours_while_the_head_of_a_hold_is_out_and_is_claimed_from_meanwhile() {
        let (lanes, term) = owning(2);
        assert!(lanes.open_head(term.worker, 0) && lanes.open_head(term.worker, 0));
        let out = take_lanes(&lanes).expect("ready");
        assert_eq!(lanes_of(&out), [0]);
        lanes.checkin(&term, vec![all_done(0, out.watermark)]);
        lanes.set_surplus(1);
        let surplus = |lanes: &Lanes| {
            lanes
                .lock()
                .lanes
                .iter()
                .find(|(_, lane)| lane.surplus)
                .map(|(number, _)| *number)
        };
        assert_eq!(surplus(&lanes), Some(1), "rather one of which nothing is under way");
        lanes.set_surplus(2);
        assert!(!lanes.open_head(term.worker, 0), "it is about to go");
        assert_eq!(lanes.remove_surplus().len(), 1);
        assert_eq!(lanes.remove_idle(), (Vec::new(), 1));
        lanes.close_heads(Uuid::from_u128(2), 0, 2);
        lanes.close_heads(term.worker, 0, 1);
        assert!(
            lanes.remove_surplus().is_empty(),
            "one is still out, and another term closes nothing"
        );
        lanes.close_heads(term.worker, 0, 1);
        assert_eq!(lanes.remove_surplus().len(), 1);
        assert!(!lanes.open_head(term.worker, 0), "it is gone");
    }

    #[test]
    fn a_lane_with_a_row_that_waits_for_its_mark_is_the_last_to_leave() {
        let (lanes, term) = owning(3);
        lanes.remember_acknowledged(Uuid::from_u128(2), 1, 30);
        assert!(lanes.acknowledged().is_empty(), "of another term");
        lanes.remember_acknowledged(term.worker, 0, 30);
        let waiting = Acknowledged {
            lane: 0,
            epoch: lanes.epoch(0).expect("ours"),
            id: 30,
        };
        assert_eq!(
            (lanes.acknowledged(), lanes.acknowledged_of(0)),
            (vec![waiting], vec![30])
        );
        lanes.set_surplus(2);
        let left: Vec<i16> = lanes.remove_surplus().iter().map(|given| given.lane).collect();
        assert_eq!(left, [1, 2], "its next owner would send that row again");
        lanes.forget_maybe_sent_id(0, 30);
        assert!(lanes.acknowledged().is_empty());
    }

    #[test]
    fn nothing_is_checked_out_under_a_lease_that_ends_too_soon() {
        let (lanes, _) = owning(4);
        lanes.renewed(BootInstant::now() + Duration::from_secs(5));
        let long = ClaimLimits {
            lease_left: Duration::from_secs(6),
            ..CLAIM_LIMITS
        };
        assert!(lanes.checkout(&long).is_none());
        assert!(lanes.checkout(&CLAIM_LIMITS).is_some());
    }

    #[test]
    fn what_a_lost_term_learned_changes_nothing() {
        let (lanes, old) = owning(1);
        let checkout = take_lanes(&lanes).expect("ready");
        assert!(lanes.end_term(old.worker));
        let (fresh, term) = owning(1);
        drop(fresh);
        lanes.begin_term(
            Term {
                worker: Uuid::from_u128(2),
                ..term
            },
            UnorderedState::default(),
        );
        lanes.checkin(
            &checkout.term,
            vec![LaneReport {
                lane: 0,
                highest_id: 9,
                ..LaneReport::default()
            }],
        );
        assert_eq!(lanes.gap(), 0);
        assert_eq!(lanes.owned(), 0);
    }

    /// Everything there was is published.
    pub(crate) fn all_done(lane: i16, watermark: Watermark) -> LaneReport {
        LaneReport {
            lane,
            scan: Some(ScanResult::of_everything(watermark)),
            ..LaneReport::default()
        }
    }

    /// All lanes are looked at, and have nothing below this horizon.
    pub(crate) fn idle_at(watermark: i64, count: i16) -> (Lanes, Term) {
        let (lanes, term) = owning(count);
        lanes.update_watermark(term.worker, |tracker| tracker.observe(watermark, &Writers::new()));
        while let Some(out) = take_lanes(&lanes) {
            let report = lanes_of(&out)
                .into_iter()
                .map(|lane| all_done(lane, out.watermark))
                .collect();
            lanes.checkin(&out.term, report);
        }
        (lanes, term)
    }

    fn numbers(poll: &PollCheckout) -> Vec<i16> {
        poll.lanes.iter().map(|held| held.lane).collect()
    }

    #[test]
    fn a_look_is_a_checkout_of_every_lane_that_has_nothing_from_the_lowest_floor_on() {
        let (lanes, term) = idle_at(50, 3);
        lanes.checkout_one(1, Duration::ZERO).expect("idle");
        lanes.lower_floor(&term, 1, LoweredLane { epoch: 2, floor: 10 }, None);
        lanes.checkin(
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
        let before = lanes.outstanding();
        let (_, held) = lanes.checkout_one(2, Duration::ZERO).expect("idle");
        let poll = lanes.checkout_for_poll(&CLAIM_LIMITS).expect("idle lanes");
        assert_eq!(numbers(&poll), [0, 1]);
        assert_eq!((poll.start, poll.most), (20, CLAIM_LIMITS.rows));
        assert!(
            lanes.checkout_one(0, Duration::ZERO).is_none(),
            "a floor is changed by its holder only"
        );
        assert_eq!(lanes.outstanding(), before + 2);
        lanes.put_back(&term, &[held]);
        lanes.put_back(&poll.term, &poll.lanes);
        assert_eq!(lanes.outstanding(), before);
        assert!(take_lanes(&lanes).is_none(), "nothing was learned: none is ready");
        assert_eq!(
            numbers(&lanes.checkout_for_poll(&CLAIM_LIMITS).expect("idle lanes")),
            [1, 2],
            "one is wanted"
        );
    }

    #[test]
    fn lanes_that_a_look_found_empty_are_free_while_the_others_are_still_at_work() {
        let (lanes, term) = idle_at(50, 2);
        let before = lanes.outstanding();
        let poll = lanes.checkout_for_poll(&CLAIM_LIMITS).expect("idle lanes");
        lanes.checkin_some(&term, vec![all_done(0, poll.watermark)]);
        assert_eq!(lanes.outstanding(), before + 1);
        assert_eq!(
            numbers(&lanes.checkout_for_poll(&CLAIM_LIMITS).expect("an idle lane")),
            [0]
        );
    }

    #[test]
    fn there_is_no_look_under_a_lease_that_ends_too_soon_or_at_what_is_ready() {
        let (lanes, term) = owning(2);
        assert!(lanes.checkout_for_poll(&CLAIM_LIMITS).is_none(), "all is ready");
        let (idle, _) = idle_at(50, 2);
        idle.renewed(BootInstant::now() + Duration::from_secs(5));
        let long = ClaimLimits {
            lease_left: Duration::from_secs(6),
            ..CLAIM_LIMITS
        };
        assert!(idle.checkout_for_poll(&long).is_none());
        assert!(lanes.end_term(term.worker) && lanes.checkout_for_poll(&CLAIM_LIMITS).is_none());
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
        lanes.checkin(&out.term, vec![report(0, 3)]);
        let out = take_lanes(&lanes).expect("the other lane");
        assert_eq!(lanes_of(&out), [1]);
        lanes.checkin(&term, vec![report(1, 0)]);
        let first = take_lanes(&lanes).expect("ready");
        assert_eq!(lanes_of(&first), [1]);
        let state = lanes.lock();
        assert_eq!((state.lanes[&0].window, state.lanes[&1].window), (6, 1));
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
            lanes.checkin(&term, report);
            if let Some(poll) = lanes.checkout_for_poll(&CLAIM_LIMITS) {
                let report = poll.lanes.iter().map(|held| LaneReport {
                    lane: held.lane,
                    ..LaneReport::default()
                });
                lanes.checkin(&term, report.collect());
            }
        }
        let state = lanes.lock();
        assert!(state.lanes[&0].window > 1000);
        assert_eq!(state.lanes[&1].window, WINDOW_MIN);
    }
}
