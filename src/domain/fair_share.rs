//! How many lanes each worker should own.

use uuid::Uuid;

use crate::domain::row::LANE_COUNT;

/// The fair share of `me`, given how many lanes each live worker owns. An even split is rounded down, and the remainder goes to
/// the workers that own most. So a new worker always gets lanes, and no two workers swap lanes.
pub fn fair_share(me: Uuid, owned: &[(Uuid, usize)]) -> usize {
    let mut order: Vec<_> = owned.to_vec();
    // All workers must compute the same shares, so ties are broken by id.
    order.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let Some(rank) = order.iter().position(|(worker, _)| *worker == me) else {
        return 0;
    };
    let even = LANE_COUNT / order.len();
    let remainder = LANE_COUNT % order.len();
    even + usize::from(rank < remainder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Holdings = Vec<(Uuid, usize)>;

    /// Does one round in which all workers return their surplus and take free lanes. Returns how many lanes were returned.
    fn balance(holdings: &mut Holdings) -> usize {
        let view = holdings.clone();
        let mut free = LANE_COUNT - view.iter().map(|h| h.1).sum::<usize>();
        let mut moved = 0;
        for holding in holdings.iter_mut() {
            let surplus = holding.1.saturating_sub(fair_share(holding.0, &view));
            holding.1 -= surplus;
            free += surplus;
            moved += surplus;
        }
        for holding in holdings.iter_mut() {
            let short = fair_share(holding.0, &view).saturating_sub(holding.1).min(free);
            holding.1 += short;
            free -= short;
        }
        moved
    }

    fn any_holdings() -> impl Strategy<Value = Holdings> {
        (1usize..20, prop::collection::vec(0usize..20, LANE_COUNT)).prop_map(|(workers, owners)| {
            let mut holdings: Holdings = (0..workers)
                .map(|n| (Uuid::from_u128(n as u128 * 7919 % 101 + 1), 0))
                .collect();
            for owner in owners {
                // Some lanes stay free, as after a crash.
                if owner < workers {
                    holdings[owner].1 += 1;
                }
            }
            holdings
        })
    }

    fn spread(holdings: &Holdings) -> usize {
        let lanes = holdings.iter().map(|h| h.1);
        lanes.clone().max().unwrap_or(0) - lanes.min().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn shares_add_up_and_differ_by_one_at_most(holdings in any_holdings()) {
            let shares: Vec<_> = holdings.iter().map(|h| fair_share(h.0, &holdings)).collect();
            prop_assert_eq!(shares.iter().sum::<usize>(), LANE_COUNT);
            prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }

        #[test]
        fn one_round_balances_all_lanes_and_then_none_moves(mut holdings in any_holdings()) {
            balance(&mut holdings);
            prop_assert!(spread(&holdings) <= 1);
            let before = holdings.clone();
            prop_assert_eq!(balance(&mut holdings), 0);
            prop_assert_eq!(before, holdings);
        }

        #[test]
        fn a_new_worker_gets_its_share_and_no_other_lanes_move(workers in 1usize..20) {
            let mut holdings: Holdings = (0..workers).map(|n| (Uuid::from_u128(n as u128 + 1), 0)).collect();
            balance(&mut holdings);
            holdings.push((Uuid::from_u128(1000), 0));
            let moved = balance(&mut holdings);
            let share = holdings.last().unwrap().1;
            prop_assert!(share >= LANE_COUNT / (workers + 1));
            prop_assert_eq!(moved, share, "no other lanes moved");
        }

        #[test]
        fn a_rolling_restart_moves_only_the_lanes_of_the_workers_that_leave(workers in 2usize..12) {
            let mut holdings: Holdings = (0..workers).map(|n| (Uuid::from_u128(n as u128 + 1), 0)).collect();
            balance(&mut holdings);
            for n in 0..workers {
                // As in a rolling update, the successor joins before the old worker leaves.
                holdings.push((Uuid::from_u128(100 + n as u128), 0));
                let to_new = balance(&mut holdings);
                prop_assert!(to_new <= LANE_COUNT.div_ceil(workers + 1));
                holdings.remove(0);
                let among_others = balance(&mut holdings);
                prop_assert_eq!(among_others, 0, "the lanes that were left go to workers that lack some");
                prop_assert!(spread(&holdings) <= 1);
            }
        }
    }
}
