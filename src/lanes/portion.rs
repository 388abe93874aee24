//! How many rows each lane of a batch may claim. Pure.
//!
//! Rows of all lanes lie on the same pages. If every lane claimed as many, one with few keys would run ahead of one with many, further
//! the deeper the backlog, and whoever comes by later finds the page no longer in memory, changes it again and logs it whole again. So
//! lanes keep within sight of each other, in one batch and across those of all tasks: see `docs/adr/0003-marks.md`.

use std::ops::RangeInclusive;

use super::book::Lane;
use crate::message::LANE_COUNT;

/// As far as all tasks together come with so many claims each: a lane moves by steps, and does not keep closer than a few of them.
const SIGHT_CLAIMS: usize = 5;
/// In ids, however long the steps are: so many rows of about 200 bytes are some 45 MB of table.
const SIGHT_MOST: usize = 100_000;
/// What a lane gets beside one in the middle: who waits for others goes on all the same, they may be stuck or endless.
const PULL: RangeInclusive<f64> = 0.25..=3.0;
/// A batch of lanes that are ahead is smaller, by so much at the most: small ones are dear.
const BATCH_LEAST: f64 = 0.5;

/// How far is within sight, in ids, for a process whose tasks claim so many rows each. The fewer of all lanes it has, the further apart its
/// rows lie.
pub(super) fn sight(rows: usize, tasks: usize, lanes: usize) -> usize {
    (rows * tasks * SIGHT_CLAIMS * LANE_COUNT / lanes.max(1)).min(SIGHT_MOST)
}

/// The lanes that have a backlog, whoever has them at the moment.
pub(super) struct Pack<'a> {
    lanes: Vec<&'a Lane>,
    sight: f64,
    /// How far the middle one has come.
    middle: i64,
}

impl<'a> Pack<'a> {
    pub(super) fn of(lanes: Vec<&'a Lane>, sight: usize) -> Self {
        Pack {
            sight: sight as f64,
            middle: middle(&lanes),
            lanes,
        }
    }

    /// How many rows some of them may claim in one batch. None gets more than its window; together they get no more than `rows`, and one
    /// for each that would get none. What windows cut off is not handed on: with a deep backlog they are larger than any portion.
    pub(super) fn portions(&self, rows: usize, lanes: &[&Lane]) -> Vec<usize> {
        let wanted: usize = lanes.iter().map(|lane| lane.window).sum();
        if wanted <= rows {
            return lanes.iter().map(|lane| lane.window).collect();
        }
        // A task mostly gets back the lanes that it has just given back, and those may all be ahead, or behind.
        let mean = self.mean_pull(lanes);
        let batch = rows as f64 * (mean / self.mean_pull(&self.lanes)).clamp(BATCH_LEAST, 1.0);
        let portion = |lane: &Lane| (self.weight(lane) / (mean * wanted as f64) * batch) as usize;
        lanes.iter().map(|lane| portion(lane).clamp(1, lane.window)).collect()
    }

    fn mean_pull(&self, lanes: &[&Lane]) -> f64 {
        let wanted: usize = lanes.iter().map(|lane| lane.window).sum();
        let weights: f64 = lanes.iter().map(|lane| self.weight(lane)).sum();
        weights / wanted.max(1) as f64
    }

    fn weight(&self, lane: &Lane) -> f64 {
        lane.window as f64 * self.pull(lane)
    }

    /// More the further behind the middle a lane is.
    fn pull(&self, lane: &Lane) -> f64 {
        let ahead = (lane.reached - self.middle) as f64;
        (1.0 - ahead / self.sight).clamp(*PULL.start(), *PULL.end())
    }
}

