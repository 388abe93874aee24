//! The loop: claim → publish → mark. One task works on one checkout at a time; several tasks run side by side.

mod batch;
mod company;
mod locked;
mod look;
pub mod report;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use self::batch::{
    ByLane, discarded, flag_suspects, in_order, maybe_sent_by_lane, put_acknowledged_back, returned_maybe_sent,
    see_keyless, see_lane, take_acknowledged, unseen, with_epochs, with_floors,
};
pub use self::company::Company;
use self::company::Marks;
use self::report::{report_hold, report_refusal};
use crate::boottime::BootInstant;
use crate::domain::batch_outcome::BatchOutcome;
use crate::domain::retry::RetryPolicy;
use crate::failpoint;
use crate::floor::Settled;
use crate::health::{Health, Loop};
use crate::lanes::{Appetite, Checkout, Held, HeldKeyless, Lanes, Record, Seen, Term, Unmarked, Work};
use crate::message::{KEYLESS, Row};
use crate::metrics::{self, Stream};
use crate::outbox::{Claim, Dropped, Free, KeylessSettlement, Outbox, Result, Settlement};
use crate::pace::Pace;
use crate::published::Published;
use crate::publisher::{OVERRUN, Publisher, Until, record_lifetime};
use crate::tasks::fenced::FencedWriter;
use crate::wakeup::Watch;

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
    pub fn until(&self, now: Instant, lease_left: Duration) -> Until {
        let before_its_end = |needed| now + lease_left.saturating_sub(needed);
        let answered = before_its_end(OVERRUN + MARK_MARGIN).min(now + self.batch_deadline);
        Until {
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
    pub published: Arc<Published>,
    pub settings: Settings,
    pub pace: Pace,
    pub watch: Watch,
    pub company: Company,
    pub writer: FencedWriter,
}

/// While Kafka is away, a loop turns this often all the same.
const TURN_MOST: Duration = Duration::from_secs(10);

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

impl Relay {
    /// Runs one task until `draining`; a batch under way is finished first.
    pub async fn work(&self, health: &Health, draining: &CancellationToken) {
        let mut looked = false;
        while !draining.is_cancelled() {
            health.turned(Loop::Relay);
            tokio::select! {
                () = self.publisher.ready() => {}
                () = sleep(TURN_MOST) => continue,
                () = draining.cancelled() => return,
            }
            let (changed, now) = (self.lanes.changed(), Instant::now());
            // In turns: a look that always finds something, and is due again when that is relayed, would keep what is ready waiting.
            let turn = if looked { None } else { self.watch.due() };
            looked = turn.is_some();
            if let Some(turn) = turn {
                self.look(turn).await;
            } else if let Some(checkout) = self.lanes.checkout(&self.appetite()) {
                self.relay(checkout).await;
            } else {
                tokio::select! {
                    () = changed => {}
                    turn = self.watch.turn() => self.look(turn).await,
                    () = until(self.lanes.pause_ends(now)) => {}
                    () = draining.cancelled() => return,
                }
            }
        }
    }

    fn appetite(&self) -> Appetite {
        Appetite {
            rows: self.settings.batch_rows.min(self.pace.rows()),
            tasks: self.settings.tasks,
            lease_left: self.settings.lease_needed(),
        }
    }

    async fn relay(&self, checkout: Checkout) {
        let seen = match &checkout.work {
            Work::Lanes(held) => self.relay_lanes(&checkout, held).await,
            Work::Keyless(held) => vec![self.relay_keyless(&checkout.term, held).await],
        };
        self.lanes.checkin(&checkout.term, seen);
    }

    // ── rows with a lane ───────────────────────────────────────────────────────────────────────

    async fn relay_lanes(&self, checkout: &Checkout, held: &[Held]) -> Vec<Seen> {
        let began = Instant::now();
        match self.claim_lanes(checkout, held).await {
            Ok(Some(claim)) => {
                self.relay_claim(&checkout.term, checkout.settled, held, claim, began, false)
                    .await
            }
            Ok(None) => held.iter().map(|h| discarded(h.lane)).collect(),
            Err(error) => {
                self.claim_failed(&error);
                held.iter().map(|h| unseen(h.lane)).collect()
            }
        }
    }

    /// Publishes and marks what was claimed of these lanes; the mark may wait for company.
    async fn relay_claim(
        &self,
        term: &Term,
        settled: Settled,
        held: &[Held],
        claim: Claim,
        began: Instant,
        may_wait: bool,
    ) -> Vec<Seen> {
        metrics::claim_took(Stream::Lanes, began.elapsed());
        let (slow, took) = (self.is_slow(began), began.elapsed());
        failpoint::hit("after_claim").await;
        let overweight: HashSet<i16> = claim.dropped.iter().filter_map(|row| row.lane).collect();
        let more_due = claim.delayed() >= self.settings.batch_rows;
        let (mut rows, cuts) = in_order(claim, held);
        flag_suspects(&mut rows, held);
        metrics::rows_claimed(rows.len());
        let mut verdict = BatchOutcome::default();
        if !rows.is_empty() {
            let lanes = with_epochs(held, &rows);
            let acknowledged = take_acknowledged(&mut rows, held);
            let records = match self.record_batch(term, &lanes, &rows).await {
                Ok(Some(records)) => records,
                Ok(None) => return self.lease_lost(term),
                Err(error) => {
                    self.claim_failed(&error);
                    return held.iter().map(|h| unseen(h.lane)).collect();
                }
            };
            verdict = self.publish(Stream::Lanes, &rows, self.lease_end(term)).await;
            put_acknowledged_back(&mut rows, acknowledged, &mut verdict);
            let marks = Marks {
                lanes,
                ids: verdict.published.clone(),
                records,
            };
            if !self
                .settle_lanes(term, held, &rows, &mut verdict, marks, may_wait)
                .await
            {
                return Vec::new();
            }
        }
        let rows = ByLane::new(&rows);
        held.iter()
            .map(|held| {
                let mut seen = see_lane(held, &rows, &cuts, settled, &verdict);
                seen.full |= more_due;
                seen.overweight = overweight.contains(&held.lane);
                seen.slow = slow;
                seen.took = took;
                seen
            })
            .collect()
    }

    /// `None`: a transaction ended on whose being in progress the soft floor rests. It may have committed a row below
    /// that floor, older than those claimed: what was claimed must not go out before it.
    async fn claim_lanes(&self, checkout: &Checkout, held: &[Held]) -> Result<Option<Claim>> {
        let Checkout { term, holders, .. } = checkout;
        before_claim(held.iter().any(|held| held.start > held.floor)).await;
        let claim = self
            .outbox
            .claim_lanes(term, held, self.settings.batch_rows, self.pace.bytes())
            .await?;
        let proven = self.is_proven(term, holders).await?;
        Ok(proven.then_some(claim))
    }

    /// Asked after a claim: were all these holders in progress when it was made?
    async fn is_proven(&self, term: &Term, holders: &[i64]) -> Result<bool> {
        let ended = self.outbox.ended(holders).await?;
        if !ended.is_empty() {
            self.lanes.holders_ended(term.worker, &ended);
        }
        Ok(ended.is_empty())
    }

    /// The record of a batch, unless nothing of it is to be sent. `None`: the lanes are not ours any more.
    async fn record_batch(&self, term: &Term, lanes: &[(i16, i64)], rows: &[Row]) -> Result<Option<Vec<Record>>> {
        if rows.is_empty() {
            return Ok(Some(Vec::new()));
        }
        Ok(self.writer.record(term, lanes, rows).await?.map(|record| vec![record]))
    }

    /// Nothing was sent: whoever has the lanes now does that.
    fn lease_lost(&self, term: &Term) -> Vec<Seen> {
        warn!("the lease had gone to another worker, or was over: sent nothing of what was claimed");
        if self.lanes.end_term(term.worker) {
            metrics::terms_lost();
        }
        Vec::new()
    }

    /// Writes the verdict. False: fenced, and the term is over.
    async fn settle_lanes(
        &self,
        term: &Term,
        held: &[Held],
        rows: &[Row],
        verdict: &mut BatchOutcome,
        mut marks: Marks,
        may_wait: bool,
    ) -> bool {
        failpoint::hit("after_publish").await;
        if marks.ids.is_empty() && marks.records.is_empty() {
            // All of it waits for its mark still, as is written already.
            return true;
        }
        // While somebody keeps watch: else the next batch is this task's to find.
        let waits = may_wait && verdict.is_clean() && self.watch.is_kept();
        if waits && self.company.wait(term.worker, marks.clone()).await {
            self.lanes.settled_records(&marks.records);
            self.marked(Stream::Lanes, rows, marks.ids.len() as u64);
            return true;
        }
        let began = Instant::now();
        if verdict.is_clean() && self.mark_in_company(term, &marks).await {
            metrics::mark_took(Stream::Lanes, began.elapsed());
            self.lanes.settled_records(&marks.records);
            self.marked(Stream::Lanes, rows, marks.ids.len() as u64);
            return true;
        }
        let written = self.write_lanes(term, held, rows, verdict, &mut marks).await;
        metrics::mark_took(Stream::Lanes, began.elapsed());
        match written {
            Some(count) => {
                self.lanes.settled_records(&marks.records);
                self.marked(Stream::Lanes, rows, count);
                true
            }
            None => {
                self.writer.fenced(term, verdict.published.len());
                false
            }
        }
    }

    /// Writes the verdict; where somebody else has locked rows of the batch, without those. `None`: fenced.
    async fn write_lanes(
        &self,
        term: &Term,
        held: &[Held],
        rows: &[Row],
        verdict: &mut BatchOutcome,
        marks: &mut Marks,
    ) -> Option<u64> {
        loop {
            self.remember_doubts(term, rows, verdict);
            let (judged, marking) = (&*verdict, &*marks);
            let write = || async move {
                if judged.refused.is_empty() && judged.holds.is_empty() && judged.maybe_sent.is_empty() {
                    return self.mark_lanes(term, marking).await;
                }
                self.write_verdict(term, held, rows, judged, marking).await
            };
            let written = self.writer.unless_locked(term, write).await;
            if !matches!(written, Some(None)) {
                verdict.refused.iter().for_each(report_refusal);
            }
            if let Some(count) = written? {
                return Some(count);
            }
            self.leave_locked(term, verdict).await?;
            marks.ids.clone_from(&verdict.published);
        }
    }

    /// Before it is written: a hold that is written with it is tried as soon as that is there, though our answer may be lost.
    fn remember_doubts(&self, term: &Term, rows: &[Row], verdict: &BatchOutcome) {
        for (lane, id) in maybe_sent_by_lane(rows, verdict) {
            self.lanes.remember_unknown(lane, id);
            if verdict.unmarked.contains(&id) {
                self.lanes.remember_acknowledged(term.worker, lane, id);
            }
        }
    }

    /// What became of a batch that was not all acknowledged, in one transaction. `None`: fenced.
    async fn write_verdict(
        &self,
        term: &Term,
        held: &[Held],
        rows: &[Row],
        verdict: &BatchOutcome,
        marks: &Marks,
    ) -> Result<Option<u64>> {
        let suspects = self.lanes.suspects_to_store(&maybe_sent_by_lane(rows, verdict));
        let settlement = Settlement {
            published: &marks.ids,
            refused: &verdict.refused,
            holds: &with_floors(&verdict.holds, held),
            records: &marks.records,
            suspects: &suspects,
        };
        let kept = self.outbox.settle_lanes(term, &marks.lanes, &settlement).await?;
        if kept {
            self.lanes.suspects_stored(term.worker, suspects);
        }
        Ok(kept.then_some(verdict.published.len() as u64))
    }

    /// Marks rows together with those that wait for it, in one try. False: none do, or it went wrong, and each is on its own.
    async fn mark_in_company(&self, term: &Term, marks: &Marks) -> bool {
        let Some(waiting) = self.company.take(term.worker) else {
            return false;
        };
        let mut both = marks.clone();
        both.extend(&waiting.marks);
        match self
            .outbox
            .mark_lanes(term, &both.lanes, &both.ids, &both.records)
            .await
        {
            Ok(marked) if marked == both.ids.len() as u64 => {
                waiting.marked();
                true
            }
            Ok(marked) => {
                // Whose they were, nobody knows: each finds out for itself, and its own count misses these.
                metrics::rows_marked(marked);
                false
            }
            Err(error) => {
                metrics::database_error();
                debug!(%error, "cannot mark two batches at once");
                false
            }
        }
    }

    /// Marks rows; `None`: the lanes are no longer ours.
    async fn mark_lanes(&self, term: &Term, marks: &Marks) -> Result<Option<u64>> {
        let Marks { lanes, ids, records } = marks;
        let marked = self.outbox.mark_lanes(term, lanes, ids, records).await?;
        if marked == ids.len() as u64 {
            return Ok(Some(marked));
        }
        if self.outbox.still_ours(term, lanes).await? < lanes.len() {
            return Ok(None);
        }
        // A mark whose answer was lost is repeated and finds its rows done; an operator may also have removed some.
        debug!(asked = ids.len(), marked, "some rows were already marked or gone");
        Ok(Some(marked))
    }

    // ── rows without a lane ────────────────────────────────────────────────────────────────────

    /// They promise no order, so a soft floor needs no proof here: a row below it is found as soon as its writer's end is.
    async fn relay_keyless(&self, term: &Term, held: &HeldKeyless) -> Seen {
        let (began, lease_end) = (Instant::now(), BootInstant::now() + self.settings.lease);
        let claimed = match self.claim_keyless(term, held).await {
            Ok(claimed) => claimed,
            Err(error) => {
                self.claim_failed(&error);
                return unseen(KEYLESS);
            }
        };
        let took = began.elapsed();
        metrics::claim_took(Stream::Keyless, took);
        let Some((number, claim)) = claimed else {
            return Seen {
                took,
                ..see_keyless(held, &[], &[], &BatchOutcome::default())
            };
        };
        let slow = self.is_slow(began);
        let mut rows = claim.rows;
        rows.sort_unstable_by_key(|row| row.id);
        metrics::rows_recovered(rows.iter().filter(|row| row.suspect).count());
        for row in &mut rows {
            row.suspect |= row.id <= held.suspect_until;
        }
        metrics::rows_claimed(rows.len());
        failpoint::hit("after_claim_keyless").await;
        let mut verdict = self.publish(Stream::Keyless, &rows, lease_end).await;
        let dropped = claim.dropped;
        // Also where its rows were gone when they were read: the record goes.
        self.settle_keyless(term, number, held.floor, &rows, &dropped, &mut verdict)
            .await;
        let mut seen = see_keyless(held, &rows, &dropped, &verdict);
        (seen.slow, seen.took) = (slow, took);
        seen
    }

    /// Claims rows and reads them; `None`: none was free.
    async fn claim_keyless(&self, term: &Term, held: &HeldKeyless) -> Result<Option<(i64, Claim)>> {
        let free = Free {
            claims_from: held.claims_from,
            start: held.start,
            upto: held.upto,
            most: held.most,
            most_in_all: 2 * held.most,
            of_hold: None,
            skip_held: held.has_holds,
        };
        self.writer
            .claim_free(term, &free, self.settings.lease, self.pace.bytes())
            .await
    }

    async fn settle_keyless(
        &self,
        term: &Term,
        claim: i64,
        floor: i64,
        rows: &[Row],
        dropped: &[Dropped],
        verdict: &mut BatchOutcome,
    ) {
        failpoint::hit("after_publish_keyless").await;
        let began = Instant::now();
        let marked = self.write_keyless(term, claim, floor, dropped, verdict).await;
        metrics::mark_took(Stream::Keyless, began.elapsed());
        let Some(count) = marked else { return };
        self.marked(Stream::Keyless, rows, count);
        let fenced = verdict.published.len().saturating_sub(count as usize);
        if fenced > 0 {
            warn!(
                rows = fenced,
                "rows had been taken over by another worker: marked nothing there"
            );
            metrics::rows_fenced(fenced);
        }
    }

    /// The same as [`Relay::write_lanes`]. Rows that Kafka has and that cannot be marked yet stay claimed.
    async fn write_keyless(
        &self,
        term: &Term,
        claim: i64,
        floor: i64,
        dropped: &[Dropped],
        verdict: &mut BatchOutcome,
    ) -> Option<u64> {
        let holds: Vec<_> = verdict.holds.iter().map(|hold| (hold.clone(), floor)).collect();
        loop {
            let (judged, suspect) = (&*verdict, returned_maybe_sent(dropped, verdict));
            let settled = KeylessSettlement {
                published: &judged.published,
                unmarked: &judged.unmarked,
                refused: &judged.refused,
                suspect: &suspect,
                holds: &holds,
            };
            let claimed = Instant::now();
            let write = || async {
                let marked = if judged.is_clean() && dropped.is_empty() {
                    self.outbox.mark_keyless(term, claim, settled.published).await?
                } else {
                    let lease = self.settings.lease;
                    self.outbox.settle_keyless(term, claim, &settled, lease).await?
                };
                Ok(Some(marked))
            };
            let written = self.writer.unless_locked(term, write).await;
            if !matches!(written, Some(None)) {
                judged.refused.iter().for_each(report_refusal);
            }
            if let Some(count) = written? {
                let ids = judged.unmarked.clone();
                self.remember_unmarked(term, Unmarked { claim, ids, claimed });
                return Some(count);
            }
            self.leave_locked(term, verdict).await?;
        }
    }

    // ── both ───────────────────────────────────────────────────────────────────────────────────

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
        metrics::possible_duplicates(rows.iter().filter(|row| row.suspect).count());
        let bytes: usize = rows.iter().map(Row::size).sum();
        self.pace.weigh(rows.len(), bytes);
        let _in_flight = metrics::InFlight::new(rows.len(), bytes);
        let sending = Instant::now();
        let outcomes = self
            .publisher
            .publish(rows, self.settings.until(sending, lease_end.left()))
            .await;
        metrics::publish_took(stream, sending.elapsed());
        self.pace.sent(bytes, sending.elapsed(), self.settings.batch_deadline);
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
        metrics::rows_deferred(verdict.unsent.len() + verdict.maybe_sent.len());
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
