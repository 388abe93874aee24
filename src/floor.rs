//! Where a claim starts to look, and when that may move.
//!
//! A lane's *floor* is an id at or below which nothing is pending (but what `outbox.hold` names). It may
//! pass an id only when no transaction that could still commit a lower one is left. Ids commit out of
//! order, so neither "last id seen" nor a snapshot's xmin tells. What tells is who holds the lock that
//! every writer takes before it draws an id: note the highest id drawn, *then* the writers; once all of
//! those have ended, every id up to the noted one is settled, and a claim that starts after that sees
//! whatever became of it.

use std::collections::BTreeSet;

/// The process's view of which ids are settled. One per server incarnation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Horizon {
    settled: i64,
    noted: Option<Note>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Note {
    highest_id: i64,
    writers: BTreeSet<String>,
}

impl Horizon {
    /// Every id up to here has committed or never will.
    pub fn settled(&self) -> i64 {
        self.settled
    }

    /// `highest_id` must have been read before `writers` were.
    pub fn note(&mut self, highest_id: i64, writers: BTreeSet<String>) {
        self.noted = Some(Note { highest_id, writers });
        self.settle();
    }

    /// Who writes now. Those noted and no longer here have ended.
    pub fn observe(&mut self, writers: &BTreeSet<String>) {
        if let Some(note) = &mut self.noted {
            note.writers.retain(|writer| writers.contains(writer));
        }
        self.settle();
    }

    /// Is a note waiting for its writers?
    pub fn is_waiting(&self) -> bool {
        self.noted.is_some()
    }

    fn settle(&mut self) {
        if let Some(note) = self.noted.take_if(|note| note.writers.is_empty()) {
            self.settled = self.settled.max(note.highest_id);
        }
    }
}

/// What one claim of a lane saw. `settled` is the horizon as it was *before* the claim started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sight {
    pub settled: i64,
    /// The highest id claimed, where the claim was cut off by its limit: above it nothing is known.
    pub cut_at: Option<i64>,
    /// The lowest id that was seen and is still pending without a hold that would find it again.
    pub lowest_left: Option<i64>,
}

/// The floor after a claim: up to the horizon, to where the claim looked, and below what is left.
pub fn advance(floor: i64, sight: Sight) -> i64 {
    let looked = sight.cut_at.unwrap_or(i64::MAX);
    let free = sight.lowest_left.map_or(i64::MAX, |id| id - 1);
    floor.max(sight.settled.min(looked).min(free))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn writers(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn nothing_is_settled_while_a_noted_writer_lives() {
        let mut horizon = Horizon::default();
        horizon.note(100, writers(&["a", "b"]));
        assert_eq!(horizon.settled(), 0);
        horizon.observe(&writers(&["b", "c"]));
        assert_eq!(horizon.settled(), 0, "b has not ended");
        horizon.observe(&writers(&["c"]));
        assert_eq!(horizon.settled(), 100, "c came later and cannot hold a lower id");
    }

    #[test]
    fn without_writers_a_note_settles_at_once() {
        let mut horizon = Horizon::default();
        horizon.note(7, BTreeSet::new());
        assert_eq!(horizon.settled(), 7);
        assert!(!horizon.is_waiting());
    }

    #[test]
    fn a_floor_stops_below_what_is_left_and_where_the_claim_was_cut() {
        let sight = |cut_at, lowest_left| Sight {
            settled: 100,
            cut_at,
            lowest_left,
        };
        assert_eq!(advance(10, sight(None, None)), 100);
        assert_eq!(advance(10, sight(Some(50), None)), 50);
        assert_eq!(advance(10, sight(Some(50), Some(30))), 29);
        assert_eq!(advance(40, sight(None, Some(30))), 40, "never backwards");
    }

    /// A small world: writers draw ids and commit or roll back later, in any order, while a relay notes,
    /// observes, claims and publishes. Every committed row must still be above the floor until published.
    #[derive(Clone, Debug)]
    enum Step {
        Draw(u8),
        End(u8, bool),
        Note,
        Observe,
        Claim(usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..5u8).prop_map(Step::Draw),
            3 => (0..5u8, any::<bool>()).prop_map(|(w, commit)| Step::End(w, commit)),
            2 => Just(Step::Note),
            2 => Just(Step::Observe),
            2 => (1..4usize).prop_map(Step::Claim),
        ]
    }

    proptest! {
        #[test]
        fn no_committed_row_is_ever_left_below_the_floor(steps in prop::collection::vec(any_step(), 0..120)) {
            let mut next_id = 1i64;
            let mut open: BTreeMap<u8, (u32, Vec<i64>)> = BTreeMap::new();
            let mut transactions = 0u32;
            let mut pending: Vec<i64> = Vec::new();
            let mut horizon = Horizon::default();
            let mut floor = 0i64;
            for step in steps {
                let names = |open: &BTreeMap<u8, (u32, Vec<i64>)>| -> BTreeSet<String> {
                    open.values().map(|(number, _)| number.to_string()).collect()
                };
                match step {
                    Step::Draw(writer) => {
                        let entry = open.entry(writer).or_insert_with(|| {
                            transactions += 1;
                            (transactions, Vec::new())
                        });
                        entry.1.push(next_id);
                        next_id += 1;
                    }
                    Step::End(writer, commit) => {
                        if let Some((_, ids)) = open.remove(&writer) && commit {
                            pending.extend(ids);
                        }
                    }
                    Step::Note => horizon.note(next_id - 1, names(&open)),
                    Step::Observe => horizon.observe(&names(&open)),
                    Step::Claim(limit) => {
                        let settled = horizon.settled();
                        pending.sort_unstable();
                        let claimed: Vec<i64> = pending.iter().copied().filter(|id| *id > floor).take(limit).collect();
                        pending.retain(|id| !claimed.contains(id));
                        let cut_at = (claimed.len() == limit).then(|| claimed[limit - 1]);
                        floor = advance(floor, Sight { settled, cut_at, lowest_left: None });
                    }
                }
                for id in pending.iter().chain(open.values().flat_map(|(_, ids)| ids)) {
                    prop_assert!(*id > floor, "id {} was passed by floor {}", id, floor);
                }
            }
        }
    }
}
