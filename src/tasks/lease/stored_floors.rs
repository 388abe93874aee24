//! Floors are stored now and then: a stale one costs a little reading, a row written often costs everybody.

use std::time::{Duration, Instant};

use tracing::warn;

use crate::failpoint;
use crate::lanes::{Lanes, Term};
use crate::outbox::Outbox;

const STORE_EVERY: Duration = Duration::from_secs(10);
/// A topic of unordered rows that another process has parked is noticed at most this much later; until then the next batch of such rows
/// is refused here as well.
const READ_UNORDERED_EVERY: Duration = Duration::from_secs(60);

pub(super) struct StoredFloors<'a> {
    lanes: &'a Lanes,
    outbox: &'a Outbox,
    stored_at: Instant,
    unordered_read_at: Instant,
}

impl<'a> StoredFloors<'a> {
    pub(super) fn new(lanes: &'a Lanes, outbox: &'a Outbox) -> Self {
        let now = Instant::now();
        StoredFloors {
            lanes,
            outbox,
            stored_at: now,
            unordered_read_at: now,
        }
    }

    /// Stores the floors of this process and reads what others have stored, each when it is due.
    pub(super) async fn store_and_read(&mut self, term: &Term) {
        if self.stored_at.elapsed() >= STORE_EVERY {
            self.stored_at = Instant::now();
            self.store_floors(term).await;
            self.store_unordered_floor(term).await;
        }
        if self.unordered_read_at.elapsed() >= READ_UNORDERED_EVERY {
            self.unordered_read_at = Instant::now();
            self.read_unordered(term).await;
        }
    }

    async fn store_floors(&self, term: &Term) {
        let moved = self.lanes.floors_to_store();
        if !moved.is_empty() {
            failpoint::hit("before_store_floors").await;
            match self.outbox.store_floors(term, &moved).await {
                Ok(stored) => self.lanes.floors_stored(&moved, &stored),
                Err(error) => warn!(%error, "cannot store floors; they will be stored later"),
            }
        }
    }

    /// One that others have lowered meanwhile is not raised again: its epoch is another.
    async fn store_unordered_floor(&self, term: &Term) {
        if !self.lanes.unordered_moved() {
            return;
        }
        let (floor, epoch) = self.lanes.unordered_floor();
        if let Err(error) = self.outbox.store_unordered_floor(term, floor.hard(), epoch).await {
            warn!(%error, "cannot store the floor of unordered rows; it will be stored later");
        }
    }

    async fn read_unordered(&self, term: &Term) {
        match self.outbox.read_unordered(term.incarnation).await {
            Ok(Some(stored)) => self.lanes.unordered_read(term.worker, stored),
            Ok(None) => {}
            Err(error) => warn!(%error, "cannot read what is parked of unordered rows; trying again later"),
        }
    }
}
