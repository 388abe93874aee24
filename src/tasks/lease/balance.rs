//! Takes and returns lanes, so that this process owns its fair share.

use std::time::Duration;

use tracing::{info, warn};
use uuid::Uuid;

use super::lose;
use crate::domain::fair_share::fair_share;
use crate::domain::lease::Term;
use crate::domain::row::LANE_COUNT;
use crate::failpoint;
use crate::lanes::Lanes;
use crate::metrics;
use crate::outbox::{Outbox, Peer, Result};

pub(super) struct Balance<'a> {
    pub(super) lanes: &'a Lanes,
    pub(super) outbox: &'a Outbox,
    pub(super) lease: Duration,
}

impl Balance<'_> {
    /// Takes the lanes that this process lacks, or notes how many it has to return. Returns when to balance again.
    pub(super) async fn balance(&self, term: &Term, peers: &[Peer]) -> Result<Duration> {
        if let Some(peer) = peers.first() {
            self.lanes.clock.set(peer.now);
        }
        let live: Vec<_> = peers
            .iter()
            .filter(|peer| peer.lease_left > 0.0 || peer.worker == term.worker)
            .collect();
        let holdings: Vec<_> = live.iter().map(|peer| (peer.worker, peer.lanes)).collect();
        let share = fair_share(term.worker, &holdings);
        let owned = self.lanes.ownership().count();
        if live.iter().any(|peer| peer.worker == term.worker && peer.lanes > owned) {
            // The answer of a take was lost. The database names us as the owner of lanes that we do not know of, and no other
            // worker can take them while our lease lasts.
            lose(self.lanes, term, "the database says we own more lanes than we know of");
            return Ok(Duration::ZERO);
        }
        metrics::workers_live(live.len());
        let expired = live.len() < peers.len();
        if expired {
            failpoint::hit("before_takeover").await;
        }
        if owned < share || expired {
            // A take without lanes, too, stamps the expired workers stopped, so that they are not read again.
            self.take(term, share.saturating_sub(owned)).await?;
        }
        self.lanes.ownership().set_surplus(owned.saturating_sub(share));
        metrics::lanes_owned(self.lanes.ownership().count());
        Ok(next_check(peers, term.worker, self.lanes.ownership().count(), share))
    }

    async fn take(&self, term: &Term, count: usize) -> Result<()> {
        let taken = self.outbox.take_lanes(term, count, self.lease).await?;
        if taken.is_empty() {
            return Ok(());
        }
        let recovered = taken.iter().filter(|lane| lane.last_owner.is_some()).count();
        self.lanes.ownership().add(term.worker, &taken);
        if recovered > 0 {
            metrics::lanes_recovered(recovered);
            warn!(
                lanes = taken.len(),
                recovered, "took lanes of a worker that died; what it had in flight may be repeated and says so"
            );
        } else {
            info!(lanes = taken.len(), "took lanes");
        }
        Ok(())
    }

    /// Returns the surplus lanes that have no batch in flight.
    pub(super) async fn return_surplus(&self, term: &Term) {
        let returned = self.lanes.ownership().remove_surplus();
        if returned.is_empty() {
            return;
        }
        info!(lanes = returned.len(), "gave up lanes for other workers");
        metrics::lanes_owned(self.lanes.ownership().count());
        if let Err(error) = self.outbox.return_lanes(term, &returned).await {
            // We no longer use these lanes, but the database may still name us as their owner. A new term resolves that.
            lose(self.lanes, term, "lanes could not be handed back");
            warn!(%error, "cannot hand lanes back");
        }
    }
}

/// How long to wait before the next balance: at most until the lease of a peer may run out.
fn next_check(peers: &[Peer], me: Uuid, owned: usize, share: usize) -> Duration {
    let live_others = peers.iter().filter(|peer| peer.worker != me && peer.lease_left > 0.0);
    let owned_by_live = owned + live_others.clone().map(|peer| peer.lanes).sum::<usize>();
    // Lanes that we lack become free when their owners finish their batches. If some lanes have no live owner, our share may grow
    // by one when others have taken theirs, because the remainder goes to the workers that own most.
    let again = if owned < share || owned_by_live < LANE_COUNT {
        0.2
    } else {
        f64::MAX
    };
    let soonest = live_others.map(|peer| peer.lease_left + 0.02).fold(again, f64::min);
    Duration::try_from_secs_f64(soonest.min(3600.0)).unwrap_or(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Uuid = Uuid::from_u128(1);

    fn peer(worker: u128, lanes: usize, lease_left: f64) -> Peer {
        Peer {
            worker: Uuid::from_u128(worker),
            lease_left,
            lanes,
            now: std::time::SystemTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn the_next_balance_is_soon_while_this_worker_lacks_lanes_or_some_have_no_owner() {
        let next = |peers: &[Peer], owned, share| next_check(peers, ME, owned, share).as_secs_f64();
        let two = [peer(1, 16, 15.0), peer(2, 32, 12.0)];
        assert_eq!(
            next(&two, 32, 32),
            12.02,
            "all lanes have an owner: wait for the end of the other lease"
        );
        assert_eq!(next(&two, 31, 32), 0.2, "one lane is still missing");
        let dead = [peer(1, 16, 15.0), peer(2, 21, 12.0), peer(3, 27, -0.1)];
        assert_eq!(next(&dead, 21, 21), 0.2, "the last lane of the dead worker may be ours");
        assert_eq!(next(&two[..1], 64, 64), 3600.0, "there is no other worker");
    }
}
