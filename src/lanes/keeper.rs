//! Keeps the term alive and the lanes fairly shared: register, renew, take, give up, leave.

use std::time::{Duration, Instant, SystemTime};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use uuid::Uuid;

use super::predecessor::stop_predecessors;
use super::{KeylessStored, Lanes, Term, share::fair_share};
use crate::boottime::BootInstant;
use crate::domain::row::LANE_COUNT;
use crate::failpoint;
use crate::health::{Health, Loop};
use crate::identity::Identity;
use crate::jitter::jittered;
use crate::metrics;
use crate::outbox::{Outbox, Peer, Result};
use crate::published::Published;

/// How the lease is kept.
#[derive(Clone, Debug)]
pub struct Lease {
    pub worker_name: String,
    /// `None`: this system does not tell which process this is.
    pub identity: Option<Identity>,
    pub duration: Duration,
}

/// How often floors are written back: a stale one costs a little reading, a hot row costs everybody.
const STORE_FLOORS_EVERY: Duration = Duration::from_secs(10);
/// That another process has parked a topic of rows without a key is noticed at most this much later; until then their next batch is
/// refused here as well.
const READ_KEYLESS_EVERY: Duration = Duration::from_secs(60);

/// Before registration is tried again.
const REGISTER_AGAIN: Duration = Duration::from_secs(1);

/// While lanes wait to be given up, look this often whether their batch is done.
const LEAVING_LOOK: Duration = Duration::from_millis(50);

/// What is remembered of a term that is over.
struct LastTerm {
    worker: Uuid,
    incarnation: SystemTime,
    /// Of the server it was on.
    lineage: String,
}

impl Lease {
    fn renew_every(&self) -> Duration {
        self.duration / 6
    }

    /// When to try again after a failure: soon, to save the lease; when it is over there is no hurry.
    fn renew_again(&self, term: &Term) -> Duration {
        let soon = self.renew_every() / 4;
        jittered(if term.lasts(Duration::ZERO) {
            soon
        } else {
            soon.max(REGISTER_AGAIN)
        })
    }
}

/// Runs until `stop`; takes no new lanes once `draining`.
pub async fn keep(
    lanes: &Lanes,
    outbox: &Outbox,
    published: &Published,
    health: &Health,
    lease: &Lease,
    draining: &CancellationToken,
    stop: &CancellationToken,
) {
    stop_predecessors(outbox, lease, draining).await;
    let mut last: Option<LastTerm> = None;
    while !stop.is_cancelled() {
        health.turned(Loop::Keeper);
        if !draining.is_cancelled() {
            nothing_in_flight(lanes, lease, stop).await;
            match begin(lanes, outbox, published, lease, last.as_ref()).await {
                Ok(term) => {
                    info!(worker = %term.worker, name = lease.worker_name, "registered");
                    last = Some(term);
                }
                Err(error) => {
                    warn!(%error, "cannot register with the database; trying again");
                    pause(jittered(REGISTER_AGAIN), stop).await;
                    continue;
                }
            }
            hold_term(lanes, outbox, health, lease, draining, stop).await;
        } else {
            pause(Duration::from_millis(100), stop).await;
        }
    }
}

/// What was sent under an old term is over before a new one begins, or its lease is.
async fn nothing_in_flight(lanes: &Lanes, lease: &Lease, stop: &CancellationToken) {
    let patience = Instant::now() + lease.duration;
    while lanes.outstanding() > 0 && Instant::now() < patience && !stop.is_cancelled() {
        pause(Duration::from_millis(20), stop).await;
    }
}

/// Begins a term; answers what the next one has to know of it. `last` is the same of the term before.
async fn begin(
    lanes: &Lanes,
    outbox: &Outbox,
    published: &Published,
    lease: &Lease,
    last: Option<&LastTerm>,
) -> Result<LastTerm> {
    if let Some(last) = last {
        // Its lanes are free at once, and suspect as far as it had rows in flight, since it did not give them back.
        outbox.stop_recorded(last.worker, &lanes.unsettled(last.worker)).await?;
        lanes.forget_unsettled(last.worker);
    }
    prepare_history(outbox).await;
    let asked = BootInstant::now();
    let worker = Uuid::new_v4();
    let (incarnation, now) = outbox.register(worker, lease).await?;
    lanes.clock.set(now);
    let term = Term {
        worker,
        incarnation,
        ends: asked + lease.duration,
    };
    let (lineage, keyless) = match stored_state(lanes, outbox, &term).await {
        Ok(stored) => stored,
        Err(error) => {
            // Registered and never at work, it would be given its share of the lanes for as long as its lease lasts.
            let _ = outbox.stop_worker(worker).await;
            return Err(error);
        }
    };
    let began = LastTerm {
        worker,
        incarnation,
        lineage,
    };
    if let Some(last) = last {
        question_published(published, last, &began);
    }
    lanes.begin_term(term, keyless);
    Ok(began)
}

