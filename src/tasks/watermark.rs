//! The task that moves the horizon: see `domain::watermark` for the rules. The gap between floor and tail triggers it, because every claim reads that
//! gap again. The floor of the unordered rows follows here, too.
//!
//! While rows come in, the task asks the database who writes for every [`GAP_WORTH`] ids, or every [`GAP_SOME`] if they come more slowly.
//! It asks twice if a writer is under way at that moment, because the first answer settles no more than what was drawn before the last
//! question. So at 1,000 rows a second it asks ten to twenty times a second. It spends at most a twentieth of its time on that, or asks
//! again a second after a slow answer. A process whose own lanes get nothing asks when a poll has to walk over too many rows of other lanes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::{error, warn};

use super::Shutdown;
use crate::domain::floor::ScanResult;
use crate::domain::watermark::{Sequence, WatermarkTracker};
use crate::jitter::jittered;
use crate::lanes::{Lanes, Term, UnorderedScan};
use crate::metrics;
use crate::outbox::{Error, Outbox, Result, WriterIdentity};

/// A gap of so many ids is worth closing at once; a smaller one after a while.
const GAP_WORTH: i64 = 100;
const GAP_SOME: Duration = Duration::from_millis(500);
/// How often the gap is compared with these. That asks the database nothing.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// While there is no gap and no change.
const NOTHING_TO_DO: Duration = Duration::from_secs(1);
/// The unordered floor costs a query of its own; where so many rows were claimed since, claims cost more without it.
const KEYLESS_EVERY: Duration = Duration::from_millis(100);
const KEYLESS_LAG_WORTH: usize = 1000;
/// Of its time, at most one part in this many; but an answer that was long on its way must not stop floors for long.
const SHARE_OF_TIME: u32 = 20;
const REST_MAX: Duration = Duration::from_secs(1);

/// A writer that stays open longer than this is a holder: the soft horizon moves without it. It is lost in two halves: who was open
/// when the first was over, and still is when the second is, has outstayed it.
const PATIENCE: Duration = Duration::from_millis(500);
/// Rows of a holder are found at most this much after it commits.
const BYPASSED_EVERY: Duration = Duration::from_millis(50);
/// How ids are drawn is looked at this often, though floors have no reason to move.
const SEQUENCE_EVERY: Duration = Duration::from_secs(15);
/// One that has held for so long is named, and asked for again as often; the log says so more seldom.
const NAME_AFTER: Duration = Duration::from_secs(10);
const REMIND_EVERY: Duration = Duration::from_secs(60);

/// Moves the horizon of this process.
pub struct WatermarkTask {
    pub lanes: Arc<Lanes>,
    pub outbox: Arc<Outbox>,
}

impl WatermarkTask {
    /// Runs until `shutdown.draining`.
    pub async fn run(&self, shutdown: &Shutdown) {
        let mut progress = Progress::new(&self.lanes, &self.outbox);
        while !shutdown.draining.is_cancelled() {
            let changed = self.lanes.changed();
            let wait = progress.step_if_due().await;
            tokio::select! {
                () = sleep(wait.unwrap_or(NOTHING_TO_DO)) => {}
                () = changed, if wait.is_none() => {}
                () = shutdown.draining.cancelled() => return,
            }
            if wait.is_none() {
                // There was no need to move it, up to this moment.
                progress.moved_at = Instant::now();
            }
        }
    }
}

struct Progress<'a> {
    lanes: &'a Lanes,
    outbox: &'a Outbox,
    /// The hard horizon as it was last seen, and when it last moved, or had no need to.
    watermark: i64,
    moved_at: Instant,
    bypassed_at: Instant,
    /// Nobody is asked who writes before that.
    not_before: Instant,
    unordered_at: Instant,
    named_at: Option<Instant>,
    told: Option<(Instant, WriterIdentity)>,
    /// When the writers and the sequence were last looked at.
    asked_at: Option<Instant>,
    /// When it was last said that ids are not drawn one by one.
    sequence_told: Option<Instant>,
}

