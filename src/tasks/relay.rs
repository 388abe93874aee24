//! The loop that publishes: check out, claim, publish, mark. One task works on one checkout at a time, and several tasks run side
//! by side.

mod batch;
pub mod budget;
mod ordered;
mod poll;
pub mod poll_schedule;
mod unordered;
mod write;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, sleep_until};
use tracing::warn;

use self::budget::BatchBudget;
use self::poll_schedule::PollSchedule;
use super::Shutdown;
use super::fenced::FencedWriter;
use super::report::report_hold;
use crate::boottime;
use crate::domain::batch_outcome::BatchOutcome;
use crate::domain::boot_instant::BootInstant;
use crate::domain::lease::Term;
use crate::domain::pause::Pauses;
use crate::domain::retry::RetryPolicy;
use crate::domain::row::Row;
use crate::failpoint;
use crate::health::{Health, Loop};
use crate::kafka::{Deadlines, OVERRUN, Publisher, record_lifetime};
use crate::lanes::{Checkout, ClaimLimits, Lanes, RecentlyPublished, Work, obeying};
use crate::metrics::{self, Stream};
use crate::outbox::{Error, Outbox, Result};

#[derive(Clone, Debug)]
pub struct Settings {
    pub tasks: usize,
    pub batch_rows: usize,
    pub in_flight_bytes: usize,
    pub batch_deadline: Duration,
    pub lease: Duration,
    pub policy: RetryPolicy,
}

/// The time that a mark may need between the last answer and the end of the lease.
pub const MARK_MARGIN: Duration = Duration::from_secs(1);

impl Settings {
    /// How much lease must be left before anything is sent.
    pub fn lease_needed(&self) -> Duration {
        self.batch_deadline + OVERRUN + MARK_MARGIN
    }

    /// The deadlines of a publish that begins now, with this much lease left. The mark must still be written under the lease, and
    /// the Kafka client must have dropped every record by its end.
    pub fn deadlines(&self, now: Instant, lease_left: Duration) -> Deadlines {
        let before_its_end = |needed| now + lease_left.saturating_sub(needed);
        let answered = before_its_end(OVERRUN + MARK_MARGIN).min(now + self.batch_deadline);
        Deadlines {
            handed_over: before_its_end(record_lifetime(self.batch_deadline)).min(answered),
            answered,
        }
    }

    /// The memory that one task may use for rows.
    pub fn bytes_per_task(&self) -> usize {
        self.in_flight_bytes / self.tasks
    }
}

/// Several tasks run the same `Relay`.
pub struct Relay {
    pub outbox: Arc<Outbox>,
    pub publisher: Arc<Publisher>,
    pub lanes: Arc<Lanes>,
    pub published: Arc<RecentlyPublished>,
    pub health: Arc<Health>,
    pub settings: Settings,
    pub budget: BatchBudget,
    pub schedule: PollSchedule,
    pub writer: FencedWriter,
}

/// While Kafka is unreachable or everything is paused, each task reports to `Health` this often.
const HEALTH_EVERY: Duration = Duration::from_secs(10);

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

impl Relay {
    /// Runs one task until `shutdown.draining`. A batch that is in progress is finished first.
    pub async fn run(&self, shutdown: &Shutdown) {
        let draining = &shutdown.draining;
        let mut just_polled = false;
        while !draining.is_cancelled() {
            self.health.heartbeat(Loop::Relay);
            tokio::select! {
                () = self.may_send() => {}
                () = sleep(HEALTH_EVERY) => continue,
                () = draining.cancelled() => return,
            }
            let (changed, now) = (self.lanes.changed(), Instant::now());
            // Polls and checkouts take turns. Otherwise polls that always find something, and are due again by the time that is
            // published, would keep ready lanes waiting.
            let slot = if just_polled { None } else { self.schedule.due() };
            just_polled = slot.is_some();
            if let Some(slot) = slot {
                self.poll(slot).await;
            } else if let Some(checkout) = self.lanes.checkouts().next(&self.claim_limits()) {
                self.relay(checkout).await;
            } else {
                tokio::select! {
                    () = changed => {}
                    slot = self.schedule.slot() => self.poll(slot).await,
                    () = until(self.lanes.checkouts().next_ready_at(now)) => {}
                    () = draining.cancelled() => return,
                }
            }
        }
    }

    /// Waits while Kafka is believed not to answer, and while an operator has paused everything.
    async fn may_send(&self) {
        self.publisher.ready().await;
        self.lanes.pauses.lifted().await;
    }

    fn claim_limits(&self) -> ClaimLimits {
        ClaimLimits {
            rows: self.settings.batch_rows.min(self.budget.rows()),
            tasks: self.settings.tasks,
            lease_left: self.settings.lease_needed(),
        }
    }

    async fn relay(&self, checkout: Checkout) {
        let reports = match &checkout.work {
            Work::Lanes(lanes) => self.relay_lanes(&checkout, lanes).await,
            Work::Unordered(unordered) => {
                let (term, pauses) = (&checkout.term, &checkout.pauses);
                vec![self.relay_unordered(term, unordered, pauses).await]
            }
        };
        self.lanes.checkouts().checkin(&checkout.term, reports);
    }

