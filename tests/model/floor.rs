//! Writers that draw ids and commit in any order, and one lane's owner that claims, publishes, holds and releases.
//!
//! All rows are of one key. The watermark and the floor are the product's own types (`outboxd::domain`). No step can be undone,
//! so there are no cycles: a run that cannot continue has ended, and "in the end" is a property of the states without a
//! successor.

mod relay;
mod writer;

use outboxd::domain::watermark::WatermarkTracker;
use stateright::{Model, Property};

use crate::check::continues;
use crate::rules::{Rule, Rules};
use relay::{Relay, Step, Store};
use writer::Writer;

#[derive(Clone, Debug)]
pub struct Floor {
    pub rules: Rules,
    /// One row each.
    pub writers: usize,
    /// Refusals, failed sends, crashes and failovers, all together.
    pub events: u8,
}

/// A row in `outbox.hold`, of the only key there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    head: usize,
    resume_floor: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    next_id: i64,
    writers: Vec<Writer>,
    /// Pairs of rows that must be published in this order: the first had committed before the second was drawn.
    order: Vec<(usize, usize)>,
    published: Vec<bool>,
    /// First copies in Kafka.
    log: Vec<usize>,
    hold: Option<Hold>,
    stored_floor: i64,
    epoch: u8,
    incarnation: u8,
    relay: Relay,
    /// A statement on its way; it outlives its sender.
    store: Option<Store>,
    events_left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Relay(Step),
    StoreRuns,
    Draw(usize),
    GetTransactionId(usize),
    Commit(usize),
    RollBack(usize),
    /// The owner dies; its successor starts from what is stored.
    Crash,
    /// The newest id was never replicated: it comes again, on another server.
    Failover,
}

impl Model for Floor {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            next_id: 1,
            writers: vec![Writer::Idle; self.writers],
            order: Vec::new(),
            published: vec![false; self.writers],
            log: Vec::new(),
            hold: None,
            stored_floor: 0,
            epoch: 0,
            incarnation: 0,
            relay: Relay::default(),
            store: None,
            events_left: self.events,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(Step::ALL.map(Action::Relay));
        actions.extend([Action::StoreRuns, Action::Crash, Action::Failover]);
        for writer in 0..state.writers.len() {
            actions.extend([Action::Draw(writer), Action::GetTransactionId(writer)]);
            actions.extend([Action::Commit(writer), Action::RollBack(writer)]);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let done = match action {
            Action::Relay(step) => state.step(&self.rules, step),
            Action::StoreRuns => state.store_runs(&self.rules),
            Action::Draw(writer) => state.draw(writer),
            Action::GetTransactionId(writer) => state.writers[writer].get_transaction_id(),
            Action::Commit(writer) => state.writers[writer].commit(),
            Action::RollBack(writer) => state.writers[writer].roll_back(),
            Action::Crash => state.spend() && state.begin_term(),
            Action::Failover => state.spend() && state.fail_over(),
        };
        (done && state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ORDER, |_, state: &State| state.is_in_order()),
            Property::always(PHANTOM, |_, state: &State| {
                state.log.iter().all(|row| state.writers[*row] != Writer::RolledBack)
            }),
            Property::always(STORED, |_, state: &State| state.stored_floor_leads_nobody()),
            Property::always(LOSS, |model: &Floor, state: &State| {
                state.nothing_is_left() || continues(model, state)
            }),
            Property::sometimes("a held row is published", |_, state: &State| {
                state.relay.has_released() && state.nothing_is_left()
            }),
        ]
    }
}

pub const ORDER: &str = "first copies are in order";
pub const PHANTOM: &str = "nothing rolled back is published";
pub const STORED: &str = "a stored floor never leads";
pub const LOSS: &str = "every committed row is published in the end";

impl State {
    fn spend(&mut self) -> bool {
        let may = self.events_left > 0;
        self.events_left = self.events_left.saturating_sub(1);
        may
    }

    fn pending(&self) -> impl Iterator<Item = (usize, i64)> {
        let committed = self
            .writers
            .iter()
            .enumerate()
            .filter_map(|(row, writer)| Some((row, writer.committed()?)));
        committed.filter(|(row, _)| !self.published[*row])
    }

    fn nothing_is_left(&self) -> bool {
        self.pending().next().is_none()
    }

    fn is_in_order(&self) -> bool {
        let place = |row| self.log.iter().position(|copy| *copy == row);
        self.order
            .iter()
            .all(|(first, second)| match (place(*first), place(*second)) {
                (Some(first), Some(second)) => first < second,
                (None, second) => second.is_none(),
                _ => true,
            })
    }

    /// What is pending, or may still commit, is found from the stored floor or by a hold.
    fn stored_floor_leads_nobody(&self) -> bool {
        let is_held = |id| self.hold.as_ref().is_some_and(|hold| id > hold.resume_floor);
        let open = self.writers.iter().filter_map(Writer::drawn);
        self.pending()
            .map(|(_, id)| id)
            .chain(open)
            .all(|id| id > self.stored_floor || is_held(id))
    }

    fn draw(&mut self, writer: usize) -> bool {
        if self.writers[writer] != Writer::Idle {
            return false;
        }
        let before = (0..self.writers.len()).filter(|other| self.writers[*other].committed().is_some());
        self.order.extend(before.map(|other| (other, writer)));
        self.writers[writer] = Writer::Drawn {
            id: self.next_id,
            has_transaction_id: false,
        };
        self.next_id += 1;
        true
    }

    fn store_runs(&mut self, rules: &Rules) -> bool {
        let Some(store) = self.store.take() else { return false };
        let same_server = store.incarnation == self.incarnation || !rules.has(Rule::FloorsEndWithTheServer);
        if same_server && store.epoch == self.epoch && self.stored_floor < store.floor {
            self.stored_floor = store.floor;
        }
        true
    }

    /// A new owner, or the old one under a new term: the epoch rises, and nothing is remembered but what is stored.
    fn begin_term(&mut self) -> bool {
        self.epoch += 1;
        self.relay = Relay::starting_at(self.stored_floor, self.epoch, self.incarnation);
        true
    }

    fn fail_over(&mut self) -> bool {
        let newest = self.next_id - 1;
        let Some(lost) = self.writers.iter().position(|writer| writer.id() == Some(newest)) else {
            return false;
        };
        self.writers[lost] = Writer::Vanished;
        self.order.retain(|(first, second)| *first != lost && *second != lost);
        self.next_id = newest;
        self.stored_floor = self.stored_floor.min(newest - 1);
        // What was written after the lost row is lost with it: its hold, and the floors stored since.
        if let Some(hold) = self.hold.take_if(|hold| hold.head == lost) {
            self.stored_floor = self.stored_floor.min(hold.resume_floor);
        }
        self.incarnation += 1;
        true
    }

    fn tracker(&self) -> &WatermarkTracker {
        self.relay.tracker()
    }
}
