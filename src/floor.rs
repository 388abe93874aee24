//! Where a claim starts to look, and when that may move.
//!
//! A lane's *floor* is an id at or below which nothing is pending (but what `outbox.hold` names). It may
//! pass an id only when no transaction that could still commit a lower one is left. Ids commit out of
//! order, so neither "last id seen" nor a snapshot's xmin tells. What tells is who holds the lock that
//! every writer takes before it draws an id. A look reads the highest id drawn, *then* the writers. A writer
//! that one look does not see and the next one does has drawn nothing up to the highest id of the former. So
//! each open writer is known by an id below all of its own, and every id is settled that lies neither above
//! the highest one read nor above what is known of any open writer: a claim that starts after that sees whatever
//! became of it.
//!
//! A writer left open after its INSERT would stop every floor for as long as it likes, and claims would read again and
//! again what has been published since. So the horizon has a *soft* part, in memory only: ids that only such holders
//! could still commit. Nothing of theirs is visible while they are in progress, so a claim may start at the soft floor if
//! in a snapshot taken after its own every holder with ids below that still was; otherwise it is discarded. Where a holder
//! has ended, soft floors fall to the id below all of its own, and no further: the other holders keep what is below it.

use std::collections::BTreeMap;

/// Who may still commit an id already drawn: the transaction's name in `pg_locks`, which it keeps when it is prepared, and
/// its id once it has one.
pub type Writers = BTreeMap<String, Option<i64>>;

/// How ids are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// So many ids a session draws at once, and hands out in later transactions.
    pub cache: i64,
    pub increment: i64,
    /// Changes when the sequence is restarted or altered, unlike by `setval`.
    pub file: i64,
}

impl Sequence {
    /// Are ids drawn one by one, each higher than the last? Otherwise the highest id drawn says nothing about lower ones.
    pub fn is_in_order(&self) -> bool {
        self.cache == 1 && self.increment > 0
    }

    /// Has it been restarted since it was like `last`? Another cache or increment explains another file.
    pub fn is_restart_of(&self, last: &Sequence) -> bool {
        self.file != last.file && (self.cache, self.increment) == (last.cache, last.increment)
    }
}

/// So many falls are told apart. Of more, the oldest two count as one that was as deep as both.
const FALLS_MAX: usize = 8;

/// The process's view of which ids are settled. One per server incarnation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Horizon {
    settled: Settled,
    /// The highest id drawn, at the last look.
    highest_id: i64,
    /// By name, who was writing at the last look and is not known to have ended since.
    open: BTreeMap<String, OpenWriter>,
    /// What the end of holders did to soft floors, oldest first, each deeper than the next.
    falls: Vec<Fall>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct OpenWriter {
    /// All ids that it has drawn are above this.
    from: i64,
    transaction: Option<i64>,
    /// It was open when patience was lost last.
    is_old: bool,
    /// The soft horizon moves without it.
    is_holder: bool,
}

impl OpenWriter {
    /// It has outstayed our patience if it was old already. Only one with a transaction id, by which its end is seen, can be a holder.
    fn lose_patience(&mut self) {
        self.is_holder |= self.is_old && self.transaction.is_some();
        self.is_old = true;
    }
}

/// A holder has ended: soft floors of earlier generations fall to this id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Fall {
    generation: u64,
    to: i64,
}

/// The horizon at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settled {
    /// Every id up to here has committed or never will.
    pub hard: i64,
    /// Every id up to here, but for those of the holders. Not below `hard`.
    pub soft: i64,
    /// So often has a holder ended.
    pub generation: u64,
}

impl Horizon {
    /// The highest id that is known to be drawn.
    pub fn highest_id(&self) -> i64 {
        self.highest_id
    }

    pub fn settled(&self) -> Settled {
        self.settled
    }

    /// The transactions that the soft horizon moves without.
    pub fn holders(&self) -> Vec<i64> {
        self.holders_below(i64::MAX)
    }

    /// Those of them that must be in progress for a claim that starts here: they may have ids at or below it.
    pub fn holders_below(&self, start: i64) -> Vec<i64> {
        let holders = self
            .open
            .values()
            .filter(|writer| writer.is_holder && writer.from < start);
        holders.filter_map(|writer| writer.transaction).collect()
    }

