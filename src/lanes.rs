//! Which lanes are ours: leased, renewed, shared with the other workers, checked out by one batch at a time.
//!
//! A worker process leases lanes under one *term*: an identity in `outbox.worker`, valid for one incarnation of
//! the server, renewed by one row. A term that was lost (expired, fenced, server restarted) is never continued;
//! the process registers anew, and whatever it still had in flight is refused by the fence.
//!
//! Invariant: a lane is checked out by at most one task at a time, and only its holder changes its floor.

mod book;
pub mod keeper;
pub mod share;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::clock::Clock;
use crate::floor::{Floor, Horizon, Settled, Sight};
use crate::message::KEYLESS;
use book::{Keyless, Lane, WINDOW_MIN};

/// One lease of this process: see the module's doc.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    pub worker: Uuid,
    /// When the server started: ids, locks and floors of another incarnation mean nothing here.
    pub incarnation: SystemTime,
    /// On our monotonic clock, counted from before the call that took or renewed the lease.
    pub ends: Instant,
}

/// A lane as taken from the database.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub lane: i16,
    pub epoch: i64,
    pub floor: i64,
    pub suspect_rows: i32,
    pub suspect_until: i64,
    pub recovered: bool,
    pub has_holds: bool,
}

/// Where a lane stands after a hold was released.
#[derive(Clone, Copy, Debug)]
pub struct Lowered {
    pub epoch: i64,
    pub floor: i64,
}

/// The stored state of the rows without a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KeylessStored {
    pub floor: i64,
    pub epoch: i64,
    /// Up to this id any row may have been sent before a failover lost its mark.
    pub suspect_until: i64,
    pub has_holds: bool,
}

#[derive(Debug, Default)]
struct Inner {
    term: Option<Term>,
    lanes: BTreeMap<i16, Lane>,
    keyless: Keyless,
    horizon: Horizon,
    highest_seen: i64,
    horizon_wanted: bool,
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
    pub clock: Arc<Clock>,
}

/// One lane of a checkout.
#[derive(Clone, Debug)]
pub struct Held {
    pub lane: i16,
    pub epoch: i64,
    pub floor: i64,
    /// Where the claim starts: the floor, or above it while the holders of the checkout are in progress.
    pub start: i64,
    pub most: usize,
    pub suspect_rows: usize,
    pub suspect_until: i64,
    pub unknown: HashSet<i64>,
    pub has_holds: bool,
}

/// The rows without a lane, of which every task may claim some.
#[derive(Clone, Copy, Debug)]
pub struct HeldKeyless {
    pub floor: i64,
    /// See [`Held::start`].
    pub start: i64,
    pub most: usize,
    pub suspect_until: i64,
    pub has_holds: bool,
    /// See [`Lanes::claims_from`].
    pub claims_from: i64,
}

/// What a task may claim now.
#[derive(Clone, Debug)]
pub enum Work {
    Lanes(Vec<Held>),
    Keyless(HeldKeyless),
}

/// A checkout: the work, and under which lease and horizon it may be done.
#[derive(Clone, Debug)]
pub struct Checkout {
    pub term: Term,
    /// The horizon before the claim: see [`Sight::settled`].
    pub settled: Settled,
    /// A claim of lanes counts only if none of these transactions had ended.
    pub holders: Vec<i64>,
    pub work: Work,
}

/// What came of one lane of a checkout.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub lane: i16,
    pub rows: usize,
    pub full: bool,
    /// The byte budget left some of its rows behind.
    pub overweight: bool,
    /// Reading it took so long that publishing it in time was at risk.
    pub slow: bool,
    /// Absent where the claim failed: then nothing was learned.
    pub sight: Option<Sight>,
    pub highest_id: i64,
    pub published: Vec<i64>,
    /// May have been sent, and are not published: from now on known by id.
    pub unknown: Vec<i64>,
    /// How many rows were not known by id: so far has the count of suspect rows come.
    pub counted: usize,
    pub holds_added: bool,
    /// Look again only after this long.
    pub pause: Option<Duration>,
}

