//! When to look again: one cheap probe for the whole process, more often the more recently something was there.
//!
//! Polling, not notification: a notifying commit takes a lock shared by the whole database, and a lost notification
//! would need the poll anyway. The wait is an eighth of the silence so far, so that a row after a pause of one second
//! waits at most 125 ms, and an idle daemon asks once per `poll_interval_max`.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::health::{Health, Loop};
use crate::jitter::jittered;
use crate::lanes::Lanes;
use crate::metrics;
use crate::outbox::{Outbox, Result};

/// The shortest wait between two probes. With less, steady commits are found in ever smaller batches, and each batch costs
/// PostgreSQL a claim and a mark.
const POLL_MIN: Duration = Duration::from_millis(3);
/// The most rows a probe walks before it says that it does not know.
const WALK_MOST: usize = 1000;
/// After such an answer every lane is looked at: not every millisecond.
const AFTER_BLIND_PROBE: Duration = Duration::from_millis(20);
/// While there is nothing to ask, look this often whether there is.
const NOTHING_TO_ASK: Duration = Duration::from_millis(4);
/// The probe's word for "cut short" among the lanes it answers.
const CUT_SHORT: i16 = -2;

/// The wait after a silence of this length.
pub fn delay(silence: Duration, poll_max: Duration) -> Duration {
    (silence / 8).max(POLL_MIN).min(poll_max)
}

/// Probes until `draining`.
pub async fn watch(lanes: &Lanes, outbox: &Outbox, health: &Health, poll_max: Duration, draining: &CancellationToken) {
    let mut last_found = Instant::now();
    let mut blind = false;
    let mut failures = 0u32;
    while !draining.is_cancelled() {
        health.turned(Loop::Probe);
        let mut wait = delay(last_found.elapsed(), poll_max);
        if blind {
            wait = wait.max(AFTER_BLIND_PROBE);
        }
        if failures > 0 {
            wait = jittered(wait.max(Duration::from_millis(100) * failures.min(20)));
        }
        tokio::select! {
            () = sleep(wait) => {}
            () = draining.cancelled() => return,
        }
        match probe(lanes, outbox).await {
            Ok(Probed { found, complete }) => {
                failures = 0;
                blind = !complete;
                if found {
                    last_found = Instant::now();
                }
            }
            Err(error) => {
                metrics::database_error();
                if failures == 0 {
                    warn!(%error, "cannot look for rows; trying again");
                }
                failures += 1;
            }
        }
    }
}

struct Probed {
    found: bool,
    complete: bool,
}

async fn probe(lanes: &Lanes, outbox: &Outbox) -> Result<Probed> {
    let Some(scope) = lanes.probe_scope() else {
        // Nothing to ask: either everything is known to be ready, or nothing is ours.
        sleep(NOTHING_TO_ASK).await;
        return Ok(Probed {
            found: lanes.owned() > 0,
            complete: true,
        });
    };
    let mut ready = outbox.probe(&scope, WALK_MOST).await?;
    let complete = !ready.remove(&CUT_SHORT);
    if !complete {
        lanes.want_horizon();
    }
    if outbox.any_ended(&scope.holders).await? {
        lanes.harden(scope.term.worker, scope.settled.generation);
        return Ok(Probed { found: true, complete });
    }
    let found = lanes.probed(&scope, &ready, complete);
    Ok(Probed { found, complete })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_the_silence_the_longer_the_wait_within_bounds() {
        let most = Duration::from_secs(1);
        assert_eq!(delay(Duration::ZERO, most), POLL_MIN);
        assert_eq!(delay(Duration::from_secs(1), most), Duration::from_millis(125));
        assert_eq!(delay(Duration::from_secs(3600), most), most);
        let less = Duration::from_millis(1);
        assert_eq!(delay(Duration::ZERO, less), less, "as the operator wants it");
    }
}
