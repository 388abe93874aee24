//! Retries held keys: sends the head of each alone when it is due, lane by lane.

use std::future::ready;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{AFTER_ERROR, IDLE_WAIT, PAUSE_MIN, RetryHolds, Tried};
use crate::domain::hold::{Hold, HoldChange};
use crate::domain::lease::Term;
use crate::metrics;
use crate::outbox::Result;
use crate::tasks::report::report_held_key;

/// How many holds one round reads. It is enough that, if there are thousands, many of them belong to the same lane.
const READ_MAX: usize = 1024;
/// How many lanes are retried at the same time.
const LANES_AT_ONCE: usize = 2;
/// How many heads of each lane are sent at the same time.
const HEADS_AT_ONCE: usize = 2;
/// For each lane, one connection for every head, and one to write changes.
pub const CONNECTIONS: usize = LANES_AT_ONCE * (HEADS_AT_ONCE + 1);
/// Longest wait of an answered head for others of its lane, to write them in one transaction. It is short, because a head that
/// was published and is not marked yet is sent again after a crash.
const GROUP_WAIT_MAX: Duration = Duration::from_millis(250);
/// Most changes of one transaction.
const GROUP_MAX: usize = 64;
/// Most heads that are published and not marked yet. They are in a group, in the channel to it, or being sent.
pub const IN_FLIGHT_MAX: usize = LANES_AT_ONCE * (GROUP_MAX + 1 + HEADS_AT_ONCE);

impl RetryHolds {
    /// Retries keys that are due until `draining`.
    pub(super) async fn retry_keys(&self, draining: &CancellationToken) {
        while !draining.is_cancelled() {
            let wait = match self.retry_due(draining).await {
                Ok(wait) => wait,
                Err(error) => {
                    metrics::database_error();
                    warn!(%error, "cannot retry held keys; trying again");
                    AFTER_ERROR
                }
            };
            draining.run_until_cancelled(sleep(wait)).await;
        }
    }

    /// Does one round. Returns how long to wait for the next.
    async fn retry_due(&self, draining: &CancellationToken) -> Result<Duration> {
        let pauses = self.lanes.pauses.current();
        if !self.lanes.holds().exist() || self.publisher.is_paused() || pauses.cover_everything() {
            return Ok(IDLE_WAIT);
        }
        let Some(term) = self.lanes.live_term(self.settings.lease_needed()) else {
            return Ok(IDLE_WAIT);
        };
        let holds = self.outbox.due_keys(&term, READ_MAX, &pauses).await?;
        // A round may be long. Each head obeys the pauses of its own time.
        drop(pauses);
        let lanes = by_lane(holds.iter().filter(|hold| hold.wait <= 0.0).cloned());
        stream::iter(lanes)
            .for_each_concurrent(LANES_AT_ONCE, async |(lane, holds)| {
                self.retry_lane(&term, lane, holds, draining).await;
            })
            .await;
        Ok(wait_for_next(&holds))
    }

    /// Retries the keys of one lane that are due.
    async fn retry_lane(&self, term: &Term, lane: i16, holds: Vec<Hold>, draining: &CancellationToken) {
        let (changes, to_write) = mpsc::channel(1);
        // These run concurrently: a batch of the lane may wait for the quarantine that a head uses, and the change waits for that
        // batch.
        tokio::join!(
            self.send_heads(term, holds, changes, draining),
            self.write_changes(term, lane, to_write)
        );
    }

    async fn send_heads(
        &self,
        term: &Term,
        holds: Vec<Hold>,
        changes: mpsc::Sender<HoldChange>,
        draining: &CancellationToken,
    ) {
        let may_go = |_: &Hold| ready(!draining.is_cancelled() && !self.publisher.is_paused());
        stream::iter(holds)
            .filter(may_go)
            .for_each_concurrent(HEADS_AT_ONCE, async |hold| {
                let topic = hold.topic.clone();
                match self.retry(term, hold).await {
                    Ok(None) => {}
                    Ok(Some(change)) => {
                        // The receiver lives until the sender is dropped.
                        let _ = changes.send(change).await;
                    }
                    Err(error) => {
                        metrics::database_error();
                        warn!(%error, topic, "cannot retry a hold; trying again");
                    }
                }
            })
            .await;
    }