    /// Asks after a claim: were all of these bypassed writers in progress when it was made? If one has ended, it may have committed
    /// a row below the soft floor, older than those claimed. So the claim must be discarded.
    async fn is_proven(&self, term: &Term, bypassed: &[i64]) -> Result<bool> {
        let ended = self.outbox.ended_writers(bypassed).await?;
        if !ended.is_empty() {
            self.lanes.watermark().writers_ended(term.worker, &ended);
        }
        Ok(ended.is_empty())
    }

    fn claim_failed(&self, error: &Error) {
        metrics::database_error();
        warn!(%error, "cannot claim rows; trying again");
    }

    /// Did the claim take so long that publishing in time is at risk?
    fn is_slow(&self, took: Duration) -> bool {
        took > self.settings.batch_deadline / 2
    }

    /// When the lease ends. It may have been renewed since the checkout.
    fn lease_end(&self, term: &Term) -> BootInstant {
        let current = self.lanes.term().filter(|current| current.worker == term.worker);
        current.map_or(term.ends, |current| current.ends)
    }

    /// Publishes within the batch deadline, or earlier if the mark could not be written under the lease otherwise.
    async fn publish(
        &self,
        stream: Stream,
        rows: &[Row],
        pauses: &Arc<Pauses>,
        lease_end: BootInstant,
    ) -> BatchOutcome {
        if rows.is_empty() {
            return BatchOutcome::default();
        }
        metrics::possible_duplicates(rows.iter());
        let bytes: usize = rows.iter().map(Row::size).sum();
        self.budget.weigh(rows.len(), bytes);
        let _in_flight = metrics::InFlight::new(rows.len(), bytes);
        let sending = Instant::now();
        let deadlines = self.settings.deadlines(sending, boottime::left(lease_end));
        let deliveries = obeying(pauses, self.publisher.publish(rows, deadlines)).await;
        metrics::publish_took(stream, sending.elapsed());
        self.budget.sent(bytes, sending.elapsed(), self.settings.batch_deadline);
        let kafka_answers = self.publisher.answered_since(sending);
        let outcome = BatchOutcome::of(rows, &deliveries, kafka_answers, &self.settings.policy, fastrand::f64);
        for ((topic, partition), reason) in &outcome.paused {
            self.publisher.pause_partition(topic, *partition, reason);
        }
        let published = rows.iter().filter(|row| outcome.has_published(row.id));
        self.published.remember(published);
        self.report(rows, &outcome);
        outcome
    }

    /// Logs what an operator must act on, once for each event.
    fn report(&self, rows: &[Row], outcome: &BatchOutcome) {
        let published = rows.iter().filter(|row| outcome.has_published(row.id));
        metrics::rows_published(published.map(|row| row.topic.as_str()));
        metrics::rows_unacknowledged(outcome.unsent.len() + outcome.maybe_sent.len());
        let mut reported: Vec<(&str, &str)> = Vec::new();
        for hold in &outcome.holds {
            // A topic or partition may be held in many lanes. One line is enough.
            let name = (hold.topic.as_str(), hold.unit.as_str());
            if hold.head_id.is_none() && reported.contains(&name) {
                continue;
            }
            reported.push(name);
            report_hold(hold);
        }
        if let Some(reason) = &outcome.outage {
            let topic = rows.first().map_or("", |row| row.topic.as_str());
            self.publisher.pause(reason, topic);
        }
    }
}

async fn before_claim(is_soft: bool) {
    if is_soft {
        failpoint::hit("before_soft_claim").await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::retry::OnDead;

    #[test]
    fn the_lease_outlasts_a_batch_its_overrun_and_its_mark() {
        let settings = Settings {
            tasks: 4,
            batch_rows: 1000,
            in_flight_bytes: 1 << 20,
            batch_deadline: Duration::from_secs(5),
            lease: Duration::from_secs(30),
            policy: RetryPolicy {
                max_attempts: 1,
                backoff_min: Duration::ZERO,
                backoff_max: Duration::ZERO,
                on_dead: OnDead::Continue,
            },
        };
        assert_eq!(settings.lease_needed() - Duration::from_secs(5), OVERRUN + MARK_MARGIN);
        assert_eq!(settings.bytes_per_task(), 1 << 18, "the tasks share the memory");
        let now = Instant::now();
        let deadlines = |lease_left| settings.deadlines(now, Duration::from_millis(lease_left));
        let after = |millis| now + Duration::from_millis(millis);
        let plenty = deadlines(30_000);
        assert_eq!((plenty.handed_over, plenty.answered), (after(5000), after(5000)));
        let little = deadlines(8_000);
        assert_eq!((little.handed_over, little.answered), (after(500), after(5000)));
        assert!(deadlines(7_500).handed_over <= now, "too late for anything");
    }
}
