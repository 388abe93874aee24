//! The loop: claim → publish → mark. One task works on one checkout at a time; several tasks run side by side.

mod batch;
pub mod budget;
mod locked;
mod poll;
pub mod poll_schedule;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use self::batch::{
    ByLane, discarded_report, failed_report, flag_possible_duplicates, in_order, maybe_sent_by_lane,
    put_acknowledged_back, report_lane, report_unordered, returned_maybe_sent, take_acknowledged, with_epochs,
    with_floors,
};
use super::report::{report_hold, report_refusal};
use crate::boottime::BootInstant;
use crate::domain::batch_outcome::BatchOutcome;
use crate::domain::retry::RetryPolicy;
use crate::domain::row::{Row, UNORDERED_LANE};
use crate::domain::watermark::Watermark;
use crate::failpoint;
use crate::health::{Health, Loop};
use crate::kafka::{Deadlines, OVERRUN, Publisher, record_lifetime};
use crate::lanes::RecentlyPublished;
use crate::lanes::{
    CheckedOutLane, Checkout, ClaimLimits, LaneReport, Lanes, LockedRows, Record, Term, UnorderedCheckout, Work,
};
use crate::metrics::{self, Stream};
use crate::outbox::{ClaimedRows, DroppedRow, LaneOutcome, Outbox, Result, UnorderedFilter, UnorderedOutcome};
use crate::tasks::fenced::FencedWriter;
use crate::tasks::relay::budget::BatchBudget;
use crate::tasks::relay::poll_schedule::PollSchedule;

/// What the loop is told by the settings.
#[derive(Clone, Debug)]
pub struct Settings {
    pub tasks: usize,
    pub batch_rows: usize,
    pub in_flight_bytes: usize,
    pub batch_deadline: Duration,
    pub lease: Duration,
    pub policy: RetryPolicy,
}

/// Time between the last answer and the end of the lease that a mark may need.
pub const MARK_MARGIN: Duration = Duration::from_secs(1);

impl Settings {
    /// How much lease must be left before anything is sent.
    pub fn lease_needed(&self) -> Duration {
        self.batch_deadline + OVERRUN + MARK_MARGIN
    }

    /// The times of a publish that begins now, under a lease of which so much is left: the mark must still be written under it, and
    /// whatever the client was given be dead when it is over.
    pub fn until(&self, now: Instant, lease_left: Duration) -> Deadlines {
        let before_its_end = |needed| now + lease_left.saturating_sub(needed);
        let answered = before_its_end(OVERRUN + MARK_MARGIN).min(now + self.batch_deadline);
        Deadlines {
            handed_over: before_its_end(record_lifetime(self.batch_deadline)).min(answered),
            answered,
        }
    }

    /// What one task may have in memory.
    pub fn bytes_per_task(&self) -> usize {
        self.in_flight_bytes / self.tasks
    }
}

/// Everything a task needs.
pub struct Relay {
    pub outbox: Arc<Outbox>,
    pub publisher: Arc<Publisher>,
    pub lanes: Arc<Lanes>,
    pub published: Arc<RecentlyPublished>,
    pub settings: Settings,
    pub budget: BatchBudget,
    pub schedule: PollSchedule,
    pub writer: FencedWriter,
}

/// Rows of checked-out lanes, from their claim until what became of them is written.
struct LaneBatch<'a> {
    term: &'a Term,
    held: &'a [CheckedOutLane],
    rows: Vec<Row>,
    /// The lanes that its rows stand in, with their epochs.
    lanes: Vec<(i16, i64)>,
    /// Says that they are in flight. `None`: none of them is sent.
    record: Option<Record>,
}

/// The same of unordered rows.
struct UnorderedBatch<'a> {
    term: &'a Term,
    held: &'a UnorderedCheckout,
    /// The number of their claim.
    claim: i64,
    rows: Vec<Row>,
    dropped: Vec<DroppedRow>,
}

/// A batch of either kind, to be written: see [`Relay::settle`].
#[derive(Clone, Copy)]
enum Batch<'a> {
    Lanes(&'a LaneBatch<'a>),
    Unordered(&'a UnorderedBatch<'a>),
}

impl<'a> Batch<'a> {
    fn parts(self) -> (Stream, &'a Term, &'a [Row]) {
        match self {
            Batch::Lanes(batch) => (Stream::Ordered, batch.term, &batch.rows),
            Batch::Unordered(batch) => (Stream::Unordered, batch.term, &batch.rows),
        }
    }
}

