//! Probes topics and partitions that accept nothing. However many lanes hold one, only one row is sent there at a time, with a
//! short deadline. If Kafka accepts it, all lanes of this process release their holds for it, and if not, all postpone them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::keys::by_lane;
use super::{AFTER_ERROR, IDLE_WAIT, PAUSE_MIN, RetryHolds, Tried};
use crate::domain::decision::HoldFate;
use crate::domain::hold::{Hold, HoldChange};
use crate::domain::in_flight::InFlightEntry;
use crate::domain::lease::Term;
use crate::domain::pause::Pauses;
use crate::domain::row::UNORDERED_LANE;
use crate::kafka::Deadlines;
use crate::metrics;
use crate::outbox::Result;

/// How many topics and partitions are probed at the same time. It is enough that one that has recovered is probed although many
/// others do not answer.
const PROBES_AT_ONCE: usize = 8;
/// How many more are probed for unordered rows.
const UNORDERED_AT_ONCE: usize = 2;
/// Most rows that probes have published and that are not marked yet.
pub const IN_FLIGHT_MAX: usize = PROBES_AT_ONCE + UNORDERED_AT_ONCE;
/// Longest wait of a probe for its answer. A shorter batch deadline goes first.
const PROBE_DEADLINE: Duration = Duration::from_secs(2);
/// How many lanes are released at the same time.
const RELEASES_AT_ONCE: usize = 2;
/// One connection for each lane that is released, and two for the probes, which use them only before and after they wait.
pub const CONNECTIONS: usize = RELEASES_AT_ONCE + 2;

/// What a probe is for: a topic, and the unit of its holds.
type TopicUnit = (String, String);

/// A topic or partition that accepts records again, and what is notified when all lanes have released it.
type Recovered = (TopicUnit, oneshot::Sender<()>);

/// The probes to send now.
struct DueProbes {
    term: Term,
    /// By which they were chosen. Each probe obeys them.
    pauses: Arc<Pauses>,
    /// One hold of each topic or partition.
    holds: Vec<Hold>,
    /// How long to wait before the next ones.
    wait: Duration,
}

impl RetryHolds {
    /// Sends probes that are due until `draining`, and finishes those that are in flight.
    pub(super) async fn probe_paused(&self, draining: &CancellationToken) {
        let (recovered, to_release) = mpsc::channel(PROBES_AT_ONCE);
        tokio::join!(self.probe_all(recovered, draining), self.release_recovered(to_release));
    }

