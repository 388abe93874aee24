//! Topics and partitions that take nothing. Whatever number of lanes one is held in, one row is sent there at a time, with little time for its
//! answer: if Kafka takes it, all lanes of this process let go, and if not, all wait.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{IDLE_LOOK, NO_ANSWER, PAUSE_LEAST, certainly_not_there, let_go, may_have_landed};
use crate::boottime::BootInstant;
use crate::domain::delivery::{Outcome, TopicFault};
use crate::domain::row::{KEYLESS, Row};
use crate::failpoint;
use crate::kafka::Until;
use crate::lanes::{Term, Unmarked};
use crate::metrics;
use crate::outbox::{Free, KeylessSettlement, Result, StoredHold};
use crate::relay::{Relay, report_refusal};
use crate::verdict::Refusal;

/// So many topics and partitions are probed at once, and so many more with rows without a lane: a fixed one has its turn although many
/// give no answer.
const PROBES_AT_ONCE: usize = 8;
const KEYLESS_AT_ONCE: usize = 2;
/// So many rows may be published by probes and not yet marked.
pub const IN_FLIGHT_MOST: usize = PROBES_AT_ONCE + KEYLESS_AT_ONCE;
/// A probe waits so long for its answer, or for the batch deadline where that is shorter.
const PROBE_DEADLINE: Duration = Duration::from_secs(2);
/// So many lanes are released at once.
const RELEASES_AT_ONCE: usize = 2;
/// Connections that takes. Probes use one for a moment before and after they wait.
pub const CONNECTIONS: usize = RELEASES_AT_ONCE + 2;

/// After an error of the database, before the same is tried again.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// What is probed: a topic, and the unit of its holds.
type Name = (String, String);

/// What takes records again, and whom to tell when every lane has let go of it.
struct Fixed {
    name: Name,
    released: oneshot::Sender<()>,
}

/// What is to be probed now, and how long to wait for the next.
struct Due {
    term: Term,
    /// One of each topic or partition.
    holds: Vec<StoredHold>,
    wait: Duration,
}

impl Relay {
    /// Probes what is due until `draining`; probes under way are finished.
    pub(super) async fn probe_paused(&self, draining: &CancellationToken) {
        let (fixed, to_release) = mpsc::channel(PROBES_AT_ONCE);
        tokio::join!(self.probe_all(fixed, draining), self.release_fixed(to_release));
    }

    async fn probe_all(&self, fixed: mpsc::Sender<Fixed>, draining: &CancellationToken) {
        let mut probes = FuturesUnordered::new();
        let mut under_way: Vec<StoredHold> = Vec::new();
        while !draining.is_cancelled() {
            let wait = match self.due_probes(&under_way).await {
                Ok(Some(due)) => {
                    probes.extend(due.holds.iter().map(|hold| self.probe(due.term, hold.clone(), &fixed)));
                    under_way.extend(due.holds);
                    due.wait
                }
                Ok(None) => IDLE_LOOK,
                Err(error) => {
                    metrics::database_error();
                    warn!(%error, "cannot read what is paused; trying again");
                    AFTER_ERROR
                }
            };
            tokio::select! {
                Some(done) = probes.next(), if !probes.is_empty() => under_way.retain(|hold| name(hold) != done),
                () = sleep(wait) => {}
                () = draining.cancelled() => {}
            }
        }
        while probes.next().await.is_some() {}
    }

    /// What is to be probed now. `None`: nothing can be.
    async fn due_probes(&self, under_way: &[StoredHold]) -> Result<Option<Due>> {
        if !self.lanes.has_holds() {
            self.publisher.end_probes();
        }
        let term = self.lanes.live_term(self.settings.lease_needed());
        let Some(term) = term.filter(|_| self.lanes.has_holds() && !self.publisher.is_paused()) else {
            return Ok(None);
        };
        let keyless = under_way.iter().filter(|hold| hold.lane == KEYLESS).count();
        // As many more as are under way already.
        let paused = self.outbox.paused(&term, PROBES_AT_ONCE + under_way.len()).await?;
        let is_new = |hold: &&StoredHold| !under_way.iter().any(|other| name(other) == name(hold));
        let due = paused.iter().filter(is_new).filter(|hold| hold.wait <= 0.0);
        let room = PROBES_AT_ONCE.saturating_sub(under_way.len() - keyless);
        let mut holds: Vec<StoredHold> = due.take(room).cloned().collect();
        let tried: Vec<Name> = under_way.iter().chain(&holds).map(name).collect();
        let room = KEYLESS_AT_ONCE.saturating_sub(keyless);
        let reserve = self.settings.lease;
        holds.extend(self.outbox.holds_keyless(&term, reserve, &tried, room).await?);
        let waits = paused.iter().map(|hold| hold.wait).filter(|wait| *wait > 0.0);
        let next = Duration::from_secs_f64(waits.fold(IDLE_LOOK.as_secs_f64(), f64::min));
        Ok(Some(Due {
            term,
            holds,
            wait: next.max(PAUSE_LEAST),
        }))
    }

