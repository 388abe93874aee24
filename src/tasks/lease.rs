//! Keeps the lease of this process and its fair share of the lanes. It registers, renews, takes and returns lanes, and leaves.

mod balance;
mod pauses;
mod predecessor;
mod stored_floors;
mod term;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use self::balance::Balance;
use self::pauses::PauseReports;
use self::stored_floors::StoredFloors;
use self::term::{LastTerm, Terms};
use super::Shutdown;
use crate::boottime;
use crate::domain::lease::Term;
use crate::failpoint;
use crate::health::{Health, Loop};
use crate::jitter::jittered;
use crate::lanes::{Lanes, RecentlyPublished};
use crate::metrics;
use crate::outbox::{Outbox, Peer, Result};
use crate::process::Identity;

#[derive(Clone, Debug)]
pub struct LeaseSettings {
    pub worker_name: String,
    /// `None` if the system has no way to identify this process.
    pub identity: Option<Identity>,
    pub duration: Duration,
}

/// Wait before a failed registration is tried again.
const REGISTER_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often surplus lanes, and pauses that are not in effect yet, are checked while they wait for the end of batches.
const CHECK_BATCHES_EVERY: Duration = Duration::from_millis(50);

impl LeaseSettings {
    fn renew_every(&self) -> Duration {
        self.duration / 6
    }

    /// How long to wait after a failed renewal. It is short while the lease can still be saved.
    fn renew_again_after(&self, term: &Term) -> Duration {
        let soon = self.renew_every() / 4;
        jittered(if term.lasts(boottime::now(), Duration::ZERO) {
            soon
        } else {
            soon.max(REGISTER_AGAIN_AFTER)
        })
    }
}

pub struct LeaseTask {
    pub lanes: Arc<Lanes>,
    pub outbox: Arc<Outbox>,
    pub published: Arc<RecentlyPublished>,
    pub health: Arc<Health>,
    pub settings: LeaseSettings,
}

impl LeaseTask {
    /// Runs until `shutdown.stop`, and takes no lanes after `shutdown.draining`.
    pub async fn run(&self, shutdown: &Shutdown) {
        let Shutdown { draining, stop } = shutdown;
        predecessor::stop_predecessors(&self.outbox, &self.settings, draining).await;
        let terms = Terms {
            lanes: &self.lanes,
            outbox: &self.outbox,
            published: &self.published,
            settings: &self.settings,
        };
        let mut last: Option<LastTerm> = None;
        while !stop.is_cancelled() {
            self.health.heartbeat(Loop::Lease);
            if draining.is_cancelled() {
                stop.run_until_cancelled(sleep(Duration::from_millis(100))).await;
                continue;
            }
            self.wait_for_batches(stop).await;
            match terms.begin(last.as_ref()).await {
                Ok(term) => {
                    info!(worker = %term.worker, name = self.settings.worker_name, "registered");
                    last = Some(term);
                    self.maintain_term(shutdown).await;
                }
                Err(error) => {
                    warn!(%error, "cannot register with the database; trying again");
                    stop.run_until_cancelled(sleep(jittered(REGISTER_AGAIN_AFTER))).await;
                }
            }
        }
    }

    /// Waits until all that the last term has sent is answered, or at least its lease has ended, before a new term begins. Until then
    /// this process is known as that worker, so a pause waits for it.
    async fn wait_for_batches(&self, stop: &CancellationToken) {
        let deadline = Instant::now() + self.settings.duration;
        let is_sending = || self.lanes.checkouts().outstanding() > 0 || self.lanes.pauses.are_held();
        while is_sending() && Instant::now() < deadline && !stop.is_cancelled() {
            stop.run_until_cancelled(sleep(Duration::from_millis(20))).await;
        }
    }

