//! Keeps the lease of this process and its fair share of the lanes: register, renew, take, return, leave.

mod balance;
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
use self::stored_floors::StoredFloors;
use self::term::{LastTerm, Terms};
use super::Shutdown;
use crate::boottime::BootInstant;
use crate::failpoint;
use crate::health::{Health, Loop};
use crate::jitter::jittered;
use crate::lanes::RecentlyPublished;
use crate::lanes::{Lanes, Term};
use crate::metrics;
use crate::outbox::{Outbox, Peer, Result};
use crate::process::Identity;

/// How the lease is kept.
#[derive(Clone, Debug)]
pub struct LeaseSettings {
    pub worker_name: String,
    /// `None`: this system does not tell which process this is.
    pub identity: Option<Identity>,
    pub duration: Duration,
}

/// Wait before registration is tried again.
const REGISTER_AGAIN: Duration = Duration::from_secs(1);
/// While surplus lanes wait for their batch to end, they are checked this often.
const CHECK_SURPLUS_EVERY: Duration = Duration::from_millis(50);

impl LeaseSettings {
    fn renew_every(&self) -> Duration {
        self.duration / 6
    }

    /// When to try again after a failure: soon, to save the lease; once it is over there is no hurry.
    fn renew_again(&self, term: &Term) -> Duration {
        let soon = self.renew_every() / 4;
        jittered(if term.lasts(Duration::ZERO) {
            soon
        } else {
            soon.max(REGISTER_AGAIN)
        })
    }
}

/// Registers, renews and balances until it is stopped.
pub struct LeaseTask {
    pub lanes: Arc<Lanes>,
    pub outbox: Arc<Outbox>,
    pub published: Arc<RecentlyPublished>,
    pub health: Arc<Health>,
    pub settings: LeaseSettings,
}

impl LeaseTask {
    /// Runs until `shutdown.stop`; takes no new lanes once `shutdown.draining`.
    pub async fn run(&self, shutdown: &Shutdown) {
        let Shutdown { draining, stop } = shutdown;
        predecessor::stop_predecessors(&self.outbox, &self.settings, draining).await;
        let mut last: Option<LastTerm> = None;
        while !stop.is_cancelled() {
            self.health.turned(Loop::Lease);
            if draining.is_cancelled() {
                pause(Duration::from_millis(100), stop).await;
                continue;
            }
            self.wait_for_open_batches(stop).await;
            match self.terms().begin(last.as_ref()).await {
                Ok(term) => {
                    info!(worker = %term.worker, name = self.settings.worker_name, "registered");
                    last = Some(term);
                    self.maintain_term(shutdown).await;
                }
                Err(error) => {
                    warn!(%error, "cannot register with the database; trying again");
                    pause(jittered(REGISTER_AGAIN), stop).await;
                }
            }
        }
    }

