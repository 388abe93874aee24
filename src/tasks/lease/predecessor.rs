//! A restarted process need not wait for the lease of its predecessor: if that is proven to be gone, its lanes are freed at once.
//!
//! Without proof, or behind a transaction pooler, lanes are free when the lease ends, as for all other workers.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::LeaseSettings;
use crate::outbox::{Outbox, Predecessor, Result};
use crate::process::Identity;

/// What a killed process had handed to the network arrives within this time.
const ARRIVES_WITHIN: Duration = Duration::from_secs(1);
/// PostgreSQL ends the sessions of a killed process within this time. A process whose sessions last longer is alive.
const SESSIONS_END_WITHIN: Duration = Duration::from_secs(3);
const CHECK_SESSIONS_EVERY: Duration = Duration::from_millis(100);

/// Ends the leases of predecessors that are proven to be gone. This is called once, before the first term begins.
pub async fn stop_predecessors(outbox: &Outbox, lease: &LeaseSettings, stop: &CancellationToken) {
    let Some(identity) = &lease.identity else { return };
    if let Err(error) = stop_proven(outbox, identity, stop).await {
        warn!(%error, "cannot ask for the lease of the process before this one; it ends by itself");
    }
}

async fn stop_proven(outbox: &Outbox, identity: &Identity, stop: &CancellationToken) -> Result<()> {
    let gone = proven_gone(outbox, identity, stop).await?;
    if gone.is_empty() {
        return Ok(());
    }
    stop.run_until_cancelled(sleep(ARRIVES_WITHIN)).await;
    for predecessor in gone {
        if outbox.stop_predecessor(predecessor.worker).await? {
            info!(
                worker = %predecessor.worker,
                name = predecessor.name,
                "the process before this one is gone: its lanes are free at once; what it had in flight is sent again, flagged"
            );
        }
    }
    Ok(())
}

/// The predecessors that have ended according to the kernel or the pod's UID, and that have no database session left.
async fn proven_gone(outbox: &Outbox, identity: &Identity, stop: &CancellationToken) -> Result<Vec<Predecessor>> {
    let deadline = Instant::now() + SESSIONS_END_WITHIN;
    loop {
        let mut found = outbox.predecessors(identity).await?;
        found.retain(|other| identity.proves_gone(&other.identity));
        let (connected, gone): (Vec<_>, Vec<_>) = found.into_iter().partition(|other| other.has_session);
        if connected.is_empty() || stop.is_cancelled() {
            return Ok(gone);
        }
        if Instant::now() >= deadline {
            connected.iter().for_each(warn_of_twin);
            return Ok(gone);
        }
        stop.run_until_cancelled(sleep(CHECK_SESSIONS_EVERY)).await;
    }
}

fn warn_of_twin(other: &Predecessor) {
    warn!(
        worker = %other.worker,
        name = other.name,
        pod_uid = other.identity.pod_uid,
        "another process runs with the identity of this one and is connected: its lanes stay its own. Give each pod its own \
         OUTBOXD_POD_UID, from metadata.uid of the downward API"
    );
}
