//! Unordered rows: claimed by anyone, each under a record of its own, with one floor that all workers share and a topic that may be parked.
//!
//! All rows are of one topic, have committed and lie below the watermark: how that moves is part of the floor model. As there, no run
//! is endless, and "in the end" is a property of the states without a successor.

use stateright::{Model, Property};

use crate::check::continues;
use crate::rules::{Rule, Rules};

#[derive(Clone, Debug)]
pub struct Unordered {
    pub rules: Rules,
    pub workers: usize,
    pub rows: usize,
    /// Crashes, leases that end under a living worker, and parked topics, all together.
    pub events: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Row {
    /// Of the last claim.
    token: Option<u8>,
    is_leased: bool,
    is_published: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Worker {
    floor: usize,
    epoch: u8,
    batch: Option<Batch>,
    /// A floor on its way to be stored, under the epoch it was read with.
    store: Option<(usize, u8)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Batch {
    row: usize,
    token: u8,
    floor: usize,
    is_acked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    rows: Vec<Row>,
    workers: Vec<Worker>,
    stored_floor: usize,
    epoch: u8,
    /// The topic is parked; it resumes from here.
    parked: Option<usize>,
    tokens: u8,
    events_left: u8,
    stale_mark: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Claim(usize),
    Ack(usize),
    Park(usize),
    Mark(usize),
    RaiseFloor(usize),
    SendStore(usize),
    RunStore(usize),
    Release,
    ReadStored(usize),
    LeaseEnds(usize),
    Crash(usize),
}

impl Model for Unordered {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            rows: vec![Row::default(); self.rows],
            workers: vec![Worker::default(); self.workers],
            stored_floor: 0,
            epoch: 0,
            parked: None,
            tokens: 0,
            events_left: self.events,
            stale_mark: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for worker in 0..state.workers.len() {
            actions.extend(
                [
                    Action::Claim,
                    Action::Ack,
                    Action::Mark,
                    Action::Park,
                    Action::RaiseFloor,
                    Action::SendStore,
                    Action::RunStore,
                    Action::ReadStored,
                    Action::Crash,
                ]
                .map(|action| action(worker)),
            );
        }
        actions.push(Action::Release);
        actions.extend((0..state.rows.len()).map(Action::LeaseEnds));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let done = match action {
            Action::Claim(worker) => state.claim(worker),
            Action::Ack(worker) => state.ack(worker),
            Action::Park(worker) => state.spend() && state.park(worker),
            Action::Mark(worker) => state.mark(&self.rules, worker),
            Action::RaiseFloor(worker) => state.raise_floor(worker),
            Action::SendStore(worker) => state.send_store(worker),
            Action::RunStore(worker) => state.run_store(worker),
            Action::Release => state.release(&self.rules),
            Action::ReadStored(worker) => state.read_stored(&self.rules, worker),
            Action::LeaseEnds(row) => state.lease_ends(row),
            Action::Crash(worker) => state.spend() && state.crash(worker),
        };
        (done && state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(MARKS, |_, state: &State| !state.stale_mark),
            Property::always(STORED, |_, state: &State| {
                let floor = state
                    .parked
                    .map_or(state.stored_floor, |parked| parked.min(state.stored_floor));
                state.lowest_pending().is_none_or(|row| row >= floor)
            }),
            Property::always(LOSS, |model: &Unordered, state: &State| {
                state.lowest_pending().is_none() || continues(model, state)
            }),
            Property::sometimes("a floor is stored", |_, state: &State| state.stored_floor > 0),
        ]
    }
}

pub const MARKS: &str = "only the last claim of a row marks it";
pub const STORED: &str = "a stored floor never leads";
pub const LOSS: &str = "every row is published in the end";

/// Row n has the id n + 1, so a floor is also the first row above it.
impl State {
    fn spend(&mut self) -> bool {
        let may = self.events_left > 0;
        self.events_left = self.events_left.saturating_sub(1);
        may
    }

    fn lowest_pending(&self) -> Option<usize> {
        self.rows.iter().position(|row| !row.is_published)
    }

    fn claim(&mut self, worker: usize) -> bool {
        let Worker { floor, batch, .. } = &self.workers[worker];
        let floor = *floor;
        let mut above = floor..self.rows.len();
        let found = above.find(|row| !self.rows[*row].is_published && !self.rows[*row].is_leased);
        let Some(row) = found.filter(|_| batch.is_none() && self.parked.is_none()) else {
            return false;
        };
        self.tokens += 1;
        self.rows[row].token = Some(self.tokens);
        self.rows[row].is_leased = true;
        self.workers[worker].batch = Some(Batch {
            row,
            token: self.tokens,
            floor,
            is_acked: false,
        });
        true
    }

    fn ack(&mut self, worker: usize) -> bool {
        let Some(batch) = &mut self.workers[worker].batch else {
            return false;
        };
        batch.is_acked = true;
        true
    }

    /// The topic is unavailable: it is parked, and the row returned unsent.
    fn park(&mut self, worker: usize) -> bool {
        let Some(batch) = self.workers[worker].batch.take_if(|batch| !batch.is_acked) else {
            return false;
        };
        let row = &mut self.rows[batch.row];
        if row.token == Some(batch.token) {
            row.token = None;
            row.is_leased = false;
        }
        // Another worker may have lowered the stored floor since we read it, and then knows of more.
        let floor = batch.floor.min(self.stored_floor);
        self.parked = Some(self.parked.map_or(floor, |parked| parked.min(floor)));
        true
    }

    fn mark(&mut self, rules: &Rules, worker: usize) -> bool {
        let Some(batch) = self.workers[worker].batch.take_if(|batch| batch.is_acked) else {
            return false;
        };
        let row = &mut self.rows[batch.row];
        let is_ours = row.token == Some(batch.token);
        if !row.is_published && (is_ours || !rules.has(Rule::MarkCarriesTheToken)) {
            row.is_published = true;
            row.is_leased = false;
            self.stale_mark |= !is_ours;
        }
        if !rules.has(Rule::FloorComesFromAPoll) {
            let floor = &mut self.workers[worker].floor;
            *floor = (*floor).max(batch.row + 1);
        }
        true
    }

    /// From a poll of the table.
    fn raise_floor(&mut self, worker: usize) -> bool {
        let unparked = self.lowest_pending().filter(|_| self.parked.is_none());
        let lowest = unparked.unwrap_or(self.rows.len());
        let floor = &mut self.workers[worker].floor;
        *floor = (*floor).max(lowest);
        true
    }

    fn send_store(&mut self, worker: usize) -> bool {
        let worker = &mut self.workers[worker];
        // One that its statement would refuse now it would refuse later as well: epochs only grow, and a floor is lowered under a new one.
        let may = worker.floor > self.stored_floor && worker.epoch == self.epoch && worker.store.is_none();
        worker.store = Some((worker.floor, worker.epoch));
        may
    }

    fn run_store(&mut self, worker: usize) -> bool {
        let Some((floor, epoch)) = self.workers[worker].store.take() else {
            return false;
        };
        if epoch == self.epoch && floor > self.stored_floor {
            self.stored_floor = floor;
        }
        true
    }

    fn release(&mut self, rules: &Rules) -> bool {
        let Some(floor) = self.parked.take() else { return false };
        self.stored_floor = self.stored_floor.min(floor);
        self.epoch += u8::from(rules.has(Rule::LoweringRaisesTheEpoch));
        true
    }

    fn read_stored(&mut self, rules: &Rules, worker: usize) -> bool {
        let worker = &mut self.workers[worker];
        let is_another = worker.epoch != self.epoch;
        worker.epoch = self.epoch;
        if is_another && rules.has(Rule::AnotherEpochIsReadAgain) {
            worker.floor = self.stored_floor;
        }
        is_another
    }

    /// Without a fault when the worker has died; under a live one it counts as a fault.
    fn lease_ends(&mut self, row: usize) -> bool {
        let token = self.rows[row].token;
        let lives = self
            .workers
            .iter()
            .any(|w| w.batch.as_ref().is_some_and(|batch| Some(batch.token) == token));
        let was_leased = std::mem::take(&mut self.rows[row].is_leased);
        was_leased && (!lives || self.spend())
    }

    fn crash(&mut self, worker: usize) -> bool {
        self.workers[worker] = Worker {
            floor: self.stored_floor,
            epoch: self.epoch,
            ..Worker::default()
        };
        true
    }
}
