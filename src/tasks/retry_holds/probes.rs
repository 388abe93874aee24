//! Topics and partitions that take nothing. Whatever number of lanes one is held in, one row is sent there at a time, with
//! little time for its answer: if Kafka takes it, all lanes of this process release what they hold back for it, and if not,
//! all wait.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::change::HoldChange;
use super::{AFTER_ERROR, IDLE_WAIT, PAUSE_MIN, RetryHolds};
use crate::boottime::BootInstant;
use crate::domain::decision::{Decision, HoldFate};
use crate::domain::hold::{Hold, HoldRelease};
use crate::domain::retry::Event;
use crate::domain::row::{Row, UNORDERED_LANE};
use crate::kafka::Deadlines;
use crate::lanes::{Record, Term};
use crate::metrics;
use crate::outbox::Result;

/// How many topics and partitions are probed at the same time, and how many more among the unordered rows: enough that one
/// that recovered is probed although many give no answer.
const PROBES_AT_ONCE: usize = 8;
const UNORDERED_AT_ONCE: usize = 2;
/// The most rows that are published by probes and not marked yet.
pub const IN_FLIGHT_MAX: usize = PROBES_AT_ONCE + UNORDERED_AT_ONCE;
/// The longest that a probe waits for its answer, unless the batch deadline is shorter.
const PROBE_DEADLINE: Duration = Duration::from_secs(2);
/// How many lanes are released at the same time.
const RELEASES_AT_ONCE: usize = 2;
/// Connections: one for each lane that is released. Probes use one for a moment before and after they wait.
pub const CONNECTIONS: usize = RELEASES_AT_ONCE + 2;

/// What is probed: a topic, and the unit of its holds.
type Name = (String, String);

/// A topic or partition that takes records again, and whom to tell when every lane has released it.
struct Recovered {
    name: Name,
    released: oneshot::Sender<()>,
}

/// What is to be probed now, and how long to wait for the next.
struct Due {
    term: Term,
    /// One of each topic or partition.
    holds: Vec<Hold>,
    wait: Duration,
}

impl RetryHolds {
    /// Probes what is due until `draining`; probes under way are finished.
    pub(super) async fn probe_paused(&self, draining: &CancellationToken) {
        let (fixed, to_release) = mpsc::channel(PROBES_AT_ONCE);
        tokio::join!(self.probe_all(fixed, draining), self.release_fixed(to_release));
    }

