//! Two processes, one lane, two rows of one key. The first owns the lane at the beginning.
//!
//! Time is what is left: of a lease by the database's clock, and by each process's own. So the model needs no end of
//! time, and two moments that differ only by the hour are one state. Between any two steps of a process any time may
//! pass, with one exception: a send lands within one tick of the reading of the clock that allowed it, unless the process
//! was paused in between. A statement runs some time after it was sent, and is answered some time after it ran, or never.

mod database;
mod process;

use stateright::{Model, Property};

use crate::rules::Rules;
use database::{Lane, Request, Term};
use process::{Process, Step};

/// Ticks a lease lasts.
const LEASE: u8 = 3;
/// Nothing is sent with less than this left: one tick for the send to land, one that the clocks may differ by.
const MARGIN: u8 = 2;

/// How much of what.
#[derive(Clone, Debug)]
pub struct Lease {
    pub rules: Rules,
    pub processes: usize,
    /// All of one key: row 0 comes before row 1.
    pub rows: u8,
    /// So many of them have leases that can end; the others always renew in time.
    pub expiring: usize,
    /// Crashes, pauses, lost answers, slow clocks, failed sends, hand-overs and departures, all together.
    pub events: u8,
}

/// What must never happen; noted when it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wrong {
    stale_send: bool,
    stale_mark: bool,
    needless_duplicate: bool,
    out_of_order: bool,
    owns_after_leaving: bool,
    unflagged_duplicate: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    terms: Vec<Term>,
    lane: Lane,
    /// Of each term: what it has in flight, and the number of that record.
    records: Vec<(u8, u8)>,
    marked: u8,
    /// Rows of which Kafka has a copy.
    landed: u8,
    processes: Vec<Process>,
    /// A statement whose sender no longer listens: it may run at any time.
    zombie: Option<Request>,
    events_left: u8,
    /// A crash, a pause, a lost answer, a failed send or a lease run out: after one of these a row may be sent twice.
    unlucky: bool,
    /// Over one lease the clocks differ by one tick at most.
    slowed: bool,
    wrong: Wrong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    /// A tick that the clock of this process misses.
    SlowTick(usize),
    Process(usize, Step),
    /// A statement without a listener runs.
    Zombie,
}

impl Model for Lease {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            terms: vec![Term::default(); self.processes],
            lane: Lane {
                owner: Some(0),
                epoch: 0,
                maybe_sent: 0,
            },
            records: vec![(0, 0); self.processes],
            marked: 0,
            landed: 0,
            processes: (0..self.processes).map(Process::new).collect(),
            zombie: None,
            events_left: self.events,
            unlucky: false,
            slowed: false,
            wrong: Wrong::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        if state.zombie.is_some() {
            actions.push(Action::Zombie);
        }
        for number in 0..state.processes.len() {
            if number < self.expiring {
                actions.push(Action::SlowTick(number));
            }
            actions.extend(Step::ALL.iter().map(|step| Action::Process(number, *step)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let done = match action {
            Action::Tick => state.tick(self, None),
            Action::SlowTick(slow) => state.spend() && !state.slowed && state.tick(self, Some(slow)),
            Action::Process(number, step) => state.step(self, number, step),
            Action::Zombie => state.run_zombie(&self.rules),
        };
        (done && state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(SENDS, |_, state: &State| !state.wrong.stale_send),
            Property::always(MARKS, |_, state: &State| !state.wrong.stale_mark),
            Property::always(DUPLICATES, |_, state: &State| !state.wrong.needless_duplicate),
            Property::always(ORDER, |_, state: &State| !state.wrong.out_of_order),
            Property::always(LEFT, |_, state: &State| !state.wrong.owns_after_leaving),
            Property::always(FLAGGED, |_, state: &State| !state.wrong.unflagged_duplicate),
            Property::always(MARKED, |_, state: &State| state.marked & !state.landed == 0),
            Property::sometimes("all rows are published", |model: &Lease, state: &State| {
                state.marked.count_ones() == u32::from(model.rows)
            }),
            Property::sometimes("a lane is taken over", |model: &Lease, state: &State| {
                state.marked.count_ones() == u32::from(model.rows) && state.terms.iter().any(|term| term.stopped)
            }),
        ]
    }
}

pub const SENDS: &str = "nobody sends what another owns";
pub const MARKS: &str = "only the owner's marks count";
pub const DUPLICATES: &str = "without a fault nothing is sent twice";
pub const ORDER: &str = "first copies are in order";
pub const LEFT: &str = "who left owns nothing";
pub const FLAGGED: &str = "a duplicate is flagged";
pub const MARKED: &str = "what is marked was sent";

impl State {
    /// Spends one of the faults that are left.
    fn spend(&mut self) -> bool {
        let may = self.events_left > 0;
        self.events_left = self.events_left.saturating_sub(1);
        may
    }

    fn tick(&mut self, model: &Lease, slow: Option<usize>) -> bool {
        if self.processes.iter().any(Process::must_land_now) {
            return false;
        }
        self.slowed |= slow.is_some();
        for term in self.terms.iter_mut().take(model.expiring) {
            term.left = term.left.saturating_sub(1);
        }
        for (number, process) in self.processes.iter_mut().enumerate() {
            process.tick(number < model.expiring && slow != Some(number));
        }
        true
    }

    fn run_zombie(&mut self, rules: &Rules) -> bool {
        let Some(request) = self.zombie.take() else {
            return false;
        };
        self.run(rules, request);
        true
    }

    /// A copy of `row` reaches Kafka.
    fn land(&mut self, number: usize, row: u8) {
        let Some(batch) = &self.processes[number].batch else {
            return;
        };
        let others = self.lane.owner.is_some_and(|owner| owner != batch.term) || self.lane.epoch != batch.epoch;
        self.wrong.stale_send |= others && self.lane.owner.is_some() && !batch.paused;
        let again = self.landed & (1 << row) != 0;
        self.wrong.needless_duplicate |= again && !self.unlucky;
        // A copy that was held up may land behind the one that knows of it.
        self.wrong.unflagged_duplicate |= again && batch.maybe_sent & (1 << row) == 0 && !batch.paused;
        self.wrong.out_of_order |= row > 0 && self.landed & (1 << (row - 1)) == 0;
        self.landed |= 1 << row;
    }

    /// The lease task's statement has run: its answer waits to be read.
    fn answer(&mut self, number: usize, answer: Option<u8>) {
        if let Some(ask) = &mut self.processes[number].ask {
            ask.answer = Some(answer);
        }
    }
}
