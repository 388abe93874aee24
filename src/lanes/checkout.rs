//! What a batch takes of the book, and gives back: the lanes that are ready, those that seem to have nothing, the rows without one.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::portion::{Pack, sight};
use super::{Inner, Lanes, Ranges, Term};
use crate::domain::row::KEYLESS;
use crate::floor::{Settled, Sight};

/// One lane of a checkout.
#[derive(Clone, Debug)]
pub struct Held {
    pub lane: i16,
    pub epoch: i64,
    pub floor: i64,
    /// Where the claim starts: the floor, or above it while the holders of the checkout are in progress.
    pub start: i64,
    /// Where the claim is cut short, if there is so much to walk over. All up to here is settled.
    pub upto: Option<i64>,
    pub most: usize,
    /// Rows in these ranges may have been sent by an owner before us that could not say.
    pub suspects: Ranges,
    pub suspect_until: i64,
    pub unknown: HashSet<i64>,
    /// Of the unknown, those that Kafka has: somebody else had locked them when they were to be marked.
    pub acknowledged: HashSet<i64>,
    /// Of these some rows are held back, or all.
    pub held_topics: Arc<BTreeSet<String>>,
}

/// The rows without a lane, of which every task may claim some.
#[derive(Clone, Copy, Debug)]
pub struct HeldKeyless {
    pub floor: i64,
    /// See [`Held::start`].
    pub start: i64,
    /// See [`Held::upto`].
    pub upto: Option<i64>,
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

impl Work {
    /// Of all that is claimed together, from where the highest starts.
    fn highest_start(&self) -> i64 {
        match self {
            Work::Lanes(held) => held.iter().map(|held| held.start).max().unwrap_or(0),
            Work::Keyless(held) => held.start,
        }
    }
}

/// A checkout: the work, and under which lease and horizon it may be done.
#[derive(Clone, Debug)]
pub struct Checkout {
    pub term: Term,
    /// The horizon before the claim: see [`Sight::settled`].
    pub settled: Settled,
    /// A claim of lanes counts only if none of these transactions had ended: they may have ids at or below where it starts.
    pub holders: Vec<i64>,
    pub work: Work,
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
    /// Is it also asked what is due, what is held and who has claimed rows without a lane?
    pub in_full: bool,
    /// The highest id that looks have walked over, those of other lanes and those held included.
    pub highest_walked: i64,
    /// Of the floor of the rows without a lane, where the look starts no higher than that.
    pub keyless_epoch: Option<i64>,
}

/// What a look shows beside the rows of its lanes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overview {
    /// Its lanes have rows.
    pub found: bool,
    /// The highest row walked over.
    pub highest: Option<i64>,
    /// Every id above what was settled and up to [`Lookout::highest_walked`] is there.
    pub gapless: bool,
    /// Of those without a lane that are neither published nor dead nor held nor delayed, whoever has claimed them.
    pub lowest_keyless: Option<i64>,
}

/// What came of one lane of a checkout.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub lane: i16,
    pub rows: usize,
    pub full: bool,
    /// It was cut short where it had walked far enough, not by its limit; and there.
    pub walked: bool,
    pub walked_to: i64,
    pub took: Duration,
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
    /// See [`Held::acknowledged`].
    pub acknowledged: Vec<i64>,
    /// Of these it now holds rows back.
    pub held_topics: BTreeSet<String>,
    /// Look again only after this long.
    pub pause: Option<Duration>,
}

/// What is due is asked for at least so often, as long as there are looks.
const DUE_WITHIN: Duration = Duration::from_millis(100);

/// How much one checkout may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Appetite {
    pub rows: usize,
    pub tasks: usize,
    /// The lease must last at least this much longer, or publishing could outlive it.
    pub lease_left: Duration,
}

