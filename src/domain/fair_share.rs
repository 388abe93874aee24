//! How many lanes each worker should hold. Pure.

use uuid::Uuid;

use crate::domain::row::LANE_COUNT;

/// The fair share of `me`: every live worker gets the floor of an even split, and the remainder goes to those
/// who already hold more, so that a newcomer never starves and nobody swaps lanes for the sake of evenness.
pub fn fair_share(me: Uuid, holdings: &[(Uuid, usize)]) -> usize {
    let mut order: Vec<_> = holdings.to_vec();
    // Everybody must arrive at the same answer: ties are broken by identity.
    order.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let Some(place) = order.iter().position(|(worker, _)| *worker == me) else {
        return 0;
    };
    let even = LANE_COUNT / order.len();
    let remainder = LANE_COUNT % order.len();
    even + usize::from(place < remainder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Holdings = Vec<(Uuid, usize)>;

    /// One round of everybody following the rule; free lanes go to whoever is short. Returns lanes that moved.
    fn settle(holdings: &mut Holdings) -> usize {
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
        fn one_round_evens_everything_out_and_then_nothing_moves(mut holdings in any_holdings()) {
            settle(&mut holdings);
            prop_assert!(spread(&holdings) <= 1);
            let before = holdings.clone();
            prop_assert_eq!(settle(&mut holdings), 0);
            prop_assert_eq!(before, holdings);
        }

        #[test]
        fn a_joiner_gets_its_share_and_only_that_moves(workers in 1usize..20) {
            let mut holdings: Holdings = (0..workers).map(|n| (Uuid::from_u128(n as u128 + 1), 0)).collect();
            settle(&mut holdings);
            holdings.push((Uuid::from_u128(1000), 0));
            let moved = settle(&mut holdings);
            let joined = holdings.last().unwrap().1;
            prop_assert!(joined >= LANE_COUNT / (workers + 1));
            prop_assert_eq!(moved, joined, "nobody else's lanes changed hands");
        }

        #[test]
        fn a_rolling_restart_moves_each_leavers_lanes_and_no_others(workers in 2usize..12) {
            let mut holdings: Holdings = (0..workers).map(|n| (Uuid::from_u128(n as u128 + 1), 0)).collect();
            settle(&mut holdings);
            for n in 0..workers {
                // Surge first, as a rolling update does: the successor joins, then the old one leaves.
                holdings.push((Uuid::from_u128(100 + n as u128), 0));
                let to_joiner = settle(&mut holdings);
                prop_assert!(to_joiner <= LANE_COUNT.div_ceil(workers + 1));
                holdings.remove(0);
                let among_the_rest = settle(&mut holdings);
                prop_assert_eq!(among_the_rest, 0, "a leaver's lanes go to those short of them, nobody swaps");
                prop_assert!(spread(&holdings) <= 1);
            }
        }
    }
}
