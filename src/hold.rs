//! Held keys, paused partitions and parked topics: tried again when their time has come, released when Kafka takes the row.
//!
//! Heads of refused keys are tried here; topics and partitions that take nothing are probed beside that, in `probe`, so that nobody's retry waits
//! for one that gives no answer.
//!
//! A hold lives in `outbox.hold`, so that a successor finds what a floor has passed. Its head is sent alone, in
//! quarantine, while the lane goes on; only the change of the hold itself waits for the lane to be between batches. What is due in
//! a lane is tried, and changed, together: each change is a transaction, and after a release its lane walks again over all that was
//! published since.
//!
//! Invariant: releasing a hold, marking its head and lowering the stored floor are one transaction. A head that somebody has locked is
//! marked before, by itself: see [`crate::relay`].

mod probe;

use std::future::ready;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::boottime::BootInstant;
use crate::failpoint;
use crate::lanes::{Held, Lowered, Record, Term};
use crate::message::{KEYLESS, Outcome, Row, TopicFault};
use crate::metrics;
use crate::outbox::{Postponed, Released, Result, StoredHold};
use crate::relay::{Relay, report_held_key, report_refusal};
use crate::verdict::{OnDead, Refusal};

/// So many holds are read at once: enough that of thousands many are of one lane.
const READ_MOST: usize = 1024;
/// So many lanes have their heads sent at once, and so many heads of each.
const LANES_AT_ONCE: usize = 2;
const HEADS_AT_ONCE: usize = 2;
/// Connections that takes: for each lane its heads are read and what became of them is written.
pub const CONNECTIONS: usize = LANES_AT_ONCE * (HEADS_AT_ONCE + 1) + probe::CONNECTIONS;
/// So long what has been tried of a lane waits for the rest. A head that is answered late keeps nobody longer: one that was published
/// and is not marked would be sent again after a crash.
const TOGETHER: Duration = Duration::from_millis(250);
/// No more than so many are written at a time.
const TOGETHER_MOST: usize = 64;
/// So many heads may be published and not marked: written together, handed over, or on their way.
pub const IN_FLIGHT_MOST: usize = LANES_AT_ONCE * (TOGETHER_MOST + 1 + HEADS_AT_ONCE) + probe::IN_FLIGHT_MOST;
/// Without holds, look whether one has come this often.
const IDLE_LOOK: Duration = Duration::from_millis(500);
/// The shortest pause between two rounds.
const PAUSE_LEAST: Duration = Duration::from_millis(50);
const NO_ANSWER: &str = "no answer from Kafka";
const LOCKED: &str = "another transaction has locked its row";

impl Relay {
    /// Retries what is due until `draining`.
    pub async fn retry_holds(&self, draining: &CancellationToken) {
        tokio::join!(self.retry_keys(draining), self.probe_paused(draining));
    }

