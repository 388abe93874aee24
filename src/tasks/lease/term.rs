//! Begins a term: registers the worker, and reads what it has to know before it takes lanes.

use std::time::SystemTime;

use tracing::{error, warn};
use uuid::Uuid;

use super::LeaseSettings;
use super::pauses::read_pauses;
use crate::boottime;
use crate::domain::in_flight::InFlightRanges;
use crate::domain::lease::{Term, UnorderedState};
use crate::lanes::{Lanes, RecentlyPublished};
use crate::outbox::{Outbox, Result};

/// What the next term has to know of the one before.
pub(super) struct LastTerm {
    pub(super) worker: Uuid,
    incarnation: SystemTime,
    /// The lineage of the server that it was on.
    lineage: String,
}

pub(super) struct Terms<'a> {
    pub(super) lanes: &'a Lanes,
    pub(super) outbox: &'a Outbox,
    pub(super) published: &'a RecentlyPublished,
    pub(super) settings: &'a LeaseSettings,
}

impl Terms<'_> {
    /// Begins a term, and returns what the next one has to know of it.
    pub(super) async fn begin(&self, last: Option<&LastTerm>) -> Result<LastTerm> {
        if let Some(last) = last {
            // The last term did not return its lanes. They are free from now on, and the rows that it had in flight count as
            // maybe sent.
            self.outbox
                .stop_worker_in_flight(last.worker, &self.lanes.in_flight.open(last.worker))
                .await?;
            self.lanes.in_flight.forget(last.worker);
        }
        self.prepare_history().await;
        let asked = boottime::now();
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
                // Otherwise the others would leave it a share of the lanes until its lease ends, although it takes none.
                let _ = self
                    .outbox
                    .stop_worker_in_flight(worker, &InFlightRanges::default())
                    .await;
                return Err(error);
            }
        };
        let began = LastTerm {
            worker,
            incarnation,
            lineage,
        };
        if let Some(last) = last {
            self.check_for_loss(last, &began);
        }
        self.lanes.ownership().begin_term(term, unordered);
        Ok(began)
    }

    /// The lineage of the server, and the state of the unordered rows. Rebuilds floors if that is necessary, and reads what is
    /// paused: as the worker is registered, a pause that is committed from now on waits until this worker has seen it.
    async fn stored_state(&self, term: &Term) -> Result<(String, UnorderedState)> {
        let lineage = self.outbox.lineage(term.incarnation).await?;
        self.rebuild_floors(term).await?;
        read_pauses(self.lanes, self.outbox).await?;
        let unordered = self.outbox.read_unordered(term.incarnation).await?.unwrap_or_default();
        Ok((lineage, unordered))
    }

    /// Creates the history's partitions of the next days before anything is published. If rows of a day are in the default
    /// partition already, the partition of that day can no longer be created. Maintenance creates partitions in time while it
    /// runs, but after a start or an outage it would be too late.
    async fn prepare_history(&self) {
        if let Err(error) = self.outbox.history_prepare().await {
            warn!(%error, "cannot prepare the days of the history; rows of a day without one go to its default partition");
        }
    }

    /// Rebuilds the stored floors if the id sequence was restarted, because ids below them are drawn again.
    async fn rebuild_floors(&self, term: &Term) -> Result<()> {
        let floors = self.outbox.rebuild_floors(term, self.lanes.floors().are_void()).await?;
        self.lanes.floors().rebuilt();
        if floors > 0 {
            error!(
                floors,
                "the id sequence was restarted: stored floors are built anew, so that no row below them is lost; \
                 rows written before and after the restart have no order among them"
            );
        }
        Ok(())
    }

    /// Starts a loss check if the server has crashed or failed over since the last term, because it may have lost writes.
    fn check_for_loss(&self, last: &LastTerm, now: &LastTerm) {
        if last.lineage != now.lineage {
            warn!(
                "the server has lost its last writes, as after a failover: what was pending may be sent again, and says so"
            );
        }
        // A crash loses asynchronous commits only, but any application may make those.
        if (&last.lineage, last.incarnation) != (&now.lineage, now.incarnation) {
            self.published.question();
        }
    }
}