    fn terms(&self) -> Terms<'_> {
        Terms {
            lanes: &self.lanes,
            outbox: &self.outbox,
            published: &self.published,
            settings: &self.settings,
        }
    }

    /// What was sent under an old term ends before a new one begins, or else its lease does.
    async fn wait_for_open_batches(&self, stop: &CancellationToken) {
        let deadline = Instant::now() + self.settings.duration;
        while self.lanes.outstanding() > 0 && Instant::now() < deadline && !stop.is_cancelled() {
            pause(Duration::from_millis(20), stop).await;
        }
    }

    /// Renews and balances until the term is over or the process stops.
    async fn maintain_term(&self, shutdown: &Shutdown) {
        let mut floors = StoredFloors::new(&self.lanes, &self.outbox);
        let balance = Balance {
            lanes: &self.lanes,
            outbox: &self.outbox,
            lease: self.settings.duration,
        };
        let mut renew_at = Instant::now();
        while !shutdown.stop.is_cancelled() {
            self.health.turned(Loop::Lease);
            let Some(term) = self.lanes.term() else { return };
            if Instant::now() >= renew_at {
                let Some(next) = self.renew_and_balance(&term, &balance, &shutdown.draining).await else {
                    return;
                };
                renew_at = next;
            }
            balance.return_surplus(&term).await;
            floors.store_and_read(&term).await;
            let mut next = renew_at.saturating_duration_since(Instant::now());
            if self.lanes.any_surplus() {
                next = next.min(CHECK_SURPLUS_EVERY);
            }
            tokio::select! {
                () = sleep(next.max(Duration::from_millis(5))) => {}
                () = shutdown.stop.cancelled() => {}
                () = self.term_over(term.worker) => {}
            }
        }
    }

    /// Renews the lease and, unless the process is about to leave, balances its share of the lanes. Answers when to do so again; `None`:
    /// the lease is lost.
    async fn renew_and_balance(
        &self,
        term: &Term,
        balance: &Balance<'_>,
        draining: &CancellationToken,
    ) -> Option<Instant> {
        let began = Instant::now();
        let done: Result<Option<Duration>> = async {
            let Some(peers) = self.renew(term).await? else {
                return Ok(None);
            };
            let wait = self.settings.renew_every();
            if draining.is_cancelled() {
                return Ok(Some(wait));
            }
            // Be there the moment somebody's lease runs out.
            Ok(Some(wait.min(balance.balance(term, &peers).await?)))
        }
        .await;
        match done {
            Ok(Some(wait)) => Some(began + wait),
            Ok(None) => {
                let why = "the lease could not be renewed: another worker has taken over, or the server restarted";
                lose(&self.lanes, term, why);
                None
            }
            Err(error) => {
                warn!(%error, "cannot renew the lease or share the lanes; trying again");
                Some(Instant::now() + self.settings.renew_again(term))
            }
        }
    }

    /// Answers who is here; `None`: this process is not, any more. It also learns which floors others have lowered.
    async fn renew(&self, term: &Term) -> Result<Option<Vec<Peer>>> {
        let (asked, oldest_entry) = (BootInstant::now(), self.lanes.oldest_entry(term.worker));
        failpoint::hit("before_renew").await;
        let renewal = self.outbox.renew(term, self.settings.duration, oldest_entry).await?;
        // An answer that comes after expiry is not ownership.
        let Some(renewal) = renewal.filter(|_| term.lasts(Duration::ZERO)) else {
            return Ok(None);
        };
        self.lanes.renewed(asked + self.settings.duration);
        let (floor, epoch) = renewal.unordered;
        self.lanes.unordered_floor_read(term.worker, floor, epoch);
        Ok(Some(renewal.peers))
    }

    /// Resolves when the term has ended, e.g. because a mark was fenced.
    async fn term_over(&self, worker: Uuid) {
        loop {
            let changed = self.lanes.changed();
            if self.lanes.term().is_none_or(|term| term.worker != worker) {
                return;
            }
            changed.await;
        }
    }

    /// Leaves in order: stamps this worker stopped and frees every lane without a batch in flight, in one transaction.
    /// A lane whose batch is still out is not freed: a successor takes it when the lease ends.
    pub async fn leave(&self) -> Result<()> {
        let Some(term) = self.lanes.term() else { return Ok(()) };
        let (given, busy) = self.lanes.remove_idle();
        if busy == 0 {
            self.outbox.stop_and_return_lanes(&term, &given).await?;
            info!(lanes = given.len(), "left: lanes are free for other workers");
        } else {
            self.outbox.return_lanes(&term, &given).await?;
            warn!(
                lanes = busy,
                "stopping with sends in flight: these lanes are taken over when the lease ends"
            );
        }
        self.lanes.end_term(term.worker);
        Ok(())
    }
}

fn lose(lanes: &Lanes, term: &Term, why: &str) {
    if lanes.end_term(term.worker) {
        metrics::leases_lost();
        warn!(worker = %term.worker, why, "lost the lease; registering anew");
    }
}

async fn pause(duration: Duration, stop: &CancellationToken) {
    tokio::select! {
        () = sleep(duration) => {}
        () = stop.cancelled() => {}
    }
}
