//! Where the claims of a lane start, and how far a claim moves that start.
//!
//! A lane's *floor* is an id at or below which no row is pending, except for rows that a hold keeps back. It may pass an id only
//! if no open transaction can still commit it: see [`watermark`](super::watermark). A claim that starts after that sees the row,
//! if there is one.

use super::watermark::{Watermark, WatermarkTracker};

/// What one claim of a lane found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScanResult {
    /// The watermark as it was *before* the claim started.
    pub watermark: Watermark,
    /// The highest id claimed, if the claim stopped at a limit. It says nothing about higher ids.
    pub scanned_to: Option<i64>,
    /// The lowest id that the claim read and that is still pending without a hold.
    pub lowest_pending: Option<i64>,
}

impl ScanResult {
    /// The result of a claim that stopped at no limit and left nothing pending.
    pub fn of_everything(watermark: Watermark) -> Self {
        ScanResult {
            watermark,
            scanned_to: None,
            lowest_pending: None,
        }
    }
}

/// Where the claims of one lane start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Floor {
    hard: i64,
    /// Never below `hard`. It is not stored: see [`watermark`](super::watermark).
    soft: i64,
    /// The generation of the watermark that `soft` was taken from.
    generation: u64,
}

impl Floor {
    pub fn at(id: i64) -> Self {
        Floor {
            hard: id,
            soft: id,
            generation: 0,
        }
    }

    /// The part of the floor that may be stored.
    pub fn hard(&self) -> i64 {
        self.hard
    }

    /// The id above which a claim must read. It is the soft floor unless a bypassed writer has ended since.
    pub fn start(&self, tracker: &WatermarkTracker) -> i64 {
        self.soft.min(tracker.dropped_since(self.generation)).max(self.hard)
    }

    /// Moves the floor up to the watermark after a claim from [`Floor::start`], but neither past where the claim stopped nor past
    /// a row that is still pending. A claim from the soft floor reads what one from the hard floor would read, so both parts may
    /// move.
    pub fn advance(&mut self, scan: ScanResult) {
        let scanned = scan.scanned_to.unwrap_or(i64::MAX);
        let done = scan.lowest_pending.map_or(i64::MAX, |id| id - 1);
        let reach = |watermark: i64| watermark.min(scanned).min(done);
        self.hard = self.hard.max(reach(scan.watermark.hard));
        self.soft = self.hard.max(reach(scan.watermark.soft));
        self.generation = scan.watermark.generation;
    }