    async fn probe_all(&self, fixed: mpsc::Sender<Recovered>, draining: &CancellationToken) {
        let mut probes = FuturesUnordered::new();
        let mut under_way: Vec<Hold> = Vec::new();
        while !draining.is_cancelled() {
            let wait = match self.due_probes(&under_way).await {
                Ok(Some(due)) => {
                    probes.extend(due.holds.iter().map(|hold| self.probe(due.term, hold.clone(), &fixed)));
                    under_way.extend(due.holds);
                    due.wait
                }
                Ok(None) => IDLE_WAIT,
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
    async fn due_probes(&self, under_way: &[Hold]) -> Result<Option<Due>> {
        if !self.lanes.has_holds() {
            self.publisher.end_probes();
        }
        let term = self.lanes.live_term(self.settings.lease_needed());
        let Some(term) = term.filter(|_| self.lanes.has_holds() && !self.publisher.is_paused()) else {
            return Ok(None);
        };
        let unordered = under_way.iter().filter(|hold| hold.lane == UNORDERED_LANE).count();
        // As many more as are under way already.
        let paused = self.outbox.due_probes(&term, PROBES_AT_ONCE + under_way.len()).await?;
        let is_new = |hold: &&Hold| !under_way.iter().any(|other| name(other) == name(hold));
        let due = paused.iter().filter(is_new).filter(|hold| hold.wait <= 0.0);
        let room = PROBES_AT_ONCE.saturating_sub(under_way.len() - unordered);
        let mut holds: Vec<Hold> = due.take(room).cloned().collect();
        let tried: Vec<Name> = under_way.iter().chain(&holds).map(name).collect();
        let room = UNORDERED_AT_ONCE.saturating_sub(unordered);
        let reserve = self.settings.lease;
        holds.extend(
            self.outbox
                .reserve_unordered_probes(&term, reserve, &tried, room)
                .await?,
        );
        let waits = paused.iter().map(|hold| hold.wait).filter(|wait| *wait > 0.0);
        let next = Duration::from_secs_f64(waits.fold(IDLE_WAIT.as_secs_f64(), f64::min));
        Ok(Some(Due {
            term,
            holds,
            wait: next.max(PAUSE_MIN),
        }))
    }

    /// One probe, to its end: written down, and all lanes released where it was taken. Answers what it was of.
    async fn probe(&self, term: Term, hold: Hold, fixed: &mpsc::Sender<Recovered>) -> Name {
        let name = name(&hold);
        let tried = match hold.lane {
            UNORDERED_LANE => self.probe_unordered(&term, &hold).await,
            _ => self.probe_lane(&term, &hold).await,
        };
        let written = match tried {
            Ok(ProbeResult::Accepted) => {
                info!(topic = hold.topic, unit = hold.unit, "it takes records again");
                release_others(&name, fixed).await;
                Ok(())
            }
            Ok(ProbeResult::StillDown { wait, reason }) => self.outbox.postpone_unit(&term, &hold, &reason, wait).await,
            Ok(ProbeResult::Gone) => {
                // Another lane's turn, but not at once, should there be none.
                sleep(PAUSE_MIN).await;
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
    async fn probe_lane(&self, term: &Term, hold: &Hold) -> Result<ProbeResult> {
        // What Kafka has had since before the pause says nothing of what is paused now.
        let not_of = self.lanes.acknowledged_of(hold.lane);
        let head = self.outbox.read_head(hold, &not_of).await?;
        let live = self.lanes.live_term(self.settings.lease_needed());
        let Some(live) = live.filter(|live| live.worker == term.worker) else {
            return Ok(ProbeResult::Gone);
        };
        // Closed when what became of it is written: meanwhile the lane is not handed over.
        if !self.lanes.open_head(live.worker, hold.lane) {
            return Ok(ProbeResult::Gone);
        }
        let probed = self.probe_with(&live, hold, head).await;
        self.lanes.close_heads(live.worker, hold.lane, 1);
        probed
    }

    async fn probe_with(&self, live: &Term, hold: &Hold, head: Option<Row>) -> Result<ProbeResult> {
        let Some(mut row) = head else {
            // What others keep back is tried from there.
            let decision = self.decide(hold, Event::RowGone, true);
            let change = HoldChange::new(hold.clone(), None, decision).map(|change| (change, None));
            self.change(live, hold.lane, change.into_iter().collect()).await;
            return Ok(ProbeResult::Gone);
        };
        row.possible_duplicate = self.lanes.may_have_been_sent(hold.lane, row.id);
        let Some(record) = self.record_head(live, &row).await? else {
            return Ok(ProbeResult::Gone);
        };
        // Deadlines its release is written: should we have to leave meanwhile, the next owner must be told.
        self.lanes.remember_maybe_sent_id(hold.lane, row.id);
        let decision = self.send_probe(hold, &row, live.ends).await;
        self.head_answered(hold.lane, &row, &decision).await;
        if let HoldFate::PostponeAll { wait, reason } = decision.hold {
            if row.possible_duplicate || decision.row.is_certainly_not_sent() {
                // Otherwise the record stays: it is what a successor knows of the doubt.
                self.discard_record(live, hold.lane, record).await?;
            }
            return Ok(ProbeResult::StillDown { wait, reason });
        }
        let change = HoldChange::new(hold.clone(), Some(row.id), decision).map(|change| (change, Some(record)));
        self.change(live, hold.lane, change.into_iter().collect()).await;
        Ok(ProbeResult::Accepted)
    }

    /// Nothing of it is in doubt that was not so before.
    async fn discard_record(&self, live: &Term, lane: i16, record: Record) -> Result<()> {
        let Some(epoch) = self.lanes.epoch(lane) else {
            return Ok(());
        };
        self.outbox.mark_lanes(live, &[(lane, epoch)], &[], &[record]).await?;
        self.lanes.entries_done(&[record]);
        Ok(())
    }

    pub(super) async fn send_probe(&self, hold: &Hold, row: &Row, lease_end: BootInstant) -> Decision {
        let began = Instant::now();
        metrics::possible_duplicates(usize::from(row.possible_duplicate));
        let Deadlines { handed_over, answered } = self.settings.until(began, lease_end.left());
        let soon = began + PROBE_DEADLINE;
        let until = Deadlines {
            handed_over: handed_over.min(soon),
            answered: answered.min(soon),
        };
        let outcome = self.publisher.probe(row, until).await;
        self.answered(hold, row, &outcome, began)
    }

    /// Releases what takes records again, in all lanes that hold it back: lane by lane, each with one transaction for all
    /// that recovered meanwhile, since a lane walks again after each release.
    async fn release_fixed(&self, mut fixed: mpsc::Receiver<Recovered>) {
        let mut together = Vec::new();
        while fixed.recv_many(&mut together, PROBES_AT_ONCE).await > 0 {
            let (names, waiting): (Vec<Name>, Vec<_>) = together
                .drain(..)
                .map(|Recovered { name, released }| (name, released))
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
        let holds = match self.outbox.holds_of_units(term, names).await {
            Ok(holds) => holds,
            Err(error) => {
                metrics::database_error();
                warn!(%error, "cannot read what was paused; trying again");
                return;
            }
        };
        let mut lanes: BTreeMap<i16, Vec<Hold>> = BTreeMap::new();
        for hold in holds {
            lanes.entry(hold.lane).or_default().push(hold);
        }
        stream::iter(lanes)
            .for_each_concurrent(RELEASES_AT_ONCE, async |(lane, holds)| {
                if lane == UNORDERED_LANE {
                    self.release_all_unordered(term, &holds).await;
                    return;
                }
                let released = holds
                    .into_iter()
                    .map(|hold| (HoldChange::Release(HoldRelease::of(hold)), None));
                self.change(term, lane, released.collect()).await;
            })
            .await;
    }
}

/// What became of a probe.
pub(super) enum ProbeResult {
    /// It takes records again: all others that hold it back release it.
    Accepted,
    /// It takes nothing still.
    StillDown { wait: Duration, reason: String },
    /// There was nothing to try it with, or it is no longer ours.
    Gone,
}

/// And waits until they are: meanwhile they need no probe of their own.
async fn release_others(name: &Name, fixed: &mpsc::Sender<Recovered>) {
    let (released, done) = oneshot::channel();
    let name = name.clone();
    // Whoever releases does so until we are gone.
    if fixed.send(Recovered { name, released }).await.is_ok() {
        let _ = done.await;
    }
}

fn name(hold: &Hold) -> Name {
    (hold.topic.clone(), hold.unit.clone())
}
