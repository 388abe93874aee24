//! Heads of refused keys: each is sent alone when it is due, lane by lane.

use std::future::ready;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::change::{HoldChange, Recorded};
use super::{AFTER_ERROR, IDLE_WAIT, PAUSE_MIN, RetryHolds};
use crate::boottime::BootInstant;
use crate::domain::decision::Decision;
use crate::domain::hold::Hold;
use crate::domain::retry::Event;
use crate::domain::row::Row;
use crate::lanes::{Record, Term};
use crate::metrics;
use crate::outbox::Result;
use crate::tasks::report::report_held_key;

/// How many holds one round reads: enough that, of thousands, many belong to one lane.
const READ_MAX: usize = 1024;
/// How many lanes have their heads sent at the same time, and how many heads of each.
const LANES_AT_ONCE: usize = 2;
const HEADS_AT_ONCE: usize = 2;
/// Connections: for each lane its heads are read, and what became of them is written.
pub const CONNECTIONS: usize = LANES_AT_ONCE * (HEADS_AT_ONCE + 1);
/// The longest that an answered head waits for the others of its lane, so that one transaction is written for them. One that
/// was published and is not marked yet would be sent again after a crash.
const TOGETHER: Duration = Duration::from_millis(250);
/// The most changes of one transaction.
const TOGETHER_MAX: usize = 64;
/// The most heads that are published and not marked yet: written together, handed over, or on their way.
pub const IN_FLIGHT_MAX: usize = LANES_AT_ONCE * (TOGETHER_MAX + 1 + HEADS_AT_ONCE);

impl RetryHolds {
    /// Retries what is due until `draining`.
    pub(super) async fn retry_keys(&self, draining: &CancellationToken) {
        while !draining.is_cancelled() {
            let wait = match self.retry_due(draining).await {
                Ok(wait) => wait,
                Err(error) => {
                    metrics::database_error();
                    warn!(%error, "cannot retry what is held; trying again");
                    AFTER_ERROR
                }
            };
            tokio::select! {
                () = sleep(wait) => {}
                () = draining.cancelled() => return,
            }
        }
    }

    /// One round. Answers how long to wait for the next.
    async fn retry_due(&self, draining: &CancellationToken) -> Result<Duration> {
        if !self.lanes.has_holds() || self.publisher.is_paused() {
            return Ok(IDLE_WAIT);
        }
        let Some(term) = self.lanes.live_term(self.settings.lease_needed()) else {
            return Ok(IDLE_WAIT);
        };
        let holds = self.outbox.due_keys(&term, READ_MAX).await?;
        let lanes = by_lane(holds.iter().filter(|hold| hold.wait <= 0.0).cloned());
        let round = RetryRound { term, draining };
        stream::iter(lanes)
            .for_each_concurrent(LANES_AT_ONCE, async |holds| self.retry_lane(&round, holds).await)
            .await;
        Ok(wait_for_next(&holds))
    }

    /// What is due in one lane.
    async fn retry_lane(&self, round: &RetryRound<'_>, holds: Vec<Hold>) {
        let Some(lane) = holds.first().map(|hold| hold.lane) else {
            return;
        };
        let (done, tried) = mpsc::channel(1);
        // Concurrently: a batch of the lane may wait for the quarantine that a head uses, and the change waits for that batch.
        tokio::join!(
            self.try_heads(round, holds, done),
            self.change_all(&round.term, lane, tried)
        );
    }

    async fn try_heads(&self, round: &RetryRound<'_>, holds: Vec<Hold>, done: mpsc::Sender<Recorded>) {
        let may_go = |_: &Hold| ready(!round.draining.is_cancelled() && !self.publisher.is_paused());
        stream::iter(holds)
            .filter(may_go)
            .for_each_concurrent(HEADS_AT_ONCE, async |hold| {
                let topic = hold.topic.clone();
                match self.retry(round, hold).await {
                    Ok(None) => {}
                    Ok(Some(tried)) => {
                        // The receiver lives until the sender is dropped.
                        let _ = done.send(tried).await;
                    }
                    Err(error) => {
                        metrics::database_error();
                        warn!(%error, topic, "cannot retry a hold; trying again");
                    }
                }
            })
            .await;
    }

    /// Writes what became of the heads of a lane, as many at a time as were answered together.
    async fn change_all(&self, term: &Term, lane: i16, mut tried: mpsc::Receiver<Recorded>) {
        while let Some(first) = tried.recv().await {
            let mut together = vec![first];
            let others = async {
                while together.len() < TOGETHER_MAX
                    && let Some(next) = tried.recv().await
                {
                    together.push(next);
                }
            };
            let _ = timeout(TOGETHER, others).await;
            let count = together.len();
            self.change(term, lane, together).await;
            self.lanes.close_heads(term.worker, lane, count);
        }
    }

