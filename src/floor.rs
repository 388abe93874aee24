//! Where a claim starts to look, and when that may move.
//!
//! A lane's *floor* is an id at or below which nothing is pending (but what `outbox.hold` names). It may
//! pass an id only when no transaction that could still commit a lower one is left. Ids commit out of
//! order, so neither "last id seen" nor a snapshot's xmin tells. What tells is who holds the lock that
//! every writer takes before it draws an id: note the highest id drawn, *then* the writers; once all of
//! those have ended, every id up to the noted one is settled, and a claim that starts after that sees
//! whatever became of it.
//!
//! There is a cheaper proof where rows are kept: a look that sees every id above what is settled, without a gap up to some id,
//! has seen what became of each. It asks nobody. A gap, and be it of a row rolled back, leaves the rest to the writers' locks.
//!
//! A writer left open after its INSERT would stop every floor for as long as it likes, and claims would read again and
//! again what has been published since. So the horizon has a *soft* part, in memory only: ids that only such holders
//! could still commit. Nothing of theirs is visible while they are in progress, so a claim may start at the soft floor if
//! in a snapshot taken after its own all of them still were; otherwise it is discarded and read again from the floor.

use std::collections::{BTreeMap, BTreeSet};

/// Who may still commit an id already drawn: the transaction's name in `pg_locks`, which it keeps when it is prepared, and
/// its id once it has one.
pub type Writers = BTreeMap<String, Option<i64>>;

/// The process's view of which ids are settled. One per server incarnation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Horizon {
    settled: Settled,
    noted: Option<Note>,
    soft_noted: Option<Note>,
    /// Transactions that have outstayed our patience.
    holders: BTreeSet<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Note {
    highest_id: i64,
    writers: Writers,
    /// Whoever is still noted has been so since patience was lost last.
    is_old: bool,
}

impl Note {
    fn new(highest_id: i64, writers: Writers) -> Self {
        Note {
            highest_id,
            writers,
            is_old: false,
        }
    }

    /// The transactions of an old note, as far as they are known by their ids; a young one is old the next time.
    fn outstayed(&mut self) -> Vec<i64> {
        if !std::mem::replace(&mut self.is_old, true) {
            return Vec::new();
        }
        self.writers.values().flatten().copied().collect()
    }

    /// Those no longer here have ended.
    fn observe(&mut self, here: &Writers) {
        self.writers = here
            .iter()
            .filter(|(name, _)| self.writers.contains_key(*name))
            .map(|(name, id)| (name.clone(), *id))
            .collect();
    }
}

/// The horizon at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settled {
    /// Every id up to here has committed or never will.
    pub hard: i64,
    /// Every id up to here, but for those of the holders. Not below `hard`.
    pub soft: i64,
    /// Changes when a holder ends: a soft floor of another generation means nothing.
    pub generation: u64,
}

impl Settled {
    /// After a look that started at `start` and saw every id from `hard` up to `id`: settled is what it saw, unless it started above
    /// what was settled before.
    pub fn seen(self, start: i64, id: i64) -> Self {
        if start > self.hard || id <= self.hard {
            return self;
        }
        Settled {
            hard: id,
            soft: self.soft.max(id),
            ..self
        }
    }
}

impl Horizon {
    pub fn settled(&self) -> Settled {
        self.settled
    }

    /// The transactions that must still be in progress for `settled().soft` to hold.
    pub fn holders(&self) -> Vec<i64> {
        self.holders.iter().copied().collect()
    }

    /// Is a note waiting for its writers?
    pub fn is_waiting(&self) -> bool {
        self.noted.is_some()
    }

    /// A look at the database: the highest id drawn, read *before* who writes.
    pub fn look(&mut self, highest_id: i64, writers: &Writers) {
        self.observe(writers);
        let mut writers = writers.clone();
        if self.noted.is_none() {
            self.noted = Some(Note::new(highest_id, writers));
        } else if !self.holders.is_empty() && self.soft_noted.is_none() {
            writers.retain(|_, id| id.is_none_or(|id| !self.holders.contains(&id)));
            self.soft_noted = Some(Note::new(highest_id, writers));
        }
        self.settle();
    }