impl Lanes {
    /// Check out what is ready: some lanes, or the rows without one, in turns.
    pub fn checkout(&self, appetite: &Appetite) -> Option<Checkout> {
        let now = Instant::now();
        let mut inner = self.lock();
        let term = inner.term.filter(|term| term.lasts(appetite.lease_left))?;
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
            holders: inner.horizon.holders_below(work.highest_start()),
            work,
        })
    }

    /// Check out one lane by name, for a change of its holds. `None`: not ours, or busy.
    pub fn checkout_one(&self, lane: i16, lease_left: Duration) -> Option<(Term, Held)> {
        let mut inner = self.lock();
        let term = inner.term.filter(|term| term.lasts(lease_left))?;
        let Inner { lanes, horizon, .. } = &mut *inner;
        let lane_book = lanes.get_mut(&lane)?;
        lane_book.wanted = lane_book.busy;
        if lane_book.busy {
            return None;
        }
        lane_book.busy = true;
        let held = lane_book.held(lane, 1, horizon);
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        Some((term, held))
    }

    /// Check out every lane that is not known to be ready. `None`: there is none.
    pub fn checkout_idle(&self, appetite: &Appetite) -> Option<Lookout> {
        let now = Instant::now();
        let mut inner = self.lock();
        let term = inner.term.filter(|term| term.lasts(appetite.lease_left))?;
        let settled = inner.horizon.settled();
        // Also while a batch of them is out: what that one holds is claimed, and others need not wait for it.
        let keyless = (!inner.keyless.ready).then_some((inner.keyless.floor, inner.keyless.stored.epoch));
        let is_asked = |at: Option<Instant>| at.is_some_and(|at| now - at < DUE_WITHIN);
        let mut due_is_asked = is_asked(inner.keyless.due_asked);
        let Inner { lanes, horizon, .. } = &mut *inner;
        let lanes: Vec<Held> = lanes
            .iter_mut()
            .filter(|(_, lane)| !lane.ready && lane.is_free(now))
            .map(|(number, lane)| {
                lane.busy = true;
                due_is_asked &= is_asked(lane.due_asked);
                Held {
                    // A look has a bound of its own.
                    upto: None,
                    ..lane.held(*number, appetite.rows, horizon)
                }
            })
            .collect();
        let lowest = lanes.iter().map(|held| held.start).min()?;
        let start = keyless.map_or(lowest, |(floor, _)| lowest.min(floor.start(horizon)));
        let holders = horizon.holders_below(start);
        let has_holds = inner.keyless.stored.has_holds || lanes.iter().any(|held| !held.held_topics.is_empty());
        let in_full = has_holds || !inner.lanes_alone || !due_is_asked;
        if in_full {
            inner.ask_due(&lanes, now);
        }
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        Some(Lookout {
            term,
            settled,
            holders,
            start,
            most: appetite.rows,
            has_holds,
            lanes,
            in_full,
            claims_from: inner.keyless.claims_from,
            highest_walked: inner.highest_walked.min(inner.horizon.highest_drawn()),
            keyless_epoch: keyless.map(|(_, epoch)| epoch),
        })
    }

    /// What a look was answered that was not cut short. Answers the horizon for the floors of its lanes: it may be higher than before the
    /// look.
    pub fn looked(&self, lookout: &Lookout, overview: &Overview) -> Settled {
        let settled = if overview.gapless {
            lookout.settled.seen(lookout.start, lookout.highest_walked)
        } else {
            lookout.settled
        };
        let mut inner = self.lock();
        if inner.term.is_none_or(|term| term.worker != lookout.term.worker) {
            return settled;
        }
        inner.highest_walked = inner.highest_walked.max(overview.highest.unwrap_or(0));
        inner.horizon.settle_up_to(settled.hard);
        if let Some(epoch) = lookout.keyless_epoch {
            let sight = Sight {
                lowest_left: overview.lowest_keyless,
                ..Sight::of_everything(settled)
            };
            inner.keyless.raise_floor(epoch, sight);
        }
        inner.lanes_alone = overview.found && overview.lowest_keyless.is_none();
        settled
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

    /// Give lanes of a checkout back as they were: nothing was learned of them.
    pub fn put_back(&self, term: &Term, lanes: &[Held]) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        let mut inner = self.lock();
        if inner.term.is_some_and(|current| current.worker == term.worker) {
            for held in lanes {
                if let Some(lane) = inner.lanes.get_mut(&held.lane) {
                    lane.busy = false;
                }
            }
        }
        drop(inner);
        self.changed.notify_waiters();
    }

    /// How many checkouts are under way.
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Acquire)
    }
}