async fn stored_state(lanes: &Lanes, outbox: &Outbox, term: &Term) -> Result<(String, KeylessStored)> {
    let lineage = outbox.lineage(term.incarnation).await?;
    rebuild_floors(lanes, outbox, term).await?;
    let keyless = outbox.keyless(term.incarnation).await?.unwrap_or_default();
    Ok((lineage, keyless))
}

/// Before anything is published: where rows of a day lie in the default partition, that day can no longer be made. Maintenance makes the next
/// days in time while it runs, but at a start and after an outage it comes too late.
async fn prepare_history(outbox: &Outbox) {
    if let Err(error) = outbox.history_prepare().await {
        warn!(%error, "cannot prepare the days of the history; rows of a day without one go to its default partition");
    }
}

/// Where the id sequence was restarted, ids come again below the stored floors.
async fn rebuild_floors(lanes: &Lanes, outbox: &Outbox, term: &Term) -> Result<()> {
    let floors = outbox.rebuild_floors(term, lanes.floors_are_void()).await?;
    lanes.floors_rebuilt();
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
fn question_published(published: &Published, last: &LastTerm, now: &LastTerm) {
    if last.lineage != now.lineage {
        warn!(
            "the server has lost its last writes, as after a failover: what was pending may be sent again, and says so"
        );
    }
    // A crash loses no commit but asynchronous ones, and whether an application makes those nobody knows.
    if (&last.lineage, last.incarnation) != (&now.lineage, now.incarnation) {
        published.question();
    }
}

/// Ticks until the term is over or the process stops.
async fn hold_term(
    lanes: &Lanes,
    outbox: &Outbox,
    health: &Health,
    lease: &Lease,
    draining: &CancellationToken,
    stop: &CancellationToken,
) {
    let mut floors_stored = Instant::now();
    let mut keyless_read = Instant::now();
    let mut renew_at = Instant::now();
    while !stop.is_cancelled() {
        health.turned(Loop::Keeper);
        let Some(term) = lanes.term() else { return };
        let now = Instant::now();
        if now >= renew_at {
            renew_at = match tend(lanes, outbox, lease, &term, draining).await {
                Ok(Some(wait)) => now + wait,
                Ok(None) => {
                    lose(
                        lanes,
                        &term,
                        "the lease could not be renewed: another worker has taken over, or the server restarted",
                    );
                    return;
                }
                Err(error) => {
                    warn!(%error, "cannot renew the lease or share the lanes; trying again");
                    Instant::now() + lease.renew_again(&term)
                }
            };
        }
        give_up_leaving(lanes, outbox, &term).await;
        if floors_stored.elapsed() >= STORE_FLOORS_EVERY {
            floors_stored = Instant::now();
            store_floors(lanes, outbox, &term).await;
            store_floor_keyless(lanes, outbox, &term).await;
        }
        if keyless_read.elapsed() >= READ_KEYLESS_EVERY {
            keyless_read = Instant::now();
            read_keyless(lanes, outbox, &term).await;
        }
        let next = renew_at.saturating_duration_since(Instant::now());
        let next = if lanes.any_leaving() {
            next.min(LEAVING_LOOK)
        } else {
            next
        };
        tokio::select! {
            () = sleep(next.max(Duration::from_millis(5))) => {}
            () = stop.cancelled() => {}
            () = term_over(lanes, term.worker) => {}
        }
    }
}

/// Resolves when the term has ended, e.g. because a mark was fenced.
async fn term_over(lanes: &Lanes, worker: Uuid) {
    loop {
        let changed = lanes.changed();
        if lanes.term().is_none_or(|term| term.worker != worker) {
            return;
        }
        changed.await;
    }
}

fn lose(lanes: &Lanes, term: &Term, why: &str) {
    if lanes.end_term(term.worker) {
        metrics::terms_lost();
        warn!(worker = %term.worker, why, "lost the lease; registering anew");
    }
}

/// Renews the lease and, unless we are about to leave, sees to our share of the lanes. Answers when to do so again; `None`:
/// the lease is lost.
async fn tend(
    lanes: &Lanes,
    outbox: &Outbox,
    lease: &Lease,
    term: &Term,
    draining: &CancellationToken,
) -> Result<Option<Duration>> {
    let Some(peers) = renew(lanes, outbox, lease, term).await? else {
        return Ok(None);
    };
    let mut wait = lease.renew_every();
    if !draining.is_cancelled() {
        // Be there the moment somebody's lease runs out.
        wait = wait.min(balance(lanes, outbox, lease, term, &peers).await?);
    }
    Ok(Some(wait))
}

/// Answers who is here; `None`: we are not, any more. What others have lowered is known then.
async fn renew(lanes: &Lanes, outbox: &Outbox, lease: &Lease, term: &Term) -> Result<Option<Vec<Peer>>> {
    let (asked, records_from) = (BootInstant::now(), lanes.records_from(term.worker));
    failpoint::hit("before_renew").await;
    let renewal = outbox.renew(term, lease.duration, records_from).await?;
    // An answer that comes after expiry is not ownership.
    let Some(renewal) = renewal.filter(|_| term.lasts(Duration::ZERO)) else {
        return Ok(None);
    };
    lanes.renewed(asked + lease.duration);
    let (floor, epoch) = renewal.keyless;
    lanes.keyless_floor_read(term.worker, floor, epoch);
    Ok(Some(renewal.peers))
}

/// Take what we are short of, mark what is too much. Answers when the next lease of a peer may run out.
async fn balance(lanes: &Lanes, outbox: &Outbox, lease: &Lease, term: &Term, peers: &[Peer]) -> Result<Duration> {
    if let Some(peer) = peers.first() {
        lanes.clock.set(peer.now);
    }
    let live: Vec<_> = peers
        .iter()
        .filter(|p| p.lease_left > 0.0 || p.worker == term.worker)
        .collect();
    let holdings: Vec<_> = live.iter().map(|peer| (peer.worker, peer.lanes)).collect();
    let share = fair_share(term.worker, &holdings);
    let owned = lanes.owned();
    if live.iter().any(|peer| peer.worker == term.worker && peer.lanes > owned) {
        // A take whose answer was lost: the database names us as the owner of lanes we know nothing of, and nobody else
        // can take them while we live.
        lose(lanes, term, "the database says we own more lanes than we know of");
        return Ok(Duration::ZERO);
    }
    metrics::workers_live(live.len());
    let expired = live.len() < peers.len();
    if expired {
        failpoint::hit("before_recovery").await;
    }
    if owned < share || expired {
        // Even with nothing to take: it stamps the expired worker, so that it is not seen for ever.
        take(lanes, outbox, lease, term, share.saturating_sub(owned)).await?;
    }
    lanes.set_leaving(owned.saturating_sub(share));
    metrics::lanes_owned(lanes.owned());
    Ok(next_look(peers, term.worker, lanes.owned(), share))
}

/// When to see to the lanes again, as long as we own so many and our share was this.
fn next_look(peers: &[Peer], me: Uuid, owned: usize, share: usize) -> Duration {
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

async fn take(lanes: &Lanes, outbox: &Outbox, lease: &Lease, term: &Term, count: usize) -> Result<()> {
    let taken = outbox.take(term, count, lease.duration).await?;
    if taken.is_empty() {
        return Ok(());
    }
    let recovered = taken.iter().filter(|lane| lane.last_owner.is_some()).count();
    lanes.add(term.worker, &taken);
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

async fn give_up_leaving(lanes: &Lanes, outbox: &Outbox, term: &Term) {
    let given = lanes.remove_leaving();
    if given.is_empty() {
        return;
    }
    info!(lanes = given.len(), "gave up lanes for other workers");
    metrics::lanes_owned(lanes.owned());
    if let Err(error) = outbox.give_up(term, &given).await {
        // We no longer use them but the database still names us. A new term sorts it out.
        lose(lanes, term, "lanes could not be handed back");
        warn!(%error, "cannot hand lanes back");
    }
}

async fn store_floors(lanes: &Lanes, outbox: &Outbox, term: &Term) {
    let moved = lanes.floors_to_store();
    if !moved.is_empty() {
        failpoint::hit("before_store_floors").await;
        match outbox.store_floors(term, &moved).await {
            Ok(stored) => lanes.floors_stored(&moved, &stored),
            Err(error) => warn!(%error, "cannot store floors; they will be stored later"),
        }
    }
}

/// One that others have lowered meanwhile is not raised again: its epoch is another.
async fn store_floor_keyless(lanes: &Lanes, outbox: &Outbox, term: &Term) {
    if !lanes.keyless_moved() {
        return;
    }
    let (floor, epoch) = lanes.keyless_floor();
    if let Err(error) = outbox.store_floor_keyless(term, floor.hard(), epoch).await {
        warn!(%error, "cannot store the floor of keyless rows; it will be stored later");
    }
}

async fn read_keyless(lanes: &Lanes, outbox: &Outbox, term: &Term) {
    match outbox.keyless(term.incarnation).await {
        Ok(Some(stored)) => lanes.keyless_read(term.worker, stored),
        Ok(None) => {}
        Err(error) => warn!(%error, "cannot read what is parked of rows without a key; trying again later"),
    }
}

/// Leave in order: stamp ourselves stopped, free every lane without a batch in flight, in one transaction.
/// A lane whose batch is still out is not freed: it falls to a successor when the lease ends.
pub async fn leave(lanes: &Lanes, outbox: &Outbox) -> Result<()> {
    let Some(term) = lanes.term() else { return Ok(()) };
    let (given, busy) = lanes.remove_idle();
    if busy == 0 {
        outbox.leave(&term, &given).await?;
        info!(lanes = given.len(), "left: lanes are free for other workers");
    } else {
        outbox.give_up(&term, &given).await?;
        warn!(
            lanes = busy,
            "stopping with sends in flight: these lanes are taken over when the lease ends"
        );
    }
    lanes.end_term(term.worker);
    Ok(())
}

pub(super) async fn pause(duration: Duration, stop: &CancellationToken) {
    tokio::select! {
        () = sleep(duration) => {}
        () = stop.cancelled() => {}
    }
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
        let next = |peers: &[Peer], owned, share| next_look(peers, ME, owned, share).as_secs_f64();
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
