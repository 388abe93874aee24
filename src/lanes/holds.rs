//! What holds mean for lanes: heads that are being sent, and floors that drop when a hold is released.

use std::collections::BTreeSet;
use std::sync::Arc;

use uuid::Uuid;

use super::Lanes;
use crate::domain::lease::{LoweredLane, Term};

pub struct Holds<'a>(pub(super) &'a Lanes);

impl Holds<'_> {
    /// Has any lane of ours a hold, or have the unordered rows one?
    pub fn exist(&self) -> bool {
        let state = self.0.lock();
        state.unordered.stored.has_holds || state.lanes.values().any(|lane| !lane.held_topics.is_empty())
    }

    /// Notes that the head of a hold of this lane is about to be sent. Until [`Holds::close_heads`] the lane is not returned.
    /// False: the lane is not ours, or is about to be returned.
    pub fn open_head(&self, worker: Uuid, lane: i16) -> bool {
        let state = self.0.of_term(worker);
        let opened = state.and_then(|mut state| {
            let lane = state.lanes.get_mut(&lane).filter(|lane| !lane.usage.surplus)?;
            lane.usage.open_heads += 1;
            Some(())
        });
        opened.is_some()
    }

    /// Notes that the outcome of this many heads is written.
    pub fn close_heads(&self, worker: Uuid, lane: i16, count: usize) {
        if let Some(mut state) = self.0.of_term(worker)
            && let Some(lane) = state.lanes.get_mut(&lane)
        {
            lane.usage.open_heads = lane.usage.open_heads.saturating_sub(count);
        }
    }

    /// A hold of a checked-out lane was released, so the next claim starts where the hold began. `held_topics` are the topics
    /// that still have holds there. `None`: no others than before.
    pub fn released(&self, term: &Term, lane: i16, lowered: LoweredLane, held_topics: Option<BTreeSet<String>>) {
        let Some(mut state) = self.0.of_term(term.worker) else {
            return;
        };
        if let Some(lane) = state.lanes.get_mut(&lane) {
            lane.lower(lowered);
            if let Some(topics) = held_topics {
                lane.held_topics = Arc::new(topics);
            }
        }
        drop(state);
        self.0.notify_all();
    }
}