/// While Kafka is away, a loop turns this often all the same.
const TURN_MAX: Duration = Duration::from_secs(10);

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

impl Relay {
    /// Runs one task until `draining`; a batch under way is finished first.
    pub async fn work(&self, health: &Health, draining: &CancellationToken) {
        let mut just_polled = false;
        while !draining.is_cancelled() {
            health.turned(Loop::Relay);
            tokio::select! {
                () = self.publisher.ready() => {}
                () = sleep(TURN_MAX) => continue,
                () = draining.cancelled() => return,
            }
            let (changed, now) = (self.lanes.changed(), Instant::now());
            // In turns: a look that always finds something, and is due again when that is relayed, would keep what is ready waiting.
            let slot = if just_polled { None } else { self.schedule.due() };
            just_polled = slot.is_some();
            if let Some(slot) = slot {
                self.poll(slot).await;
            } else if let Some(checkout) = self.lanes.checkout(&self.claim_limits()) {
                self.relay(checkout).await;
            } else {
                tokio::select! {
                    () = changed => {}
                    slot = self.schedule.slot() => self.poll(slot).await,
                    () = until(self.lanes.next_ready_at(now)) => {}
                    () = draining.cancelled() => return,
                }
            }
        }
    }

    fn claim_limits(&self) -> ClaimLimits {
        ClaimLimits {
            rows: self.settings.batch_rows.min(self.budget.rows()),
            tasks: self.settings.tasks,
            lease_left: self.settings.lease_needed(),
        }
    }

    async fn relay(&self, checkout: Checkout) {
        let report = match &checkout.work {
            Work::Lanes(held) => self.relay_lanes(&checkout, held).await,
            Work::Unordered(held) => vec![self.relay_unordered(&checkout.term, held).await],
        };
        self.lanes.checkin(&checkout.term, report);
    }

    // ── rows with a lane ───────────────────────────────────────────────────────────────────────

    async fn relay_lanes(&self, checkout: &Checkout, held: &[CheckedOutLane]) -> Vec<LaneReport> {
        let began = Instant::now();
        match self.claim_lanes(checkout, held).await {
            Ok(Some(claim)) => {
                self.relay_claim(&checkout.term, checkout.watermark, held, claim, began)
                    .await
            }
            Ok(None) => held.iter().map(|h| discarded_report(h.lane)).collect(),
            Err(error) => {
                self.claim_failed(&error);
                held.iter().map(|h| failed_report(h.lane)).collect()
            }
        }
    }

    /// Publishes and marks what was claimed of these lanes.
    async fn relay_claim(
        &self,
        term: &Term,
        watermark: Watermark,
        held: &[CheckedOutLane],
        claim: ClaimedRows,
        began: Instant,
    ) -> Vec<LaneReport> {
        metrics::claim_took(Stream::Ordered, began.elapsed());
        let (slow, took) = (self.is_slow(began), began.elapsed());
        failpoint::hit("after_claim").await;
        let over_budget: HashSet<i16> = claim.dropped.iter().filter_map(|row| row.lane).collect();
        let more_due = claim.delayed() >= self.settings.batch_rows;
        let (mut rows, cuts) = in_order(claim, held);
        flag_possible_duplicates(&mut rows, held);
        metrics::rows_claimed(rows.len());
        let mut batch = LaneBatch {
            term,
            held,
            lanes: with_epochs(held, &rows),
            rows,
            record: None,
        };
        let verdict = match self.relay_batch(&mut batch).await {
            Ok(Some(verdict)) => verdict,
            Ok(None) => return Vec::new(),
            Err(error) => {
                self.claim_failed(&error);
                return held.iter().map(|h| failed_report(h.lane)).collect();
            }
        };
        let rows = ByLane::new(&batch.rows);
        held.iter()
            .map(|held| {
                let mut report = report_lane(held, &rows, &cuts, watermark, &verdict);
                report.hit_limit |= more_due;
                report.over_budget = over_budget.contains(&held.lane);
                report.slow = slow;
                report.took = took;
                report
            })
            .collect()
    }

    /// Publishes a batch and writes what became of it. `None`: its lanes are not ours any more.
    async fn relay_batch(&self, batch: &mut LaneBatch<'_>) -> Result<Option<BatchOutcome>> {
        if batch.rows.is_empty() {
            return Ok(Some(BatchOutcome::default()));
        }
        let acknowledged = take_acknowledged(&mut batch.rows, batch.held);
        if !batch.rows.is_empty() {
            batch.record = self.writer.record(batch.term, &batch.lanes, &batch.rows).await?;
            if batch.record.is_none() {
                self.lease_lost(batch.term);
                return Ok(None);
            }
        }
        let lease_end = self.lease_end(batch.term);
        let mut verdict = self.publish(Stream::Ordered, &batch.rows, lease_end).await;
        put_acknowledged_back(&mut batch.rows, acknowledged, &mut verdict);
        let is_written = self.write_lane_outcome(batch, &mut verdict).await;
        Ok(is_written.then_some(verdict))
    }