    /// Lowers the floor, so that rows above `id` are read again.
    pub fn lower(&mut self, id: i64) {
        self.hard = self.hard.min(id);
        self.soft = self.soft.min(id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::domain::watermark::Writers;

    fn watermark(hard: i64, soft: i64, generation: u64) -> Watermark {
        Watermark { hard, soft, generation }
    }

    #[test]
    fn a_floor_stops_below_a_pending_row_and_where_the_claim_stopped() {
        let watermark = watermark(100, 100, 0);
        let advanced = |from, scanned_to, lowest_pending| {
            let mut floor = Floor::at(from);
            floor.advance(ScanResult {
                watermark,
                scanned_to,
                lowest_pending,
            });
            floor.hard()
        };
        assert_eq!(advanced(10, None, None), 100);
        assert_eq!(advanced(10, Some(50), None), 50);
        assert_eq!(advanced(10, Some(50), Some(30)), 29);
        assert_eq!(advanced(40, None, Some(30)), 40, "a claim never lowers the floor");
    }

    #[test]
    fn lowering_a_floor_lowers_both_parts() {
        let mut floor = Floor::at(0);
        floor.advance(ScanResult::of_everything(watermark(10, 100, 3)));
        let tracker = WatermarkTracker::default();
        assert_eq!((floor.hard(), floor.start(&tracker)), (10, 100));
        floor.lower(5);
        assert_eq!((floor.hard(), floor.start(&tracker)), (5, 5));
    }

    /// A small world: writers draw ids and commit or roll back later, in any order, while a relay checks for open writers,
    /// bypasses them, and claims and publishes two lanes step by step. No floor may pass a committed row, and no claim that is
    /// kept may overlook one.
    #[derive(Clone, Debug)]
    enum Step {
        Draw(u8),
        End(u8, bool),
        Check,
        Bypass,
        Claim(usize, usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..5u8).prop_map(Step::Draw),
            3 => (0..5u8, any::<bool>()).prop_map(|(w, commit)| Step::End(w, commit)),
            3 => Just(Step::Check),
            2 => Just(Step::Bypass),
            5 => (0..2usize, 1..4usize).prop_map(|(lane, limit)| Step::Claim(lane, limit)),
        ]
    }

    struct Transaction {
        number: i64,
        ids: Vec<i64>,
    }

    impl Transaction {
        /// It has a transaction id only from its second row on: a row's id is drawn before the row is written.
        fn id(&self) -> Option<i64> {
            (self.ids.len() > 1).then_some(self.number)
        }
    }

    /// The stage that the batch of a lane has reached.
    #[derive(Clone, Default)]
    enum Batch {
        #[default]
        None,
        CheckedOut {
            start: i64,
            watermark: Watermark,
            bypassed: Vec<i64>,
        },
        Read {
            bypassed: Vec<i64>,
            overlooked: Option<i64>,
            claimed: Vec<i64>,
            scan: ScanResult,
        },
        Published(ScanResult),
    }

    #[derive(Default)]
    struct SmallWorld {
        drawn: i64,
        open: BTreeMap<u8, Transaction>,
        pending: BTreeSet<i64>,
        tracker: WatermarkTracker,
        floors: [Floor; 2],
        batches: [Batch; 2],
    }

    impl SmallWorld {
        fn writers(&self) -> Writers {
            let open = self.open.values();
            open.map(|transaction| (transaction.number.to_string(), transaction.id()))
                .collect()
        }

        fn draw(&mut self, session: u8) {
            self.drawn += 1;
            let number = self.drawn;
            let fresh = || Transaction {
                number,
                ids: Vec::new(),
            };
            let transaction = self.open.entry(session).or_insert_with(fresh);
            transaction.ids.push(self.drawn);
        }

        fn end(&mut self, session: u8, commit: bool) {
            if let Some(transaction) = self.open.remove(&session).filter(|_| commit) {
                self.pending.extend(transaction.ids);
            }
        }

        /// Takes the next step of the lane's batch. Returns a row that was overlooked by a claim that is kept.
        fn claim(&mut self, lane: usize, limit: usize) -> Option<i64> {
            self.batches[lane] = match std::mem::take(&mut self.batches[lane]) {
                Batch::None => {
                    let start = self.floors[lane].start(&self.tracker);
                    Batch::CheckedOut {
                        start,
                        watermark: self.tracker.watermark(),
                        bypassed: self.tracker.bypassed_below(start),
                    }
                }
                Batch::CheckedOut {
                    start,
                    watermark,
                    bypassed,
                } => self.read(lane, limit, start, watermark, bypassed),
                Batch::Read {
                    bypassed,
                    overlooked,
                    claimed,
                    scan,
                } => {
                    let is_open = |writer: &i64| self.open.values().any(|open| open.number == *writer);
                    let ended: Vec<i64> = bypassed.into_iter().filter(|writer| !is_open(writer)).collect();
                    if ended.is_empty() {
                        self.pending.retain(|id| !claimed.contains(id));
                        self.batches[lane] = Batch::Published(scan);
                        return overlooked;
                    }
                    self.tracker.end(&ended);
                    Batch::None
                }
                Batch::Published(scan) => {
                    self.floors[lane].advance(scan);
                    Batch::None
                }
            };
            None
        }

        fn read(&self, lane: usize, limit: usize, start: i64, watermark: Watermark, bypassed: Vec<i64>) -> Batch {
            let of_lane = |id: &&i64| **id % 2 == lane as i64;
            let overlooked = self.pending.iter().filter(of_lane).find(|id| **id <= start).copied();
            let above = self.pending.iter().filter(of_lane).filter(|id| **id > start);
            let claimed: Vec<i64> = above.copied().take(limit).collect();
            let scanned_to = (claimed.len() == limit).then(|| claimed[limit - 1]);
            Batch::Read {
                bypassed,
                overlooked,
                claimed,
                scan: ScanResult {
                    watermark,
                    scanned_to,
                    lowest_pending: None,
                },
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn no_committed_row_is_passed_by_a_floor_or_overlooked(steps in prop::collection::vec(any_step(), 0..160)) {
            let mut world = SmallWorld::default();
            for step in steps {
                match step {
                    Step::Draw(session) => world.draw(session),
                    Step::End(session, commit) => world.end(session, commit),
                    Step::Check => world.tracker.observe(world.drawn, &world.writers()),
                    Step::Bypass => world.tracker.bypass_old_writers(),
                    Step::Claim(lane, limit) => prop_assert_eq!(world.claim(lane, limit), None, "overlooked"),
                }
                for id in world.pending.iter().chain(world.open.values().flat_map(|transaction| &transaction.ids)) {
                    let floor = world.floors[*id as usize % 2].hard();
                    prop_assert!(*id > floor, "id {} was passed by floor {}", id, floor);
                }
            }
        }
    }
}
