//! The fair share of this process: which lanes it takes, and which it returns.

use std::time::Duration;

use tracing::{info, warn};
use uuid::Uuid;

use super::lose;
use crate::domain::fair_share::fair_share;
use crate::domain::row::LANE_COUNT;
use crate::failpoint;
use crate::lanes::{Lanes, Term};
use crate::metrics;
use crate::outbox::{Outbox, Peer, Result};

pub(super) struct Balance<'a> {
    pub(super) lanes: &'a Lanes,
    pub(super) outbox: &'a Outbox,
    pub(super) lease: Duration,
}

impl Balance<'_> {
    /// Take what we are short of, mark what is too much. Answers when the next lease of a peer may run out.
    pub(super) async fn balance(&self, term: &Term, peers: &[Peer]) -> Result<Duration> {
        if let Some(peer) = peers.first() {
            self.lanes.clock.set(peer.now);
        }
        let live: Vec<_> = peers
            .iter()
            .filter(|p| p.lease_left > 0.0 || p.worker == term.worker)
            .collect();
        let holdings: Vec<_> = live.iter().map(|peer| (peer.worker, peer.lanes)).collect();
        let share = fair_share(term.worker, &holdings);
        let owned = self.lanes.owned();
        if live.iter().any(|peer| peer.worker == term.worker && peer.lanes > owned) {
            // A take whose answer was lost: the database names us as the owner of lanes we know nothing of, and nobody else
            // can take them while we live.
            lose(self.lanes, term, "the database says we own more lanes than we know of");
            return Ok(Duration::ZERO);
        }
        metrics::workers_live(live.len());
        let expired = live.len() < peers.len();
        if expired {
            failpoint::hit("before_takeover").await;
        }
        if owned < share || expired {
            // Even with nothing to take: it stamps the expired worker, so that it is not seen for ever.
            self.take(term, share.saturating_sub(owned)).await?;
        }
        self.lanes.set_surplus(owned.saturating_sub(share));
        metrics::lanes_owned(self.lanes.owned());
        Ok(next_check(peers, term.worker, self.lanes.owned(), share))
    }

    async fn take(&self, term: &Term, count: usize) -> Result<()> {
        let taken = self.outbox.take_lanes(term, count, self.lease).await?;
        if taken.is_empty() {
            return Ok(());
        }
        let recovered = taken.iter().filter(|lane| lane.last_owner.is_some()).count();
        self.lanes.add(term.worker, &taken);
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

    pub(super) async fn return_surplus(&self, term: &Term) {
        let given = self.lanes.remove_surplus();
        if given.is_empty() {
            return;
        }
        info!(lanes = given.len(), "gave up lanes for other workers");
        metrics::lanes_owned(self.lanes.owned());
        if let Err(error) = self.outbox.return_lanes(term, &given).await {
            // We no longer use them but the database still names us. A new term sorts it out.
            lose(self.lanes, term, "lanes could not be handed back");
            warn!(%error, "cannot hand lanes back");
        }
    }
}

/// When to balance again, as long as we own so many and our share was this.
fn next_check(peers: &[Peer], me: Uuid, owned: usize, share: usize) -> Duration {
    let live_others = peers.iter().filter(|peer| peer.worker != me && peer.lease_left > 0.0);
    let held = owned + live_others.clone().map(|peer| peer.lanes).sum::<usize>();
    // Lanes we are owed become free as their owners finish their batches. And of lanes that nobody holds the last one may be ours as
    // soon as others have taken theirs: who has most is owed the remainder.
    let again = if owned < share || held < LANE_COUNT {
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
    fn lanes_are_looked_for_again_soon_while_we_are_owed_some_or_nobody_holds_them() {
        let next = |peers: &[Peer], owned, share| next_check(peers, ME, owned, share).as_secs_f64();
        let two = [peer(1, 16, 15.0), peer(2, 32, 12.0)];
        assert_eq!(
            next(&two, 32, 32),
            12.02,
            "all are held: when the other's lease may end"
        );
        assert_eq!(next(&two, 31, 32), 0.2, "one is still to come");
        let dead = [peer(1, 16, 15.0), peer(2, 21, 12.0), peer(3, 27, -0.1)];
        assert_eq!(
            next(&dead, 21, 21),
            0.2,
            "nobody else may be owed the last ones of who died"
        );
        assert_eq!(next(&two[..1], 64, 64), 3600.0, "alone");
    }
}