    /// `None`: a transaction ended on whose being in progress the soft floor rests. It may have committed a row below
    /// that floor, older than those claimed: what was claimed must not go out before it.
    async fn claim_lanes(&self, checkout: &Checkout, held: &[CheckedOutLane]) -> Result<Option<ClaimedRows>> {
        let Checkout { term, bypassed, .. } = checkout;
        before_claim(held.iter().any(|held| held.start > held.floor)).await;
        let claim = self
            .outbox
            .claim_lanes(term, held, self.settings.batch_rows, self.budget.bytes())
            .await?;
        let proven = self.is_proven(term, bypassed).await?;
        Ok(proven.then_some(claim))
    }

    /// Asked after a claim: were all these holders in progress when it was made?
    async fn is_proven(&self, term: &Term, bypassed: &[i64]) -> Result<bool> {
        let ended = self.outbox.ended_writers(bypassed).await?;
        if !ended.is_empty() {
            self.lanes.writers_ended(term.worker, &ended);
        }
        Ok(ended.is_empty())
    }

    /// Nothing was sent: whoever has the lanes now does that.
    fn lease_lost(&self, term: &Term) {
        warn!("the lease had gone to another worker, or was over: sent nothing of what was claimed");
        if self.lanes.end_term(term.worker) {
            metrics::leases_lost();
        }
    }

    /// Writes the verdict. False: fenced, and the term is over.
    async fn write_lane_outcome(&self, batch: &LaneBatch<'_>, verdict: &mut BatchOutcome) -> bool {
        failpoint::hit("after_publish").await;
        if verdict.published.is_empty() && batch.record.is_none() {
            // All of it waits for its mark still, as is written already.
            return true;
        }
        if self.settle(Batch::Lanes(batch), verdict).await.is_none() {
            self.writer.fenced(batch.term, verdict.published.len());
            return false;
        }
        self.lanes.entries_done(batch.record.as_slice());
        true
    }

    /// Writes the verdict, once. `None`: fenced.
    async fn write_lanes(&self, batch: &LaneBatch<'_>, verdict: &BatchOutcome) -> Result<Option<u64>> {
        let unknown = maybe_sent_by_lane(&batch.rows, verdict);
        self.remember_maybe_sent(batch.term, &unknown, verdict);
        if verdict.refused.is_empty() && verdict.holds.is_empty() && verdict.maybe_sent.is_empty() {
            return self.mark_lanes(batch, &verdict.published).await;
        }
        let maybe_sent = self.lanes.maybe_sent_to_store(&unknown);
        let settlement = LaneOutcome {
            published: &verdict.published,
            refused: &verdict.refused,
            holds: &with_floors(&verdict.holds, batch.held),
            entries: batch.record.as_slice(),
            maybe_sent: &maybe_sent,
        };
        let kept = self
            .outbox
            .write_lane_outcome(batch.term, &batch.lanes, &settlement)
            .await?;
        if kept {
            self.lanes.maybe_sent_stored(batch.term.worker, maybe_sent);
        }
        Ok(kept.then_some(verdict.published.len() as u64))
    }

    /// Before it is written: a hold that is written with it is tried as soon as that is there, though our answer may be lost.
    fn remember_maybe_sent(&self, term: &Term, unknown: &[(i16, i64)], verdict: &BatchOutcome) {
        for (lane, id) in unknown {
            self.lanes.remember_maybe_sent_id(*lane, *id);
            if verdict.unmarked.contains(id) {
                self.lanes.remember_acknowledged(term.worker, *lane, *id);
            }
        }
    }

    /// Marks rows of a batch; `None`: its lanes are no longer ours.
    async fn mark_lanes(&self, batch: &LaneBatch<'_>, ids: &[i64]) -> Result<Option<u64>> {
        let LaneBatch {
            term, lanes, record, ..
        } = batch;
        let marked = self.outbox.mark_lanes(term, lanes, ids, record.as_slice()).await?;
        if marked == ids.len() as u64 {
            return Ok(Some(marked));
        }
        if self.outbox.count_owned_lanes(term, lanes).await? < lanes.len() {
            return Ok(None);
        }
        // A mark whose answer was lost is repeated and finds its rows done; an operator may also have removed some.
        debug!(asked = ids.len(), marked, "some rows were already marked or gone");
        Ok(Some(marked))
    }