    /// One probe, to its end: written down, and all lanes released where it was taken. Answers what it was of.
    async fn probe(&self, term: Term, hold: StoredHold, fixed: &mpsc::Sender<Fixed>) -> Name {
        let name = name(&hold);
        let tried = match hold.lane {
            KEYLESS => self.probe_keyless(&term, &hold).await,
            _ => self.probe_lane(&term, &hold).await,
        };
        let written = match tried {
            Ok(Probed::Fixed) => {
                info!(topic = hold.topic, unit = hold.unit, "it takes records again");
                release_others(&name, fixed).await;
                Ok(())
            }
            Ok(Probed::Silent(reason)) => {
                let wait = self.probe_wait(&hold);
                self.outbox.postpone_paused(&term, &hold, &reason, wait).await
            }
            Ok(Probed::Gone) => {
                // Another lane's turn, but not at once, should there be none.
                sleep(PAUSE_LEAST).await;
                Ok(())
            }
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            metrics::database_error();
            warn!(%error, topic = hold.topic, "cannot probe what is paused; trying again");
            sleep(AFTER_ERROR).await;
        }
        name
    }

    /// With the oldest row that one lane keeps back.
    async fn probe_lane(&self, term: &Term, hold: &StoredHold) -> Result<Probed> {
        // What Kafka has had since before the pause says nothing of what is paused now.
        let not_of = self.lanes.acknowledged_of(hold.lane);
        let head = self.outbox.hold_head(hold, &not_of).await?;
        let live = self.lanes.live_term(self.settings.lease_needed());
        let Some(live) = live.filter(|live| live.worker == term.worker) else {
            return Ok(Probed::Gone);
        };
        // Closed when what became of it is written: meanwhile the lane is not handed over.
        if !self.lanes.open_head(live.worker, hold.lane) {
            return Ok(Probed::Gone);
        }
        let probed = self.probe_with(&live, hold, head).await;
        self.lanes.close_heads(live.worker, hold.lane, 1);
        probed
    }

    async fn probe_with(&self, live: &Term, hold: &StoredHold, head: Option<Row>) -> Result<Probed> {
        let Some(mut row) = head else {
            // Nothing to wait for in this lane; what others keep back is tried from there.
            self.change(live, hold.lane, vec![(let_go(hold.clone(), None, None), None)])
                .await;
            return Ok(Probed::Gone);
        };
        row.suspect = self.lanes.is_suspect_head(hold.lane, row.id);
        let Some(record) = self.record_head(live, &row).await? else {
            return Ok(Probed::Gone);
        };
        // Until its release is written: should we have to leave meanwhile, the next owner must be told.
        self.lanes.remember_unknown(hold.lane, row.id);
        let outcome = self.send_probe(&row, live.ends).await;
        self.head_answered(hold.lane, &row, &outcome).await;
        if let Some(reason) = still_silent(hold, &outcome) {
            if row.suspect || certainly_not_there(&outcome) {
                // Otherwise the record stays: it is what a successor knows of the doubt.
                self.discard_record(live, hold.lane, record).await?;
            }
            return Ok(Probed::Silent(reason));
        }
        let published = (outcome == Outcome::Acked).then_some(row.id);
        self.change(
            live,
            hold.lane,
            vec![(let_go(hold.clone(), published, None), Some(record))],
        )
        .await;
        Ok(Probed::Fixed)
    }

    async fn send_probe(&self, row: &Row, lease_end: BootInstant) -> Outcome {
        let began = Instant::now();
        metrics::possible_duplicates(usize::from(row.suspect));
        let Until { handed_over, answered } = self.settings.until(began, lease_end.left());
        let soon = began + PROBE_DEADLINE;
        let until = Until {
            handed_over: handed_over.min(soon),
            answered: answered.min(soon),
        };
        let outcome = self.publisher.probe(row, until).await;
        // A partition that gives no answer says nothing of Kafka as a whole: the topic was looked up just before.
        if let Outcome::Sick {
            fault: TopicFault::Transient,
            partition: None,
            reason,
            ..
        } = &outcome
            && !self.publisher.answered_since(began - Duration::from_secs(1))
        {
            self.publisher.pause(reason, &row.topic);
        }
        if outcome == Outcome::Acked {
            self.published.remember(std::iter::once(row));
        }
        outcome
    }

