//! What is remembered of one lane, and of the rows without one, between two batches.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Held, KeylessStored, Seen, Taken, Unmarked};
use crate::domain::floor::Floor;
use crate::domain::id_ranges::Ranges;
use crate::domain::scan_span::Walk;
use crate::domain::watermark::Horizon;

/// The fewest rows asked of a lane that is believed to have some.
pub(super) const WINDOW_MIN: usize = 32;

/// After a claim of rows without a lane that found none, and twice as long after each one more. Claimers take turns, which costs
/// the database a commit even where there is nothing; others may have been faster, or somebody has locked the rows.
const IN_VAIN_REST: Duration = Duration::from_millis(20);
const IN_VAIN_DOUBLINGS: u32 = 3;

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) epoch: i64,
    pub(super) floor: Floor,
    pub(super) stored_floor: i64,
    /// How many rows the next claim asks for: doubles while claims come back full.
    pub(super) window: usize,
    pub(super) walk: Walk,
    pub(super) ready: bool,
    pub(super) busy: bool,
    /// Heads of its holds that are sent beside its batches and not yet written down: until then it stays ours.
    pub(super) open_heads: usize,
    /// A change of its holds waits for the batch to end: no new one before that.
    pub(super) wanted: bool,
    pub(super) leaving: bool,
    /// See [`Held::held_topics`].
    pub(super) held_topics: Arc<BTreeSet<String>>,
    /// See [`Held::suspects`].
    pub(super) suspects: Ranges,
    /// What is stored of them, those known by id included.
    pub(super) stored_suspects: Vec<i64>,
    /// Up to this id any row may have been sent before a failover lost its mark.
    pub(super) suspect_until: i64,
    /// Rows that may have been sent, by us or by the last owner, and are known by id.
    pub(super) unknown: HashSet<i64>,
    /// See [`Held::acknowledged`].
    pub(super) acknowledged: HashSet<i64>,
    pub(super) not_before: Instant,
    pub(super) served: u64,
}

#[derive(Debug, Default)]
pub(super) struct Keyless {
    pub(super) stored: KeylessStored,
    pub(super) floor: Floor,
    pub(super) ready: bool,
    pub(super) busy: usize,
    pub(super) window: usize,
    pub(super) not_before: Option<Instant>,
    /// So many claims in a row have found nothing.
    pub(super) in_vain: u32,
    /// See [`super::Lanes::claims_from`].
    pub(super) claims_from: i64,
    pub(super) walk: Walk,
    /// Where the last claim was cut short: the next one goes on there. They promise no order, and one that comes to the end begins anew.
    pub(super) resume: i64,
    /// See [`super::Lanes::keyless_lag`].
    pub(super) lag: usize,
    /// What is left of claims whose rows could not all be marked.
    pub(super) unmarked: Vec<Unmarked>,
}

impl From<&Taken> for Lane {
    fn from(taken: &Taken) -> Self {
        Lane {
            epoch: taken.epoch,
            floor: Floor::at(taken.floor),
            stored_floor: taken.floor,
            window: WINDOW_MIN,
            walk: Walk::default(),
            ready: true,
            busy: false,
            open_heads: 0,
            wanted: false,
            leaving: false,
            held_topics: Arc::new(taken.held_topics.clone()),
            suspects: taken.suspects.clone(),
            stored_suspects: taken.stored_suspects.clone(),
            suspect_until: taken.suspect_until,
            unknown: HashSet::new(),
            acknowledged: HashSet::new(),
            not_before: Instant::now(),
            served: 0,
        }
    }
}

/// The next window after a claim: twice as much while claims are full, what was there otherwise. Rows that the byte
/// budget leaves behind were read in vain: ask for about as many as fit.
fn next_window(window: usize, seen: &Seen) -> usize {
    if seen.slow {
        (window / 2).max(1)
    } else if seen.overweight {
        (seen.rows * 2).clamp(1, window)
    } else if seen.full {
        (window * 2).min(1 << 16)
    } else if seen.walked {
        window
    } else {
        window.min(seen.rows.next_power_of_two().max(WINDOW_MIN))
    }
}