    // ── unordered rows ────────────────────────────────────────────────────────────────────

    /// They promise no order, so a soft floor needs no proof here: a row below it is found as soon as its writer's end is.
    async fn relay_unordered(&self, term: &Term, held: &UnorderedCheckout) -> LaneReport {
        let (began, lease_end) = (Instant::now(), BootInstant::now() + self.settings.lease);
        let claimed = match self.claim_unordered(term, held).await {
            Ok(claimed) => claimed,
            Err(error) => {
                self.claim_failed(&error);
                return failed_report(UNORDERED_LANE);
            }
        };
        let took = began.elapsed();
        metrics::claim_took(Stream::Unordered, took);
        let Some((claim, ClaimedRows { mut rows, dropped })) = claimed else {
            return LaneReport {
                took,
                ..report_unordered(held, &[], &[], &BatchOutcome::default())
            };
        };
        let slow = self.is_slow(began);
        rows.sort_unstable_by_key(|row| row.id);
        metrics::rows_recovered(rows.iter().filter(|row| row.possible_duplicate).count());
        for row in &mut rows {
            row.possible_duplicate |= row.id <= held.maybe_sent_until;
        }
        metrics::rows_claimed(rows.len());
        failpoint::hit("after_claim_unordered").await;
        let mut verdict = self.publish(Stream::Unordered, &rows, lease_end).await;
        let batch = UnorderedBatch {
            term,
            held,
            claim,
            rows,
            dropped,
        };
        // Also where its rows were gone when they were read: the record goes.
        self.write_unordered_outcome(&batch, &mut verdict).await;
        let mut report = report_unordered(held, &batch.rows, &batch.dropped, &verdict);
        (report.slow, report.took) = (slow, took);
        report
    }

    /// Claims rows and reads them; `None`: none was free.
    async fn claim_unordered(&self, term: &Term, held: &UnorderedCheckout) -> Result<Option<(i64, ClaimedRows)>> {
        let free = UnorderedFilter {
            claims_from: held.claims_from,
            start: held.start,
            scan_end: held.scan_end,
            most: held.most,
            most_in_total: 2 * held.most,
            of_hold: None,
            skip_held: held.has_holds,
        };
        self.writer
            .claim_free(term, &free, self.settings.lease, self.budget.bytes())
            .await
    }

    async fn write_unordered_outcome(&self, batch: &UnorderedBatch<'_>, verdict: &mut BatchOutcome) {
        failpoint::hit("after_publish_unordered").await;
        let Some(count) = self.settle(Batch::Unordered(batch), verdict).await else {
            return;
        };
        let fenced = verdict.published.len().saturating_sub(count as usize);
        if fenced > 0 {
            warn!(
                rows = fenced,
                "rows had been taken over by another worker: marked nothing there"
            );
            metrics::rows_fenced(fenced);
        }
    }

    /// Writes the verdict, once, and answers how many rows it marked. Rows that Kafka has and that cannot be marked yet stay claimed.
    async fn write_unordered(&self, batch: &UnorderedBatch<'_>, verdict: &BatchOutcome) -> Result<u64> {
        let UnorderedBatch { term, claim, .. } = *batch;
        if verdict.is_clean() && batch.dropped.is_empty() {
            return self.outbox.mark_unordered(term, claim, &verdict.published).await;
        }
        let holds = verdict.holds.iter().map(|hold| (hold.clone(), batch.held.floor));
        let watermark = UnorderedOutcome {
            published: &verdict.published,
            unmarked: &verdict.unmarked,
            refused: &verdict.refused,
            maybe_sent: &returned_maybe_sent(&batch.dropped, verdict),
            holds: &holds.collect::<Vec<_>>(),
        };
        let (ids, claimed) = (verdict.unmarked.clone(), Instant::now());
        let lease = self.settings.lease;
        let marked = self
            .outbox
            .write_unordered_outcome(term, claim, &watermark, lease)
            .await?;
        self.remember_unmarked(term, LockedRows { claim, ids, claimed });
        Ok(marked)
    }

    // ── both ───────────────────────────────────────────────────────────────────────────────────