impl<'a> Progress<'a> {
    fn new(lanes: &'a Lanes, outbox: &'a Outbox) -> Self {
        let now = Instant::now();
        Progress {
            lanes,
            outbox,
            watermark: 0,
            moved_at: now,
            bypassed_at: now,
            not_before: now,
            unordered_at: now,
            named_at: None,
            told: None,
            asked_at: None,
            sequence_told: None,
        }
    }

    /// One step, if there is a reason for it; answers how long to wait before the next. `None`: until something changes.
    async fn step_if_due(&mut self) -> Option<Duration> {
        let term = self.lanes.term()?;
        self.note_progress();
        let has_bypassed = !self.lanes.bypassed().is_empty();
        let gap = self.lanes.gap();
        let is_due = self.asked_at.is_none_or(|at| at.elapsed() >= SEQUENCE_EVERY);
        if gap <= 0 && !has_bypassed {
            self.moved_at = Instant::now();
            self.forget_open_writer();
            if !is_due {
                return self.follow(&term).await;
            }
        } else if !is_due && gap < GAP_WORTH && !has_bypassed && self.moved_at.elapsed() < GAP_SOME {
            return self.follow(&term).await.or(Some(LOOK_EVERY));
        }
        let began = Instant::now();
        if began < self.not_before {
            return self.follow(&term).await.or(Some(LOOK_EVERY));
        }
        if let Err(error) = self.step(&term).await {
            return Some(cannot_move(&error));
        }
        self.note_progress();
        metrics::floor_age(self.moved_at.elapsed());
        self.not_before = Instant::now() + (began.elapsed() * SHARE_OF_TIME).min(REST_MAX);
        Some(if has_bypassed && gap < GAP_WORTH {
            BYPASSED_EVERY
        } else {
            LOOK_EVERY
        })
    }

    /// A claim that sees the end of a holder moves it, too.
    fn note_progress(&mut self) {
        let watermark = self.lanes.watermark().hard;
        if std::mem::replace(&mut self.watermark, watermark) == watermark {
            return;
        }
        self.moved_at = Instant::now();
        if self.lanes.bypassed().is_empty() {
            self.forget_open_writer();
        }
    }

    /// Where the horizon has no reason to move, as in a backlog that was there before, the floor of the unordered rows has still
    /// to follow what was claimed of them: at once if it is much, some time after the last of it otherwise.
    async fn follow(&mut self, term: &Term) -> Option<Duration> {
        let lag = self.lanes.unordered_lag();
        if lag == 0 || (lag < KEYLESS_LAG_WORTH && self.unordered_at.elapsed() < NOTHING_TO_DO) {
            return None;
        }
        match self.raise_unordered(term).await {
            // Reads only what was claimed since, so it may come as often as there is something.
            Ok(()) => Some(LOOK_EVERY),
            Err(error) => Some(cannot_move(&error)),
        }
    }

    async fn step(&mut self, term: &Term) -> Result<()> {
        let highest_known = self.lanes.highest_known();
        let writing = self.outbox.open_writers(term).await?;
        self.asked_at = Some(Instant::now());
        if self.lanes.is_restarted(term.worker, highest_known, &writing) {
            error!(
                highest_id = writing.highest_id,
                highest_known,
                "the id sequence was restarted while relays run: registering anew, and floors are built anew"
            );
            return Ok(());
        }
        let is_in_order = self.is_in_order(writing.sequence);
        self.lanes.update_watermark(term.worker, |tracker| {
            if is_in_order {
                tracker.observe(writing.highest_id, &writing.writers);
            }
        });
        if self.bypassed_at.elapsed() > PATIENCE / 2 {
            self.bypassed_at = Instant::now();
            self.lanes
                .update_watermark(term.worker, WatermarkTracker::bypass_old_writers);
        }
        if self.lanes.bypassed().is_empty() {
            self.forget_open_writer();
        } else {
            self.name_open_writer().await?;
        }
        if self.unordered_at.elapsed() >= KEYLESS_EVERY || self.lanes.unordered_lag() >= KEYLESS_LAG_WORTH {
            self.raise_unordered(term).await?;
        }
        Ok(())
    }

