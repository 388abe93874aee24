//! Retries holds: heads of held keys, paused partitions and parked topics. [`crate::domain::retry`] decides what becomes of a row
//! that was tried, and when it is tried again.
//!
//! `keys` sends the heads of held keys. `probes` sends to topics and partitions that accept nothing, and runs beside `keys`, so
//! that no head waits for a probe without an answer. `change` writes the decisions of both.
//!
//! Holds are stored in `outbox.hold`, because a floor passes their rows, and a successor has to find them. A head is sent alone,
//! in quarantine, while batches of its lane continue. Only the change of the hold waits until no batch has the lane checked out.
//! Holds of one lane that are due together are changed in one transaction, because after each release the lane scans again
//! everything that was published since.
//!
//! Holds of what an operator has paused are left alone, whatever they were created for. They stay due, so they are tried once the
//! pause ends.
//!
//! Invariant: releasing a hold, marking its head and lowering the stored floor are one transaction. If another transaction has
//! locked the head, it is marked before that, by itself: see [`crate::tasks::mark_locked`].

mod change;
mod keys;
mod probes;
mod unordered;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::boottime;
use crate::domain::boot_instant::BootInstant;
use crate::domain::decision::{Decision, KafkaFate, RowFate};
use crate::domain::hold::Hold;
use crate::domain::in_flight::InFlightEntry;
use crate::domain::lease::Term;
use crate::domain::pause::Pauses;
use crate::domain::retry::{Attempt, Event, Sent};
use crate::domain::row::Row;
use crate::failpoint;
use crate::kafka::Publisher;
use crate::lanes::{Lanes, RecentlyPublished, obeying};
use crate::metrics;
use crate::outbox::{Outbox, Result};
use crate::tasks::Shutdown;
use crate::tasks::fenced::FencedWriter;
use crate::tasks::relay::Settings;

/// Most connections that the task uses.
pub const CONNECTIONS: usize = keys::CONNECTIONS + probes::CONNECTIONS;
/// Most rows that are published and not marked yet.
pub const IN_FLIGHT_MAX: usize = keys::IN_FLIGHT_MAX + probes::IN_FLIGHT_MAX;
/// How often to check for holds while there are none.
const IDLE_WAIT: Duration = Duration::from_millis(500);
/// Shortest pause between two rounds.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Wait after a database error before the same work is tried again.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// Kafka counts as answering if it has acknowledged anything since this long before the row was sent.
const RECENT_ANSWER: Duration = Duration::from_secs(1);

pub struct RetryHolds {
    pub outbox: Arc<Outbox>,
    pub publisher: Arc<Publisher>,
    pub lanes: Arc<Lanes>,
    pub published: Arc<RecentlyPublished>,
    pub writer: FencedWriter,
    pub settings: Settings,
}

/// What became of the row that a hold waits for.
struct Tried {
    decision: Decision,
    /// The row and its in-flight entry, if it was sent.
    sent: Option<(Row, InFlightEntry)>,
}

impl RetryHolds {
    /// Runs until `shutdown.draining`, and finishes what it has begun.
    pub async fn run(&self, shutdown: &Shutdown) {
        let draining = &shutdown.draining;
        tokio::join!(self.retry_keys(draining), self.probe_paused(draining));
    }

    /// Decides what becomes of the row that a hold waits for.
    fn decide(&self, hold: &Hold, event: Event<'_>, kafka_answers: bool) -> Decision {
        let sent = Sent::of_hold(hold);
        let attempt = Attempt { sent, kafka_answers };
        self.settings.policy.decide(attempt, event, fastrand::f64())
    }

    /// Sends the row that a hold waits for, unless its fate is known already. `None` if this process has lost the lane, or is about
    /// to give it away. Otherwise the caller closes the head when the outcome has been written.
    async fn try_head(&self, term: &Term, hold: &Hold, pauses: &Arc<Pauses>) -> Result<Option<Tried>> {
        // This must come before the row is read: once a row is marked, it is forgotten that Kafka has it.
        let acknowledged = self.lanes.maybe_sent().acknowledged_of(hold.lane);
        let paused_keys = pauses.keys_of(&hold.topic);
        let head = self.outbox.read_head(hold, &acknowledged, &paused_keys).await?;
        // The round may have taken long, so the lease is checked again before something is sent.
        let live = self.lanes.live_term(self.settings.lease_needed());
        let Some(live) = live.filter(|live| live.worker == term.worker) else {
            return Ok(None);
        };
        // The lane is not given away until this is closed.
        if !self.lanes.holds().open_head(live.worker, hold.lane) {
            return Ok(None);
        }
        let tried = self.try_open_head(&live, hold, head, &acknowledged, pauses).await;
        if !matches!(tried, Ok(Some(_))) {
            self.lanes.holds().close_heads(live.worker, hold.lane, 1);
        }
        tried
    }

    async fn try_open_head(
        &self,
        live: &Term,
        hold: &Hold,
        head: Option<Row>,
        acknowledged: &[i64],
        pauses: &Arc<Pauses>,
    ) -> Result<Option<Tried>> {
        let known = |event| {
            let decision = self.decide(hold, event, true);
            Ok(Some(Tried { decision, sent: None }))
        };
        let mut row = match head {
            None => return known(Event::RowGone),
            // Kafka has the row. The task that marks locked rows marks it, and the hold is released after that.
            Some(row) if acknowledged.contains(&row.id) => return known(Event::MarkLocked),
            Some(row) => row,
        };
        if let Some(paused) = pauses.covering(&row) {
            return known(Event::Paused(&row, paused));
        }
        row.possible_duplicate = self.lanes.maybe_sent().contains(hold.lane, row.id);
        let Some(epoch) = self.lanes.ownership().epoch(hold.lane) else {
            return Ok(None);
        };
        let head = std::slice::from_ref(&row);
        let Some(entry) = self.writer.write_entry(live, &[(hold.lane, epoch)], head).await? else {
            return Ok(None);
        };
        // This is known until the release is written. If the lane is given away before, its next owner learns of it.
        self.lanes.maybe_sent().remember(hold.lane, row.id);
        let decision = self.send(hold, &row, pauses, live.ends).await;
        if decision.row.is_certainly_not_sent() {
            self.lanes.maybe_sent().forget(hold.lane, row.id);
        }
        let sent = Some((row, entry));
        Ok(Some(Tried { decision, sent }))
    }

    /// Sends the row of a hold alone, decides what becomes of it, and notes what this says about Kafka.
    async fn send(&self, hold: &Hold, row: &Row, pauses: &Arc<Pauses>, lease_end: BootInstant) -> Decision {
        let began = Instant::now();
        metrics::possible_duplicates(std::iter::once(row));
        let until = self.settings.deadlines(began, boottime::left(lease_end));
        let delivery = match hold.head_id {
            Some(_) => obeying(pauses, self.publisher.send_head(row, until)).await,
            None => {
                let soon = probes::deadlines(began, until);
                obeying(pauses, self.publisher.probe(row, soon)).await
            }
        };
        let kafka_answers = self.publisher.answered_since(began - RECENT_ANSWER);
        let decision = self.decide(hold, Event::Delivered(row, &delivery), kafka_answers);
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
        failpoint::hit("after_head_sent").await;
        decision
    }
}