/// Every lane not known to have something, checked out to see whether it has; and where to look for that.
#[derive(Clone, Debug)]
pub struct Lookout {
    pub term: Term,
    /// See [`Checkout::settled`].
    pub settled: Settled,
    /// See [`Checkout::holders`].
    pub holders: Vec<i64>,
    pub lanes: Vec<Held>,
    /// The lowest floor among them, and of the rows without a lane where nothing is known of those either.
    pub start: i64,
    /// What is more than so many rows is claimed lane by lane.
    pub most: usize,
    pub has_holds: bool,
    /// See [`Lanes::claims_from`].
    pub claims_from: i64,
}

/// How much one checkout may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Appetite {
    pub rows: usize,
    pub tasks: usize,
    /// The lease must last at least this much longer, or publishing could outlive it.
    pub lease_left: Duration,
}

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change under the lock is complete in itself; a panic elsewhere ends the process anyway.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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
        let now = Instant::now();
        self.term().filter(|term| now + left < term.ends)
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

    pub fn renewed(&self, ends: Instant) {
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

    /// Check out what is ready: some lanes, or the rows without one, in turns.
    pub fn checkout(&self, appetite: &Appetite) -> Option<Checkout> {
        let now = Instant::now();
        let mut inner = self.lock();
        let term = inner.term.filter(|term| now + appetite.lease_left < term.ends)?;
        let settled = inner.horizon.settled();
        inner.keyless_turn = !inner.keyless_turn;
        let work = if inner.keyless_turn {
            inner
                .checkout_keyless(now, appetite)
                .or_else(|| inner.checkout_lanes(now, appetite))
        } else {
            inner
                .checkout_lanes(now, appetite)
                .or_else(|| inner.checkout_keyless(now, appetite))
        }?;
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        Some(Checkout {
            term,
            settled,
            holders: inner.horizon.holders(),
            work,
        })
    }

    /// Check out one lane by name, for a change of its holds. `None`: not ours, or busy.
    pub fn checkout_one(&self, lane: i16, lease_left: Duration) -> Option<Checkout> {
        let now = Instant::now();
        let mut inner = self.lock();
        let term = inner.term.filter(|term| now + lease_left < term.ends)?;
        let (settled, holders) = (inner.horizon.settled(), inner.horizon.holders());
        let lane_book = inner.lanes.get_mut(&lane)?;
        lane_book.wanted = lane_book.busy;
        if lane_book.busy {
            return None;
        }
        lane_book.busy = true;
        let work = Work::Lanes(vec![lane_book.held(lane, 1, settled)]);
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        Some(Checkout {
            term,
            settled,
            holders,
            work,
        })
    }

    /// Give a checkout back with what was learned.
    pub fn checkin(&self, term: &Term, seen: Vec<Seen>) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.checkin_some(term, seen);
    }

    /// Give some lanes of a checkout back; the rest of it is still out.
    pub fn checkin_some(&self, term: &Term, seen: Vec<Seen>) {
        let now = Instant::now();
        let mut inner = self.lock();
        if inner.term.is_none_or(|current| current.worker != term.worker) {
            return;
        }
        for seen in seen {
            inner.highest_seen = inner.highest_seen.max(seen.highest_id);
            if seen.lane == KEYLESS {
                inner.keyless.checkin(&seen, now);
            } else if let Some(lane) = inner.lanes.get_mut(&seen.lane) {
                lane.checkin(&seen, now);
            }
        }
        drop(inner);
        self.changed.notify_waiters();
    }

    /// How many checkouts are under way.
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Acquire)
    }

    /// A hold of a checked-out lane was released: look again from where it began.
    pub fn lower_floor(&self, term: &Term, lane: i16, lowered: Lowered, has_holds: bool) {
        let mut inner = self.lock();
        if inner.term.is_none_or(|current| current.worker != term.worker) {
            return;
        }
        if let Some(book) = inner.lanes.get_mut(&lane) {
            book.epoch = lowered.epoch;
            book.floor.lower(lowered.floor);
            book.stored_floor = book.stored_floor.min(lowered.floor);
            book.has_holds = has_holds;
            book.ready = true;
        }
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Check out every lane that is not known to be ready. `None`: there is none.
    pub fn checkout_idle(&self, appetite: &Appetite) -> Option<Lookout> {
        let now = Instant::now();
        let mut inner = self.lock();
        let term = inner.term.filter(|term| now + appetite.lease_left < term.ends)?;
        let (settled, holders) = (inner.horizon.settled(), inner.horizon.holders());
        // Also while a batch of them is out: what that one holds is claimed, and others need not wait for it.
        let keyless = (!inner.keyless.ready).then_some(inner.keyless.floor);
        let lanes: Vec<Held> = inner
            .lanes
            .iter_mut()
            .filter(|(_, lane)| !lane.ready && lane.is_free(now))
            .map(|(number, lane)| {
                lane.busy = true;
                lane.held(*number, appetite.rows, settled)
            })
            .collect();
        let lowest = lanes.iter().map(|held| held.start).min()?;
        let start = keyless.map_or(lowest, |floor| lowest.min(floor.start(settled)));
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        Some(Lookout {
            term,
            settled,
            holders,
            start,
            most: appetite.rows,
            has_holds: inner.keyless.stored.has_holds || lanes.iter().any(|held| held.has_holds),
            lanes,
            claims_from: inner.keyless.claims_from,
        })
    }

    /// Give a checkout back of which nothing was learned.
    pub fn put_back(&self, lookout: &Lookout) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        let mut inner = self.lock();
        if inner.term.is_some_and(|term| term.worker == lookout.term.worker) {
            for held in &lookout.lanes {
                if let Some(lane) = inner.lanes.get_mut(&held.lane) {
                    lane.busy = false;
                }
            }
        }
        drop(inner);
        self.changed.notify_waiters();
    }

    /// There may be rows without a lane.
    pub fn try_keyless(&self) {
        self.lock().keyless.ready = true;
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

    /// How many ids lie between the soft horizon and the highest id claimed: what every claim reads again.
    pub fn gap(&self) -> i64 {
        let inner = self.lock();
        if inner.horizon_wanted {
            return i64::MAX;
        }
        inner.highest_seen - inner.horizon.settled().soft
    }

    /// Floors are too far behind to look cheaply: move the horizon whatever was claimed here.
    pub fn want_horizon(&self) {
        self.lock().horizon_wanted = true;
        self.changed.notify_waiters();
    }

    /// Work on the horizon of this term; ignored if the term is over.
    pub fn with_horizon(&self, worker: Uuid, change: impl FnOnce(&mut Horizon)) {
        let mut inner = self.lock();
        if inner.term.is_some_and(|term| term.worker == worker) {
            change(&mut inner.horizon);
            inner.horizon_wanted = false;
        }
    }

    /// A holder of this generation's soft horizon has ended.
    pub fn harden(&self, worker: Uuid, generation: u64) {
        self.with_horizon(worker, |horizon| horizon.harden(generation));
    }

    /// The horizon, and what its soft part rests on.
    pub fn horizon(&self) -> (Settled, Vec<i64>) {
        let inner = self.lock();
        (inner.horizon.settled(), inner.horizon.holders())
    }

    pub fn settled(&self) -> Settled {
        self.lock().horizon.settled()
    }

    /// What the soft horizon rests on.
    pub fn holders(&self) -> Vec<i64> {
        self.lock().horizon.holders()
    }

    pub fn has_holds(&self) -> bool {
        let inner = self.lock();
        inner.keyless.stored.has_holds || inner.lanes.values().any(|lane| lane.has_holds)
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
            .is_some_and(|book| book.suspect_rows > 0 || id <= book.suspect_until || book.unknown.contains(&id))
    }

    pub fn remember_unknown(&self, lane: i16, id: i64) {
        if let Some(book) = self.lock().lanes.get_mut(&lane) {
            book.unknown.insert(id);
        }
    }

    pub fn forget_unknown(&self, lane: i16, id: i64) {
        if let Some(book) = self.lock().lanes.get_mut(&lane) {
            book.unknown.remove(&id);
        }
    }

    /// Floor and epoch of the rows without a lane, as this process knows them.
    pub fn keyless_floor(&self) -> (Floor, i64) {
        let inner = self.lock();
        (inner.keyless.floor, inner.keyless.stored.epoch)
    }

    /// Has the floor of the rows without a lane moved since it was read?
    pub fn keyless_moved(&self) -> bool {
        let inner = self.lock();
        inner.keyless.floor.hard() > inner.keyless.stored.floor
    }

    /// What the database says of the rows without a lane. Another process may have lowered the floor.
    pub fn keyless_read(&self, worker: Uuid, stored: KeylessStored) {
        let mut inner = self.lock();
        if inner.term.is_none_or(|term| term.worker != worker) {
            return;
        }
        if inner.keyless.stored.epoch != stored.epoch {
            inner.keyless.floor = Floor::at(stored.floor);
            inner.keyless.ready = true;
        }
        inner.keyless.stored = stored;
    }

    /// Raise the keyless floor by what its own look at the table saw, under `epoch`.
    pub fn raise_keyless_floor(&self, worker: Uuid, epoch: i64, sight: Sight) {
        let mut inner = self.lock();
        if inner.term.is_some_and(|term| term.worker == worker) && inner.keyless.stored.epoch == epoch {
            inner.keyless.floor.advance(sight);
        }
    }

    /// No claim of rows without a lane has a lower number, nor ever will: claims are numbered in turn.
    pub fn claims_from(&self) -> i64 {
        self.lock().keyless.claims_from
    }

    /// The lowest number of any claim that one of ours has seen.
    pub fn saw_claims(&self, worker: Uuid, lowest: i64) {
        let mut inner = self.lock();
        if inner.term.is_some_and(|term| term.worker == worker) {
            inner.keyless.claims_from = inner.keyless.claims_from.max(lowest);
        }
    }

    /// Floors that have moved since they were stored: (lane, epoch, floor).
    pub fn floors_to_store(&self) -> Vec<(i16, i64, i64)> {
        let inner = self.lock();
        inner
            .lanes
            .iter()
            .map(|(number, lane)| (*number, lane.epoch, lane.floor.hard(), lane.stored_floor))
            .filter(|(.., floor, stored)| floor > stored)
            .map(|(number, epoch, floor, _)| (number, epoch, floor))
            .collect()
    }

    pub fn floors_stored(&self, stored: &[(i16, i64, i64)]) {
        let mut inner = self.lock();
        for (number, epoch, floor) in stored {
            if let Some(lane) = inner.lanes.get_mut(number)
                && lane.epoch == *epoch
                && lane.floor.hard() >= *floor
            {
                lane.stored_floor = *floor;
            }
        }
    }

    /// Mark `count` lanes as leaving, idle ones first; or, with fewer to leave, let them stay again.
    pub fn set_leaving(&self, count: usize) {
        let mut inner = self.lock();
        let mut order: Vec<_> = inner
            .lanes
            .iter()
            .map(|(number, lane)| (!lane.leaving, lane.busy, lane.ready, *number))
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

    /// Remove the leaving lanes that no batch is using, to be handed back: (lane, epoch, floor, suspect rows).
    pub fn remove_leaving(&self, lane_batch: usize) -> Vec<(i16, i64, i64, i32)> {
        self.remove_where(lane_batch, |lane| lane.leaving && !lane.busy)
    }

    /// Remove every lane that no batch is using; how many are still busy.
    pub fn remove_idle(&self, lane_batch: usize) -> (Vec<(i16, i64, i64, i32)>, usize) {
        let removed = self.remove_where(lane_batch, |lane| !lane.busy);
        (removed, self.owned())
    }

    fn remove_where(&self, lane_batch: usize, gone: impl Fn(&Lane) -> bool) -> Vec<(i16, i64, i64, i32)> {
        let mut inner = self.lock();
        let mut removed = Vec::new();
        inner.lanes.retain(|number, lane| {
            if !gone(lane) {
                return true;
            }
            // Rows known by id become rows counted from the head again, among others that lie between them.
            let suspect = if lane.unknown.is_empty() {
                lane.suspect_rows
            } else {
                (lane.suspect_rows + lane.unknown.len()).max(lane_batch)
            };
            removed.push((*number, lane.epoch, lane.floor.hard(), suspect as i32));
            false
        });
        removed
    }
}

impl Inner {
    fn checkout_lanes(&mut self, now: Instant, appetite: &Appetite) -> Option<Work> {
        let mut ready: Vec<_> = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.ready && lane.is_free(now))
            .map(|(number, lane)| (lane.served, *number))
            .collect();
        if ready.is_empty() {
            return None;
        }
        // Longest unserved first; leave some for the other tasks.
        ready.sort_unstable();
        ready.truncate(self.lanes.len().div_ceil(appetite.tasks));
        let wanted: usize = ready.iter().map(|(_, number)| self.lanes[number].window).sum();
        self.served += 1;
        let (served, settled) = (self.served, self.horizon.settled());
        let held = ready
            .iter()
            .filter_map(|(_, number)| {
                let lane = self.lanes.get_mut(number)?;
                lane.busy = true;
                lane.served = served;
                let most = if wanted > appetite.rows {
                    (lane.window * appetite.rows / wanted).max(1)
                } else {
                    lane.window
                };
                Some(lane.held(*number, most, settled))
            })
            .collect();
        Some(Work::Lanes(held))
    }

    fn checkout_keyless(&mut self, now: Instant, appetite: &Appetite) -> Option<Work> {
        let keyless = &mut self.keyless;
        let due = keyless.not_before.is_none_or(|at| at <= now);
        if !keyless.ready || !due || keyless.busy >= appetite.tasks {
            return None;
        }
        keyless.busy += 1;
        Some(Work::Keyless(HeldKeyless {
            floor: keyless.floor.hard(),
            start: keyless.floor.start(self.horizon.settled()),
            most: keyless.window.min(appetite.rows),
            suspect_until: keyless.stored.suspect_until,
            has_holds: keyless.stored.has_holds,
            claims_from: keyless.claims_from,
        }))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::floor::Writers;

    const APPETITE: Appetite = Appetite {
        rows: 1000,
        tasks: 2,
        lease_left: Duration::ZERO,
    };

    /// A term of a minute that owns the first lanes, each taken with so many suspect rows.
    pub(crate) fn owning_suspect(count: i16, suspect_rows: i32) -> (Lanes, Term) {
        let lanes = Lanes::default();
        let term = Term {
            worker: Uuid::from_u128(1),
            incarnation: SystemTime::UNIX_EPOCH,
            ends: Instant::now() + Duration::from_secs(60),
        };
        lanes.begin_term(term, KeylessStored::default());
        let taken: Vec<_> = (0..count)
            .map(|lane| Taken {
                lane,
                epoch: 1,
                floor: 0,
                suspect_rows,
                suspect_until: 0,
                recovered: suspect_rows > 0,
                has_holds: false,
            })
            .collect();
        lanes.add(term.worker, &taken);
        (lanes, term)
    }

    fn owning(count: i16) -> (Lanes, Term) {
        owning_suspect(count, 0)
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
    fn nothing_is_checked_out_under_a_lease_that_ends_too_soon() {
        let (lanes, _) = owning(4);
        lanes.renewed(Instant::now() + Duration::from_secs(5));
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
    fn all_done(lane: i16, settled: Settled) -> Seen {
        Seen {
            lane,
            sight: Some(Sight::of_everything(settled)),
            ..Seen::default()
        }
    }

    /// All lanes are looked at, and have nothing below this horizon.
    fn idle_at(settled: i64, count: i16) -> (Lanes, Term) {
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
        let first = lanes.checkout_one(1, Duration::ZERO).expect("idle");
        lanes.lower_floor(&first.term, 1, Lowered { epoch: 2, floor: 10 }, false);
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
        let busy = lanes.checkout_one(2, Duration::ZERO).expect("idle");
        let lookout = lanes.checkout_idle(&APPETITE).expect("idle lanes");
        assert_eq!(numbers(&lookout), [0, 1]);
        assert_eq!((lookout.start, lookout.most), (20, APPETITE.rows));
        assert!(
            lanes.checkout_one(0, Duration::ZERO).is_none(),
            "a floor is changed by its holder only"
        );
        assert_eq!(lanes.outstanding(), before + 2);
        lanes.checkin(&busy.term, vec![all_done(2, busy.settled)]);
        lanes.put_back(&lookout);
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
        idle.renewed(Instant::now() + Duration::from_secs(5));
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