    /// Lets go of what takes records again, in all lanes that hold it back: lane by lane, each with one transaction for all that was fixed
    /// meanwhile, since a lane walks again after each release.
    async fn release_fixed(&self, mut fixed: mpsc::Receiver<Fixed>) {
        let mut together = Vec::new();
        while fixed.recv_many(&mut together, PROBES_AT_ONCE).await > 0 {
            let (names, waiting): (Vec<Name>, Vec<_>) = together
                .drain(..)
                .map(|Fixed { name, released }| (name, released))
                .unzip();
            if let Some(term) = self.lanes.term() {
                self.release_everywhere(&term, &names).await;
            }
            for released in waiting {
                // Whoever waited may be gone with the process.
                let _ = released.send(());
            }
        }
    }

    async fn release_everywhere(&self, term: &Term, names: &[Name]) {
        let holds = match self.outbox.paused_as(term, names).await {
            Ok(holds) => holds,
            Err(error) => {
                metrics::database_error();
                warn!(%error, "cannot read what was paused; trying again");
                return;
            }
        };
        let mut lanes: BTreeMap<i16, Vec<StoredHold>> = BTreeMap::new();
        for hold in holds {
            lanes.entry(hold.lane).or_default().push(hold);
        }
        stream::iter(lanes)
            .for_each_concurrent(RELEASES_AT_ONCE, async |(lane, holds)| {
                if lane == KEYLESS {
                    self.release_all_keyless(term, &holds).await;
                    return;
                }
                let released = holds.into_iter().map(|hold| (let_go(hold, None, None), None)).collect();
                self.change(term, lane, released).await;
            })
            .await;
    }

    // ── rows without a lane ────────────────────────────────────────────────────────────────────

    async fn probe_keyless(&self, term: &Term, hold: &StoredHold) -> Result<Probed> {
        let began = BootInstant::now();
        let Some((claim, mut row)) = self.claim_head(term, hold).await? else {
            self.release_keyless(term, hold, None).await?;
            return Ok(Probed::Gone);
        };
        if began.elapsed() + self.settings.lease_needed() > self.settings.lease {
            // It could arrive after somebody else has taken the row over.
            let suspect: Vec<i64> = row.suspect.then_some(row.id).into_iter().collect();
            self.give_back(term, claim, None, &suspect).await?;
            return Ok(Probed::Silent("PostgreSQL answered too late".to_owned()));
        }
        row.suspect |= self.lanes.is_suspect_head(KEYLESS, row.id);
        let outcome = self.send_probe(&row, began + self.settings.lease).await;
        failpoint::hit("after_head").await;
        if outcome == Outcome::Acked {
            self.release_published(term, hold, claim, row.id).await?;
            return Ok(Probed::Fixed);
        }
        let refusal = self.keyless_refusal(&row, &outcome);
        let suspect: Vec<i64> = (row.suspect || may_have_landed(&outcome))
            .then_some(row.id)
            .into_iter()
            .collect();
        match self.give_back(term, claim, refusal.as_ref(), &suspect).await {
            // Somebody else has locked its row: the refusal is not counted, and the row is tried again.
            Err(error) if error.is_locked() => self.give_back(term, claim, None, &suspect).await?,
            given => given?,
        }
        if let Some(reason) = still_silent(hold, &outcome) {
            return Ok(Probed::Silent(reason));
        }
        self.release_keyless(term, hold, None).await?;
        Ok(Probed::Fixed)
    }

    /// Kafka has taken the head of a hold.
    async fn release_published(&self, term: &Term, hold: &StoredHold, claim: i64, id: i64) -> Result<()> {
        match self.release_keyless(term, hold, Some((claim, id))).await {
            Err(error) if error.is_locked() => {}
            released => return released,
        }
        // Somebody else has locked its row: that is marked later, and keeps no other waiting.
        let (ids, claimed) = (vec![id], Instant::now());
        let settled = KeylessSettlement {
            unmarked: &ids,
            ..KeylessSettlement::default()
        };
        let lease = self.settings.lease;
        self.outbox.settle_keyless(term, claim, &settled, lease).await?;
        self.remember_unmarked(term, Unmarked { claim, ids, claimed });
        self.release_keyless(term, hold, None).await
    }

    async fn give_back(&self, term: &Term, claim: i64, refusal: Option<&Refusal>, suspect: &[i64]) -> Result<()> {
        let is_dead = refusal.is_some_and(|refusal| refusal.dead);
        let settled = KeylessSettlement {
            refused: refusal.map(std::slice::from_ref).unwrap_or_default(),
            suspect: if is_dead { &[] } else { suspect },
            ..KeylessSettlement::default()
        };
        let lease = self.settings.lease;
        self.outbox.settle_keyless(term, claim, &settled, lease).await?;
        refusal.into_iter().for_each(report_refusal);
        Ok(())
    }

