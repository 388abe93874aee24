//! The in-flight entries of this process, in memory. The database has them, too (`outbox.in_flight`), but a crash of the server may
//! lose the last ones.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use crate::domain::in_flight::{InFlightEntry, InFlightRanges};

#[derive(Debug)]
struct Batch {
    worker: Uuid,
    /// The id of its entry, or a lower id if that is not known yet.
    entry_from: i64,
    ranges: InFlightRanges,
}

#[derive(Debug, Default)]
struct Batches {
    /// By slot.
    batches: BTreeMap<u64, Batch>,
    next_slot: u64,
    /// The highest id of any entry. Ids that are drawn from now on are higher.
    highest_id: i64,
}

impl Batches {
    fn of(&self, worker: Uuid) -> impl Iterator<Item = &Batch> {
        self.batches.values().filter(move |batch| batch.worker == worker)
    }
}

/// The entries of all terms of this process.
#[derive(Debug, Default)]
pub struct InFlight(Mutex<Batches>);

impl InFlight {
    fn lock(&self) -> MutexGuard<'_, Batches> {
        // Every change under the lock is complete in itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a slot for an entry that is about to be written.
    pub fn begin(&self, worker: Uuid) -> u64 {
        let mut state = self.lock();
        let (slot, entry_from) = (state.next_slot, state.highest_id + 1);
        state.next_slot += 1;
        let batch = Batch {
            worker,
            entry_from,
            ranges: InFlightRanges::default(),
        };
        state.batches.insert(slot, batch);
        slot
    }

    /// The entry is written, so its rows may be sent.
    pub fn written(&self, slot: u64, id: i64, ranges: InFlightRanges) -> InFlightEntry {
        let mut state = self.lock();
        state.highest_id = state.highest_id.max(id);
        if let Some(batch) = state.batches.get_mut(&slot) {
            (batch.entry_from, batch.ranges) = (id, ranges);
        }
        InFlightEntry { id, slot }
    }

    /// The entry was not written, and nothing is sent.
    pub fn dropped(&self, slot: u64) {
        self.lock().batches.remove(&slot);
    }

    /// The outcome of these batches is written.
    pub fn done(&self, entries: &[InFlightEntry]) {
        let mut state = self.lock();
        for entry in entries {
            state.batches.remove(&entry.slot);
        }
    }

    /// No entry of this worker that still matters has a lower id.
    pub fn oldest(&self, worker: Uuid) -> i64 {
        let state = self.lock();
        let oldest = state.of(worker).map(|batch| batch.entry_from).min();
        oldest.unwrap_or(state.highest_id + 1)
    }

    /// What this worker had in flight and whose outcome is not written.
    pub fn open(&self, worker: Uuid) -> InFlightRanges {
        let mut all = InFlightRanges::default();
        self.lock().of(worker).for_each(|batch| all.extend(&batch.ranges));
        all
    }

    /// The worker is stopped, and the database knows what it had in flight. After a crash of the server, ids may start again.
    pub fn forget(&self, worker: Uuid) {
        let mut state = self.lock();
        state.batches.retain(|_, batch| batch.worker != worker);
        state.highest_id = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Uuid = Uuid::from_u128(1);

    #[test]
    fn what_is_not_done_is_known_and_no_entry_of_it_has_a_lower_id() {
        let in_flight = InFlight::default();
        let ranges = |id| InFlightRanges {
            lanes: vec![0],
            first_ids: vec![id],
            last_ids: vec![id],
        };
        let slow = in_flight.begin(ME);
        let fast = in_flight.begin(ME);
        let fast = in_flight.written(fast, 11, ranges(100));
        assert_eq!(in_flight.oldest(ME), 1, "the slow one may have drawn any");
        assert_eq!(in_flight.open(ME), ranges(100), "of the slow one nothing is sent");
        let other = in_flight.begin(Uuid::from_u128(2));
        let slow = in_flight.written(slow, 10, ranges(50));
        in_flight.done(&[fast]);
        assert_eq!((in_flight.oldest(ME), in_flight.open(ME)), (10, ranges(50)));
        in_flight.done(&[slow]);
        assert_eq!(in_flight.oldest(ME), 12, "none is left");
        let failed = in_flight.begin(ME);
        assert_eq!(in_flight.oldest(ME), 12);
        in_flight.dropped(failed);
        in_flight.written(in_flight.begin(ME), 13, ranges(60));
        in_flight.forget(ME);
        assert_eq!(in_flight.open(ME), InFlightRanges::default());
        assert_eq!(in_flight.oldest(ME), 1);
        assert_eq!(in_flight.oldest(Uuid::from_u128(2)), 12, "another's is left alone");
        in_flight.dropped(other);
    }
}
