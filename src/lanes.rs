//! Which lanes are ours: leased, renewed, shared with the other workers, checked out by one batch at a time.
//!
//! A worker process leases lanes under one *term*: an identity in `outbox.worker`, valid for one incarnation of
//! the server, renewed by one row. A term that was lost (expired, fenced, server restarted) is never continued;
//! the process registers anew, and whatever it still had in flight is refused by the fence.
//!
//! Invariant: a lane is checked out by at most one task at a time, and only its holder changes its floor.

mod book;
mod checkout;
mod horizon;
mod in_flight;
mod keyless;
mod recently_published;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::boottime::BootInstant;
use crate::clock::Clock;
use crate::domain::floor::Floor;
use crate::domain::id_ranges::Ranges;
use crate::domain::row::KEYLESS;
use crate::domain::watermark::{Horizon, Sequence};
use book::{Keyless, Lane, WINDOW_MIN};
use in_flight::InFlight;

pub use checkout::{Appetite, Checkout, Held, HeldKeyless, Lookout, Overview, Seen, Work};
pub use in_flight::{Record, SentRanges};
pub use keyless::{KeylessStored, KeylessToRaise, Unmarked};
pub use recently_published::{RecentlyPublished, Sent};

/// One lease of this process: see the module's doc.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    pub worker: Uuid,
    /// When the server started: ids, locks and floors of another incarnation mean nothing here.
    pub incarnation: SystemTime,
    /// Counted from before the call that took or renewed the lease, by a clock that goes on while the machine is suspended.
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
pub struct Taken {
    pub lane: i16,
    pub epoch: i64,
    pub floor: i64,
    /// See [`Held::suspects`].
    pub suspects: Ranges,
    /// What is stored of them.
    pub stored_suspects: Vec<i64>,
    pub suspect_until: i64,
    /// It did not give the lane back.
    pub last_owner: Option<Uuid>,
    /// See [`Held::held_topics`].
    pub held_topics: BTreeSet<String>,
}

/// A lane that is handed back, with what its next owner should know.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    pub lane: i16,
    pub epoch: i64,
    pub floor: i64,
    /// Ranges of ids that may have been sent, as they are stored.
    pub suspects: Vec<i64>,
}

/// A lane whose stored floor is to follow.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
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
pub struct Lowered {
    pub epoch: i64,
    pub floor: i64,
}

#[derive(Debug, Default)]
struct Inner {
    term: Option<Term>,
    lanes: BTreeMap<i16, Lane>,
    keyless: Keyless,
    horizon: Horizon,
    highest_seen: i64,
    horizon_wanted: bool,
    /// As it was at the last look at the writers.
    sequence: Option<Sequence>,
    served: u64,
    keyless_turn: bool,
}