    /// The oldest row that a hold keeps back, claimed like any other. `None`: it has none that is free.
    async fn claim_head(&self, term: &Term, hold: &StoredHold) -> Result<Option<(i64, Row)>> {
        let free = Free {
            claims_from: self.lanes.claims_from(),
            start: hold.resume_floor,
            upto: None,
            most: 1,
            most_in_all: 1,
            of_hold: Some(hold),
            skip_held: true,
        };
        let claimed = self.claim_free(term, &free, self.settings.bytes_per_task()).await?;
        let Some((claim, mut claimed)) = claimed else {
            return Ok(None);
        };
        let Some(row) = claimed.rows.pop() else {
            self.outbox.mark_keyless(term, claim, &[]).await?;
            return Ok(None);
        };
        Ok(Some((claim, row)))
    }

    fn keyless_refusal(&self, row: &Row, outcome: &Outcome) -> Option<Refusal> {
        let Outcome::Refused { reason } = outcome else {
            return None;
        };
        Some(self.settings.policy.refusal(row, reason))
    }

    async fn release_all_keyless(&self, term: &Term, holds: &[StoredHold]) {
        for hold in holds {
            if let Err(error) = self.release_keyless(term, hold, None).await {
                metrics::database_error();
                warn!(%error, topic = hold.topic, "cannot release rows without a key; trying again");
            }
        }
    }

    async fn release_keyless(&self, term: &Term, hold: &StoredHold, published: Option<(i64, i64)>) -> Result<()> {
        self.outbox.release_hold_keyless(term, hold, published).await?;
        if published.is_some() {
            metrics::rows_published(1);
            metrics::rows_marked(1);
        }
        if let Some(stored) = self.outbox.keyless(term.incarnation).await? {
            self.lanes.keyless_read(term.worker, stored);
        }
        Ok(())
    }
}

/// What became of a probe.
enum Probed {
    /// It takes records again: whoever else holds it back lets go.
    Fixed,
    /// It takes nothing still.
    Silent(String),
    /// There was nothing to try it with, or it is no longer ours.
    Gone,
}

/// And waits until they are: meanwhile they need no probe of their own.
async fn release_others(name: &Name, fixed: &mpsc::Sender<Fixed>) {
    let (released, done) = oneshot::channel();
    let name = name.clone();
    // Whoever releases does so until we are gone.
    if fixed.send(Fixed { name, released }).await.is_ok() {
        let _ = done.await;
    }
}

fn name(hold: &StoredHold) -> Name {
    (hold.topic.clone(), hold.unit.clone())
}

/// Why it stays paused. `None`: it takes records, though perhaps not this one, which its lane finds out and holds its key for; likewise, a
/// topic of which one partition takes nothing is no longer to be held as a whole.
fn still_silent(hold: &StoredHold, outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Acked | Outcome::Refused { .. } => None,
        Outcome::Sick { partition: Some(_), .. } if hold.unit.is_empty() => None,
        Outcome::Sick { reason, .. } | Outcome::PutOff { reason } => Some(reason.clone()),
        Outcome::Unsent | Outcome::Unknown => Some(NO_ANSWER.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::partition::Partition;

    fn hold(unit: &str) -> StoredHold {
        StoredHold {
            lane: 0,
            topic: "orders".to_owned(),
            unit: unit.to_owned(),
            head_id: None,
            resume_floor: 0,
            failures: 1,
            wait: 0.0,
        }
    }

    #[test]
    fn what_takes_a_record_or_refuses_only_that_one_is_fixed() {
        let sick = |partition| Outcome::Sick {
            fault: TopicFault::Transient,
            partition,
            reason: "no leader".to_owned(),
            maybe_landed: false,
        };
        let refused = Outcome::Refused {
            reason: "too large".to_owned(),
        };
        let partition = Some(Partition { number: 3, of: 12 });
        for unit in ["", "s:3/12"] {
            assert_eq!(still_silent(&hold(unit), &Outcome::Acked), None);
            assert_eq!(still_silent(&hold(unit), &refused), None);
            assert!(still_silent(&hold(unit), &sick(None)).is_some());
            assert!(still_silent(&hold(unit), &Outcome::Unknown).is_some());
        }
        assert_eq!(still_silent(&hold(""), &sick(partition)), None, "the topic is there");
        assert!(still_silent(&hold("s:3/12"), &sick(partition)).is_some());
    }
}
