//! CheckedOutLane keys, paused partitions and parked topics: tried again when their time has come, released when Kafka takes the row.
//! What becomes of a row that was tried, and when it is tried again, is decided by [`crate::domain::retry`].
//!
//! Heads of refused keys are tried in `keys`; topics and partitions that take nothing are probed beside that, in `probes`, so
//! that nobody's retry waits for one that gives no answer. What became of either is written by `change`.
//!
//! A hold lives in `outbox.hold`, so that a successor finds what a floor has passed. Its head is sent alone, in quarantine,
//! while the lane goes on; only the change of the hold itself waits for the lane to be between batches. What is due in a lane
//! is tried, and changed, together: each change is a transaction, and after a release its lane walks again over all that was
//! published since.
//!
//! Invariant: releasing a hold, marking its head and lowering the stored floor are one transaction. A head that another
//! transaction has locked is marked before, by itself: see [`crate::tasks::relay`].

mod change;
mod keys;
mod probes;
mod unordered;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shutdown;
use crate::domain::decision::{Decision, KafkaFate, RowFate};
use crate::domain::delivery::Delivery;
use crate::domain::hold::Hold;
use crate::domain::in_flight::InFlightEntry;
use crate::domain::lease::Term;
use crate::domain::retry::{Attempt, Event, Sent};
use crate::domain::row::{Row, UNORDERED_LANE};
use crate::failpoint;
use crate::kafka::Publisher;
use crate::lanes::{Lanes, RecentlyPublished};
use crate::outbox::{Outbox, Result};
use crate::tasks::fenced::FencedWriter;
use crate::tasks::relay::Settings;

/// Connections that the task uses at most.
pub const CONNECTIONS: usize = keys::CONNECTIONS + probes::CONNECTIONS;
/// The most rows that are published and not marked yet.
pub const IN_FLIGHT_MAX: usize = keys::IN_FLIGHT_MAX + probes::IN_FLIGHT_MAX;
/// While nothing is held, how often to check whether something is.
const IDLE_WAIT: Duration = Duration::from_millis(500);
/// The shortest pause between two rounds.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// After an error of the database, before the same is tried again.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// An acknowledgement that is no older than this when a row is sent says that Kafka answers.
const JUST_BEFORE: Duration = Duration::from_secs(1);

pub struct RetryHolds {
    pub outbox: Arc<Outbox>,
    pub publisher: Arc<Publisher>,
    pub lanes: Arc<Lanes>,
    pub published: Arc<RecentlyPublished>,
    pub writer: FencedWriter,
    pub settings: Settings,
}

impl RetryHolds {
    /// Retries what is due until `shutdown.draining`. What is in progress is finished.
    pub async fn run(&self, shutdown: &Shutdown) {
        let draining = &shutdown.draining;
        tokio::join!(self.retry_keys(draining), self.probe_paused(draining));
    }

    /// What becomes of the row that a hold waits for.
    fn decide(&self, hold: &Hold, event: Event<'_>, kafka_answers: bool) -> Decision {
        let sent = Sent::of_hold(hold);
        let attempt = Attempt { sent, kafka_answers };
        self.settings.policy.decide(attempt, event, fastrand::f64())
    }

    /// What becomes of the row that a hold waits for, by the answer of Kafka.
    fn answered(&self, hold: &Hold, row: &Row, outcome: &Delivery, began: Instant) -> Decision {
        let kafka_answers = self.publisher.answered_since(began - JUST_BEFORE);
        let decision = self.decide(hold, Event::Delivered(row, outcome), kafka_answers);
        match &decision.kafka {
            KafkaFate::Unchanged => {}
            KafkaFate::PausePartition { partition, reason } => {
                self.publisher.pause_partition(&row.topic, *partition, reason);
            }
            KafkaFate::PauseEverything { reason } => self.publisher.pause(reason, &row.topic),
        }
        if decision.row == RowFate::Published {
            self.published.remember(std::iter::once(row));
        }
        decision
    }

    /// Writes down which head is about to be sent. `None`: not now, since the lane has changed meanwhile.
    async fn record_head(&self, live: &Term, row: &Row) -> Result<Option<InFlightEntry>> {
        let lane = row.lane.unwrap_or(UNORDERED_LANE);
        match self.lanes.ownership().epoch(lane) {
            Some(epoch) => {
                let head = std::slice::from_ref(row);
                self.writer.write_entry(live, &[(lane, epoch)], head).await
            }
            None => Ok(None),
        }
    }

    /// A row that Kafka certainly does not have need not be remembered as maybe sent any longer.
    async fn head_answered(&self, lane: i16, row: &Row, decision: &Decision) {
        failpoint::hit("after_head_sent").await;
        if decision.row.is_certainly_not_sent() {
            self.lanes.maybe_sent().forget(lane, row.id);
        }
    }
}
