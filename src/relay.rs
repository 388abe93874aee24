//! The loop: claim → publish → mark. One task works on one checkout at a time; several tasks run side by side.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};
use uuid::Uuid;

use crate::failpoint;
use crate::floor::{Settled, Sight};
use crate::lanes::{Appetite, Checkout, Held, HeldKeyless, Lanes, Seen, Term, Work};
use crate::message::{KEYLESS, Row};
use crate::metrics::{self, Stream};
use crate::outbox::{Claim, Dropped, Outbox, Result};
use crate::pace::Pace;
use crate::published::Published;
use crate::publisher::{OVERRUN, Publisher};
use crate::verdict::{HoldOrder, Policy, Refusal, Verdict, judge};

/// What the loop is told by the settings.
#[derive(Clone, Debug)]
pub struct Settings {
    pub tasks: usize,
    pub batch_rows: usize,
    pub in_flight_bytes: usize,
    pub batch_deadline: Duration,
    pub lease: Duration,
    pub policy: Policy,
}

/// Time between the last answer and the end of the lease that a mark may need.
pub const MARK_MARGIN: Duration = Duration::from_secs(1);

impl Settings {
    /// How much lease must be left before anything is sent.
    pub fn lease_needed(&self) -> Duration {
        self.batch_deadline + OVERRUN + MARK_MARGIN
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
}

/// After an error, before the same lanes are tried again.
fn breather() -> Duration {
    Duration::from_millis(100 + fastrand::u64(0..400))
}

impl Relay {
    /// Runs one task until `draining`; a batch under way is finished first.
    pub async fn work(&self, draining: &CancellationToken) {
        while !draining.is_cancelled() {
            tokio::select! {
                () = self.publisher.ready() => {}
                () = draining.cancelled() => return,
            }
            let changed = self.lanes.changed();
            match self.lanes.checkout(&self.appetite()) {
                Some(checkout) => self.relay(checkout).await,
                None => tokio::select! {
                    () = changed => {}
                    // Pauses and leases pass without anybody saying so.
                    () = sleep(Duration::from_millis(100)) => {}
                    () = draining.cancelled() => return,
                },
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
        let Checkout { term, settled, .. } = checkout;
        let began = Instant::now();
        let claim = match self.claim_lanes(checkout, held).await {
            Ok(Some(claim)) => claim,
            Ok(None) => return held.iter().map(|h| discarded(h.lane)).collect(),
            Err(error) => {
                self.claim_failed(&error);
                return held.iter().map(|h| unseen(h.lane)).collect();
            }
        };
        metrics::claim_took(Stream::Lanes, began.elapsed());
        let slow = self.is_slow(began);
        failpoint::hit("after_claim").await;
        let overweight: HashSet<i16> = claim.dropped.iter().filter_map(|row| row.lane).collect();
        let more_due = claim.delayed() >= self.settings.batch_rows;
        let (mut rows, cuts) = in_order(claim, held);
        flag_suspects(&mut rows, held);
        let verdict = self.publish(Stream::Lanes, &rows, self.lease_end(term)).await;
        if !rows.is_empty() && !self.settle_lanes(term, held, &rows, &verdict).await {
            return Vec::new();
        }
        held.iter()
            .map(|held| {
                let mut seen = see_lane(held, &rows, &cuts, *settled, &verdict);
                seen.full |= more_due;
                seen.overweight = overweight.contains(&held.lane);
                seen.slow = slow;
                seen
            })
            .collect()
    }

    /// `None`: a transaction ended on whose being in progress the soft floor rests. It may have committed a row below
    /// that floor, older than those claimed: what was claimed must not go out before it.
    async fn claim_lanes(&self, checkout: &Checkout, held: &[Held]) -> Result<Option<Claim>> {
        let Checkout { term, holders, .. } = checkout;
        let bytes = self.pace.bytes();
        let rows = self.settings.batch_rows;
        if held.iter().any(|held| held.start > held.floor) {
            failpoint::hit("before_soft_claim").await;
        }
        let claim = self.outbox.claim_lanes(term, held, rows, bytes).await?;
        if self.outbox.any_ended(holders).await? {
            self.lanes.harden(term.worker, checkout.settled.generation);
            return Ok(None);
        }
        Ok(Some(claim))
    }

    /// Writes the verdict. False: fenced, and the term is over.
    async fn settle_lanes(&self, term: &Term, held: &[Held], rows: &[Row], verdict: &Verdict) -> bool {
        failpoint::hit("after_publish").await;
        let began = Instant::now();
        let lanes: Vec<(i16, i64)> = held
            .iter()
            .filter(|held| rows.iter().any(|row| row.lane == Some(held.lane)))
            .map(|held| (held.lane, held.epoch))
            .collect();
        let written = self
            .while_term_lasts(term, || async {
                if verdict.refused.is_empty() && verdict.holds.is_empty() {
                    return self.mark_lanes(term, &lanes, &verdict.published).await;
                }
                let holds = with_floors(&verdict.holds, held);
                let kept = self
                    .outbox
                    .settle_lanes(term, &lanes, &verdict.published, &verdict.refused, &holds)
                    .await?;
                Ok(kept.then_some(verdict.published.len() as u64))
            })
            .await;
        metrics::mark_took(Stream::Lanes, began.elapsed());
        match written {
            Some(count) => {
                self.marked(Stream::Lanes, rows, count);
                true
            }
            None => {
                self.fenced(term, verdict.published.len());
                false
            }
        }
    }

    /// Marks rows; `None`: the lanes are no longer ours.
    async fn mark_lanes(&self, term: &Term, lanes: &[(i16, i64)], ids: &[i64]) -> Result<Option<u64>> {
        if ids.is_empty() {
            return Ok(Some(0));
        }
        let marked = self.outbox.mark_lanes(term, lanes, ids).await?;
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
        let began = Instant::now();
        let token = Uuid::new_v4();
        let bytes = self.pace.bytes();
        let claimed = self
            .outbox
            .claim_keyless(term, held, token, self.settings.lease, bytes)
            .await;
        let claim = match claimed {
            Ok(claim) => claim,
            Err(error) => {
                self.claim_failed(&error);
                return unseen(KEYLESS);
            }
        };
        metrics::claim_took(Stream::Keyless, began.elapsed());
        let slow = self.is_slow(began);
        let mut rows = claim.rows;
        rows.sort_unstable_by_key(|row| row.id);
        metrics::rows_recovered(rows.iter().filter(|row| row.suspect).count());
        for row in &mut rows {
            row.suspect |= row.id <= held.suspect_until;
        }
        failpoint::hit("after_claim_keyless").await;
        let verdict = self.publish(Stream::Keyless, &rows, began + self.settings.lease).await;
        let dropped = claim.dropped;
        if !rows.is_empty() || !dropped.is_empty() {
            self.settle_keyless(term, token, held.floor, &rows, &dropped, &verdict)
                .await;
        }
        let mut seen = see_keyless(held, &rows, &dropped, &verdict);
        seen.slow = slow;
        seen
    }

    async fn settle_keyless(
        &self,
        term: &Term,
        token: Uuid,
        floor: i64,
        rows: &[Row],
        dropped: &[Dropped],
        verdict: &Verdict,
    ) {
        failpoint::hit("after_publish_keyless").await;
        let began = Instant::now();
        let marked = self
            .while_term_lasts(term, || async {
                if verdict.published.is_empty() {
                    return Ok(Some(0));
                }
                self.outbox
                    .mark_keyless(term, token, &verdict.published)
                    .await
                    .map(Some)
            })
            .await;
        metrics::mark_took(Stream::Keyless, began.elapsed());
        if let Some(count) = marked {
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
        if verdict.is_clean() && dropped.is_empty() {
            return;
        }
        let released = given_back(rows, dropped, verdict);
        let holds: Vec<_> = verdict.holds.iter().map(|hold| (hold.clone(), floor)).collect();
        self.while_term_lasts(term, || async {
            let settled = self
                .outbox
                .settle_keyless(term, token, &verdict.refused, &released, &holds);
            settled.await.map(Some)
        })
        .await;
    }

    // ── both ───────────────────────────────────────────────────────────────────────────────────

    /// When the lease ends, as far as we know now: it may have been renewed since the checkout.
    fn lease_end(&self, term: &Term) -> Instant {
        let current = self.lanes.term().filter(|current| current.worker == term.worker);
        current.map_or(term.ends, |current| current.ends)
    }

    fn is_slow(&self, began: Instant) -> bool {
        began.elapsed() > self.settings.batch_deadline / 2
    }

    /// Publishes within the batch deadline, and in any case so that the mark can still be written under the lease.
    async fn publish(&self, stream: Stream, rows: &[Row], lease_end: Instant) -> Verdict {
        if rows.is_empty() {
            return Verdict::default();
        }
        metrics::rows_claimed(rows.len());
        metrics::possible_duplicates(rows.iter().filter(|row| row.suspect).count());
        let bytes: usize = rows.iter().map(Row::size).sum();
        self.pace.weigh(rows.len(), bytes);
        let _in_flight = metrics::InFlight::new(rows.len(), bytes);
        let sending = Instant::now();
        let latest = lease_end.checked_sub(OVERRUN + MARK_MARGIN).unwrap_or(sending);
        let deadline = latest.min(sending + self.settings.batch_deadline);
        let outcomes = self.publisher.publish(rows, deadline).await;
        metrics::publish_took(stream, sending.elapsed());
        self.pace.sent(bytes, sending.elapsed(), self.settings.batch_deadline);
        let answered = self.publisher.answered_since(sending);
        let verdict = judge(rows, &outcomes, answered, &self.settings.policy);
        let sent = rows
            .iter()
            .filter(|row| verdict.published.binary_search(&row.id).is_ok());
        self.published.remember(sent);
        self.report(rows, &verdict);
        verdict
    }

    /// One log line per event an operator acts on; none per message.
    fn report(&self, rows: &[Row], verdict: &Verdict) {
        metrics::rows_published(verdict.published.len());
        metrics::rows_deferred(verdict.unsent.len() + verdict.unknown.len());
        verdict.refused.iter().for_each(report_refusal);
        let mut topics: Vec<&str> = Vec::new();
        for hold in &verdict.holds {
            // A sick topic is held in many lanes: one line is enough.
            if hold.unit.is_empty() && topics.contains(&hold.topic.as_str()) {
                continue;
            }
            if hold.unit.is_empty() {
                topics.push(&hold.topic);
            }
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

    pub(crate) fn fenced(&self, term: &Term, rows: usize) {
        metrics::rows_fenced(rows);
        warn!(
            rows,
            "the lease had gone to another worker: marked nothing; the rows are sent again by their new owner"
        );
        if self.lanes.end_term(term.worker) {
            metrics::terms_lost();
        }
    }

    fn claim_failed(&self, error: &crate::outbox::Error) {
        metrics::database_error();
        warn!(%error, "cannot claim rows; trying again");
    }

    /// Repeats a write until it is answered or the term is over: what Kafka has acknowledged must not be sent again
    /// only because PostgreSQL was away for a moment. Repeating is harmless: the fence is in the statement, and what it would
    /// count twice is guarded by what was seen.
    pub(crate) async fn while_term_lasts<T, F>(&self, term: &Term, write: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<Option<T>>>,
    {
        let mut failures = 0u32;
        loop {
            match write().await {
                Ok(done) => return done,
                Err(error) => {
                    metrics::database_error();
                    if failures == 0 {
                        warn!(%error, "cannot write what became of a batch; trying again while the lease lasts");
                    }
                    failures += 1;
                }
            }
            if self.lanes.term().is_none_or(|current| current.worker != term.worker) {
                return None;
            }
            sleep(breather() * failures.min(10)).await;
        }
    }
}

/// An attempt is counted. The last one is an event an operator acts on.
pub(crate) fn report_refusal(refusal: &Refusal) {
    metrics::rows_refused(usize::from(refusal.dead), usize::from(!refusal.dead));
    if refusal.dead {
        error!(
            id = refusal.id,
            reason = refusal.reason,
            "dead letter: Kafka refused the row for good"
        );
    }
}

fn report_hold(hold: &HoldOrder) {
    if hold.unit.is_empty() {
        warn!(
            topic = hold.topic,
            reason = hold.reason,
            "topic parked: it is tried again by itself; other topics go on"
        );
    } else {
        warn!(
            topic = hold.topic,
            unit = hold.unit,
            id = hold.head_id,
            reason = hold.reason,
            "key held behind a refused row; other keys go on"
        );
    }
}

/// Sorts a claim by id (SQL promises no order of a joined result) and cuts each lane where the byte budget cut it.
/// Answers the rows, and per lane the id after which nothing is known.
fn in_order(claim: Claim, held: &[Held]) -> (Vec<Row>, HashMap<i16, i64>) {
    let mut cuts: HashMap<i16, i64> = HashMap::new();
    // A delayed row stands in no line that it could cut: it is due, and found again by that.
    for row in claim.dropped.iter().filter(|row| !row.delayed) {
        let cut = cuts.entry(row.lane.unwrap_or(KEYLESS)).or_insert(i64::MAX);
        *cut = (*cut).min(row.id - 1);
    }
    let mut rows = claim.rows;
    rows.retain(|row| {
        let cut = row.lane.and_then(|lane| cuts.get(&lane));
        row.delayed || cut.is_none_or(|cut| row.id <= *cut)
    });
    rows.sort_unstable_by_key(|row| row.id);
    for held in held {
        let fresh = rows.iter().filter(|row| row.lane == Some(held.lane) && !row.delayed);
        let (mut count, mut last) = (0, 0);
        for row in fresh {
            count += 1;
            last = row.id;
        }
        if count >= held.most {
            let cut = cuts.entry(held.lane).or_insert(last);
            *cut = (*cut).min(last);
        }
    }
    (rows, cuts)
}

/// The first rows of a lane whose last owner could not say what it had sent, those whose marks a failover may have lost, and
/// those known by id: the count goes on to the rows behind them.
fn flag_suspects(rows: &mut [Row], held: &[Held]) {
    for held in held {
        if held.suspect_rows == 0 && held.suspect_until == 0 && held.unknown.is_empty() {
            continue;
        }
        let of_lane = rows.iter_mut().filter(|row| row.lane == Some(held.lane));
        let mut places = 0..held.suspect_rows;
        for row in of_lane {
            let is_suspect = held.unknown.contains(&row.id) || places.next().is_some();
            row.suspect = is_suspect || row.id <= held.suspect_until;
        }
    }
}

/// What goes back unpublished, each with whether a copy of it may be there: from this try, or from an earlier one.
fn given_back(rows: &[Row], dropped: &[Dropped], verdict: &Verdict) -> Vec<(i64, bool)> {
    let is_unsent = |row: &&Row| verdict.unsent.binary_search(&row.id).is_ok();
    let unsent = rows.iter().filter(is_unsent).map(|row| (row.id, row.suspect));
    let dropped = dropped.iter().map(|row| (row.id, row.suspect));
    let unknown = verdict.unknown.iter().map(|id| (*id, true));
    unsent.chain(dropped).chain(unknown).collect()
}

fn with_floors(holds: &[HoldOrder], held: &[Held]) -> Vec<(HoldOrder, i64)> {
    let floor_of = |lane| held.iter().find(|h| h.lane == lane).map_or(0, |h| h.floor);
    holds.iter().map(|hold| (hold.clone(), floor_of(hold.lane))).collect()
}

/// Nothing was learned about the lane: look again in a moment.
fn unseen(lane: i16) -> Seen {
    Seen {
        lane,
        pause: Some(breather()),
        ..Seen::default()
    }
}

/// Nothing was learned about the lane, and nothing is wrong: look again at once.
fn discarded(lane: i16) -> Seen {
    Seen {
        lane,
        ..Seen::default()
    }
}

fn see_lane(held: &Held, rows: &[Row], cuts: &HashMap<i16, i64>, settled: Settled, verdict: &Verdict) -> Seen {
    let of_lane: Vec<&Row> = rows.iter().filter(|row| row.lane == Some(held.lane)).collect();
    let is_published = |row: &Row| verdict.published.binary_search(&row.id).is_ok();
    let is_dead = |row: &Row| verdict.refused.iter().any(|r| r.dead && r.id == row.id);
    // From now on known by id, and counted no more.
    let is_suspect_still = |row: &Row| row.suspect && !is_published(row) && !is_dead(row);
    let left = |row: &&&Row| !row.delayed && !is_published(row) && !is_dead(row) && !verdict.holds_back(row);
    let lowest_left = if verdict.is_clean() {
        None
    } else {
        of_lane.iter().filter(left).map(|row| row.id).min()
    };
    let cut_at = cuts.get(&held.lane).copied();
    let published: Vec<i64> = of_lane
        .iter()
        .filter(|row| is_published(row))
        .map(|row| row.id)
        .collect();
    let stuck = published.is_empty() && lowest_left.is_some();
    Seen {
        lane: held.lane,
        rows: of_lane.len(),
        full: cut_at.is_some(),
        sight: Some(Sight {
            settled,
            cut_at,
            lowest_left,
        }),
        highest_id: of_lane.last().map_or(0, |row| row.id),
        counted: of_lane.iter().filter(|row| !held.unknown.contains(&row.id)).count(),
        unknown: of_lane
            .iter()
            .filter(|row| verdict.unknown.contains(&row.id) || is_suspect_still(row))
            .map(|row| row.id)
            .collect(),
        holds_added: verdict.holds.iter().any(|hold| hold.lane == held.lane),
        pause: stuck.then(breather),
        published,
        ..Seen::default()
    }
}

/// Nothing about floors: others lease rows of these too.
fn see_keyless(held: &HeldKeyless, rows: &[Row], dropped: &[Dropped], verdict: &Verdict) -> Seen {
    let all_done = verdict.is_clean() && dropped.is_empty();
    let stuck = verdict.published.is_empty() && !verdict.is_clean();
    Seen {
        lane: KEYLESS,
        rows: rows.len(),
        full: rows.len() + dropped.len() >= held.most,
        overweight: !dropped.is_empty(),
        sight: all_done.then_some(Sight::of_everything(Settled::default())),
        highest_id: rows.last().map_or(0, |row| row.id),
        holds_added: !verdict.holds.is_empty(),
        pause: stuck.then(breather),
        ..Seen::default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lanes::tests::owning_suspect;
    use crate::message::tests::row;
    use crate::verdict::OnDead;

    fn of_lane(lane: i16, ids: impl IntoIterator<Item = i64>) -> Vec<Row> {
        let lane = Some(lane);
        ids.into_iter().map(|id| Row { lane, ..row(id) }).collect()
    }

    fn delayed(mut row: Row) -> Row {
        row.delayed = true;
        row
    }

    fn dropped(id: i64, lane: i16) -> Dropped {
        Dropped {
            id,
            lane: Some(lane),
            suspect: false,
            delayed: false,
        }
    }

    fn held(lane: i16) -> Held {
        Held {
            lane,
            epoch: 1,
            floor: 0,
            start: 0,
            most: 100,
            suspect_rows: 0,
            suspect_until: 0,
            unknown: HashSet::new(),
            has_holds: false,
        }
    }

    fn refusal(id: i64, dead: bool) -> Refusal {
        Refusal {
            id,
            attempts: 0,
            suspect: false,
            reason: "too large".into(),
            dead,
            wait: Duration::ZERO,
        }
    }

    fn hold(lane: i16, unit: &str) -> HoldOrder {
        HoldOrder {
            lane,
            topic: "orders".into(),
            unit: unit.into(),
            head_id: None,
            reason: "sick".into(),
            wait: None,
        }
    }

    fn ids(rows: &[Row]) -> Vec<i64> {
        rows.iter().map(|row| row.id).collect()
    }

    fn suspects(rows: &[Row]) -> Vec<i64> {
        rows.iter().filter(|row| row.suspect).map(|row| row.id).collect()
    }

    fn see(held: &Held, rows: &[Row], verdict: &Verdict) -> Seen {
        see_lane(held, rows, &HashMap::new(), Settled::default(), verdict)
    }

    #[test]
    fn the_lease_outlasts_a_batch_its_overrun_and_its_mark() {
        let settings = Settings {
            tasks: 4,
            batch_rows: 1000,
            in_flight_bytes: 1 << 20,
            batch_deadline: Duration::from_secs(5),
            lease: Duration::from_secs(30),
            policy: Policy {
                max_attempts: 1,
                backoff_min: Duration::ZERO,
                backoff_max: Duration::ZERO,
                on_dead: OnDead::Continue,
            },
        };
        assert_eq!(settings.lease_needed() - Duration::from_secs(5), OVERRUN + MARK_MARGIN);
        assert_eq!(settings.bytes_per_task(), 1 << 18, "the tasks share the memory");
    }

    #[test]
    fn a_claim_that_failed_is_repeated_after_a_breath_and_one_discarded_at_once() {
        let (failed, discarded) = (unseen(7), discarded(7));
        assert_eq!((failed.lane, discarded.lane), (7, 7));
        assert!(failed.pause.is_some() && discarded.pause.is_none());
        assert!(
            failed.sight.is_none() && discarded.sight.is_none(),
            "nothing was learned"
        );
    }

    // ── in_order ───────────────────────────────────────────────────────────────────────────────

    #[test]
    fn a_lane_that_got_all_it_asked_for_is_cut_at_its_last_fresh_row() {
        let claim = |most| {
            let mut rows = of_lane(0, [3, 2]);
            rows.extend([delayed(row(1)), delayed(row(9))]);
            rows.extend(of_lane(1, [4]));
            let claim = Claim {
                rows,
                dropped: Vec::new(),
            };
            in_order(claim, &[Held { most, ..held(0) }, held(1)])
        };
        let (rows, cuts) = claim(2);
        assert_eq!(ids(&rows), [1, 2, 3, 4, 9]);
        assert_eq!(
            cuts,
            HashMap::from([(0, 3)]),
            "what was delayed says nothing about the rest"
        );
        assert!(claim(3).1.is_empty());
    }

    #[test]
    fn a_lane_is_cut_before_the_first_row_left_behind_and_others_are_not() {
        let due = Dropped {
            delayed: true,
            ..dropped(1, 1)
        };
        let claim = Claim {
            rows: [of_lane(0, [1, 4, 6]), of_lane(1, [2, 7]), vec![delayed(row(9))]].concat(),
            dropped: vec![dropped(5, 0), dropped(3, 0), dropped(8, 2), due],
        };
        let (rows, cuts) = in_order(claim, &[held(0), held(1), held(2)]);
        assert_eq!(ids(&rows), [1, 2, 7, 9]);
        assert_eq!(
            cuts,
            HashMap::from([(0, 2), (2, 7)]),
            "what is due is found again by that"
        );
    }

    proptest! {
        #[test]
        fn nothing_overtakes_a_row_left_behind_and_nothing_else_is_left_out(
            claimed in prop::collection::btree_map(0..40i64, (0..3i16, any::<bool>()), 0..40),
        ) {
            let mut claim = Claim::default();
            for (id, (lane, is_dropped)) in &claimed {
                if *is_dropped {
                    claim.dropped.push(dropped(*id, *lane));
                } else {
                    claim.rows.extend(of_lane(*lane, [*id]));
                }
            }
            claim.rows.reverse();
            let (rows, cuts) = in_order(claim, &[held(0), held(1), held(2)]);
            let first_left_behind = |lane| claimed.iter().find(|(_, fate)| **fate == (lane, true)).map(|(id, _)| *id);
            let expected = claimed.iter().filter(|(id, (lane, is_dropped))| {
                !is_dropped && first_left_behind(*lane).is_none_or(|first| **id < first)
            });
            prop_assert_eq!(ids(&rows), expected.map(|(id, _)| *id).collect::<Vec<_>>());
            for lane in 0..3 {
                prop_assert_eq!(cuts.get(&lane).map(|cut| cut + 1), first_left_behind(lane));
            }
        }
    }

    // ── flag_suspects ──────────────────────────────────────────────────────────────────────────

    #[test]
    fn the_first_rows_of_a_lane_the_old_ones_and_the_known_ones_are_suspect() {
        let flagged = |held: Held| {
            let mut rows = [of_lane(0, [1, 3, 5, 7]), of_lane(1, [2])].concat();
            rows.sort_by_key(|row| row.id);
            flag_suspects(&mut rows, &[held]);
            suspects(&rows)
        };
        let suspect_rows = 2;
        assert!(flagged(held(0)).is_empty());
        assert_eq!(
            flagged(Held {
                suspect_rows,
                ..held(0)
            }),
            [1, 3]
        );
        assert_eq!(
            flagged(Held {
                suspect_rows,
                ..held(1)
            }),
            [2]
        );
        let suspect_until = 5;
        assert_eq!(
            flagged(Held {
                suspect_until,
                ..held(0)
            }),
            [1, 3, 5]
        );
        let unknown = HashSet::from([3, 7]);
        assert_eq!(
            flagged(Held {
                unknown: unknown.clone(),
                ..held(0)
            }),
            [3, 7]
        );
        let both = Held {
            unknown,
            suspect_rows: 1,
            ..held(0)
        };
        assert_eq!(flagged(both), [1, 3, 7]);
    }

    // ── given_back, with_floors ────────────────────────────────────────────────────────────────

    #[test]
    fn what_goes_back_keeps_its_doubt() {
        let mut rows: Vec<Row> = (1..=4).map(row).collect();
        rows[1].suspect = true;
        let verdict = Verdict {
            published: vec![3],
            unsent: vec![1, 2],
            unknown: vec![4],
            ..Verdict::default()
        };
        let left_behind = [
            dropped(5, 0),
            Dropped {
                suspect: true,
                ..dropped(6, 0)
            },
        ];
        let back = given_back(&rows, &left_behind, &verdict);
        assert_eq!(back, [(1, false), (2, true), (5, false), (6, true), (4, true)]);
    }

    #[test]
    fn a_delayed_row_left_behind_cuts_no_lane_and_one_in_the_batch_is_cut_by_nobody() {
        let left = Dropped {
            delayed: true,
            ..dropped(2, 7)
        };
        let mut rows = of_lane(7, 10..=12);
        rows.push(delayed(of_lane(7, [30]).remove(0)));
        let claim = Claim {
            rows: rows.clone(),
            dropped: vec![left],
        };
        let (sent, cuts) = in_order(claim, &[held(7)]);
        assert_eq!((ids(&sent), cuts.get(&7)), (vec![10, 11, 12, 30], None));
        let claim = Claim {
            rows,
            dropped: vec![left, dropped(12, 7)],
        };
        let (sent, cuts) = in_order(claim, &[held(7)]);
        assert_eq!((ids(&sent), cuts.get(&7)), (vec![10, 11, 30], Some(&11)));
    }

    #[test]
    fn a_hold_remembers_the_floor_of_its_own_lane() {
        let holds = [hold(1, ""), hold(0, "k:k"), hold(7, "")];
        let floors = [Held { floor: 10, ..held(0) }, Held { floor: 20, ..held(1) }];
        let [one, two, stray] = holds.clone();
        assert_eq!(with_floors(&holds, &floors), [(one, 20), (two, 10), (stray, 0)]);
    }

    // ── see_lane ───────────────────────────────────────────────────────────────────────────────

    #[test]
    fn a_lane_whose_rows_are_all_published_has_nothing_left() {
        let rows = [of_lane(0, [1, 2]), of_lane(1, [3])].concat();
        let verdict = Verdict {
            published: vec![1, 2, 3],
            ..Verdict::default()
        };
        let settled = Settled {
            hard: 4,
            soft: 5,
            generation: 6,
        };
        let seen = see_lane(&held(0), &rows, &HashMap::from([(1, 3)]), settled, &verdict);
        assert_eq!(seen.sight, Some(Sight::of_everything(settled)));
        assert_eq!((seen.lane, seen.rows, seen.highest_id), (0, 2, 2));
        assert_eq!(seen.published, [1, 2]);
        assert!(!seen.full && !seen.holds_added && seen.pause.is_none() && seen.unknown.is_empty());
        let cut = see_lane(&held(1), &rows, &HashMap::from([(1, 3)]), settled, &verdict);
        assert!(cut.full);
        assert_eq!((cut.lane, cut.published), (1, vec![3]));
        assert_eq!(cut.sight.and_then(|sight| sight.cut_at), Some(3));
    }

    #[test]
    fn the_lowest_row_left_is_one_that_no_hold_no_due_time_and_no_dead_letter_accounts_for() {
        let mut rows = of_lane(0, 1..=7);
        rows[2] = delayed(row(3));
        rows[3].key = Some("held".into());
        let verdict = Verdict {
            published: vec![1],
            refused: vec![refusal(2, true), refusal(5, false)],
            unsent: vec![3, 4, 6, 7],
            holds: vec![hold(0, "k:held")],
            ..Verdict::default()
        };
        let seen = see(&held(0), &rows, &verdict);
        assert_eq!(seen.sight.and_then(|sight| sight.lowest_left), Some(5));
        assert!(seen.holds_added);
        assert_eq!(seen.pause, None, "something got through");
        assert!(!see(&held(1), &rows, &verdict).holds_added);
    }

    #[test]
    fn only_a_lane_that_got_nothing_through_and_has_rows_left_takes_a_breath() {
        let rows = of_lane(0, [1]);
        let unsent = Verdict {
            unsent: vec![1],
            ..Verdict::default()
        };
        assert!(see(&held(0), &rows, &unsent).pause.is_some());
        assert_eq!(see(&held(1), &rows, &unsent).pause, None, "it had no rows");
    }

    #[test]
    fn what_may_have_landed_is_remembered_by_id() {
        let mut rows = of_lane(0, 1..=5);
        rows.iter_mut().take(3).for_each(|row| row.suspect = true);
        let verdict = Verdict {
            published: vec![1],
            refused: vec![refusal(2, true)],
            unsent: vec![3, 5],
            unknown: vec![4],
            ..Verdict::default()
        };
        assert_eq!(see(&held(0), &rows, &verdict).unknown, [3, 4]);
    }

    // ── see_keyless ────────────────────────────────────────────────────────────────────────────

    #[test]
    fn rows_without_a_lane_are_done_when_none_is_left_and_none_was_left_behind() {
        let held = HeldKeyless {
            floor: 0,
            start: 0,
            most: 3,
            suspect_until: 0,
            has_holds: false,
        };
        let rows = [row(4), row(9)];
        let published = Verdict {
            published: vec![4, 9],
            ..Verdict::default()
        };
        let done = see_keyless(&held, &rows, &[], &published);
        assert_eq!((done.lane, done.rows, done.highest_id), (KEYLESS, 2, 9));
        assert!(done.sight.is_some() && done.pause.is_none());
        assert!(!done.full && !done.overweight && !done.holds_added);
        let heavy = see_keyless(&held, &rows, &[dropped(10, KEYLESS)], &published);
        assert!(heavy.full && heavy.overweight && heavy.sight.is_none() && heavy.pause.is_none());
        let parked = Verdict {
            unsent: vec![4, 9],
            holds: vec![hold(KEYLESS, "")],
            ..Verdict::default()
        };
        let stuck = see_keyless(&held, &rows, &[], &parked);
        assert!(stuck.holds_added && stuck.sight.is_none() && stuck.pause.is_some());
        let partly = Verdict {
            published: vec![4],
            unsent: vec![9],
            ..Verdict::default()
        };
        let partly = see_keyless(&held, &rows, &[], &partly);
        assert!(partly.sight.is_none() && partly.pause.is_none());
        assert_eq!(see_keyless(&held, &[], &[], &Verdict::default()).highest_id, 0);
    }

    // ── a lane from batch to batch ─────────────────────────────────────────────────────────────

    /// A lane taken from somebody who died with rows in flight.
    struct Inherited {
        lanes: Lanes,
        term: Term,
    }

    impl Inherited {
        fn with(suspect_rows: i32) -> Self {
            let (lanes, term) = owning_suspect(1, suspect_rows);
            Inherited { lanes, term }
        }

        fn checkout(&self) -> Held {
            let appetite = Appetite {
                rows: 1000,
                tasks: 1,
                lease_left: Duration::ZERO,
            };
            let work = std::iter::repeat_with(|| self.lanes.checkout(&appetite).expect("ready").work);
            let mut held = work.filter_map(|work| match work {
                Work::Lanes(held) => held.into_iter().next(),
                Work::Keyless(_) => None,
            });
            held.next().expect("the lane")
        }

        /// One batch of these rows, of which these are not sent. Answers which were flagged.
        fn relay(&self, ids: &[i64], unsent: &[i64]) -> Vec<i64> {
            let held = self.checkout();
            let mut rows = of_lane(0, ids.iter().copied());
            flag_suspects(&mut rows, std::slice::from_ref(&held));
            let (unsent, published) = ids.iter().partition(|id| unsent.contains(id));
            let verdict = Verdict {
                published,
                unsent,
                ..Verdict::default()
            };
            let seen = Seen {
                pause: None,
                ..see(&held, &rows, &verdict)
            };
            self.lanes.checkin(&self.term, vec![seen]);
            suspects(&rows)
        }
    }

    #[test]
    fn a_suspect_row_kept_back_is_still_flagged_when_later_ones_are_published() {
        let lane = Inherited::with(3);
        assert_eq!(lane.relay(&[1, 2, 3, 4, 5, 6], &[1]), [1, 2, 3]);
        assert_eq!(lane.relay(&[1, 7], &[1]), [1]);
        assert_eq!(lane.relay(&[1, 8], &[]), [1]);
    }

    #[test]
    fn however_often_a_suspect_row_is_tried_it_counts_once() {
        let lane = Inherited::with(4);
        for _ in 0..5 {
            assert_eq!(lane.relay(&[1, 2], &[1, 2]), [1, 2]);
        }
        assert_eq!(lane.relay(&[1, 2, 3], &[1]), [1, 2, 3]);
        assert_eq!(lane.relay(&[1, 4, 5], &[1]), [1, 4]);
    }

    proptest! {
        /// Windows grow and shrink, rows are sent or not: what the last owner may have sent, its oldest rows, is flagged
        /// each time, and no other row ever.
        #[test]
        fn the_rows_of_the_last_owner_are_flagged_until_they_are_published(
            suspect_rows in 0..12i64,
            batches in prop::collection::vec((1..8usize, prop::collection::vec(any::<bool>(), 8)), 1..20),
        ) {
            let lane = Inherited::with(suspect_rows as i32);
            let mut pending: Vec<i64> = (1..=200).collect();
            for (window, sent) in batches {
                let claimed = pending[..window].to_vec();
                // Something is left in any case: a lane that has nothing is not claimed from again.
                let unsent: Vec<i64> = claimed.iter().zip(sent).filter(|(id, sent)| !sent || **id == 1).map(|(id, _)| *id).collect();
                let flagged = lane.relay(&claimed, &unsent);
                let expected: Vec<i64> = claimed.iter().copied().filter(|id| *id <= suspect_rows).collect();
                prop_assert_eq!(flagged, expected);
                pending.retain(|id| !claimed.contains(id) || unsent.contains(id));
            }
        }
    }
}