    /// A look at the database: the highest id drawn, read *before* who writes.
    pub fn look(&mut self, highest_id: i64, writers: &Writers) {
        let came_after = self.highest_id;
        let known = std::mem::take(&mut self.open);
        let open = |(name, transaction): (&String, &Option<i64>)| {
            let writer = known.get(name).copied().unwrap_or(OpenWriter {
                from: came_after,
                transaction: None,
                is_old: false,
                is_holder: false,
            });
            let transaction = writer.transaction.or(*transaction);
            (name.clone(), OpenWriter { transaction, ..writer })
        };
        self.open = writers.iter().map(open).collect();
        self.highest_id = self.highest_id.max(highest_id);
        let ended = known.iter().filter(|(name, _)| !writers.contains_key(*name));
        self.fall(ended.map(|(_, writer)| *writer).collect());
        self.settle();
    }

    /// Patience is lost: whoever was open when it was lost before is going to stay, and from now on the soft horizon moves
    /// without them.
    pub fn soften(&mut self) {
        self.open.values_mut().for_each(OpenWriter::lose_patience);
        self.settle();
    }

    /// These transactions have ended.
    pub fn end(&mut self, transactions: &[i64]) {
        let has_ended = |writer: &OpenWriter| writer.transaction.is_some_and(|id| transactions.contains(&id));
        let ended = self.open.values().filter(|writer| has_ended(writer)).copied().collect();
        self.open.retain(|_, writer| !has_ended(writer));
        self.fall(ended);
        self.settle();
    }

    /// What holders that have ended may have committed lies below soft floors.
    fn fall(&mut self, ended: Vec<OpenWriter>) {
        let holders = ended.iter().filter(|writer| writer.is_holder);
        let Some(to) = holders.map(|writer| writer.from).min() else {
            return;
        };
        self.settled.generation += 1;
        self.falls.retain(|fall| fall.to < to);
        self.falls.push(Fall {
            generation: self.settled.generation,
            to,
        });
        if self.falls.len() > FALLS_MAX {
            let oldest = self.falls.remove(0);
            self.falls[0].to = oldest.to;
        }
    }

    /// Where a soft floor of this generation has fallen to since, if it was higher.
    fn fallen_since(&self, generation: u64) -> i64 {
        let fall = self.falls.iter().find(|fall| fall.generation > generation);
        fall.map_or(i64::MAX, |fall| fall.to)
    }

    fn settle(&mut self) {
        let from = |without_holders: bool| {
            let open = self.open.values();
            let counted = open.filter(|writer| !(without_holders && writer.is_holder));
            counted.map(|writer| writer.from).fold(self.highest_id, i64::min)
        };
        let (hard, soft) = (from(false), from(true));
        self.settled.hard = self.settled.hard.max(hard);
        self.settled.soft = self.settled.soft.max(soft);
    }
}

/// What one claim of a lane saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sight {
    /// The horizon as it was *before* the claim started.
    pub settled: Settled,
    /// The highest id claimed, where the claim was cut off by its limit: above it nothing is known.
    pub cut_at: Option<i64>,
    /// The lowest id that was seen and is still pending without a hold that would find it again.
    pub lowest_left: Option<i64>,
}

impl Sight {
    /// Nothing was cut off, nothing is left.
    pub fn of_everything(settled: Settled) -> Self {
        Sight {
            settled,
            cut_at: None,
            lowest_left: None,
        }
    }
}