impl Lane {
    /// May it be checked out?
    pub(super) fn is_free(&self, now: Instant) -> bool {
        !self.busy && !self.wanted && !self.leaving && self.not_before <= now
    }

    /// Is anything of it under way? Then it is nobody else's yet.
    pub(super) fn is_in_use(&self) -> bool {
        self.busy || self.open_heads > 0
    }

    pub(super) fn held(&self, lane: i16, most: usize, horizon: &Horizon) -> Held {
        let start = self.floor.start(horizon);
        Held {
            lane,
            epoch: self.epoch,
            floor: self.floor.hard(),
            start,
            upto: self.walk.upto(start, horizon.settled()),
            most,
            suspects: self.suspects.clone(),
            suspect_until: self.suspect_until,
            unknown: self.unknown.clone(),
            acknowledged: self.acknowledged.clone(),
            held_topics: self.held_topics.clone(),
        }
    }

    /// What may have been sent of it, and of these rows, as it is stored.
    pub(super) fn doubts(&self, unknown: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let mut doubts = Ranges::of_ids(self.unknown.iter().copied().chain(unknown));
        doubts.extend(&self.suspects);
        doubts.to_stored()
    }

    /// Nothing of this row is in doubt any more.
    pub(super) fn forget(&mut self, id: i64) {
        self.unknown.remove(&id);
        self.acknowledged.remove(&id);
    }

    pub(super) fn checkin(&mut self, seen: &Seen, now: Instant) {
        self.busy = false;
        if !seen.held_topics.is_empty() {
            Arc::make_mut(&mut self.held_topics).extend(seen.held_topics.iter().cloned());
        }
        seen.published.iter().for_each(|id| self.forget(*id));
        self.unknown.extend(&seen.unknown);
        self.acknowledged.extend(&seen.acknowledged);
        self.not_before = now + seen.pause.unwrap_or_default();
        let Some(sight) = seen.sight else {
            // The claim failed: nothing was learned, so look again, and for less if a pause says that it hurt.
            self.ready = true;
            if seen.pause.is_some() {
                self.window = (self.window / 2).max(1);
                self.walk.failed();
            }
            return;
        };
        if seen.overweight && seen.rows == 0 {
            // The lanes before it took the whole byte budget: now it is first.
            self.served = 0;
        }
        self.floor.advance(sight);
        self.window = next_window(self.window, seen);
        if seen.walked {
            self.walk.cut(seen.rows == 0, seen.took, sight.lowest_left.is_some());
        } else if sight.lowest_left.is_none() {
            self.walk.ended();
        }
        self.ready = seen.full || seen.overweight || seen.walked || sight.lowest_left.is_some();
        let all_done = !self.ready;
        // What a hold keeps back was not in this claim, and may have been sent by the last owner as well as the rest.
        if all_done && self.held_topics.is_empty() {
            self.suspects.clear();
        }
    }
}

