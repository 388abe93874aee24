//! Stores floors from time to time. A stale floor makes a successor read a little more, while a row that is updated often slows
//! down every worker.

use std::time::{Duration, Instant};

use tracing::warn;

use crate::domain::lease::Term;
use crate::failpoint;
use crate::lanes::Lanes;
use crate::outbox::Outbox;

const STORE_EVERY: Duration = Duration::from_secs(10);
/// How often the holds of unordered rows are read. Until a hold of another process is read here, the next batch of unordered rows
/// fails, too.
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

    /// Stores the floors of this process, and reads the state of the unordered rows, each when it is due.
    pub(super) async fn store_and_read(&mut self, term: &Term) {
        if self.stored_at.elapsed() >= STORE_EVERY {
            self.stored_at = Instant::now();
            self.store_lane_floors(term).await;
            self.store_unordered_floor(term).await;
        }
        if self.unordered_read_at.elapsed() >= READ_UNORDERED_EVERY {
            self.unordered_read_at = Instant::now();
            self.read_unordered(term).await;
        }
    }

    async fn store_lane_floors(&self, term: &Term) {
        let moved = self.lanes.floors().to_store();
        if !moved.is_empty() {
            failpoint::hit("before_store_floors").await;
            match self.outbox.store_floors(term, &moved).await {
                Ok(stored) => self.lanes.floors().stored(&moved, &stored),
                Err(error) => warn!(%error, "cannot store floors; they will be stored later"),
            }
        }
    }

    /// If another worker has lowered the floor meanwhile, its epoch has changed, and nothing is stored.
    async fn store_unordered_floor(&self, term: &Term) {
        if !self.lanes.unordered().floor_has_moved() {
            return;
        }
        let (floor, epoch) = self.lanes.unordered().floor();
        if let Err(error) = self.outbox.store_unordered_floor(term, floor.hard(), epoch).await {
            warn!(%error, "cannot store the floor of unordered rows; it will be stored later");
        }
    }

    async fn read_unordered(&self, term: &Term) {
        match self.outbox.read_unordered(term.incarnation).await {
            Ok(Some(stored)) => self.lanes.unordered().note_stored(term.worker, stored),
            Ok(None) => {}
            Err(error) => warn!(%error, "cannot read the holds of unordered rows; trying again later"),
        }
    }
}
