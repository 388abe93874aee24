//! Held keys and parked topics: tried again when their time has come, released when Kafka takes the row.
//!
//! A hold lives in `outbox.hold`, so that a successor finds what a floor has passed. Its head is sent alone, in
//! quarantine, while the lane goes on; only the change of the hold itself waits for the lane to be between batches.
//!
//! Invariant: releasing a hold, marking its head and lowering the stored floor are one transaction.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::failpoint;
use crate::lanes::{Held, Lowered, Share, Term};
use crate::message::{KEYLESS, Outcome, Row, TopicFault};
use crate::metrics;
use crate::outbox::{Free, Result, StoredHold};
use crate::relay::{Relay, report_held_key, report_refusal};
use crate::verdict::{OnDead, Refusal};

/// So many holds are read at once, and so many heads sent at once.
const READ_MOST: usize = 256;
pub const AT_ONCE: usize = 4;
/// A sick topic is looked at at least this often: it should flow again soon after it is mended.
const TOPIC_WAIT_MAX: Duration = Duration::from_secs(5);
/// Without holds, look whether one has come this often.
const IDLE_LOOK: Duration = Duration::from_millis(500);

impl Relay {
    /// Retries what is due until `draining`.
    pub async fn retry_holds(&self, draining: &CancellationToken) {
        while !draining.is_cancelled() {
            let wait = match self.retry_due().await {
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
    async fn retry_due(&self) -> Result<Duration> {
        if !self.lanes.has_holds() || self.publisher.is_paused() {
            return Ok(IDLE_LOOK);
        }
        let Some(term) = self.lanes.live_term(self.settings.lease_needed()) else {
            return Ok(IDLE_LOOK);
        };
        let holds = self.outbox.holds(&term, READ_MOST).await?;
        let reserve = self.settings.lease;
        let keyless = self.outbox.holds_keyless(&term, reserve).await?;
        let next = holds
            .iter()
            .map(|hold| hold.wait)
            .filter(|wait| *wait > 0.0)
            // What was never tried does not wait for its turn any longer than it must.
            .chain(holds.iter().any(|hold| hold.failures == 0).then_some(0.0))
            .fold(1.0, f64::min);
        let due = holds.into_iter().filter(|hold| hold.wait <= 0.0).chain(keyless);
        futures_util::stream::iter(due)
            .for_each_concurrent(AT_ONCE, async |hold| {
                if let Err(error) = self.retry(&term, &hold).await {
                    metrics::database_error();
                    warn!(%error, topic = hold.topic, "cannot retry a hold; trying again");
                }
            })
            .await;
        Ok(Duration::from_secs_f64(next.clamp(0.05, 1.0)))
    }

    async fn retry(&self, term: &Term, hold: &StoredHold) -> Result<()> {
        if hold.lane == KEYLESS {
            return self.retry_keyless(term, hold).await;
        }
        let head = self.outbox.hold_head(hold).await?;
        // The round may have lasted, and the lane have gone, meanwhile: nothing is sent without a lease that outlasts it.
        let live = self.lanes.live_term(self.settings.lease_needed());
        let Some(live) = live.filter(|live| live.worker == term.worker && self.lanes.owns(hold.lane)) else {
            return Ok(());
        };
        let Some(mut row) = head else {
            // The row was removed, redriven or discarded: nothing to wait for.
            return self
                .change(
                    term,
                    hold,
                    Change::Release {
                        published: None,
                        refused: None,
                    },
                )
                .await;
        };
        row.suspect = self.lanes.is_suspect_head(hold.lane, row.id);
        // Until its release is written: should we have to leave meanwhile, the next owner must be told.
        self.lanes.remember_unknown(hold.lane, row.id);
        let outcome = self.send_head(&row, live.ends).await;
        failpoint::hit("after_head").await;
        if certainly_not_there(&outcome) && !row.suspect {
            self.lanes.forget_unknown(hold.lane, row.id);
        }
        self.change(term, hold, self.change_for(hold, &row, outcome)).await
    }

    async fn send_head(&self, row: &Row, lease_end: Instant) -> Outcome {
        let began = Instant::now();
        metrics::possible_duplicates(usize::from(row.suspect));
        let outcome = self.publisher.probe(row, self.settings.until(began, lease_end)).await;
        if let Outcome::Sick {
            fault: TopicFault::Transient,
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

    fn change_for(&self, hold: &StoredHold, row: &Row, outcome: Outcome) -> Change {
        let policy = &self.settings.policy;
        match outcome {
            Outcome::Acked => Change::Release {
                published: Some(row.id),
                refused: None,
            },
            // The topic takes records, only not this one: it is the lane's to find that out and hold its key.
            Outcome::Refused { .. } if hold.unit.is_empty() => Change::Release {
                published: None,
                refused: None,
            },
            Outcome::Refused { reason } => {
                let refusal = policy.refusal(row, &reason);
                report_refusal(&refusal);
                if refusal.dead && policy.on_dead == OnDead::Continue {
                    return Change::Release {
                        published: None,
                        refused: Some(refusal),
                    };
                }
                if hold.failures == 0 {
                    report_held_key(&hold.topic, &hold.unit, Some(row.id), &reason);
                }
                Change::Postpone {
                    reason,
                    wait: (!refusal.dead).then_some(refusal.wait),
                    refused: Some(refusal),
                }
            }
            Outcome::Sick { reason, .. } | Outcome::PutOff { reason } => self.later(hold, reason),
            Outcome::Unsent | Outcome::Unknown => self.later(hold, "no answer from Kafka".to_owned()),
        }
    }

    fn later(&self, hold: &StoredHold, reason: String) -> Change {
        Change::Postpone {
            reason,
            wait: Some(self.topic_wait(hold)),
            refused: None,
        }
    }

    fn topic_wait(&self, hold: &StoredHold) -> Duration {
        let failures = hold.failures.unsigned_abs() + 1;
        self.settings.policy.backoff(failures).min(TOPIC_WAIT_MAX)
    }

    /// Writes a change of a hold, between two batches of its lane.
    async fn change(&self, term: &Term, hold: &StoredHold, change: Change) -> Result<()> {
        let Some((term, held)) = self.lane_between_batches(term, hold.lane).await else {
            return Ok(());
        };
        failpoint::hit("before_change").await;
        let changed = self
            .while_term_lasts(&term, || async {
                self.change_checked_out(&term, held.epoch, hold, &change)
                    .await
                    .map(Some)
            })
            .await;
        if changed != Some(true) {
            // Or the answer to a release was lost, and we no longer know the lane: a new term reads it again. Ended before the lane is
            // given back, or somebody claims from where it stood.
            self.fenced(&term, 0);
        }
        self.lanes.put_back(&term, &[held]);
        Ok(())
    }

    async fn change_checked_out(&self, term: &Term, epoch: i64, hold: &StoredHold, change: &Change) -> Result<bool> {
        match change {
            Change::Release { published, refused } => {
                let refused: Vec<_> = refused.iter().cloned().collect();
                let released = self
                    .outbox
                    .release_hold(term, epoch, hold, *published, &refused)
                    .await?;
                let Some(lowered) = released else { return Ok(false) };
                failpoint::hit("after_release").await;
                self.released(term, hold, lowered, *published).await;
                Ok(true)
            }
            Change::Postpone { reason, wait, refused } => {
                let refused: Vec<_> = refused.iter().cloned().collect();
                self.outbox
                    .postpone_hold(term, epoch, hold, reason, *wait, &refused)
                    .await
            }
        }
    }

    async fn released(&self, term: &Term, hold: &StoredHold, lowered: Lowered, published: Option<i64>) {
        if let Some(id) = published {
            metrics::rows_published(1);
            metrics::rows_marked(1);
            self.lanes.forget_unknown(hold.lane, id);
        }
        // Unless we know which are left, assume that all are: it costs a little reading.
        let held_topics = self.outbox.held_topics(hold.lane).await.ok();
        self.lanes.lower_floor(term, hold.lane, lowered, held_topics);
        info!(topic = hold.topic, unit = hold.unit, "released: its rows flow again");
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

    // ── topics parked among rows without a lane ────────────────────────────────────────────────

    async fn retry_keyless(&self, term: &Term, hold: &StoredHold) -> Result<()> {
        let began = Instant::now();
        let Some((claim, mut row)) = self.claim_topic_head(term, hold).await? else {
            return self.release_keyless(term, hold, None).await;
        };
        if began.elapsed() + self.settings.lease_needed() > self.settings.lease {
            // It could arrive after somebody else has taken the row over.
            let suspect: Vec<i64> = row.suspect.then_some(row.id).into_iter().collect();
            self.outbox.settle_keyless(term, claim, &[], &[], &suspect, &[]).await?;
            return self.postpone_keyless(hold, "PostgreSQL answered too late").await;
        }
        row.suspect |= self.lanes.is_suspect_head(KEYLESS, row.id);
        let outcome = self.send_head(&row, began + self.settings.lease).await;
        if outcome == Outcome::Acked {
            return self.release_keyless(term, hold, Some((claim, row.id))).await;
        }
        let refused = self.keyless_refusal(&row, &outcome);
        let is_suspect = row.suspect || may_have_landed(&outcome);
        let is_dead = refused.iter().any(|refusal| refusal.dead);
        let suspect: Vec<i64> = (is_suspect && !is_dead).then_some(row.id).into_iter().collect();
        self.outbox
            .settle_keyless(term, claim, &[], &refused, &suspect, &[])
            .await?;
        match outcome {
            // The topic takes records, only not this one.
            Outcome::Refused { .. } => self.release_keyless(term, hold, None).await,
            Outcome::Sick { reason, .. } => self.postpone_keyless(hold, &reason).await,
            _ => self.postpone_keyless(hold, "no answer from Kafka").await,
        }
    }

    /// The oldest row of a parked topic, claimed like any other. `None`: it has none that is free.
    async fn claim_topic_head(&self, term: &Term, hold: &StoredHold) -> Result<Option<(i64, Row)>> {
        let free = Free {
            claims_from: self.lanes.claims_from(),
            start: hold.resume_floor,
            most: 1,
            most_in_all: 1,
            topic: Some(&hold.topic),
            skip_held: false,
            share: Share::ALL,
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

    async fn postpone_keyless(&self, hold: &StoredHold, reason: &str) -> Result<()> {
        let wait = self.topic_wait(hold);
        self.outbox.postpone_hold_keyless(hold, reason, wait).await
    }

    fn keyless_refusal(&self, row: &Row, outcome: &Outcome) -> Vec<Refusal> {
        let Outcome::Refused { reason } = outcome else {
            return Vec::new();
        };
        let refusal = self.settings.policy.refusal(row, reason);
        report_refusal(&refusal);
        vec![refusal]
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
        info!(topic = hold.topic, "released: its rows without a key flow again");
        Ok(())
    }
}

/// What is to be written about a hold.
enum Change {
    Release {
        published: Option<i64>,
        refused: Option<Refusal>,
    },
    Postpone {
        reason: String,
        /// `None`: until an operator acts.
        wait: Option<Duration>,
        refused: Option<Refusal>,
    },
}

fn certainly_not_there(outcome: &Outcome) -> bool {
    *outcome != Outcome::Acked && !may_have_landed(outcome)
}

fn may_have_landed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Unknown | Outcome::Sick { maybe_landed: true, .. })
}
