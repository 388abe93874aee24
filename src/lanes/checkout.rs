//! What a batch takes of the book, and gives back: the lanes that are ready, those that seem to have nothing, the rows without one.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Inner, Lanes, Term};
use crate::domain::floor::Sight;
use crate::domain::id_ranges::Ranges;
use crate::domain::row::KEYLESS;
use crate::domain::watermark::Settled;

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
    /// Of the floor of the rows without a lane, where the look starts no higher than that.
    pub keyless_epoch: Option<i64>,
}

/// What a look shows beside the rows of its lanes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overview {
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
        let Inner { lanes, horizon, .. } = &mut *inner;
        let lanes: Vec<Held> = lanes
            .iter_mut()
            .filter(|(_, lane)| !lane.ready && lane.is_free(now))
            .map(|(number, lane)| {
                lane.busy = true;
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
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        Some(Lookout {
            term,
            settled,
            holders,
            start,
            most: appetite.rows,
            has_holds,
            lanes,
            claims_from: inner.keyless.claims_from,
            keyless_epoch: keyless.map(|(_, epoch)| epoch),
        })
    }

    /// What a look was answered that was not cut short.
    pub fn looked(&self, lookout: &Lookout, overview: &Overview) {
        let mut inner = self.lock();
        if inner.term.is_none_or(|term| term.worker != lookout.term.worker) {
            return;
        }
        if let Some(epoch) = lookout.keyless_epoch {
            let sight = Sight {
                lowest_left: overview.lowest_keyless,
                ..Sight::of_everything(lookout.settled)
            };
            inner.keyless.raise_floor(epoch, sight);
        }
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

/// How many rows each lane of a batch may claim: an equal part, and at least one. A lane that asks for fewer leaves room in the batch. No
/// other lane gets that room, because a lane asks for few rows only until it fills a claim: it doubles what it asks for each time.
fn claim_quota(rows: usize, lanes: usize) -> usize {
    (rows / lanes).max(1)
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
        // The least recently served lanes come first. The rest is left to the other tasks.
        ready.sort_unstable();
        ready.truncate(self.lanes.len().div_ceil(appetite.tasks));
        let quota = claim_quota(appetite.rows, ready.len());
        self.served += 1;
        let served = self.served;
        let held = ready
            .iter()
            .filter_map(|(_, number)| {
                let lane = self.lanes.get_mut(number)?;
                lane.busy = true;
                lane.served = served;
                Some(lane.held(*number, lane.window.min(quota), &self.horizon))
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
    use crate::domain::watermark::Writers;
    use crate::lanes::tests::{APPETITE, all_done, idle_at, owning};

    #[test]
    fn a_look_raises_the_floor_of_the_rows_without_a_lane_where_it_asks_for_them() {
        let (lanes, term) = idle_at(50, 1);
        let keyless_floor = || lanes.keyless_floor().0.hard();
        lanes.lock().keyless.ready = false;
        let look = |overview: Overview| {
            let lookout = lanes.checkout_idle(&APPETITE).expect("an idle lane");
            lanes.looked(&lookout, &overview);
            lanes.checkin(&term, vec![all_done(0, lookout.settled)]);
            lookout.start
        };
        assert_eq!(look(found(Some(20))), 0);
        assert_eq!(keyless_floor(), 19);
        assert_eq!(look(found(None)), 19);
        assert_eq!(keyless_floor(), 50);
        lanes.with_horizon(term.worker, |horizon| horizon.look(60, &Writers::new()));
        lanes.lock().keyless.ready = true;
        assert_eq!(look(found(None)), 50);
        assert_eq!(keyless_floor(), 50, "the poll did not ask for those");
        lanes.lock().keyless.ready = false;
        let lookout = lanes.checkout_idle(&APPETITE).expect("an idle lane");
        lanes.keyless_floor_read(term.worker, 5, 1);
        lanes.looked(&lookout, &found(None));
        assert_eq!(keyless_floor(), 5, "another worker has lowered it in the meantime");
        lanes.put_back(&term, &lookout.lanes);
        lanes.lock().keyless.ready = false;
        let lookout = lanes.checkout_idle(&APPETITE).expect("an idle lane");
        let other = Lookout {
            term: Term {
                worker: Uuid::from_u128(2),
                ..term
            },
            ..lookout.clone()
        };
        lanes.looked(&other, &found(None));
        assert_eq!(keyless_floor(), 5, "the poll of another term raises nothing");
        lanes.looked(&lookout, &found(None));
        assert_eq!(keyless_floor(), 60);
    }

    /// A poll that found this row as the lowest without a lane.
    fn found(lowest_keyless: Option<i64>) -> Overview {
        Overview { lowest_keyless }
    }

    /// Checks lanes out that ask for so many rows each; how many each may claim.
    fn claimed(rows: usize, windows: &[usize]) -> Vec<usize> {
        let (lanes, _) = owning(windows.len() as i16);
        let mut inner = lanes.lock();
        inner.keyless.ready = false;
        for (lane, window) in inner.lanes.values_mut().zip(windows) {
            lane.window = *window;
        }
        drop(inner);
        let limits = Appetite {
            rows,
            tasks: 1,
            ..APPETITE
        };
        match lanes.checkout(&limits).expect("all are ready").work {
            Work::Lanes(held) => held.iter().map(|held| held.most).collect(),
            Work::Keyless(_) => panic!("unordered rows are not ready"),
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