    /// Every id up to here was seen: see [`Settled::seen`].
    pub fn settle_up_to(&mut self, id: i64) {
        self.settled.hard = self.settled.hard.max(id);
        self.settled.soft = self.settled.soft.max(self.settled.hard);
    }

    /// Patience is lost: whoever was noted when it was lost before is going to stay, and from now on the soft horizon moves
    /// without them. Not without one that has no transaction id, by which its end is seen.
    pub fn soften(&mut self) {
        let notes = self.noted.iter_mut().chain(&mut self.soft_noted);
        let outstayed: Vec<i64> = notes.flat_map(Note::outstayed).collect();
        self.holders.extend(outstayed);
        if let Some(note) = &mut self.soft_noted {
            note.writers
                .retain(|_, id| id.is_none_or(|id| !self.holders.contains(&id)));
        }
        self.settle();
    }

    /// A holder has ended: what was soft is so no more.
    pub fn harden(&mut self, generation: u64) {
        if self.settled.generation == generation && !self.holders.is_empty() {
            self.holders.clear();
            self.soft_noted = None;
            self.settled.soft = self.settled.hard;
            self.settled.generation += 1;
        }
    }

    fn observe(&mut self, writers: &Writers) {
        for note in self.noted.iter_mut().chain(&mut self.soft_noted) {
            note.observe(writers);
        }
        self.settle();
        let here: BTreeSet<i64> = writers.values().flatten().copied().collect();
        if self.holders.is_disjoint(&here) {
            self.settled.hard = self.settled.soft;
        }
        if !self.holders.is_subset(&here) {
            self.harden(self.settled.generation);
        }
    }