    async fn retry_keys(&self, draining: &CancellationToken) {
        while !draining.is_cancelled() {
            let wait = match self.retry_due(draining).await {
                Ok(wait) => wait,
                Err(error) => {
                    metrics::database_error();
                    warn!(%error, "cannot retry what is held; trying again");
                    Duration::from_secs(1)
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
            return Ok(IDLE_LOOK);
        }
        let Some(term) = self.lanes.live_term(self.settings.lease_needed()) else {
            return Ok(IDLE_LOOK);
        };
        let holds = self.outbox.holds(&term, READ_MOST).await?;
        let lanes = by_lane(holds.iter().filter(|hold| hold.wait <= 0.0).cloned());
        let round = Round { term, draining };
        stream::iter(lanes)
            .for_each_concurrent(LANES_AT_ONCE, async |holds| self.retry_lane(&round, holds).await)
            .await;
        Ok(wait_for_next(&holds))
    }

    /// What is due in one lane.
    async fn retry_lane(&self, round: &Round<'_>, holds: Vec<StoredHold>) {
        let Some(lane) = holds.first().map(|hold| hold.lane) else {
            return;
        };
        let (done, tried) = mpsc::channel(1);
        // Side by side: who waits for an answer holds what others wait for, and they what a change waits for.
        tokio::join!(
            self.try_heads(round, holds, done),
            self.change_all(&round.term, lane, tried)
        );
    }

    async fn try_heads(&self, round: &Round<'_>, holds: Vec<StoredHold>, done: mpsc::Sender<Recorded>) {
        let may_go = |_: &StoredHold| ready(!round.draining.is_cancelled() && !self.publisher.is_paused());
        stream::iter(holds)
            .filter(may_go)
            .for_each_concurrent(HEADS_AT_ONCE, async |hold| {
                let topic = hold.topic.clone();
                match self.retry(round, hold).await {
                    Ok(None) => {}
                    Ok(Some(tried)) => {
                        // Whoever listens does so until we are gone.
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
                while together.len() < TOGETHER_MOST
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

    /// `None`: somebody else's by now.
    async fn retry(&self, round: &Round<'_>, hold: StoredHold) -> Result<Option<Recorded>> {
        // Asked before the row is read: once it is marked, nobody remembers that Kafka has it.
        let acknowledged = self.lanes.acknowledged_of(hold.lane);
        let head = self.outbox.hold_head(&hold, &[]).await?;
        // The round may have lasted, and the lane have gone, meanwhile: nothing is sent without a lease that outlasts it.
        let live = self.lanes.live_term(self.settings.lease_needed());
        let Some(live) = live.filter(|live| live.worker == round.term.worker) else {
            return Ok(None);
        };
        // Closed when what became of it is written: meanwhile the lane is not handed over.
        if !self.lanes.open_head(live.worker, hold.lane) {
            return Ok(None);
        }
        let Some(mut row) = head else {
            // The row was removed, redriven or discarded: nothing to wait for.
            return Ok(Some((let_go(hold, None, None), None)));
        };
        if acknowledged.contains(&row.id) {
            // Its mark is a matter of its own, and the hold goes when that is written.
            return Ok(Some((Tried::Postponed(self.later(hold, LOCKED)), None)));
        }
        row.suspect = self.lanes.is_suspect_head(hold.lane, row.id);
        let record = match self.record_head(&live, &row).await {
            Ok(Some(record)) => record,
            other => {
                self.lanes.close_heads(live.worker, hold.lane, 1);
                return other.map(|_| None);
            }
        };
        // Until its release is written: should we have to leave meanwhile, the next owner must be told.
        self.lanes.remember_unknown(hold.lane, row.id);
        let outcome = self.send_head(&row, live.ends).await;
        self.head_answered(hold.lane, &row, &outcome).await;
        Ok(Some((self.judge(hold, &row, outcome), Some(record))))
    }

    /// Writes down which head is about to be sent. `None`: not now, since the lane has changed meanwhile.
    async fn record_head(&self, live: &Term, row: &Row) -> Result<Option<Record>> {
        let lane = row.lane.unwrap_or(KEYLESS);
        match self.lanes.epoch(lane) {
            Some(epoch) => self.record(live, &[(lane, epoch)], std::slice::from_ref(row)).await,
            None => Ok(None),
        }
    }

    /// Nothing of it is in doubt that was not so before.
    async fn discard_record(&self, live: &Term, lane: i16, record: Record) -> Result<()> {
        let Some(epoch) = self.lanes.epoch(lane) else {
            return Ok(());
        };
        self.outbox.mark_lanes(live, &[(lane, epoch)], &[], &[record]).await?;
        self.lanes.settled_records(&[record]);
        Ok(())
    }

    async fn send_head(&self, row: &Row, lease_end: BootInstant) -> Outcome {
        let began = Instant::now();
        metrics::possible_duplicates(usize::from(row.suspect));
        let outcome = self
            .publisher
            .send_head(row, self.settings.until(began, lease_end.left()))
            .await;
        self.note_silence(row, &outcome, began);
        if outcome == Outcome::Acked {
            self.published.remember(std::iter::once(row));
        }
        outcome
    }

    /// Nothing was acknowledged lately, so this silence may be all of Kafka's; otherwise it is the partition's own.
    fn note_silence(&self, row: &Row, outcome: &Outcome, began: Instant) {
        let Outcome::Sick {
            fault: TopicFault::Transient,
            partition,
            reason,
            ..
        } = outcome
        else {
            return;
        };
        if !self.publisher.answered_since(began - Duration::from_secs(1)) {
            self.publisher.pause(reason, &row.topic);
        } else if let Some(partition) = partition {
            self.publisher.pause_partition(&row.topic, *partition, reason);
        }
    }

    /// What was sent beside the batches of its lane need not be remembered any longer if it is certainly not there.
    async fn head_answered(&self, lane: i16, row: &Row, outcome: &Outcome) {
        failpoint::hit("after_head").await;
        if certainly_not_there(outcome) && !row.suspect {
            self.lanes.forget_unknown(lane, row.id);
        }
    }

    fn judge(&self, hold: StoredHold, row: &Row, outcome: Outcome) -> Tried {
        let policy = &self.settings.policy;
        match outcome {
            Outcome::Acked => let_go(hold, Some(row.id), None),
            Outcome::Refused { reason } => {
                let refusal = policy.refusal(row, &reason);
                if refusal.dead && policy.on_dead == OnDead::Continue {
                    return let_go(hold, None, Some(refusal));
                }
                if hold.failures == 0 {
                    report_held_key(&hold.topic, &hold.unit, Some(row.id), &reason);
                }
                Tried::Postponed(Postponed {
                    hold,
                    reason,
                    wait: (!refusal.dead).then_some(refusal.wait),
                    refused: Some(refusal),
                })
            }
            Outcome::Sick { reason, .. } | Outcome::PutOff { reason } => Tried::Postponed(self.later(hold, &reason)),
            Outcome::Unsent | Outcome::Unknown => Tried::Postponed(self.later(hold, NO_ANSWER)),
        }
    }

    fn later(&self, hold: StoredHold, reason: &str) -> Postponed {
        Postponed {
            wait: Some(self.probe_wait(&hold)),
            hold,
            reason: reason.to_owned(),
            refused: None,
        }
    }

    fn probe_wait(&self, hold: &StoredHold) -> Duration {
        self.settings.policy.probe_wait(hold.failures.unsigned_abs() + 1)
    }

    /// Writes what became of holds, between two batches of their lane.
    async fn change(&self, term: &Term, lane: i16, tried: Vec<Recorded>) {
        let Some((term, held)) = self.lane_between_batches(term, lane).await else {
            return;
        };
        failpoint::hit("before_change").await;
        let (mut released, mut postponed) = (Vec::new(), Vec::new());
        for (tried, record) in tried {
            match tried {
                Tried::Released(hold) => released.push((hold, record)),
                Tried::Postponed(hold) => postponed.push((hold, record)),
            }
        }
        // A release raises the epoch, so it comes last.
        let changed = self.postpone(&term, &held, postponed).await && self.release(&term, &held, released).await;
        if !changed {
            // Or the answer to a release was lost, and we no longer know the lane: a new term reads it again. Ended before the lane is
            // given back, or somebody claims from where it stood.
            self.fenced(&term, 0);
        }
        self.lanes.put_back(&term, &[held]);
    }

    /// False: fenced.
    async fn postpone(&self, term: &Term, held: &Held, postponed: Vec<(Postponed, Option<Record>)>) -> bool {
        let (mut holds, records) = with_records(postponed);
        while !holds.is_empty() {
            // Heads of which a copy may be there are known by id, and go on to be when their records are gone.
            let suspects = self.lanes.doubts_to_store(held.lane);
            let lane = (held.lane, held.epoch);
            let write = || async {
                let written = self
                    .outbox
                    .postpone_holds(term, lane, &holds, &records, &suspects)
                    .await?;
                Ok(written.then_some(()))
            };
            let written = self.unless_locked(term, write).await;
            if !matches!(written, Some(None)) {
                let refused = holds.iter().filter_map(|later| later.refused.as_ref());
                refused.for_each(report_refusal);
            }
            match written {
                None => return false,
                Some(Some(())) => {
                    self.lanes.settled_records(&records);
                    self.lanes.suspects_stored(term.worker, suspects);
                    return true;
                }
                Some(None) => {
                    let refused = holds.iter().filter_map(|later| later.refused.as_ref());
                    let heads: Vec<i64> = refused.map(|refusal| refusal.id).collect();
                    let Some(locked) = self.locked(term, &heads).await else {
                        return false;
                    };
                    // Their refusal is not counted: they are tried again.
                    let is_locked = |refusal: &Refusal| locked.contains(&refusal.id);
                    for later in holds
                        .iter_mut()
                        .filter(|later| later.refused.as_ref().is_some_and(is_locked))
                    {
                        *later = self.later(later.hold.clone(), LOCKED);
                    }
                }
            }
        }
        true
    }

    /// False: fenced. Where somebody else has locked heads, their holds are put away, and the others released without them.
    async fn release(&self, term: &Term, held: &Held, mut released: Vec<(Released, Option<Record>)>) -> bool {
        while !released.is_empty() {
            let (holds, records) = with_records(released.clone());
            let write = || self.outbox.release_holds(term, held.lane, held.epoch, &holds, &records);
            let written = self.unless_locked(term, write).await;
            if !matches!(written, Some(None)) {
                let refused = holds.iter().filter_map(|released| released.refused.as_ref());
                refused.for_each(report_refusal);
            }
            match written {
                None => return false,
                Some(Some(lowered)) => {
                    self.lanes.settled_records(&records);
                    failpoint::hit("after_release").await;
                    self.released(term, held.lane, lowered, &holds).await;
                    return true;
                }
                Some(None) => {
                    let heads: Vec<i64> = holds.iter().filter_map(Released::head).collect();
                    let Some(locked) = self.locked(term, &heads).await else {
                        return false;
                    };
                    let is_locked = |(one, _): &mut (Released, _)| one.head().is_some_and(|id| locked.contains(&id));
                    let waiting = released.extract_if(.., is_locked).collect();
                    if !self.postpone_locked(term, held, waiting).await {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// What became of these heads is written when they are free.
    async fn postpone_locked(&self, term: &Term, held: &Held, waiting: Vec<(Released, Option<Record>)>) -> bool {
        let published = waiting.iter().filter_map(|(released, _)| released.published);
        metrics::rows_published(published.clone().count());
        published.for_each(|id| self.lanes.remember_acknowledged(term.worker, held.lane, id));
        let later = |(released, record): (Released, _)| (self.later(released.hold, LOCKED), record);
        self.postpone(term, held, waiting.into_iter().map(later).collect())
            .await
    }

    async fn released(&self, term: &Term, lane: i16, lowered: Lowered, released: &[Released]) {
        let published = released.iter().filter_map(|released| released.published);
        let count = published.clone().count();
        metrics::rows_published(count);
        metrics::rows_marked(count as u64);
        published.for_each(|id| self.lanes.forget_unknown(lane, id));
        // Unless we know which are left, assume that all are: it costs a little reading.
        let held_topics = self.outbox.held_topics(lane).await.ok();
        self.lanes.lower_floor(term, lane, lowered, held_topics);
        // Of what is paused in many lanes it is said once.
        for Released { hold, .. } in released.iter().filter(|released| released.hold.head_id.is_some()) {
            info!(topic = hold.topic, unit = hold.unit, "released: its rows flow again");
        }
    }

    async fn lane_between_batches(&self, term: &Term, lane: i16) -> Option<(Term, Held)> {
        loop {
            let changed = self.lanes.changed();
            let current = self.lanes.term()?;
            if current.worker != term.worker || !self.lanes.owns(lane) {
                return None;
            }
            if let Some(checkout) = self.lanes.checkout_one(lane, crate::relay::MARK_MARGIN) {
                return Some(checkout);
            }
            tokio::select! {
                () = changed => {}
                () = sleep(Duration::from_millis(50)) => {}
            }
        }
    }
}

/// What all tries of a round share.
struct Round<'a> {
    term: Term,
    draining: &'a CancellationToken,
}

/// What is to be written about a hold, and the record of its head, where that was sent.
type Recorded = (Tried, Option<Record>);

/// Holds that are changed together, and the records that go with that.
fn with_records<T>(changes: Vec<(T, Option<Record>)>) -> (Vec<T>, Vec<Record>) {
    let (holds, records): (Vec<T>, Vec<Option<Record>>) = changes.into_iter().unzip();
    (holds, records.into_iter().flatten().collect())
}

/// What is to be written about a hold.
enum Tried {
    Released(Released),
    Postponed(Postponed),
}

fn let_go(hold: StoredHold, published: Option<i64>, refused: Option<Refusal>) -> Tried {
    Tried::Released(Released {
        hold,
        published,
        refused,
    })
}

fn wait_for_next(holds: &[StoredHold]) -> Duration {
    if holds.len() == READ_MOST && holds.iter().all(|hold| hold.wait <= 0.0) {
        // More may be due than were read.
        return PAUSE_LEAST;
    }
    let waits = holds.iter().map(|hold| hold.wait).filter(|wait| *wait > 0.0);
    Duration::from_secs_f64(waits.fold(1.0, f64::min)).max(PAUSE_LEAST)
}

/// Lanes in the order of their first hold: whoever has waited longest is tried first, with all others of its lane.
fn by_lane(holds: impl Iterator<Item = StoredHold>) -> Vec<Vec<StoredHold>> {
    let mut lanes: Vec<Vec<StoredHold>> = Vec::new();
    for hold in holds {
        match lanes.iter_mut().find(|lane| lane[0].lane == hold.lane) {
            Some(lane) => lane.push(hold),
            None => lanes.push(vec![hold]),
        }
    }
    lanes
}

fn certainly_not_there(outcome: &Outcome) -> bool {
    *outcome != Outcome::Acked && !may_have_landed(outcome)
}

fn may_have_landed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Unknown | Outcome::Sick { maybe_landed: true, .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(lane: i16, failures: i32, wait: f64) -> StoredHold {
        StoredHold {
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
        assert_eq!(wait_for_next(&[hold(0, 1, 0.001)]), PAUSE_LEAST);
        let mut many = vec![hold(0, 1, -1.0); READ_MOST];
        assert_eq!(wait_for_next(&many), PAUSE_LEAST, "there may be more than were read");
        many[READ_MOST - 1].wait = 0.75;
        assert_eq!(wait_for_next(&many), Duration::from_millis(750), "all that are due were read");
    }
}