    /// Renews the lease and balances lanes until the term is over or the process stops.
    async fn maintain_term(&self, shutdown: &Shutdown) {
        let mut floors = StoredFloors::new(&self.lanes, &self.outbox);
        let balance = Balance {
            lanes: &self.lanes,
            outbox: &self.outbox,
            lease: self.settings.duration,
        };
        let mut pauses = PauseReports::new(&self.lanes, &self.outbox);
        let mut renew_at = Instant::now();
        while !shutdown.stop.is_cancelled() {
            self.health.heartbeat(Loop::Lease);
            let Some(term) = self.lanes.term() else { return };
            if Instant::now() >= renew_at || pauses.hurry() {
                let next = self
                    .renew_and_balance(&term, &balance, &mut pauses, &shutdown.draining)
                    .await;
                let Some(next) = next else { return };
                renew_at = next;
            }
            balance.return_surplus(&term).await;
            floors.store_and_read(&term).await;
            let mut next = renew_at.saturating_duration_since(Instant::now());
            if self.lanes.ownership().has_surplus() || pauses.are_unreported() {
                next = next.min(CHECK_BATCHES_EVERY);
            }
            tokio::select! {
                () = sleep(next.max(Duration::from_millis(5))) => {}
                () = shutdown.stop.cancelled() => {}
                () = self.term_over(term.worker) => {}
            }
        }
    }

    /// Renews the lease and balances lanes, unless the process is about to leave. Returns when to do so again, or `None` if the
    /// lease is lost.
    async fn renew_and_balance(
        &self,
        term: &Term,
        balance: &Balance<'_>,
        pauses: &mut PauseReports<'_>,
        draining: &CancellationToken,
    ) -> Option<Instant> {
        let began = Instant::now();
        let wait = match self.renew(term, pauses).await {
            Ok(Some(_)) if draining.is_cancelled() => Ok(Duration::MAX),
            Ok(Some(peers)) => balance.balance(term, &peers).await,
            Ok(None) => {
                let why = "the lease could not be renewed: another worker has taken over, or the server restarted";
                lose(&self.lanes, term, why);
                return None;
            }
            Err(error) => Err(error),
        };
        match wait {
            // Come back as soon as the lease of a peer may run out.
            Ok(wait) => Some(began + wait.min(self.settings.renew_every())),
            Err(error) => {
                warn!(%error, "cannot renew the lease or share the lanes; trying again");
                Some(Instant::now() + self.settings.renew_again_after(term))
            }
        }
    }

    /// Renews the lease, and reads the floor of the unordered rows, which other workers may have lowered, and what is paused.
    /// Returns all workers with a lease, or `None` if the lease of this one is lost.
    async fn renew(&self, term: &Term, pauses: &mut PauseReports<'_>) -> Result<Option<Vec<Peer>>> {
        let (asked, oldest_entry) = (boottime::now(), self.lanes.in_flight.oldest(term.worker));
        let (lease, in_effect) = (self.settings.duration, pauses.in_effect());
        failpoint::hit("before_renew").await;
        let renewal = self.outbox.renew(term, lease, oldest_entry, in_effect).await?;
        // An answer that comes after the lease has expired does not renew it.
        let Some(renewal) = renewal.filter(|_| term.lasts(boottime::now(), Duration::ZERO)) else {
            return Ok(None);
        };
        self.lanes.ownership().renewed(asked + lease);
        let (floor, epoch) = renewal.unordered;
        self.lanes.unordered().note_stored_floor(term.worker, floor, epoch);
        pauses.renewed(term, in_effect, renewal.pauses).await;
        Ok(Some(renewal.peers))
    }

    /// Waits until the term has ended, for example because a mark was fenced.
    async fn term_over(&self, worker: Uuid) {
        loop {
            let changed = self.lanes.changed();
            if self.lanes.term().is_none_or(|term| term.worker != worker) {
                return;
            }
            changed.await;
        }
    }

    /// Stamps this worker stopped and frees all of its lanes, in one transaction. If something may still be on its way to Kafka, it
    /// is not stamped, and only the lanes without a batch in flight are freed. A successor takes the others when the lease ends.
    pub async fn leave(&self) -> Result<()> {
        let Some(term) = self.lanes.term() else { return Ok(()) };
        let (returned, busy) = self.lanes.ownership().remove_idle();
        if busy == 0 && !self.lanes.pauses.are_held() {
            self.outbox.stop_and_return_lanes(&term, &returned).await?;
            info!(lanes = returned.len(), "left: lanes are free for other workers");
        } else {
            self.outbox.return_lanes(&term, &returned).await?;
            warn!(
                lanes = busy,
                "stopping with sends in flight: these lanes are taken over when the lease ends"
            );
        }
        self.lanes.ownership().end_term(term.worker);
        Ok(())
    }
}

/// Ends the term because its lease is lost.
fn lose(lanes: &Lanes, term: &Term, why: &str) {
    if lanes.ownership().end_term(term.worker) {
        metrics::leases_lost();
        warn!(worker = %term.worker, why, "lost the lease; registering anew");
    }
}