    /// Writes the changes of the holds of one lane, in groups of those that were answered shortly after each other.
    async fn write_changes(&self, term: &Term, lane: i16, mut changes: mpsc::Receiver<HoldChange>) {
        while let Some(first) = changes.recv().await {
            let mut group = vec![first];
            let others = async {
                while group.len() < GROUP_MAX
                    && let Some(next) = changes.recv().await
                {
                    group.push(next);
                }
            };
            let _ = timeout(GROUP_WAIT_MAX, others).await;
            let count = group.len();
            self.change(term, lane, group).await;
            self.lanes.holds().close_heads(term.worker, lane, count);
        }
    }

    /// Sends the head of a hold. Returns the change to write, or `None` if there is none or the lane is being given away.
    async fn retry(&self, term: &Term, hold: Hold) -> Result<Option<HoldChange>> {
        let pauses = self.lanes.pauses.current();
        if pauses.cover_hold(&hold) {
            return Ok(None);
        }
        let Some(Tried { decision, sent }) = self.try_head(term, &hold, &pauses).await? else {
            return Ok(None);
        };
        let lane = hold.lane;
        let Some(change) = HoldChange::new(hold, sent.as_ref(), decision) else {
            self.lanes.holds().close_heads(term.worker, lane, 1);
            return Ok(None);
        };
        if let Some(refusal) = &change.refused
            && !change.released
            && change.hold.failures == 0
        {
            // The key was held because its row was deferred, which was not logged as a warning.
            let hold = &change.hold;
            report_held_key(&hold.topic, &hold.unit, hold.head_id, &refusal.reason);
        }
        Ok(Some(change))
    }
}

fn wait_for_next(holds: &[Hold]) -> Duration {
    if holds.len() == READ_MAX && holds.iter().all(|hold| hold.wait <= 0.0) {
        // More may be due than were read.
        return PAUSE_MIN;
    }
    let waits = holds.iter().map(|hold| hold.wait).filter(|wait| *wait > 0.0);
    Duration::from_secs_f64(waits.fold(1.0, f64::min)).max(PAUSE_MIN)
}

/// Groups holds by lane, in the order of the first hold of each. So the hold that has waited longest is retried first, with all
/// others of its lane.
pub(super) fn by_lane(holds: impl Iterator<Item = Hold>) -> Vec<(i16, Vec<Hold>)> {
    let mut lanes: Vec<(i16, Vec<Hold>)> = Vec::new();
    for hold in holds {
        match lanes.iter_mut().find(|(lane, _)| *lane == hold.lane) {
            Some((_, holds)) => holds.push(hold),
            None => lanes.push((hold.lane, vec![hold])),
        }
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(lane: i16, failures: i32, wait: f64) -> Hold {
        Hold {
            lane,
            topic: "orders".to_owned(),
            unit: "k:1".to_owned(),
            head_id: Some(1),
            resume_floor: 0,
            failures,
            wait,
        }
    }

    #[test]
    fn holds_of_a_lane_are_retried_together_and_lanes_in_the_order_of_their_first_hold() {
        let holds = [hold(5, 1, -3.0), hold(2, 1, -2.0), hold(5, 1, -1.0)];
        let lanes = by_lane(holds.into_iter());
        let waits: Vec<Vec<f64>> = lanes
            .iter()
            .map(|(_, holds)| holds.iter().map(|hold| hold.wait).collect())
            .collect();
        assert_eq!(waits, [vec![-3.0, -1.0], vec![-2.0]]);
    }

    #[test]
    fn the_next_round_waits_for_the_next_hold_unless_more_may_be_due_than_were_read() {
        assert_eq!(wait_for_next(&[]), Duration::from_secs(1));
        assert_eq!(wait_for_next(&[hold(0, 1, -1.0)]), Duration::from_secs(1));
        let soon = [hold(0, 1, -1.0), hold(0, 1, 0.25), hold(0, 1, 0.5)];
        assert_eq!(wait_for_next(&soon), Duration::from_millis(250));
        assert_eq!(wait_for_next(&[hold(0, 1, 0.001)]), PAUSE_MIN);
        let mut many = vec![hold(0, 1, -1.0); READ_MAX];
        assert_eq!(wait_for_next(&many), PAUSE_MIN, "there may be more than were read");
        many[READ_MAX - 1].wait = 0.75;
        assert_eq!(
            wait_for_next(&many),
            Duration::from_millis(750),
            "all that are due were read"
        );
    }
}