    /// `None`: the lane has another owner by now.
    async fn retry(&self, round: &RetryRound<'_>, hold: Hold) -> Result<Option<Recorded>> {
        // Asked before the row is read: once it is marked, nobody remembers that Kafka has it.
        let acknowledged = self.lanes.acknowledged_of(hold.lane);
        let head = self.outbox.read_head(&hold, &[]).await?;
        // The round may have lasted, and the lane have gone, meanwhile: nothing is sent without a lease that outlasts it.
        let live = self.lanes.live_term(self.settings.lease_needed());
        let Some(live) = live.filter(|live| live.worker == round.term.worker) else {
            return Ok(None);
        };
        // Closed when what became of it is written: meanwhile the lane is not handed over.
        if !self.lanes.open_head(live.worker, hold.lane) {
            return Ok(None);
        }
        let known = match &head {
            None => Some(Event::RowGone),
            // Its mark is a matter of its own, and the hold goes when that is written.
            Some(row) if acknowledged.contains(&row.id) => Some(Event::MarkLocked),
            Some(_) => None,
        };
        if let Some(event) = known {
            let decision = self.decide(&hold, event, true);
            return Ok(self.to_write(&live, hold, decision, None));
        }
        let Some(mut row) = head else { return Ok(None) };
        row.possible_duplicate = self.lanes.may_have_been_sent(hold.lane, row.id);
        let record = match self.record_head(&live, &row).await {
            Ok(Some(record)) => record,
            other => {
                self.lanes.close_heads(live.worker, hold.lane, 1);
                return other.map(|_| None);
            }
        };
        // Until its release is written: should we have to leave meanwhile, the next owner must be told.
        self.lanes.remember_maybe_sent_id(hold.lane, row.id);
        let decision = self.send_head(&hold, &row, live.ends).await;
        self.head_answered(hold.lane, &row, &decision).await;
        Ok(self.to_write(&live, hold, decision, Some(record)))
    }

    /// What is to be written about the hold of a head. `None`, and its head is closed: nothing.
    fn to_write(&self, live: &Term, hold: Hold, decision: Decision, record: Option<Record>) -> Option<Recorded> {
        let lane = hold.lane;
        let head = hold.head_id;
        let Some(change) = HoldChange::new(hold, head, decision) else {
            self.lanes.close_heads(live.worker, lane, 1);
            return None;
        };
        if let HoldChange::Postpone(later) = &change
            && let Some(refusal) = &later.refused
            && later.hold.failures == 0
        {
            // Its key was deferred, and nothing has been said of it yet.
            let hold = &later.hold;
            report_held_key(&hold.topic, &hold.unit, hold.head_id, &refusal.reason);
        }
        Some((change, record))
    }

    async fn send_head(&self, hold: &Hold, row: &Row, lease_end: BootInstant) -> Decision {
        let began = Instant::now();
        metrics::possible_duplicates(usize::from(row.possible_duplicate));
        let until = self.settings.until(began, lease_end.left());
        let outcome = self.publisher.send_head(row, until).await;
        self.answered(hold, row, &outcome, began)
    }
}

/// What all tries of a round share.
struct RetryRound<'a> {
    term: Term,
    draining: &'a CancellationToken,
}

fn wait_for_next(holds: &[Hold]) -> Duration {
    if holds.len() == READ_MAX && holds.iter().all(|hold| hold.wait <= 0.0) {
        // More may be due than were read.
        return PAUSE_MIN;
    }
    let waits = holds.iter().map(|hold| hold.wait).filter(|wait| *wait > 0.0);
    Duration::from_secs_f64(waits.fold(1.0, f64::min)).max(PAUSE_MIN)
}

/// Lanes in the order of their first hold: whoever has waited longest is tried first, with all others of its lane.
fn by_lane(holds: impl Iterator<Item = Hold>) -> Vec<Vec<Hold>> {
    let mut lanes: Vec<Vec<Hold>> = Vec::new();
    for hold in holds {
        match lanes.iter_mut().find(|lane| lane[0].lane == hold.lane) {
            Some(lane) => lane.push(hold),
            None => lanes.push(vec![hold]),
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
    fn holds_of_a_lane_are_tried_together_and_lanes_in_the_order_of_their_first() {
        let holds = [hold(5, 1, -3.0), hold(2, 1, -2.0), hold(5, 1, -1.0)];
        let lanes = by_lane(holds.into_iter());
        let waits: Vec<Vec<f64>> = lanes
            .iter()
            .map(|lane| lane.iter().map(|hold| hold.wait).collect())
            .collect();
        assert_eq!(waits, [vec![-3.0, -1.0], vec![-2.0]]);
    }

    #[test]
    fn a_round_waits_for_the_next_hold_and_not_at_all_for_what_could_have_been_in_it() {
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
