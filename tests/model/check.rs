//! Runs a model to its end and says what came of it.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

const THREADS: usize = 2;

/// What both ways of checking ask of a model.
pub trait Checked:
    Model<State: Clone + Debug + PartialEq + Hash + Send + Sync, Action: Clone + Debug + PartialEq> + Send + Sync + 'static
{
}

impl<M> Checked for M where
    M: Model<State: Clone + Debug + PartialEq + Hash + Send + Sync, Action: Clone + Debug + PartialEq>
        + Send
        + Sync
        + 'static
{
}

/// Every state within the bounds: no promise is broken, and what should be possible is possible.
pub fn holds(name: &str, model: impl Checked) {
    let began = Instant::now();
    let checker = model.checker().threads(THREADS).spawn_bfs().join();
    println!(
        "{name} model: {} states, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.max_depth(),
        began.elapsed().as_secs_f64()
    );
    checker.assert_properties();
}

/// The number of steps of a short way to break a promise. `None`: it holds in every state.
pub fn breaks(model: impl Checked, promise: &'static str) -> Option<usize> {
    let broken = HasDiscoveries::AnyOf([promise].into());
    let checker = model.checker().threads(THREADS).finish_when(broken).spawn_bfs().join();
    checker.discovery(promise).map(|path| path.into_actions().len())
}

/// Has the state a successor?
pub fn continues<M: Model>(model: &M, state: &M::State) -> bool {
    let mut actions = Vec::new();
    model.actions(state, &mut actions);
    actions
        .into_iter()
        .any(|action| model.next_state(state, action).is_some())
}