    /// Writes the verdict on a batch. Answers how many rows were marked; `None`: fenced, or the term is over.
    async fn settle(&self, batch: Batch<'_>, verdict: &mut BatchOutcome) -> Option<u64> {
        let (stream, term, rows) = batch.parts();
        let began = Instant::now();
        let written = self.write_unlocked(batch, term, verdict).await;
        metrics::mark_took(stream, began.elapsed());
        let count = written?;
        self.marked(stream, rows, count);
        Some(count)
    }

    /// Where somebody else has locked rows of the batch, the verdict is written without those.
    async fn write_unlocked(&self, batch: Batch<'_>, term: &Term, verdict: &mut BatchOutcome) -> Option<u64> {
        loop {
            let judged = &*verdict;
            let write = || async {
                match batch {
                    Batch::Lanes(batch) => self.write_lanes(batch, judged).await,
                    Batch::Unordered(batch) => self.write_unordered(batch, judged).await.map(Some),
                }
            };
            let written = self.writer.unless_locked(term, write).await;
            if !matches!(written, Some(None)) {
                judged.refused.iter().for_each(report_refusal);
            }
            if let Some(count) = written? {
                return Some(count);
            }
            self.leave_locked(term, verdict).await?;
        }
    }

    /// When the lease ends, as far as we know now: it may have been renewed since the checkout.
    fn lease_end(&self, term: &Term) -> BootInstant {
        let current = self.lanes.term().filter(|current| current.worker == term.worker);
        current.map_or(term.ends, |current| current.ends)
    }

    fn is_slow(&self, began: Instant) -> bool {
        began.elapsed() > self.settings.batch_deadline / 2
    }

    /// Publishes within the batch deadline, and in any case so that the mark can still be written under the lease.
    async fn publish(&self, stream: Stream, rows: &[Row], lease_end: BootInstant) -> BatchOutcome {
        if rows.is_empty() {
            return BatchOutcome::default();
        }
        metrics::possible_duplicates(rows.iter().filter(|row| row.possible_duplicate).count());
        let bytes: usize = rows.iter().map(Row::size).sum();
        self.budget.weigh(rows.len(), bytes);
        let _in_flight = metrics::InFlight::new(rows.len(), bytes);
        let sending = Instant::now();
        let outcomes = self
            .publisher
            .publish(rows, self.settings.until(sending, lease_end.left()))
            .await;
        metrics::publish_took(stream, sending.elapsed());
        self.budget.sent(bytes, sending.elapsed(), self.settings.batch_deadline);
        let answered = self.publisher.answered_since(sending);
        let verdict = BatchOutcome::of(rows, &outcomes, answered, &self.settings.policy, fastrand::f64);
        for ((topic, partition), reason) in &verdict.paused {
            self.publisher.pause_partition(topic, *partition, reason);
        }
        let sent = rows.iter().filter(|row| verdict.has_published(row.id));
        self.published.remember(sent);
        self.report(rows, &verdict);
        verdict
    }

    /// One log line per event an operator acts on; none per message.
    fn report(&self, rows: &[Row], verdict: &BatchOutcome) {
        metrics::rows_published(verdict.published.len());
        metrics::rows_unacknowledged(verdict.unsent.len() + verdict.maybe_sent.len());
        let mut reported: Vec<(&str, &str)> = Vec::new();
        for hold in &verdict.holds {
            // What takes nothing is held in many lanes: one line is enough.
            let name = (hold.topic.as_str(), hold.unit.as_str());
            if hold.head_id.is_none() && reported.contains(&name) {
                continue;
            }
            reported.push(name);
            report_hold(hold);
        }
        if let Some(reason) = &verdict.outage {
            let topic = rows.first().map_or("", |row| row.topic.as_str());
            self.publisher.pause(reason, topic);
        }
    }

    fn marked(&self, stream: Stream, rows: &[Row], count: u64) {
        metrics::rows_marked(count);
        if let Some(oldest) = rows.iter().map(|row| row.created_at).min() {
            metrics::end_to_end(stream, self.lanes.clock.age(oldest));
        }
    }

    fn claim_failed(&self, error: &crate::outbox::Error) {
        metrics::database_error();
        warn!(%error, "cannot claim rows; trying again");
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
        let until = |lease_left| settings.until(now, Duration::from_millis(lease_left));
        let after = |millis| now + Duration::from_millis(millis);
        let plenty = until(30_000);
        assert_eq!((plenty.handed_over, plenty.answered), (after(5000), after(5000)));
        let little = until(8_000);
        assert_eq!((little.handed_over, little.answered), (after(500), after(5000)));
        assert!(until(7_500).handed_over <= now, "too late for anything");
    }
}