    fn settle(&mut self) {
        if let Some(note) = self.noted.take_if(|note| note.writers.is_empty()) {
            self.settled.hard = self.settled.hard.max(note.highest_id);
        }
        if let Some(note) = self.soft_noted.take_if(|note| note.writers.is_empty()) {
            self.settled.soft = note.highest_id;
        }
        self.settled.soft = self.settled.soft.max(self.settled.hard);
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
    pub fn start(&self, settled: Settled) -> i64 {
        if self.generation == settled.generation {
            self.soft
        } else {
            self.hard
        }
    }

    /// After a claim from [`Floor::start`]: up to the horizon, to where the claim looked, and below what is left. A claim
    /// from the soft floor saw what one from the hard floor would have seen, so both may move.
    pub fn advance(&mut self, sight: Sight) {
        let looked = sight.cut_at.unwrap_or(i64::MAX);
        let free = sight.lowest_left.map_or(i64::MAX, |id| id - 1);
        let reach = |settled: i64| settled.min(looked).min(free);
        self.soft = self.start(sight.settled).max(reach(sight.settled.soft));
        self.hard = self.hard.max(reach(sight.settled.hard));
        self.soft = self.soft.max(self.hard);
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
    use super::*;
    use proptest::prelude::*;

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

    #[test]
    fn nothing_is_settled_while_a_noted_writer_lives() {
        let mut horizon = Horizon::default();
        horizon.look(100, &writers(&["a", "b"]));
        assert_eq!(hard(&horizon), 0);
        horizon.look(110, &writers(&["b", "c"]));
        assert_eq!(hard(&horizon), 0, "b has not ended");
        assert!(horizon.is_waiting());
        horizon.look(120, &writers(&["c"]));
        assert_eq!(hard(&horizon), 100, "c came later and cannot hold a lower id");
    }

    #[test]
    fn without_writers_a_look_settles_at_once() {
        let mut horizon = Horizon::default();
        horizon.look(7, &Writers::new());
        assert_eq!(
            horizon.settled(),
            Settled {
                hard: 7,
                soft: 7,
                generation: 0
            }
        );
        assert!(!horizon.is_waiting());
    }

    #[test]
    fn the_soft_horizon_moves_past_a_holder_until_it_ends_and_then_the_hard_one_follows() {
        let mut horizon = Horizon::default();
        horizon.look(100, &writers(&["a"]));
        horizon.soften();
        assert!(horizon.holders().is_empty(), "it has only just come");
        horizon.soften();
        horizon.look(200, &writers(&["a", "b"]));
        assert_eq!(horizon.settled().soft, 0, "b may still commit");
        horizon.look(300, &writers(&["a"]));
        assert_eq!(
            horizon.settled(),
            Settled {
                hard: 0,
                soft: 300,
                generation: 0
            }
        );
        assert_eq!(horizon.holders(), [i64::from(b'a')]);
        horizon.look(400, &writers(&["c"]));
        assert_eq!(
            horizon.settled(),
            Settled {
                hard: 300,
                soft: 300,
                generation: 1
            }
        );
        assert!(horizon.holders().is_empty());
    }

    #[test]
    fn without_a_holder_there_is_one_note_at_a_time() {
        let mut horizon = Horizon::default();
        horizon.look(100, &writers(&["a"]));
        horizon.look(110, &writers(&["a"]));
        horizon.look(120, &writers(&["b"]));
        let settled = horizon.settled();
        assert_eq!((settled.hard, settled.soft), (100, 100));
    }

    #[test]
    fn a_look_settles_what_it_saw_unless_it_started_above_what_was_settled() {
        let settled = Settled {
            hard: 50,
            soft: 70,
            generation: 1,
        };
        let seen = |start, id| settled.seen(start, id);
        assert_eq!(seen(51, 90), settled, "nobody knows of 51");
        assert_eq!(seen(20, 50), settled, "nothing new");
        let to = |hard, soft| Settled { hard, soft, ..settled };
        assert_eq!(seen(50, 60), to(60, 70));
        assert_eq!(seen(20, 90), to(90, 90));
        let mut horizon = Horizon::default();
        horizon.look(100, &writers(&["a"]));
        horizon.settle_up_to(40);
        assert_eq!(horizon.settled(), Settled::default().seen(0, 40));
        horizon.settle_up_to(30);
        assert_eq!(hard(&horizon), 40, "never backwards");
        horizon.look(110, &writers(&["b"]));
        assert_eq!(hard(&horizon), 100, "what was noted still counts");
    }

    #[test]
    fn the_end_of_a_holder_is_heard_once() {
        let mut horizon = Horizon::default();
        horizon.harden(0);
        assert_eq!(horizon.settled(), Settled::default(), "there is no holder");
        horizon.look(100, &writers(&["a"]));
        horizon.soften();
        assert!(horizon.holders().is_empty(), "it has only just come");
        horizon.soften();
        horizon.look(200, &writers(&["a"]));
        let soft = horizon.settled();
        horizon.harden(soft.generation + 1);
        assert_eq!(horizon.settled(), soft, "that was about another holder");
        horizon.harden(soft.generation);
        let hardened = horizon.settled();
        assert_eq!((soft.soft, hardened.soft), (200, 0));
        assert_eq!(hardened.generation, soft.generation + 1);
    }

    #[test]
    fn who_was_noted_a_moment_ago_does_not_become_a_holder_beside_one_that_stays() {
        let mut horizon = Horizon::default();
        horizon.look(100, &writers(&["a"]));
        horizon.soften();
        horizon.soften();
        horizon.look(200, &writers(&["a", "b"]));
        horizon.soften();
        assert_eq!(horizon.holders(), [i64::from(b'a')]);
        horizon.look(300, &writers(&["a"]));
        assert_eq!(horizon.settled().soft, 300, "b has ended, and nothing was lost by it");
    }

    #[test]
    fn nobody_without_a_transaction_id_becomes_a_holder() {
        let mut horizon = Horizon::default();
        let copying = Writers::from([("copy".to_owned(), None)]);
        horizon.look(100, &copying);
        horizon.soften();
        horizon.soften();
        horizon.look(200, &copying);
        assert!(horizon.holders().is_empty());
        assert_eq!(horizon.settled().soft, 0);
    }

    #[test]
    fn a_floor_stops_below_what_is_left_and_where_the_claim_was_cut() {
        let settled = Settled {
            hard: 100,
            soft: 100,
            generation: 0,
        };
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
    fn a_soft_floor_means_nothing_in_another_generation() {
        let settled = Settled {
            hard: 10,
            soft: 100,
            generation: 3,
        };
        let mut floor = Floor::at(0);
        floor.advance(Sight {
            settled,
            cut_at: None,
            lowest_left: None,
        });
        assert_eq!((floor.hard(), floor.start(settled)), (10, 100));
        assert_eq!(
            floor.start(Settled {
                generation: 4,
                ..settled
            }),
            10
        );
        floor.lower(5);
        assert_eq!((floor.hard(), floor.start(settled)), (5, 5));
    }

    /// A small world: writers draw ids and commit or roll back later, in any order, while a relay looks, loses patience,
    /// claims and publishes. No committed row may be passed by the floor, nor overlooked by a claim.
    #[derive(Clone, Debug)]
    enum Step {
        Draw(u8),
        End(u8, bool),
        Look,
        Soften,
        Claim(usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..5u8).prop_map(Step::Draw),
            3 => (0..5u8, any::<bool>()).prop_map(|(w, commit)| Step::End(w, commit)),
            3 => Just(Step::Look),
            1 => Just(Step::Soften),
            2 => (1..4usize).prop_map(Step::Claim),
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

    #[derive(Default)]
    struct SmallWorld {
        drawn: i64,
        open: BTreeMap<u8, Transaction>,
        committed: BTreeSet<i64>,
        pending: Vec<i64>,
        highest_seen: i64,
        horizon: Horizon,
        floor: Floor,
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
                self.committed.extend(&transaction.ids);
                self.pending.extend(transaction.ids);
            }
        }

        /// What is settled by a look that sees every row from here on, published or not.
        fn look_at_all_from(&mut self, start: i64, settled: Settled) -> Settled {
            let seen = self
                .committed
                .iter()
                .filter(|id| **id > settled.hard && **id <= self.highest_seen);
            if seen.count() as i64 != self.highest_seen - settled.hard {
                return settled;
            }
            let settled = settled.seen(start, self.highest_seen);
            self.horizon.settle_up_to(settled.hard);
            settled
        }

        /// What was overlooked, if anything.
        fn claim(&mut self, limit: usize) -> Option<i64> {
            let settled = self.horizon.settled();
            let start = self.floor.start(settled);
            let open: Vec<i64> = self.open.values().map(|transaction| transaction.number).collect();
            if !self.horizon.holders().iter().all(|holder| open.contains(holder)) {
                self.horizon.harden(settled.generation);
                return None;
            }
            self.pending.sort_unstable();
            let overlooked = self.pending.first().copied().filter(|id| *id <= start);
            let claimed: Vec<i64> = self
                .pending
                .iter()
                .copied()
                .filter(|id| *id > start)
                .take(limit)
                .collect();
            self.pending.retain(|id| !claimed.contains(id));
            let cut_at = (claimed.len() == limit).then(|| claimed[limit - 1]);
            let settled = if cut_at.is_none() {
                self.look_at_all_from(start, settled)
            } else {
                settled
            };
            self.highest_seen = self.highest_seen.max(claimed.last().copied().unwrap_or(0));
            self.floor.advance(Sight {
                settled,
                cut_at,
                lowest_left: None,
            });
            overlooked
        }
    }

    proptest! {
        #[test]
        fn no_committed_row_is_passed_by_a_floor_or_overlooked(steps in prop::collection::vec(any_step(), 0..120)) {
            let mut world = SmallWorld::default();
            for step in steps {
                match step {
                    Step::Draw(session) => world.draw(session),
                    Step::End(session, commit) => world.end(session, commit),
                    Step::Look => world.horizon.look(world.drawn, &world.writers()),
                    Step::Soften => world.horizon.soften(),
                    Step::Claim(limit) => prop_assert_eq!(world.claim(limit), None, "overlooked"),
                }
                let floor = world.floor.hard();
                for id in world.pending.iter().chain(world.open.values().flat_map(|transaction| &transaction.ids)) {
                    prop_assert!(*id > floor, "id {} was passed by floor {}", id, floor);
                }
            }
        }
    }
}