    async fn probe_all(&self, recovered: mpsc::Sender<Recovered>, draining: &CancellationToken) {
        let mut probes = FuturesUnordered::new();
        let mut probing: Vec<Hold> = Vec::new();
        while !draining.is_cancelled() {
            let wait = match self.due_probes(&probing).await {
                Ok(Some(due)) => {
                    let probe = |hold: &Hold| self.probe(due.term, hold.clone(), due.pauses.clone(), &recovered);
                    probes.extend(due.holds.iter().map(probe));
                    probing.extend(due.holds);
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
                Some(done) = probes.next(), if !probes.is_empty() => probing.retain(|hold| topic_unit(hold) != done),
                () = sleep(wait) => {}
                () = draining.cancelled() => {}
            }
        }
        while probes.next().await.is_some() {}
    }

    /// The probes to send now, besides those in flight. `None` if none may be sent.
    async fn due_probes(&self, probing: &[Hold]) -> Result<Option<DueProbes>> {
        if !self.lanes.holds().exist() {
            self.publisher.end_probes();
        }
        let pauses = self.lanes.pauses.current();
        let may_send = self.lanes.holds().exist() && !self.publisher.is_paused() && !pauses.cover_everything();
        let term = self.lanes.live_term(self.settings.lease_needed());
        let Some(term) = term.filter(|_| may_send) else {
            return Ok(None);
        };
        let unordered = probing.iter().filter(|hold| hold.lane == UNORDERED_LANE).count();
        // Holds whose probe is in flight are read, too.
        let most = PROBES_AT_ONCE + probing.len();
        let paused = self.outbox.due_probes(&term, most, &pauses).await?;
        let is_new = |hold: &&Hold| !probing.iter().any(|other| topic_unit(other) == topic_unit(hold));
        let due = paused.iter().filter(is_new).filter(|hold| hold.wait <= 0.0);
        let room = PROBES_AT_ONCE.saturating_sub(probing.len() - unordered);
        let mut holds: Vec<Hold> = due.take(room).cloned().collect();
        let excluded: Vec<TopicUnit> = probing.iter().chain(&holds).map(topic_unit).collect();
        let room = UNORDERED_AT_ONCE.saturating_sub(unordered);
        let reserve = self.settings.lease;
        let reserved = self
            .outbox
            .reserve_unordered_probes(&term, reserve, &excluded, room, &pauses);
        holds.extend(reserved.await?);
        let waits = paused.iter().map(|hold| hold.wait).filter(|wait| *wait > 0.0);
        let next = Duration::from_secs_f64(waits.fold(IDLE_WAIT.as_secs_f64(), f64::min));
        Ok(Some(DueProbes {
            term,
            pauses,
            holds,
            wait: next.max(PAUSE_MIN),
        }))
    }

    /// Sends one probe, writes its outcome, and waits until all lanes are released if it was accepted. Returns what it was for.
    async fn probe(
        &self,
        term: Term,
        hold: Hold,
        pauses: Arc<Pauses>,
        recovered: &mpsc::Sender<Recovered>,
    ) -> TopicUnit {
        let topic_unit = topic_unit(&hold);
        let result = match hold.lane {
            UNORDERED_LANE => self.probe_unordered(&term, &hold, &pauses).await,
            _ => self.probe_lane(&term, &hold, &pauses).await,
        };
        // It is sent, and what follows may take long.
        drop(pauses);
        let written = match result {
            Ok(Some(HoldFate::PostponeAll { wait, reason })) => {
                self.outbox.postpone_unit(&term, &hold, &reason, wait).await
            }
            Ok(Some(_)) => {
                info!(topic = hold.topic, unit = hold.unit, "it takes records again");
                // No more probes are needed until the other lanes are released, too.
                let (released, done) = oneshot::channel();
                // The receiver lives until the last probe has ended.
                if recovered.send((topic_unit.clone(), released)).await.is_ok() {
                    let _ = done.await;
                }
                Ok(())
            }
            Ok(None) => {
                // The hold of another lane is next. If there is none, this must not become a busy loop.
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
        topic_unit
    }

    /// Probes with the oldest row that the hold of one lane keeps back. Returns what becomes of the hold, or `None` if there was no
    /// row to send or this process lost the lane.
    async fn probe_lane(&self, term: &Term, hold: &Hold, pauses: &Arc<Pauses>) -> Result<Option<HoldFate>> {
        let Some(tried) = self.try_head(term, hold, pauses).await? else {
            return Ok(None);
        };
        let result = self.write_probe(term, hold, tried).await;
        self.lanes.holds().close_heads(term.worker, hold.lane, 1);
        result
    }

    /// Writes what became of a probe.
    async fn write_probe(&self, term: &Term, hold: &Hold, tried: Tried) -> Result<Option<HoldFate>> {
        let Tried { decision, sent } = tried;
        let (fate, is_unsent) = (decision.hold.clone(), decision.row.is_certainly_not_sent());
        if let Some(change) = HoldChange::new(hold.clone(), sent.as_ref(), decision) {
            self.change(term, hold.lane, vec![change]).await;
        } else if let Some((row, entry)) = &sent
            && (row.possible_duplicate || is_unsent)
        {
            // Otherwise the entry stays, because it tells a successor that the row may have been sent.
            self.discard_entry(term, hold.lane, *entry).await?;
        }
        // A hold that keeps nothing back is released without a probe. Other lanes send their own.
        Ok(sent.map(|_| fate))
    }

    /// Deletes the in-flight entry of a row for which this attempt has changed nothing.
    async fn discard_entry(&self, live: &Term, lane: i16, entry: InFlightEntry) -> Result<()> {
        let Some(epoch) = self.lanes.ownership().epoch(lane) else {
            return Ok(());
        };
        self.outbox.mark_lanes(live, &[(lane, epoch)], &[], &[entry]).await?;
        self.lanes.in_flight.done(&[entry]);
        Ok(())
    }

    /// Releases recovered topics and partitions in all lanes. Each lane has one transaction for all that have recovered
    /// meanwhile, because it scans again after each release.
    async fn release_recovered(&self, mut recovered: mpsc::Receiver<Recovered>) {
        let mut group = Vec::new();
        while recovered.recv_many(&mut group, PROBES_AT_ONCE).await > 0 {
            let (units, notify): (Vec<TopicUnit>, Vec<_>) = group.drain(..).unzip();
            if let Some(term) = self.lanes.term() {
                self.release_in_all_lanes(&term, &units).await;
            }
            for released in notify {
                // The receiver may be gone if the process is stopping.
                let _ = released.send(());
            }
        }
    }

    async fn release_in_all_lanes(&self, term: &Term, units: &[TopicUnit]) {
        let holds = match self.outbox.holds_of_units(term, units).await {
            Ok(holds) => holds,
            Err(error) => {
                metrics::database_error();
                warn!(%error, "cannot read what was paused; trying again");
                return;
            }
        };
        stream::iter(by_lane(holds.into_iter()))
            .for_each_concurrent(RELEASES_AT_ONCE, async |(lane, holds)| match lane {
                UNORDERED_LANE => self.release_all_unordered(term, &holds).await,
                _ => {
                    let changes = holds.into_iter().map(HoldChange::release).collect();
                    self.change(term, lane, changes).await;
                }
            })
            .await;
    }
}

/// The deadlines of a probe that began at this moment.
pub(super) fn deadlines(began: Instant, until: Deadlines) -> Deadlines {
    let soon = began + PROBE_DEADLINE;
    Deadlines {
        handed_over: until.handed_over.min(soon),
        answered: until.answered.min(soon),
    }
}

fn topic_unit(hold: &Hold) -> TopicUnit {
    (hold.topic.clone(), hold.unit.clone())
}
