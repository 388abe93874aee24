//! How a term begins.

use std::time::SystemTime;

use tracing::{error, warn};
use uuid::Uuid;

use super::LeaseSettings;
use crate::boottime::BootInstant;
use crate::lanes::RecentlyPublished;
use crate::lanes::{Lanes, Term, UnorderedState};
use crate::outbox::{Outbox, Result};

/// What is remembered of a term that is over.
pub(super) struct LastTerm {
    pub(super) worker: Uuid,
    incarnation: SystemTime,
    /// Of the server it was on.
    lineage: String,
}

/// What it takes to begin a term.
pub(super) struct Terms<'a> {
    pub(super) lanes: &'a Lanes,
    pub(super) outbox: &'a Outbox,
    pub(super) published: &'a RecentlyPublished,
    pub(super) settings: &'a LeaseSettings,
}

impl Terms<'_> {
    /// Begins a term; answers what the next one has to know of it. `last` is the same of the term before.
    pub(super) async fn begin(&self, last: Option<&LastTerm>) -> Result<LastTerm> {
        if let Some(last) = last {
            // Its lanes are free at once, and suspect as far as it had rows in flight, since it did not give them back.
            self.outbox
                .stop_worker_in_flight(last.worker, &self.lanes.open_entries(last.worker))
                .await?;
            self.lanes.forget_entries(last.worker);
        }
        self.prepare_history().await;
        let asked = BootInstant::now();
        let worker = Uuid::new_v4();
        let LeaseSettings {
            worker_name,
            identity,
            duration,
        } = self.settings;
        let registered = self.outbox.register(worker, worker_name, identity.as_ref(), *duration);
        let (incarnation, now) = registered.await?;
        self.lanes.clock.set(now);
        let term = Term {
            worker,
            incarnation,
            ends: asked + *duration,
        };
        let (lineage, unordered) = match self.stored_state(&term).await {
            Ok(stored) => stored,
            Err(error) => {
                // Registered and never at work, it would be given its share of the lanes for as long as its lease lasts.
                let _ = self.outbox.stop_worker(worker).await;
                return Err(error);
            }
        };
        let began = LastTerm {
            worker,
            incarnation,
            lineage,
        };
        if let Some(last) = last {
            self.ask_for_losses(last, &began);
        }
        self.lanes.begin_term(term, unordered);
        Ok(began)
    }

    async fn stored_state(&self, term: &Term) -> Result<(String, UnorderedState)> {
        let lineage = self.outbox.lineage(term.incarnation).await?;
        self.rebuild_floors(term).await?;
        let unordered = self.outbox.read_unordered(term.incarnation).await?.unwrap_or_default();
        Ok((lineage, unordered))
    }

    /// Before anything is published: where rows of a day lie in the default partition, that day can no longer be made. Maintenance makes the next
    /// days in time while it runs, but at a start and after an outage it comes too late.
    async fn prepare_history(&self) {
        if let Err(error) = self.outbox.history_prepare().await {
            warn!(%error, "cannot prepare the days of the history; rows of a day without one go to its default partition");
        }
    }

    /// Where the id sequence was restarted, ids come again below the stored floors.
    async fn rebuild_floors(&self, term: &Term) -> Result<()> {
        let floors = self.outbox.rebuild_floors(term, self.lanes.floors_are_void()).await?;
        self.lanes.floors_rebuilt();
        if floors > 0 {
            error!(
                floors,
                "the id sequence was restarted: stored floors are built anew, so that no row below them is lost; \
                 rows written before and after the restart have no order among them"
            );
        }
        Ok(())
    }

    /// The server is another one than that of the last term: it may have lost what was written last.
    fn ask_for_losses(&self, last: &LastTerm, now: &LastTerm) {
        if last.lineage != now.lineage {
            warn!(
                "the server has lost its last writes, as after a failover: what was pending may be sent again, and says so"
            );
        }
        // A crash loses no commit but asynchronous ones, and whether an application makes those nobody knows.
        if (&last.lineage, last.incarnation) != (&now.lineage, now.incarnation) {
            self.published.question();
        }
    }
}