    /// Are ids drawn one by one? As long as they are not, floors stay where they are: a session may hand out a lower id at any time.
    fn is_in_order(&mut self, sequence: Sequence) -> bool {
        let is_in_order = sequence.is_in_order();
        metrics::sequence_misconfigured(!is_in_order);
        if is_in_order {
            self.sequence_told = None;
        } else if self.sequence_told.is_none_or(|at| at.elapsed() >= REMIND_EVERY) {
            self.sequence_told = Some(Instant::now());
            error!(
                cache = sequence.cache,
                increment = sequence.increment,
                "the id sequence does not draw ids one by one: rows have no order any more, and scan floors stand still. \
                 To repair it: ALTER SEQUENCE … message_id_seq INCREMENT 1 CACHE 1"
            );
        }
        is_in_order
    }

    /// Unordered rows are claimed by anyone, so their floor comes from a look at the table, not from our claims.
    async fn raise_unordered(&mut self, term: &Term) -> Result<()> {
        self.unordered_at = Instant::now();
        while self.raise_unordered_part(term).await? {}
        Ok(())
    }

    /// One walk that is not too long. True: there is more to walk over.
    async fn raise_unordered_part(&mut self, term: &Term) -> Result<bool> {
        let UnorderedScan {
            start,
            scan_end,
            watermark,
            bypassed,
            epoch,
        } = self.lanes.unordered_scan();
        if start >= watermark.soft {
            return Ok(false);
        }
        let lowest_pending = self.outbox.lowest_unordered(term, start, scan_end).await?;
        let ended = self.outbox.ended_writers(&bypassed).await?;
        if !ended.is_empty() {
            self.lanes.writers_ended(term.worker, &ended);
            return Ok(false);
        }
        let scan = ScanResult {
            watermark,
            scanned_to: scan_end,
            lowest_pending,
        };
        self.lanes.raise_unordered_floor(term.worker, epoch, scan);
        Ok(scan_end.is_some()
            && lowest_pending.is_none()
            && self.lanes.term().is_some_and(|now| now.worker == term.worker))
    }

    /// Who left a transaction open after its INSERT: for the operator, who alone can end it.
    async fn name_open_writer(&mut self) -> Result<()> {
        let held = self.moved_at.elapsed();
        if held < NAME_AFTER || self.named_at.is_some_and(|at| at.elapsed() < NAME_AFTER) {
            return Ok(());
        }
        self.named_at = Some(Instant::now());
        let Some(oldest) = self.lanes.bypassed().into_iter().min() else {
            return Ok(());
        };
        let Some(writer) = self.outbox.writer_identity(oldest).await? else {
            return Ok(());
        };
        metrics::open_writer(match writer {
            WriterIdentity::Session { pid, .. } => pid,
            WriterIdentity::Prepared { .. } => 0,
        });
        // What was a session's is nobody's once it is prepared: then another is to be told of, and another command.
        let is_told = |(at, of): &(Instant, WriterIdentity)| of == &writer && at.elapsed() < REMIND_EVERY;
        if !self.told.as_ref().is_some_and(is_told) {
            tell(&writer, held);
            self.told = Some((Instant::now(), writer));
        }
        Ok(())
    }

    fn forget_open_writer(&mut self) {
        metrics::floor_age(Duration::ZERO);
        metrics::open_writer(0);
        self.named_at = None;
    }
}

fn tell(writer: &WriterIdentity, held: Duration) {
    let seconds = held.as_secs();
    match writer {
        WriterIdentity::Session { pid, application } => warn!(
            pid,
            application,
            seconds,
            "a transaction that wrote to the outbox stays open: its rows follow when it commits; \
             the scan floor waits for it. To end it: SELECT pg_terminate_backend(pid)"
        ),
        WriterIdentity::Prepared { gid } => warn!(
            gid,
            seconds,
            "a transaction that wrote to the outbox stays prepared: its rows follow when it commits; \
             the scan floor waits for it. To end it: COMMIT PREPARED or ROLLBACK PREPARED its gid"
        ),
    }
}

fn cannot_move(error: &Error) -> Duration {
    metrics::database_error();
    warn!(%error, "cannot move the scan floor; claims read more than they need to");
    jittered(Duration::from_secs(1))
}