/// Not the mean: one lane far off would put all others on the same side.
fn middle(lanes: &[&Lane]) -> i64 {
    let mut reached: Vec<i64> = lanes.iter().map(|lane| lane.reached).collect();
    let half = reached.len() / 2;
    if reached.is_empty() {
        0
    } else {
        *reached.select_nth_unstable(half).1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::floor::{Settled, Sight};
    use crate::lanes::tests::{APPETITE, owning};
    use crate::lanes::{Appetite, Checkout, Ranges, Seen, Taken, Work};

    const DEEP: usize = 1 << 16;

    fn lane(reached: i64, window: usize) -> Lane {
        let taken = Taken {
            lane: 0,
            epoch: 1,
            floor: reached,
            suspects: Ranges::default(),
            stored_suspects: Vec::new(),
            suspect_until: 0,
            last_owner: None,
            held_topics: BTreeSet::new(),
        };
        Lane {
            window,
            ..Lane::from(&taken)
        }
    }

    /// With three tasks and all lanes.
    const SIGHT: usize = 2000 * 3 * SIGHT_CLAIMS;

    fn portions_of(rows: usize, lanes: &[Lane]) -> Vec<usize> {
        let lanes: Vec<&Lane> = lanes.iter().collect();
        Pack::of(lanes.clone(), SIGHT).portions(rows, &lanes)
    }

    /// Drains this many rows of lanes whose rows lie so many ids apart; how far the first is ahead of the last.
    fn apart_after(rows: usize, gaps: &[i64], portions: impl Fn(usize, &[Lane]) -> Vec<usize>) -> i64 {
        let mut lanes: Vec<Lane> = gaps.iter().map(|_| lane(0, DEEP)).collect();
        let mut drained = 0;
        while drained < rows {
            let portions = portions(2000, &lanes);
            drained += portions.iter().sum::<usize>();
            for ((lane, portion), gap) in lanes.iter_mut().zip(portions).zip(gaps) {
                lane.reached += portion as i64 * gap;
            }
        }
        let reached = || lanes.iter().map(|lane| lane.reached);
        reached().max().unwrap_or(0) - reached().min().unwrap_or(0)
    }

    #[test]
    fn lanes_of_few_and_of_many_keys_stay_within_sight_of_each_other() {
        // As of 64 lanes and a thousand keys: from 8 to 26 in a lane, 22 lanes in a batch.
        let gaps: Vec<i64> = (8..30).map(|keys| 1000 / keys.min(26)).collect();
        let sight = SIGHT as i64;
        for rows in [200_000, 2_000_000] {
            let apart = apart_after(rows, &gaps, portions_of);
            assert!((sight / 2..sight * 3 / 2).contains(&apart), "{apart} after {rows} rows");
        }
        let evenly = |rows: usize, lanes: &[Lane]| vec![rows / lanes.len(); lanes.len()];
        assert!(
            apart_after(2_000_000, &gaps, evenly) > 50 * sight,
            "without this they do not"
        );
    }

    #[test]
    fn one_far_off_changes_little_for_the_others_and_gets_its_part() {
        for far in [0, 1 << 40] {
            let lanes = [
                lane(1 << 30, DEEP),
                lane(far, DEEP),
                lane(1 << 30, DEEP),
                lane(1 << 30, DEEP),
            ];
            let portions = portions_of(1000, &lanes);
            let (off, other) = if far == 0 { (500, 166) } else { (76, 307) };
            assert_eq!(portions, [other, off, other, other]);
        }
    }

    #[test]
    fn a_batch_of_lanes_that_are_all_ahead_is_smaller_by_half_at_the_most() {
        let others = [lane(0, DEEP), lane(0, DEEP), lane(0, DEEP)];
        let beside = |by: i64| {
            let ours = [lane(by, DEEP), lane(by, DEEP)];
            let pack = Pack::of(ours.iter().chain(&others).collect(), SIGHT);
            let batch = |lanes: &[Lane]| pack.portions(1200, &lanes.iter().collect::<Vec<_>>());
            (batch(&ours), batch(&others))
        };
        assert_eq!(beside(0), (vec![600; 2], vec![400; 3]));
        assert_eq!(beside(SIGHT as i64 / 5), (vec![521; 2], vec![400; 3]));
        assert_eq!(beside(1 << 30), (vec![300; 2], vec![400; 3]));
        assert_eq!(
            beside(-(1 << 30)),
            (vec![600; 2], vec![222; 3]),
            "where they are behind, it is the others who are ahead"
        );
    }

    #[test]
    fn one_of_many_processes_sees_as_many_of_its_own_rows_until_that_is_too_much_of_the_table() {
        assert_eq!(sight(2000, 3, 64), SIGHT);
        assert_eq!(sight(2000, 3, 32), 2 * SIGHT);
        assert_eq!(sight(2000, 3, 8), SIGHT_MOST);
        assert_eq!(sight(100, 3, 64), SIGHT / 20);
    }

    #[test]
    fn a_window_says_how_much_there_may_be() {
        assert_eq!(portions_of(800, &[lane(0, 100), lane(0, 1500)]), [50, 750]);
        assert_eq!(
            portions_of(800, &[lane(0, 50), lane(9 << 20, 60)]),
            [50, 60],
            "there is room for all of it"
        );
        assert_eq!(
            portions_of(1, &[lane(0, 50), lane(0, 60)]),
            [1, 1],
            "one goes, whatever there is room for"
        );
        assert!(portions_of(800, &[]).is_empty());
    }

    /// A claim that got all it asked for.
    fn cut_off(lane: i16, rows: usize, at: i64) -> Seen {
        Seen {
            lane,
            rows,
            full: true,
            sight: Some(Sight {
                settled: Settled::default(),
                cut_at: Some(at),
                lowest_left: None,
            }),
            ..Seen::default()
        }
    }

    #[test]
    fn a_lane_that_has_run_ahead_claims_less_than_one_behind() {
        let (lanes, term) = owning(4);
        let all = Appetite { tasks: 1, ..APPETITE };
        let portions = || {
            (0..2).find_map(|_| match lanes.checkout(&all)?.work {
                Work::Lanes(held) => Some(held.iter().map(|held| held.most).collect::<Vec<_>>()),
                Work::Keyless(_) => None,
            })
        };
        portions().expect("all are ready");
        let nothing_left = |lane| Seen {
            lane,
            sight: Some(Sight::of_everything(Settled::default())),
            ..Seen::default()
        };
        // These have no backlog, and are not waited for wherever they are.
        lanes.checkin(
            &term,
            vec![
                cut_off(0, 1000, 500),
                cut_off(1, 1000, 500),
                nothing_left(2),
                nothing_left(3),
            ],
        );
        let mut last = Vec::new();
        for reached in [1000; 8].into_iter().chain([501_000]) {
            last = portions().expect("both are ready");
            lanes.checkin(&term, vec![cut_off(0, 1000, reached), cut_off(1, 1000, 501_000)]);
        }
        assert_eq!(last, [750, 250], "thrice as much");
        assert_eq!(portions(), Some(vec![500, 500]), "it has come abreast");
    }

    /// Drains three million rows of lanes whose rows lie so many ids apart by three tasks, each of which has some of them at a time and mostly
    /// gets back those that it has just given back. `next` says whose batch ends. How far the first lane was ahead of the last, and how many rows a
    /// batch had.
    fn drain_by_three(gaps: &[i64], mut next: impl FnMut() -> usize) -> (i64, usize) {
        let (lanes, term) = owning(64);
        lanes.lock().keyless.ready = false;
        let appetite = Appetite {
            rows: 2000,
            tasks: 3,
            ..APPETITE
        };
        let mut reached = [0; 64];
        let mut tasks: Vec<Checkout> = Vec::new();
        let (mut drained, mut batches, mut apart) = (0, 0, 0);
        while drained < 3_000_000 {
            while tasks.len() < appetite.tasks {
                tasks.extend(lanes.checkout(&appetite));
            }
            let Work::Lanes(held) = tasks.remove(next()).work else {
                continue;
            };
            let seen = held.iter().map(|held| {
                let lane = held.lane as usize;
                reached[lane] += held.most as i64 * gaps[lane];
                drained += held.most;
                cut_off(held.lane, held.most, reached[lane])
            });
            let seen = seen.collect();
            lanes.checkin(&term, seen);
            batches += 1;
            let (first, last) = (reached.iter().max(), reached.iter().min());
            apart = first.zip(last).map_or(0, |(first, last)| first - last).max(apart);
        }
        (apart, drained / batches)
    }

    #[test]
    fn lanes_stay_within_sight_of_each_other_whichever_task_has_them() {
        let mut random = fastrand::Rng::with_seed(2);
        // From one row of a lane to its next, with 8 to 26 of a thousand keys in each; those of the third task have more.
        let keys = (0..64).map(|lane| random.i64(if lane < 44 { 8..=22 } else { 12..=26 }));
        let gaps: Vec<i64> = keys.map(|keys| 1000 / keys).collect();
        let (apart, batch) = drain_by_three(&gaps, || 0);
        assert!(
            apart < 2 * SIGHT as i64,
            "{apart} ids between the first lane and the last"
        );
        assert!(batch > 1600, "{batch} rows a batch, where two of three must wait");
        let (apart, _) = drain_by_three(&gaps, || random.usize(..3));
        assert!(
            apart < 4 * SIGHT as i64,
            "{apart} ids between them where tasks take turns by lot"
        );
    }

    #[test]
    fn a_task_that_is_slow_for_a_while_is_waited_for() {
        let mut random = fastrand::Rng::with_seed(2);
        let (apart, batch) = drain_by_three(&[64; 64], || random.usize(..3));
        assert!(
            apart < 3 * SIGHT as i64,
            "{apart} ids between the first lane and the last"
        );
        assert!(batch > 1500, "{batch} rows a batch");
    }

    #[test]
    fn lanes_that_are_abreast_claim_whole_batches_but_for_the_step_that_one_is_ahead() {
        let (_, batch) = drain_by_three(&[64; 64], || 0);
        assert!(batch > 1800, "{batch} rows a batch");
    }

    proptest! {
        #[test]
        fn a_batch_has_no_more_rows_than_it_may(
            rows in 40usize..3000,
            lanes in prop::collection::vec((0i64..1 << 40, 1usize..DEEP), 1..40),
        ) {
            let lanes: Vec<Lane> = lanes.into_iter().map(|(reached, window)| lane(reached, window)).collect();
            let portions = portions_of(rows, &lanes);
            let raised = portions.iter().filter(|portion| **portion == 1).count();
            prop_assert!(portions.iter().sum::<usize>() <= rows + raised);
            for (portion, lane) in portions.iter().zip(&lanes) {
                prop_assert!((1..=lane.window).contains(portion));
            }
        }
    }
}
