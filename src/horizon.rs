//! The task that moves the horizon: see `floor` for the rule. The gap between floor and tail triggers it, since every
//! claim reads that gap again; it takes at most a twentieth of its own time.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::lanes::{Lanes, Term};
use crate::metrics;
use crate::outbox::{Outbox, Result};

/// A gap of so many ids is worth closing at once; a smaller one after a while.
const GAP_WORTH: i64 = 500;
const GAP_SOME: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The keyless floor costs a query of its own.
const KEYLESS_EVERY: Duration = Duration::from_millis(100);
/// Of its time, at most one part in this many.
const SHARE_OF_TIME: u32 = 20;

/// Moves the horizon until `draining`.
pub async fn watch(lanes: &Lanes, outbox: &Outbox, draining: &CancellationToken) {
    let mut settled_at = Instant::now();
    let mut keyless_at = Instant::now();
    let mut wait = LOOK_EVERY;
    while !draining.is_cancelled() {
        tokio::select! {
            () = sleep(wait) => {}
            () = draining.cancelled() => return,
        }
        wait = LOOK_EVERY;
        let gap = lanes.gap();
        let Some(term) = lanes.term() else { continue };
        if gap <= 0 {
            settled_at = Instant::now();
            metrics::floor_age(Duration::ZERO);
            continue;
        }
        if gap < GAP_WORTH && settled_at.elapsed() < GAP_SOME {
            continue;
        }
        let began = Instant::now();
        let before = lanes.settled();
        let mut done = step(lanes, outbox, &term).await;
        if lanes.settled() > before {
            settled_at = Instant::now();
        }
        if done.is_ok() && keyless_at.elapsed() >= KEYLESS_EVERY {
            keyless_at = Instant::now();
            done = raise_keyless(lanes, outbox, &term).await;
        }
        metrics::floor_age(settled_at.elapsed());
        if let Err(error) = done {
            metrics::database_error();
            warn!(%error, "cannot move the scan floor; claims read more than they need to");
            wait = Duration::from_secs(1);
        }
        wait = wait.max(began.elapsed() * SHARE_OF_TIME);
    }
}

async fn step(lanes: &Lanes, outbox: &Outbox, term: &Term) -> Result<()> {
    if lanes.horizon_is_waiting() {
        let writers = outbox.writers(term).await?;
        lanes.with_horizon(term.worker, |horizon| horizon.observe(&writers));
    } else {
        let (highest_id, writers) = outbox.note(term).await?;
        lanes.with_horizon(term.worker, |horizon| horizon.note(highest_id, writers));
    }
    Ok(())
}

/// Rows without a lane are leased by anyone, so their floor comes from a look at the table, not from our claims.
async fn raise_keyless(lanes: &Lanes, outbox: &Outbox, term: &Term) -> Result<()> {
    let settled = lanes.settled();
    let (floor, epoch) = lanes.keyless_floor();
    if floor >= settled {
        return Ok(());
    }
    let lowest = outbox.keyless_lowest(term, floor).await?;
    let raised = lowest.map_or(settled, |id| settled.min(id - 1));
    lanes.raise_keyless_floor(term.worker, epoch, raised);
    Ok(())
}