/// Where the claims of one lane start to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Floor {
    hard: i64,
    soft: i64,
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

    /// The floor proper, which may be stored.
    pub fn hard(&self) -> i64 {
        self.hard
    }

    /// Where it is enough to start under this horizon.
    pub fn start(&self, horizon: &Horizon) -> i64 {
        self.soft.min(horizon.fallen_since(self.generation)).max(self.hard)
    }

    /// After a claim from [`Floor::start`]: up to the horizon, to where the claim looked, and below what is left. A claim
    /// from the soft floor saw what one from the hard floor would have seen, so both may move.
    pub fn advance(&mut self, sight: Sight) {
        let looked = sight.cut_at.unwrap_or(i64::MAX);
        let free = sight.lowest_left.map_or(i64::MAX, |id| id - 1);
        let reach = |settled: i64| settled.min(looked).min(free);
        self.hard = self.hard.max(reach(sight.settled.hard));
        self.soft = self.hard.max(reach(sight.settled.soft));
        self.generation = sight.settled.generation;
    }

    /// Something at or above `id + 1` is to be looked at again.
    pub fn lower(&mut self, id: i64) {
        self.hard = self.hard.min(id);
        self.soft = self.soft.min(id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Writers by name; their transaction ids are made of it.
    fn writers(names: &[&str]) -> Writers {
        names
            .iter()
            .map(|name| ((*name).to_owned(), Some(i64::from(name.as_bytes()[0]))))
            .collect()
    }

    fn hard(horizon: &Horizon) -> i64 {
        horizon.settled().hard
    }

    fn settled(hard: i64, soft: i64, generation: u64) -> Settled {
        Settled { hard, soft, generation }
    }

    /// Patience with everybody who is open now is lost, for good.
    fn lose_patience(horizon: &mut Horizon) {
        horizon.soften();
        horizon.soften();
    }

    #[test]
    fn nothing_is_settled_that_an_open_writer_may_have_drawn() {
        let mut horizon = Horizon::default();
        horizon.look(100, &writers(&["a", "b"]));
        assert_eq!(hard(&horizon), 0, "nothing is known of either");
        horizon.look(110, &writers(&["b", "c"]));
        assert_eq!(hard(&horizon), 0, "b has not ended");
        horizon.look(120, &writers(&["c"]));
        assert_eq!(hard(&horizon), 100, "c came later and cannot hold a lower id");
        horizon.look(130, &writers(&["c", "d"]));
        assert_eq!(hard(&horizon), 100, "c has not ended");
        horizon.look(140, &writers(&["d"]));
        assert_eq!(hard(&horizon), 120, "d came after that look");
    }

    #[test]
    fn a_sequence_that_hands_out_ids_of_old_is_out_of_order_and_another_file_of_the_same_kind_a_restart() {
        let sequence = |cache, increment, file| Sequence { cache, increment, file };
        assert!(sequence(1, 1, 7).is_in_order() && sequence(1, 10, 7).is_in_order());
        assert!(!sequence(50, 1, 7).is_in_order() && !sequence(1, -1, 7).is_in_order());
        assert!(sequence(1, 1, 8).is_restart_of(&sequence(1, 1, 7)));
        assert!(!sequence(1, 1, 7).is_restart_of(&sequence(1, 1, 7)));
        assert!(!sequence(50, 1, 8).is_restart_of(&sequence(1, 1, 7)), "it was altered");
    }

    #[test]
    fn without_writers_a_look_settles_at_once() {
        let mut horizon = Horizon::default();
        horizon.look(7, &Writers::new());
        assert_eq!(horizon.settled(), settled(7, 7, 0));
    }

    #[test]
    fn the_soft_horizon_moves_past_a_holder_until_it_ends_and_then_the_hard_one_follows() {
        let mut horizon = Horizon::default();
        horizon.look(100, &writers(&["a"]));
        horizon.soften();
        assert!(horizon.holders().is_empty(), "it has only just come");
        horizon.soften();
        assert_eq!(horizon.settled(), settled(0, 100, 0));
        horizon.look(200, &writers(&["a", "b"]));
        assert_eq!(horizon.settled().soft, 100, "b may still commit");
        horizon.look(300, &writers(&["a"]));
        assert_eq!(horizon.settled(), settled(0, 300, 0));
        assert_eq!(horizon.holders(), [i64::from(b'a')]);
        horizon.look(400, &writers(&["c"]));
        assert_eq!(horizon.settled(), settled(300, 300, 1));
        assert!(horizon.holders().is_empty());
    }

    /// One that stays open, and a job beside it that came after the look at 200.
    fn beside_a_job() -> Horizon {
        let mut horizon = Horizon::default();
        horizon.look(100, &writers(&["a"]));
        lose_patience(&mut horizon);
        horizon.look(200, &writers(&["a"]));
        horizon.look(210, &writers(&["a", "job"]));
        lose_patience(&mut horizon);
        horizon.look(300, &writers(&["a", "job"]));
        horizon
    }

    #[test]
    fn when_one_holder_ends_soft_floors_fall_to_what_came_before_it_and_others_keep_that() {
        let seen_by_proof = |horizon: &mut Horizon| horizon.end(&[i64::from(b'j')]);
        let seen_by_a_look = |horizon: &mut Horizon| horizon.look(300, &writers(&["a"]));
        for job_ends in [seen_by_proof, seen_by_a_look] {
            let mut horizon = beside_a_job();
            assert_eq!(horizon.settled(), settled(0, 300, 0));
            let mut floor = Floor::at(0);
            floor.advance(Sight::of_everything(horizon.settled()));
            assert_eq!(floor.start(&horizon), 300);
            job_ends(&mut horizon);
            assert_eq!(
                horizon.settled(),
                settled(0, 300, 1),
                "what the job has drawn is settled"
            );
            assert_eq!(floor.start(&horizon), 200);
            assert_eq!(horizon.holders(), [i64::from(b'a')]);
            floor.advance(Sight::of_everything(horizon.settled()));
            assert_eq!((floor.hard(), floor.start(&horizon)), (0, 300), "and is seen now");
        }
    }

    #[test]
    fn when_the_oldest_holder_ends_the_hard_horizon_comes_up_to_the_next() {
        let mut horizon = beside_a_job();
        horizon.end(&[i64::from(b'a')]);
        assert_eq!(horizon.settled(), settled(200, 300, 1));
        horizon.end(&[i64::from(b'a')]);
        assert_eq!(horizon.settled(), settled(200, 300, 1), "it is heard once");
        horizon.end(&[i64::from(b'j')]);
        assert_eq!(horizon.settled(), settled(300, 300, 2));
    }

    #[test]
    fn a_claim_relies_on_those_holders_alone_that_may_have_lower_ids() {
        let horizon = beside_a_job();
        assert!(horizon.holders_below(0).is_empty());
        assert_eq!(horizon.holders_below(200), [i64::from(b'a')]);
        assert_eq!(horizon.holders_below(201), [i64::from(b'a'), i64::from(b'j')]);
    }

    #[test]
    fn a_floor_falls_as_deep_as_the_deepest_fall_it_has_missed() {
        let mut horizon = Horizon::default();
        let mut fall = |to| {
            let is_holder = OpenWriter {
                from: to,
                transaction: Some(1),
                is_old: true,
                is_holder: true,
            };
            horizon.fall(vec![is_holder]);
            horizon.clone()
        };
        let floor = Floor {
            hard: 5,
            soft: 1000,
            generation: 1,
        };
        assert_eq!(floor.start(&fall(10)), 1000, "it is of that generation already");
        assert_eq!(floor.start(&fall(300)), 300);
        assert_eq!(floor.start(&fall(400)), 300);
        assert_eq!(floor.start(&fall(200)), 200);
        assert_eq!(floor.start(&fall(1)), 5, "not below the hard floor");
        let missed_one = |horizon: &Horizon| {
            let generation = horizon.settled().generation - 1;
            Floor { generation, ..floor }.start(horizon)
        };
        for to in 500..520 {
            assert_eq!(missed_one(&fall(to)), to, "of many falls the last are told apart");
        }
        assert_eq!(horizon.falls.len(), FALLS_MAX);
    }

    #[test]
    fn who_came_a_moment_ago_does_not_become_a_holder_beside_one_that_stays() {
        let mut horizon = Horizon::default();
        horizon.look(100, &writers(&["a"]));
        lose_patience(&mut horizon);
        horizon.look(200, &writers(&["a", "b"]));
        horizon.soften();
        assert_eq!(horizon.holders(), [i64::from(b'a')]);
        horizon.look(300, &writers(&["a"]));
        assert_eq!(
            horizon.settled(),
            settled(0, 300, 0),
            "b has ended, and nothing was lost by it"
        );
    }

    #[test]
    fn nobody_without_a_transaction_id_becomes_a_holder() {
        let mut horizon = Horizon::default();
        let copying = Writers::from([("copy".to_owned(), None)]);
        horizon.look(100, &copying);
        lose_patience(&mut horizon);
        horizon.look(200, &copying);
        assert!(horizon.holders().is_empty());
        assert_eq!(horizon.settled().soft, 0);
    }

    #[test]
    fn a_floor_stops_below_what_is_left_and_where_the_claim_was_cut() {
        let settled = settled(100, 100, 0);
        let advanced = |from, cut_at, lowest_left| {
            let mut floor = Floor::at(from);
            floor.advance(Sight {
                settled,
                cut_at,
                lowest_left,
            });
            floor.hard()
        };
        assert_eq!(advanced(10, None, None), 100);
        assert_eq!(advanced(10, Some(50), None), 50);
        assert_eq!(advanced(10, Some(50), Some(30)), 29);
        assert_eq!(advanced(40, None, Some(30)), 40, "never backwards");
    }

    #[test]
    fn a_floor_that_is_lowered_is_so_in_both_parts() {
        let mut floor = Floor::at(0);
        floor.advance(Sight::of_everything(settled(10, 100, 3)));
        let horizon = Horizon::default();
        assert_eq!((floor.hard(), floor.start(&horizon)), (10, 100));
        floor.lower(5);
        assert_eq!((floor.hard(), floor.start(&horizon)), (5, 5));
    }

    /// A small world: writers draw ids and commit or roll back later, in any order, while a relay looks, loses patience,
    /// and claims and publishes two lanes step by step. No committed row may be passed by a floor, nor overlooked by a claim
    /// that counts.
    #[derive(Clone, Debug)]
    enum Step {
        Draw(u8),
        End(u8, bool),
        Look,
        Soften,
        Claim(usize, usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..5u8).prop_map(Step::Draw),
            3 => (0..5u8, any::<bool>()).prop_map(|(w, commit)| Step::End(w, commit)),
            3 => Just(Step::Look),
            2 => Just(Step::Soften),
            5 => (0..2usize, 1..4usize).prop_map(|(lane, limit)| Step::Claim(lane, limit)),
        ]
    }

    struct Transaction {
        number: i64,
        ids: Vec<i64>,
    }

    impl Transaction {
        /// It has an id of its own only from its second row on: a row's id is drawn before the row is written.
        fn id(&self) -> Option<i64> {
            (self.ids.len() > 1).then_some(self.number)
        }
    }

    /// How far the batch of a lane is.
    #[derive(Clone, Default)]
    enum Batch {
        #[default]
        None,
        CheckedOut {
            start: i64,
            settled: Settled,
            holders: Vec<i64>,
        },
        Read {
            holders: Vec<i64>,
            overlooked: Option<i64>,
            claimed: Vec<i64>,
            sight: Sight,
        },
        Published(Sight),
    }

    #[derive(Default)]
    struct SmallWorld {
        drawn: i64,
        open: BTreeMap<u8, Transaction>,
        pending: BTreeSet<i64>,
        horizon: Horizon,
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

        /// The next step of the lane's batch. Answers what was overlooked by a claim that counts.
        fn claim(&mut self, lane: usize, limit: usize) -> Option<i64> {
            self.batches[lane] = match std::mem::take(&mut self.batches[lane]) {
                Batch::None => {
                    let start = self.floors[lane].start(&self.horizon);
                    Batch::CheckedOut {
                        start,
                        settled: self.horizon.settled(),
                        holders: self.horizon.holders_below(start),
                    }
                }
                Batch::CheckedOut {
                    start,
                    settled,
                    holders,
                } => self.read(lane, limit, start, settled, holders),
                Batch::Read {
                    holders,
                    overlooked,
                    claimed,
                    sight,
                } => {
                    let is_open = |holder: &i64| self.open.values().any(|open| open.number == *holder);
                    let ended: Vec<i64> = holders.into_iter().filter(|holder| !is_open(holder)).collect();
                    if ended.is_empty() {
                        self.pending.retain(|id| !claimed.contains(id));
                        self.batches[lane] = Batch::Published(sight);
                        return overlooked;
                    }
                    self.horizon.end(&ended);
                    Batch::None
                }
                Batch::Published(sight) => {
                    self.floors[lane].advance(sight);
                    Batch::None
                }
            };
            None
        }

        fn read(&self, lane: usize, limit: usize, start: i64, settled: Settled, holders: Vec<i64>) -> Batch {
            let of_lane = |id: &&i64| **id % 2 == lane as i64;
            let overlooked = self.pending.iter().filter(of_lane).find(|id| **id <= start).copied();
            let above = self.pending.iter().filter(of_lane).filter(|id| **id > start);
            let claimed: Vec<i64> = above.copied().take(limit).collect();
            let cut_at = (claimed.len() == limit).then(|| claimed[limit - 1]);
            Batch::Read {
                holders,
                overlooked,
                claimed,
                sight: Sight {
                    settled,
                    cut_at,
                    lowest_left: None,
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
                    Step::Look => world.horizon.look(world.drawn, &world.writers()),
                    Step::Soften => world.horizon.soften(),
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