impl Inner {
    /// A look is about to ask what is due of these lanes, and of the rows without one.
    fn ask_due(&mut self, lanes: &[Held], now: Instant) {
        self.keyless.due_asked = Some(now);
        for held in lanes {
            if let Some(lane) = self.lanes.get_mut(&held.lane) {
                lane.due_asked = Some(now);
            }
        }
    }

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
        let lanes: Vec<_> = ready.iter().map(|(_, number)| &self.lanes[number]).collect();
        let all = self.lanes.values().filter(|lane| lane.ready).collect();
        let sight = sight(appetite.rows, appetite.tasks, self.lanes.len());
        let portions = Pack::of(all, sight).portions(appetite.rows, &lanes);
        self.served += 1;
        let served = self.served;
        let held = ready
            .iter()
            .zip(portions)
            .filter_map(|((_, number), most)| {
                let lane = self.lanes.get_mut(number)?;
                lane.busy = true;
                lane.served = served;
                Some(lane.held(*number, most, &self.horizon))
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
        let start = keyless.floor.start(&self.horizon).max(keyless.resume);
        Some(Work::Keyless(HeldKeyless {
            floor: keyless.floor.hard(),
            start,
            upto: keyless.walk.upto(start, self.horizon.settled()),
            most: keyless.window.min(appetite.rows),
            suspect_until: keyless.stored.suspect_until,
            has_holds: keyless.stored.has_holds,
            claims_from: keyless.claims_from,
        }))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::lanes::KeylessStored;
    use crate::lanes::tests::{APPETITE, all_done, idle_at};

    #[test]
    fn a_look_without_a_gap_moves_the_horizon_and_the_floor_of_the_rows_without_a_lane() {
        let (lanes, term) = idle_at(50, 1);
        let keyless_floor = || lanes.keyless_floor().0.hard();
        lanes.lock().keyless.ready = false;
        let look = |overview: Overview| {
            let lookout = lanes.checkout_idle(&APPETITE).expect("an idle lane");
            let settled = lanes.looked(&lookout, &overview);
            lanes.checkin(&term, vec![all_done(0, settled)]);
            (lookout.start, settled.hard)
        };
        let seen = |highest, gapless, lowest_keyless| Overview {
            found: false,
            highest: Some(highest),
            gapless,
            lowest_keyless,
        };
        assert_eq!(look(seen(60, false, Some(20))), (0, 50));
        assert_eq!(keyless_floor(), 19);
        assert_eq!(
            look(seen(70, true, None)),
            (19, 60),
            "up to the highest that was known before"
        );
        assert_eq!((lanes.settled().hard, keyless_floor()), (60, 60));
        assert_eq!(look(seen(70, false, None)), (60, 60), "a gap");
        lanes.lock().keyless.ready = true;
        assert_eq!(look(seen(70, true, None)), (60, 70));
        assert_eq!(keyless_floor(), 60, "it did not look for those");
        lanes.lock().keyless.ready = false;
        let lookout = lanes.checkout_idle(&APPETITE).expect("an idle lane");
        lanes.keyless_floor_read(term.worker, 5, 1);
        lanes.looked(&lookout, &seen(70, true, None));
        assert_eq!(keyless_floor(), 5, "somebody has lowered it meanwhile");
        lanes.begin_term(term, KeylessStored::default());
        let other = Lookout {
            term: Term {
                worker: Uuid::from_u128(2),
                ..term
            },
            ..lookout
        };
        lanes.looked(&other, &seen(80, true, None));
        assert_eq!(
            (lanes.settled().hard, lanes.lock().highest_walked),
            (0, 0),
            "of another term"
        );
    }

    /// What a look shows that found rows of its lanes, or not.
    fn found(found: bool, lowest_keyless: Option<i64>) -> Overview {
        Overview {
            found,
            lowest_keyless,
            ..Overview::default()
        }
    }

    /// Looks, finds this, and answers whether it was asked in full. What it asks for will not have been long ago, however slow the test.
    fn look(lanes: &Lanes, overview: Overview) -> bool {
        let lookout = lanes.checkout_idle(&APPETITE).expect("an idle lane");
        let settled = lanes.looked(&lookout, &overview);
        let seen = lookout.lanes.iter().map(|held| all_done(held.lane, settled));
        lanes.checkin(&lookout.term, seen.collect());
        let mut inner = lanes.lock();
        let Inner {
            keyless, lanes: book, ..
        } = &mut *inner;
        let asked = book.values_mut().map(|lane| &mut lane.due_asked);
        for at in asked.chain([&mut keyless.due_asked]).flatten() {
            *at = Instant::now() + Duration::from_secs(3600);
        }
        lookout.in_full
    }

    /// It was never asked what is due of this lane, or of the rows without one.
    fn forget_due(lanes: &Lanes, lane: i16) {
        let mut inner = lanes.lock();
        if lane == KEYLESS {
            inner.keyless.due_asked = None;
        } else {
            inner.lanes.get_mut(&lane).expect("ours").due_asked = None;
        }
    }

    #[test]
    fn looks_in_passing_come_between_those_in_full_while_rows_of_lanes_alone_keep_coming() {
        let (lanes, term) = idle_at(50, 1);
        assert!(look(&lanes, found(true, None)), "the first");
        assert!(!look(&lanes, found(true, None)));
        assert!(!look(&lanes, found(true, Some(55))));
        assert!(look(&lanes, found(true, Some(55))), "whose is it?");
        assert!(look(&lanes, found(true, None)));
        assert!(!look(&lanes, found(false, None)));
        assert!(look(&lanes, found(true, None)), "nothing came");
        lanes.lock().keyless.stored.has_holds = true;
        assert!(look(&lanes, found(true, None)), "a topic is parked");
        lanes.lock().keyless.stored.has_holds = false;
        assert!(!look(&lanes, found(true, None)));
        let mut inner = lanes.lock();
        let lane = inner.lanes.get_mut(&0).expect("ours");
        lane.held_topics = Arc::new(BTreeSet::from(["sick".to_owned()]));
        drop(inner);
        assert!(look(&lanes, found(true, None)), "a key is held");
        lanes.begin_term(term, KeylessStored::default());
        assert!(!lanes.lock().lanes_alone, "another term knows nothing");
    }

    #[test]
    fn what_is_due_is_asked_for_in_time_of_every_lane_and_of_the_rows_without_one() {
        let (lanes, term) = idle_at(50, 2);
        assert!(look(&lanes, found(true, None)));
        forget_due(&lanes, KEYLESS);
        assert!(look(&lanes, found(true, None)), "of the rows without a lane");
        assert!(!look(&lanes, found(true, None)));
        forget_due(&lanes, 1);
        let (_, held) = lanes.checkout_one(1, Duration::ZERO).expect("idle");
        assert!(!look(&lanes, found(true, None)), "it is busy");
        lanes.put_back(&term, &[held]);
        assert!(look(&lanes, found(true, None)), "of the lane that was busy");
        assert!(!look(&lanes, found(true, None)));
        let long_ago = Instant::now() - 2 * DUE_WITHIN;
        lanes.lock().lanes.get_mut(&0).expect("ours").due_asked = Some(long_ago);
        assert!(look(&lanes, found(true, None)), "it was long ago");
    }
}