/// The shared book of what this process owns.
#[derive(Debug, Default)]
pub struct Lanes {
    inner: Mutex<Inner>,
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
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change under the lock is complete in itself; a panic elsewhere ends the process anyway.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub fn begin_term(&self, term: Term, keyless: KeylessStored) {
        let mut inner = self.lock();
        *inner = Inner {
            term: Some(term),
            ..Inner::default()
        };
        inner.keyless = Keyless {
            stored: keyless,
            floor: Floor::at(keyless.floor),
            ready: true,
            window: WINDOW_MIN,
            ..Keyless::default()
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
        let mut inner = self.lock();
        let ended = inner.term.is_some_and(|term| term.worker == worker);
        if ended {
            *inner = Inner::default();
        }
        drop(inner);
        self.changed.notify_waiters();
        ended
    }

    pub fn add(&self, worker: Uuid, taken: &[Taken]) {
        let mut inner = self.lock();
        if inner.term.is_none_or(|term| term.worker != worker) {
            return;
        }
        for lane in taken {
            inner.lanes.insert(lane.lane, Lane::from(lane));
        }
        drop(inner);
        self.changed.notify_waiters();
    }

    /// A hold of a checked-out lane was released: look again from where it began. What it still holds is of `held_topics`; `None`: of
    /// no others than before.
    pub fn lower_floor(&self, term: &Term, lane: i16, lowered: Lowered, held_topics: Option<BTreeSet<String>>) {
        let mut inner = self.lock();
        if inner.term.is_none_or(|current| current.worker != term.worker) {
            return;
        }
        if let Some(book) = inner.lanes.get_mut(&lane) {
            book.epoch = lowered.epoch;
            book.floor.lower(lowered.floor);
            book.stored_floor = book.stored_floor.min(lowered.floor);
            if let Some(topics) = held_topics {
                book.held_topics = Arc::new(topics);
            }
            book.ready = true;
        }
        drop(inner);
        self.changed.notify_waiters();
    }

    /// When the next pause after `now` ends that something ready waits for. Whoever waits for anything else is woken by
    /// [`Lanes::changed`].
    pub fn pause_ends(&self, now: Instant) -> Option<Instant> {
        let inner = self.lock();
        let lanes = inner.lanes.values().filter(|lane| lane.ready);
        let keyless = inner.keyless.not_before.filter(|_| inner.keyless.ready);
        let pauses = lanes.map(|lane| lane.not_before).chain(keyless);
        pauses.filter(|ends| *ends > now).min()
    }

    pub fn has_holds(&self) -> bool {
        let inner = self.lock();
        inner.keyless.stored.has_holds || inner.lanes.values().any(|lane| !lane.held_topics.is_empty())
    }

    /// May a copy of this head of a hold have been sent before?
    pub fn is_suspect_head(&self, lane: i16, id: i64) -> bool {
        let inner = self.lock();
        if lane == KEYLESS {
            return id <= inner.keyless.stored.suspect_until;
        }
        inner
            .lanes
            .get(&lane)
            .is_some_and(|book| book.suspects.contains(id) || id <= book.suspect_until || book.unknown.contains(&id))
    }

    /// The head of a hold of this lane is about to be sent: until [`Lanes::close_heads`] the lane is not handed over. False: it is not ours,
    /// or about to go.
    pub fn open_head(&self, worker: Uuid, lane: i16) -> bool {
        let mut inner = self.lock();
        let is_current = inner.term.is_some_and(|term| term.worker == worker);
        let book = inner.lanes.get_mut(&lane).filter(|book| is_current && !book.leaving);
        let Some(book) = book else { return false };
        book.open_heads += 1;
        true
    }

    /// What became of so many heads is written.
    pub fn close_heads(&self, worker: Uuid, lane: i16, count: usize) {
        let mut inner = self.lock();
        if inner.term.is_some_and(|term| term.worker == worker)
            && let Some(book) = inner.lanes.get_mut(&lane)
        {
            book.open_heads = book.open_heads.saturating_sub(count);
        }
    }

    /// The lane's epoch, as it stands now.
    pub fn epoch(&self, lane: i16) -> Option<i64> {
        self.lock().lanes.get(&lane).map(|book| book.epoch)
    }

    /// What may have been sent of these lanes, those rows included, as it is to be stored: of lanes of which more is than was stored.
    pub fn suspects_to_store(&self, unknown: &[(i16, i64)]) -> Vec<(i16, Vec<i64>)> {
        let inner = self.lock();
        let mut lanes: Vec<i16> = unknown.iter().map(|(lane, _)| *lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let doubts = lanes.into_iter().filter_map(|lane| {
            let book = inner.lanes.get(&lane)?;
            let of_lane = unknown.iter().filter(|(of, _)| *of == lane).map(|(_, id)| *id);
            let doubts = book.doubts(of_lane);
            (doubts != book.stored_suspects).then_some((lane, doubts))
        });
        doubts.collect()
    }

    /// The same of one lane, which is checked out.
    pub fn doubts_to_store(&self, lane: i16) -> Vec<(i16, Vec<i64>)> {
        let inner = self.lock();
        let book = inner.lanes.get(&lane);
        let doubts = book.map(|book| (book.doubts([]), &book.stored_suspects));
        let changed = doubts.filter(|(doubts, stored)| doubts != *stored);
        changed.map(|(doubts, _)| (lane, doubts)).into_iter().collect()
    }

    pub fn suspects_stored(&self, worker: Uuid, stored: Vec<(i16, Vec<i64>)>) {
        let mut inner = self.lock();
        if inner.term.is_none_or(|term| term.worker != worker) {
            return;
        }
        for (lane, suspects) in stored {
            if let Some(book) = inner.lanes.get_mut(&lane) {
                book.stored_suspects = suspects;
            }
        }
    }

    pub fn remember_unknown(&self, lane: i16, id: i64) {
        if let Some(book) = self.lock().lanes.get_mut(&lane) {
            book.unknown.insert(id);
        }
    }

    pub fn forget_unknown(&self, lane: i16, id: i64) {
        if let Some(book) = self.lock().lanes.get_mut(&lane) {
            book.forget(id);
        }
    }

    /// Kafka has this row, which is unknown so far: somebody else has locked it, so it is marked later, and not sent again.
    pub fn remember_acknowledged(&self, worker: Uuid, lane: i16, id: i64) {
        let mut inner = self.lock();
        if inner.term.is_some_and(|term| term.worker == worker)
            && let Some(book) = inner.lanes.get_mut(&lane)
        {
            book.acknowledged.insert(id);
        }
    }

    /// All of them that wait for their mark, with their lanes and the epochs of these.
    pub fn acknowledged(&self) -> Vec<Acknowledged> {
        let inner = self.lock();
        let lanes = inner.lanes.iter();
        let of_lane = |(lane, book): (&i16, &Lane)| {
            let (lane, epoch) = (*lane, book.epoch);
            let rows = book
                .acknowledged
                .iter()
                .map(move |id| Acknowledged { lane, epoch, id: *id });
            rows.collect::<Vec<_>>()
        };
        lanes.flat_map(of_lane).collect()
    }

    /// Of one lane.
    pub fn acknowledged_of(&self, lane: i16) -> Vec<i64> {
        let inner = self.lock();
        let book = inner.lanes.get(&lane);
        book.map(|book| book.acknowledged.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Lanes whose floors have moved since they were stored, or of which nothing is suspect any more.
    pub fn floors_to_store(&self) -> Vec<Moved> {
        let inner = self.lock();
        let moved = inner.lanes.iter().filter_map(|(number, lane)| {
            let is_done = !lane.stored_suspects.is_empty() && lane.suspects.is_empty() && lane.unknown.is_empty();
            let floor = lane.floor.hard();
            (floor > lane.stored_floor || is_done).then(|| Moved {
                lane: *number,
                epoch: lane.epoch,
                floor,
                done: is_done.then(|| lane.stored_suspects.clone()),
            })
        });
        moved.collect()
    }

    /// These could be stored, of those that were asked for.
    pub fn floors_stored(&self, asked: &[Moved], stored: &[(i16, i64, i64)]) {
        let mut inner = self.lock();
        for (number, epoch, floor) in stored {
            let Some(lane) = inner.lanes.get_mut(number).filter(|lane| lane.epoch == *epoch) else {
                continue;
            };
            if lane.floor.hard() >= *floor {
                lane.stored_floor = *floor;
            }
            let done = asked.iter().find(|moved| moved.lane == *number);
            // Unless a batch has written more of it meanwhile.
            if done.and_then(|moved| moved.done.as_ref()) == Some(&lane.stored_suspects) {
                lane.stored_suspects.clear();
            }
        }
    }

    /// Mark `count` lanes as leaving, idle ones first; or, with fewer to leave, let them stay again.
    pub fn set_leaving(&self, count: usize) {
        let mut inner = self.lock();
        let mut order: Vec<_> = inner
            .lanes
            .iter()
            .map(|(number, lane)| {
                // Who takes a lane over sends again what could not be marked.
                let waits_for_mark = !lane.acknowledged.is_empty();
                (!lane.leaving, lane.is_in_use(), waits_for_mark, lane.ready, *number)
            })
            .collect();
        order.sort_unstable();
        for (place, (.., number)) in order.iter().enumerate() {
            if let Some(lane) = inner.lanes.get_mut(number) {
                lane.leaving = place < count;
            }
        }
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Are any lanes waiting to be given up?
    pub fn any_leaving(&self) -> bool {
        self.lock().lanes.values().any(|lane| lane.leaving)
    }

    /// Remove the leaving lanes of which nothing is under way, to be handed back.
    pub fn remove_leaving(&self) -> Vec<Given> {
        self.remove_where(|lane| lane.leaving && !lane.is_in_use())
    }

    /// Remove every lane of which nothing is under way; how many are left.
    pub fn remove_idle(&self) -> (Vec<Given>, usize) {
        let removed = self.remove_where(|lane| !lane.is_in_use());
        (removed, self.owned())
    }

    fn remove_where(&self, gone: impl Fn(&Lane) -> bool) -> Vec<Given> {
        let mut inner = self.lock();
        let mut removed = Vec::new();
        inner.lanes.retain(|number, lane| {
            if !gone(lane) {
                return true;
            }
            removed.push(Given {
                lane: *number,
                epoch: lane.epoch,
                floor: lane.floor.hard(),
                suspects: lane.doubts([]),
            });
            false
        });
        removed
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::domain::floor::Sight;
    use crate::domain::watermark::{Settled, Writers};

    pub(crate) const APPETITE: Appetite = Appetite {
        rows: 1000,
        tasks: 2,
        lease_left: Duration::ZERO,
    };

    /// A term of a minute that owns the first lanes, each taken with these suspects.
    pub(crate) fn owning_suspect(count: i16, suspects: &[i64]) -> (Lanes, Term) {
        let lanes = Lanes::default();
        let term = Term {
            worker: Uuid::from_u128(1),
            incarnation: SystemTime::UNIX_EPOCH,
            ends: BootInstant::now() + Duration::from_secs(60),
        };
        lanes.begin_term(term, KeylessStored::default());
        let taken: Vec<_> = (0..count)
            .map(|lane| Taken {
                lane,
                epoch: 1,
                floor: 0,
                suspects: Ranges::from_flat(suspects),
                stored_suspects: suspects.to_vec(),
                suspect_until: 0,
                last_owner: None,
                held_topics: BTreeSet::new(),
            })
            .collect();
        lanes.add(term.worker, &taken);
        (lanes, term)
    }

    pub(crate) fn owning(count: i16) -> (Lanes, Term) {
        owning_suspect(count, &[])
    }

    fn lanes_of(checkout: &Checkout) -> Vec<i16> {
        match &checkout.work {
            Work::Lanes(held) => held.iter().map(|h| h.lane).collect(),
            Work::Keyless(_) => vec![KEYLESS],
        }
    }

    fn take_lanes(lanes: &Lanes) -> Option<Checkout> {
        (0..2).find_map(|_| lanes.checkout(&APPETITE).filter(|c| matches!(c.work, Work::Lanes(_))))
    }

    #[test]
    fn claims_are_looked_for_from_the_lowest_that_this_term_has_seen() {
        let (lanes, term) = owning(1);
        assert_eq!(lanes.claims_from(), 0);
        lanes.saw_claims(term.worker, 7);
        // An older answer that comes late takes nothing back, nor does another term's count.
        lanes.saw_claims(term.worker, 5);
        lanes.saw_claims(Uuid::from_u128(2), 9);
        assert_eq!(lanes.claims_from(), 7);
        let work =
            (0..2).find_map(|_| Some(lanes.checkout(&APPETITE)?.work).filter(|work| matches!(work, Work::Keyless(_))));
        assert!(matches!(work, Some(Work::Keyless(held)) if held.claims_from == 7));
        // Whether the lane was among those checked out above or not, it is free, and nobody knows of rows in it.
        let mut inner = lanes.lock();
        inner
            .lanes
            .values_mut()
            .for_each(|lane| (lane.busy, lane.ready) = (false, false));
        drop(inner);
        assert_eq!(lanes.checkout_idle(&APPETITE).expect("an idle lane").claims_from, 7);
        lanes.begin_term(term, KeylessStored::default());
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
        let seen = a
            .iter()
            .map(|lane| Seen {
                lane: *lane,
                ..Seen::default()
            })
            .collect();
        lanes.checkin(&term, seen);
        assert_eq!(lanes_of(&take_lanes(&lanes).expect("back")), a);
    }

    #[test]
    fn a_lane_stays_ours_while_the_head_of_a_hold_is_out_and_is_claimed_from_meanwhile() {
        let (lanes, term) = owning(2);
        assert!(lanes.open_head(term.worker, 0) && lanes.open_head(term.worker, 0));
        let out = take_lanes(&lanes).expect("ready");
        assert_eq!(lanes_of(&out), [0]);
        lanes.checkin(&term, vec![all_done(0, out.settled)]);
        lanes.set_leaving(1);
        let leaving = |lanes: &Lanes| {
            lanes
                .lock()
                .lanes
                .iter()
                .find(|(_, lane)| lane.leaving)
                .map(|(number, _)| *number)
        };
        assert_eq!(leaving(&lanes), Some(1), "rather one of which nothing is under way");
        lanes.set_leaving(2);
        assert!(!lanes.open_head(term.worker, 0), "it is about to go");
        assert_eq!(lanes.remove_leaving().len(), 1);
        assert_eq!(lanes.remove_idle(), (Vec::new(), 1));
        lanes.close_heads(Uuid::from_u128(2), 0, 2);
        lanes.close_heads(term.worker, 0, 1);
        assert!(
            lanes.remove_leaving().is_empty(),
            "one is still out, and another term closes nothing"
        );
        lanes.close_heads(term.worker, 0, 1);
        assert_eq!(lanes.remove_leaving().len(), 1);
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
        lanes.set_leaving(2);
        let left: Vec<i16> = lanes.remove_leaving().iter().map(|given| given.lane).collect();
        assert_eq!(left, [1, 2], "its next owner would send that row again");
        lanes.forget_unknown(0, 30);
        assert!(lanes.acknowledged().is_empty());
    }

    #[test]
    fn nothing_is_checked_out_under_a_lease_that_ends_too_soon() {
        let (lanes, _) = owning(4);
        lanes.renewed(BootInstant::now() + Duration::from_secs(5));
        let long = Appetite {
            lease_left: Duration::from_secs(6),
            ..APPETITE
        };
        assert!(lanes.checkout(&long).is_none());
        assert!(lanes.checkout(&APPETITE).is_some());
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
            KeylessStored::default(),
        );
        lanes.checkin(
            &checkout.term,
            vec![Seen {
                lane: 0,
                highest_id: 9,
                ..Seen::default()
            }],
        );
        assert_eq!(lanes.gap(), 0);
        assert_eq!(lanes.owned(), 0);
    }

    /// Everything there was is published.
    pub(crate) fn all_done(lane: i16, settled: Settled) -> Seen {
        Seen {
            lane,
            sight: Some(Sight::of_everything(settled)),
            ..Seen::default()
        }
    }

    /// All lanes are looked at, and have nothing below this horizon.
    pub(crate) fn idle_at(settled: i64, count: i16) -> (Lanes, Term) {
        let (lanes, term) = owning(count);
        lanes.with_horizon(term.worker, |horizon| horizon.look(settled, &Writers::new()));
        while let Some(out) = take_lanes(&lanes) {
            let seen = lanes_of(&out)
                .into_iter()
                .map(|lane| all_done(lane, out.settled))
                .collect();
            lanes.checkin(&out.term, seen);
        }
        (lanes, term)
    }

    fn numbers(lookout: &Lookout) -> Vec<i16> {
        lookout.lanes.iter().map(|held| held.lane).collect()
    }

    #[test]
    fn a_look_is_a_checkout_of_every_lane_that_has_nothing_from_the_lowest_floor_on() {
        let (lanes, term) = idle_at(50, 3);
        lanes.checkout_one(1, Duration::ZERO).expect("idle");
        lanes.lower_floor(&term, 1, Lowered { epoch: 2, floor: 10 }, None);
        lanes.checkin(
            &term,
            vec![all_done(
                1,
                Settled {
                    hard: 20,
                    soft: 20,
                    generation: 0,
                },
            )],
        );
        let before = lanes.outstanding();
        let (_, held) = lanes.checkout_one(2, Duration::ZERO).expect("idle");
        let lookout = lanes.checkout_idle(&APPETITE).expect("idle lanes");
        assert_eq!(numbers(&lookout), [0, 1]);
        assert_eq!((lookout.start, lookout.most), (20, APPETITE.rows));
        assert!(
            lanes.checkout_one(0, Duration::ZERO).is_none(),
            "a floor is changed by its holder only"
        );
        assert_eq!(lanes.outstanding(), before + 2);
        lanes.put_back(&term, &[held]);
        lanes.put_back(&lookout.term, &lookout.lanes);
        assert_eq!(lanes.outstanding(), before);
        assert!(take_lanes(&lanes).is_none(), "nothing was learned: none is ready");
        assert_eq!(
            numbers(&lanes.checkout_idle(&APPETITE).expect("idle lanes")),
            [1, 2],
            "one is wanted"
        );
    }

    #[test]
    fn lanes_that_a_look_found_empty_are_free_while_the_others_are_still_at_work() {
        let (lanes, term) = idle_at(50, 2);
        let before = lanes.outstanding();
        let lookout = lanes.checkout_idle(&APPETITE).expect("idle lanes");
        lanes.checkin_some(&term, vec![all_done(0, lookout.settled)]);
        assert_eq!(lanes.outstanding(), before + 1);
        assert_eq!(numbers(&lanes.checkout_idle(&APPETITE).expect("an idle lane")), [0]);
    }

    #[test]
    fn there_is_no_look_under_a_lease_that_ends_too_soon_or_at_what_is_ready() {
        let (lanes, term) = owning(2);
        assert!(lanes.checkout_idle(&APPETITE).is_none(), "all is ready");
        let (idle, _) = idle_at(50, 2);
        idle.renewed(BootInstant::now() + Duration::from_secs(5));
        let long = Appetite {
            lease_left: Duration::from_secs(6),
            ..APPETITE
        };
        assert!(idle.checkout_idle(&long).is_none());
        assert!(lanes.end_term(term.worker) && lanes.checkout_idle(&APPETITE).is_none());
    }

    #[test]
    fn a_lane_of_heavy_rows_asks_for_few_and_one_that_got_nothing_is_first_next_time() {
        let (lanes, term) = owning(2);
        let out = take_lanes(&lanes).expect("ready");
        let seen = |lane, rows| Seen {
            lane,
            rows,
            full: true,
            overweight: true,
            sight: Some(Sight {
                settled: Settled::default(),
                cut_at: Some(0),
                lowest_left: None,
            }),
            ..Seen::default()
        };
        lanes.checkin(&out.term, vec![seen(0, 3)]);
        let out = take_lanes(&lanes).expect("the other lane");
        assert_eq!(lanes_of(&out), [1]);
        lanes.checkin(&term, vec![seen(1, 0)]);
        let first = take_lanes(&lanes).expect("ready");
        assert_eq!(lanes_of(&first), [1]);
        let inner = lanes.lock();
        assert_eq!((inner.lanes[&0].window, inner.lanes[&1].window), (6, 1));
    }

    #[test]
    fn a_deep_lane_asks_for_more_and_a_shallow_one_still_gets_its_turn() {
        let (lanes, term) = owning(2);
        for _ in 0..12 {
            let Some(out) = take_lanes(&lanes) else { continue };
            let seen = lanes_of(&out)
                .into_iter()
                .map(|lane| Seen {
                    lane,
                    rows: if lane == 0 { 5000 } else { 1 },
                    full: lane == 0,
                    sight: Some(Sight {
                        settled: Settled::default(),
                        cut_at: Some(0),
                        lowest_left: None,
                    }),
                    ..Seen::default()
                })
                .collect();
            lanes.checkin(&term, seen);
            if let Some(lookout) = lanes.checkout_idle(&APPETITE) {
                let seen = lookout.lanes.iter().map(|held| Seen {
                    lane: held.lane,
                    ..Seen::default()
                });
                lanes.checkin(&term, seen.collect());
            }
        }
        let inner = lanes.lock();
        assert!(inner.lanes[&0].window > 1000);
        assert_eq!(inner.lanes[&1].window, WINDOW_MIN);
    }
}