impl Keyless {
    pub(super) fn checkin(&mut self, seen: &Seen, now: Instant) {
        self.busy = self.busy.saturating_sub(1);
        self.lag += seen.rows;
        self.stored.has_holds |= !seen.held_topics.is_empty();
        match (seen.walked, seen.sight.is_none() && seen.pause.is_some()) {
            (_, true) => self.walk.failed(),
            (true, _) => self.walk.cut(seen.rows == 0, seen.took, false),
            _ => self.walk.ended(),
        }
        self.resume = if seen.walked { seen.walked_to } else { 0 };
        let in_vain = seen.rows == 0 && !seen.full && !seen.walked && seen.sight.is_some();
        let rest = in_vain.then(|| IN_VAIN_REST * 2u32.pow(self.in_vain.min(IN_VAIN_DOUBLINGS)));
        self.in_vain = if in_vain { self.in_vain.saturating_add(1) } else { 0 };
        self.not_before = seen.pause.or(rest).map(|pause| now + pause);
        self.window = next_window(self.window, seen);
        self.ready = seen.full || seen.walked || seen.sight.is_none() || seen.pause.is_some();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::floor::Sight;
    use crate::domain::watermark::{Settled, Writers};

    /// With no holder that has ended.
    fn horizon() -> Horizon {
        Horizon::default()
    }

    const SETTLED: Settled = Settled {
        hard: 50,
        soft: 70,
        generation: 1,
    };

    /// Everything there was is published.
    fn all_done() -> Seen {
        Seen {
            sight: Some(Sight::of_everything(SETTLED)),
            ..Seen::default()
        }
    }

    fn with_left(id: i64) -> Seen {
        Seen {
            sight: Some(Sight {
                lowest_left: Some(id),
                ..Sight::of_everything(SETTLED)
            }),
            ..Seen::default()
        }
    }

    /// Checked out, and suspect in every way.
    fn busy_lane() -> Lane {
        let mut lane = Lane::from(&Taken {
            lane: 0,
            epoch: 3,
            floor: 10,
            suspects: Ranges::from_flat(&[15, 19]),
            stored_suspects: vec![15, 19],
            suspect_until: 20,
            last_owner: None,
            held_topics: BTreeSet::new(),
        });
        lane.busy = true;
        lane.unknown = HashSet::from([11, 12]);
        lane
    }

    fn one_topic() -> BTreeSet<String> {
        BTreeSet::from(["orders".to_owned()])
    }

    fn after(seen: Seen) -> Lane {
        let mut lane = busy_lane();
        lane.checkin(&seen, Instant::now());
        lane
    }

    #[test]
    fn the_next_window_follows_what_was_there() {
        let next = |window, rows, seen: &Seen| next_window(window, &Seen { rows, ..seen.clone() });
        let plain = Seen::default();
        assert_eq!(next(1024, 100, &plain), 128);
        assert_eq!(next(1024, 3, &plain), WINDOW_MIN);
        assert_eq!(next(8, 3, &plain), 8, "it grows by full claims only");
        let walked = Seen {
            walked: true,
            ..Seen::default()
        };
        assert_eq!(next(1024, 3, &walked), 1024, "there may be more further on");
        let full = Seen {
            full: true,
            ..Seen::default()
        };
        assert_eq!(next(100, 100, &full), 200);
        assert_eq!(next(1 << 16, 1 << 16, &full), 1 << 16, "enough is enough");
        let overweight = Seen {
            overweight: true,
            ..full
        };
        assert_eq!(next(1024, 5, &overweight), 10);
        assert_eq!(next(1024, 1000, &overweight), 1024);
        assert_eq!(next(1024, 0, &overweight), 1);
        let slow = Seen {
            slow: true,
            ..overweight
        };
        assert_eq!(next(100, 100, &slow), 50);
        assert_eq!(next(1, 1, &slow), 1);
    }

    proptest! {
        #[test]
        fn a_window_is_never_empty_nor_beyond_its_bound(
            window in 1..=1usize << 16, rows in 0..100_000usize, full: bool, overweight: bool, slow: bool,
        ) {
            let seen = Seen { rows, full, overweight, slow, ..Seen::default() };
            prop_assert!((1..=1 << 16).contains(&next_window(window, &seen)));
        }
    }

    #[test]
    fn rows_without_a_lane_are_asked_for_less_often_the_longer_there_are_none() {
        let now = Instant::now();
        let mut keyless = Keyless::default();
        let mut rests = Vec::new();
        for _ in 0..6 {
            keyless.checkin(&all_done(), now);
            rests.push((keyless.not_before.expect("a rest") - now).as_millis());
        }
        assert_eq!(rests, [20, 40, 80, 160, 160, 160]);
        keyless.checkin(&Seen { rows: 1, ..all_done() }, now);
        assert_eq!(keyless.not_before, None, "there were some");
        keyless.checkin(&all_done(), now);
        assert_eq!(keyless.not_before, Some(now + IN_VAIN_REST), "as if for the first time");
    }

    #[test]
    fn a_lane_is_held_from_its_floor_and_with_all_its_doubts() {
        let held = busy_lane().held(7, 40, &horizon());
        assert_eq!(
            (held.lane, held.epoch, held.floor, held.start, held.most),
            (7, 3, 10, 10, 40)
        );
        assert_eq!((held.suspects.to_flat(), held.suspect_until), (vec![15, 19], 20));
        assert_eq!(held.unknown, HashSet::from([11, 12]));
        assert!(held.held_topics.is_empty());
        let held = after(all_done()).held(7, 40, &horizon());
        assert_eq!((held.floor, held.start), (50, 70), "soft while its holders live");
    }

    #[test]
    fn a_lane_with_nothing_left_rests_and_is_beyond_doubt() {
        let lane = after(all_done());
        assert!(!lane.busy && !lane.ready);
        assert!(lane.suspects.is_empty());
        assert_eq!(lane.floor.hard(), 50);
        assert_eq!(lane.doubts([14]), [11, 12, 14, 14], "what is known by id");
    }

    #[test]
    fn a_lane_with_rows_left_is_ready_and_its_doubt_goes_on() {
        let doubt = |lane: &Lane| lane.suspects.to_flat();
        let left = after(with_left(30));
        assert!(left.ready && !left.busy);
        assert_eq!((doubt(&left), left.floor.hard()), (vec![15, 19], 29));
        let full = after(Seen {
            full: true,
            ..all_done()
        });
        assert!(full.ready);
        assert_eq!((doubt(&full), full.window), (vec![15, 19], 2 * WINDOW_MIN));
        let overweight = after(Seen {
            overweight: true,
            ..all_done()
        });
        assert!(overweight.ready, "what was left behind is due");
        assert_eq!(doubt(&overweight), [15, 19]);
    }

    #[test]
    fn a_hold_keeps_the_doubt_about_what_it_keeps_back() {
        let lane = after(Seen {
            held_topics: one_topic(),
            ..all_done()
        });
        assert_eq!(*lane.held(7, 40, &horizon()).held_topics, one_topic());
        assert_eq!(lane.suspects.to_flat(), [15, 19]);
        let mut lane = lane;
        lane.checkin(&all_done(), Instant::now());
        assert_eq!(*lane.held_topics, one_topic(), "only a release ends it");
        assert_eq!(lane.suspects.to_flat(), [15, 19]);
    }

    #[test]
    fn a_row_that_waits_for_its_mark_is_remembered_until_it_has_it() {
        let mut lane = after(Seen {
            acknowledged: vec![30],
            unknown: vec![30],
            ..with_left(30)
        });
        assert!(lane.held(7, 40, &horizon()).acknowledged.contains(&30) && lane.unknown.contains(&30));
        assert!(lane.ready && lane.floor.hard() < 30);
        lane.checkin(
            &Seen {
                published: vec![30],
                ..all_done()
            },
            Instant::now(),
        );
        assert!(lane.acknowledged.is_empty() && !lane.unknown.contains(&30));
    }

    #[test]
    fn an_unknown_row_is_forgotten_when_it_is_published() {
        let lane = after(Seen {
            published: vec![11, 13],
            unknown: vec![14],
            ..all_done()
        });
        assert_eq!(lane.unknown, HashSet::from([12, 14]));
    }

    #[test]
    fn a_claim_that_failed_teaches_nothing_but_patience() {
        let now = Instant::now();
        let pause = Duration::from_secs(1);
        let mut lane = busy_lane();
        lane.ready = false;
        lane.checkin(
            &Seen {
                pause: Some(pause),
                ..Seen::default()
            },
            now,
        );
        assert!(lane.ready && !lane.busy);
        assert_eq!((lane.window, lane.not_before), (WINDOW_MIN / 2, now + pause));
        assert_eq!((lane.suspects.to_flat(), lane.floor.hard()), (vec![15, 19], 10));
        lane.checkin(&Seen::default(), now);
        assert_eq!(
            (lane.window, lane.not_before),
            (WINDOW_MIN / 2, now),
            "one that was discarded did not hurt"
        );
    }

    #[test]
    fn a_lane_that_was_cut_short_goes_on_from_there_with_the_same_window() {
        let deep = Settled {
            hard: 10_000_000,
            soft: 10_000_000,
            generation: 0,
        };
        let mut horizon = horizon();
        horizon.look(deep.hard, &Writers::new());
        let mut lane = busy_lane();
        lane.window = 512;
        let upto = lane.held(0, 40, &horizon).upto.expect("it is long");
        let walked = Seen {
            walked: true,
            sight: Some(Sight {
                cut_at: Some(upto),
                ..Sight::of_everything(deep)
            }),
            ..Seen::default()
        };
        lane.checkin(&walked, Instant::now());
        assert!(lane.ready);
        assert_eq!((lane.floor.hard(), lane.window), (upto, 512));
        let next = lane.held(0, 40, &horizon).upto.expect("it is long still") - upto;
        assert_eq!(next, 2 * (upto - 10), "there was nothing for long");
        lane.checkin(
            &Seen {
                pause: Some(Duration::ZERO),
                ..Seen::default()
            },
            Instant::now(),
        );
        assert_eq!(
            lane.held(0, 40, &horizon).upto,
            Some(upto + next / 2),
            "it was too much"
        );
        lane.checkin(&all_done(), Instant::now());
        assert_eq!(lane.held(0, 40, &horizon).upto, Some(upto + (upto - 10)), "as at first");
    }

    #[test]
    fn rows_without_a_lane_are_claimed_on_from_where_the_last_claim_was_cut_short_and_then_anew() {
        let now = Instant::now();
        let mut keyless = Keyless::default();
        let walked = Seen {
            walked: true,
            walked_to: 50,
            ..all_done()
        };
        keyless.checkin(&walked, now);
        assert!(
            keyless.ready && keyless.not_before.is_none(),
            "there may be more behind"
        );
        assert_eq!(keyless.resume, 50);
        keyless.checkin(&all_done(), now);
        assert_eq!(keyless.resume, 0);
    }

    #[test]
    fn a_lane_that_got_none_of_the_byte_budget_is_first_next_time() {
        let served_after = |rows, overweight| {
            let mut lane = busy_lane();
            lane.served = 9;
            let seen = Seen {
                rows,
                overweight,
                ..all_done()
            };
            lane.checkin(&seen, Instant::now());
            lane.served
        };
        assert_eq!(served_after(0, true), 0);
        assert_eq!(served_after(1, true), 9);
        assert_eq!(served_after(0, false), 9);
    }

    #[test]
    fn rows_without_a_lane_are_looked_for_again_while_there_may_be_some() {
        let now = Instant::now();
        let checked_in = |seen: Seen| {
            let mut keyless = Keyless {
                busy: 2,
                window: 64,
                ready: true,
                ..Keyless::default()
            };
            keyless.checkin(&seen, now);
            keyless
        };
        let pause = Some(Duration::from_secs(1));
        let rested = checked_in(Seen { rows: 1, ..all_done() });
        assert!(!rested.ready && !rested.stored.has_holds);
        assert_eq!((rested.busy, rested.window, rested.not_before), (1, WINDOW_MIN, None));
        assert!(
            checked_in(Seen {
                full: true,
                ..all_done()
            })
            .ready
        );
        assert!(checked_in(Seen::default()).ready, "nothing was learned");
        let paused = checked_in(Seen { pause, ..all_done() });
        assert!(paused.ready);
        assert_eq!(paused.not_before, Some(now + Duration::from_secs(1)));
        let mut held = checked_in(Seen {
            held_topics: one_topic(),
            ..all_done()
        });
        held.checkin(&all_done(), now);
        assert!(held.stored.has_holds);
    }
}
