//! Moves the watermark of this process by the rules of [`crate::domain::watermark`], and with it the floor of the unordered rows.
//!
//! What triggers the task is the gap between the soft watermark and the highest id claimed, because every claim reads that gap
//! again. While rows come in, the task queries the open writers for every [`GAP_URGENT`] ids, or every [`SMALL_GAP_AFTER`] if ids
//! come more slowly. If a writer is open at that moment, it takes two queries, because the first one moves the watermark no
//! further than the highest id of the query before it. At 1,000 rows a second this makes ten to twenty queries a second. A
//! process whose own lanes get no rows queries only when a poll would have to scan too many rows of other lanes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::{error, warn};

use super::Shutdown;
use crate::domain::floor::ScanResult;
use crate::domain::lease::Term;
use crate::domain::watermark::{Sequence, WatermarkTracker};
use crate::jitter::jittered;
use crate::lanes::{Lanes, UnorderedScan};
use crate::metrics;
use crate::outbox::{Error, Outbox, Result, WriterIdentity};

/// A gap of this many ids is closed at once.
const GAP_URGENT: i64 = 100;
/// A smaller gap is closed after this time.
const SMALL_GAP_AFTER: Duration = Duration::from_millis(500);
/// How often the gap is checked. This does not query the database.
const CHECK_EVERY: Duration = Duration::from_millis(5);
/// Longest wait while there is no gap and nothing changes.
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// The floor of the unordered rows needs a query of its own, so it is raised this often.
const UNORDERED_EVERY: Duration = Duration::from_millis(100);
/// It is raised at once if this many unordered rows were claimed since, because every claim reads them again.
const UNORDERED_LAG_URGENT: usize = 1000;
/// The task spends at most one part in this many of its time on queries.
const QUERY_TIME_SHARE: u32 = 20;
/// Longest pause after a slow query, so that it does not stop floors for long.
const THROTTLE_MAX: Duration = Duration::from_secs(1);

/// A writer that is open at two of these moments in a row is bypassed by the soft watermark.
const BYPASS_EVERY: Duration = Duration::from_millis(250);
/// The rows of a bypassed writer are found at most this long after it commits.
const CHECK_BYPASSED_EVERY: Duration = Duration::from_millis(50);
/// How often the sequence is checked if floors have no reason to move.
const CHECK_SEQUENCE_EVERY: Duration = Duration::from_secs(15);
/// The oldest writer is identified after it has stopped the watermark for this long, and again as often.
const IDENTIFY_EVERY: Duration = Duration::from_secs(10);
/// The same warning is logged again after this time.
const WARN_EVERY: Duration = Duration::from_secs(60);

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
                () = sleep(wait.unwrap_or(IDLE_WAIT)) => {}
                () = changed, if wait.is_none() => {}
                () = shutdown.draining.cancelled() => return,
            }
            if wait.is_none() {
                // Until now the watermark had no need to move.
                progress.moved_at = Instant::now();
            }
        }
    }
}

struct Progress<'a> {
    lanes: &'a Lanes,
    outbox: &'a Outbox,
    /// The hard watermark at the last check.
    watermark: i64,
    /// When the hard watermark last moved, or had no need to.
    moved_at: Instant,
    /// When old writers were last bypassed.
    bypassed_at: Instant,
    /// The writers are not queried again before this moment.
    not_before: Instant,
    /// When the floor of the unordered rows was last raised.
    unordered_at: Instant,
    /// When the oldest writer was last identified.
    identified_at: Option<Instant>,
    /// The writer that was last warned of, and when.
    warned: Option<(Instant, WriterIdentity)>,
    /// When the writers and the sequence were last queried.
    queried_at: Option<Instant>,
    /// When it was last logged that the sequence is out of order.
    sequence_warned_at: Option<Instant>,
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
            identified_at: None,
            warned: None,
            queried_at: None,
            sequence_warned_at: None,
        }
    }

    /// Does one step if there is a reason for it. Returns how long to wait for the next one, or `None` to wait for a change.
    async fn step_if_due(&mut self) -> Option<Duration> {
        let term = self.lanes.term()?;
        self.note_progress();
        let has_bypassed = !self.lanes.watermark().bypassed().is_empty();
        let gap = self.lanes.watermark().gap();
        let is_sequence_due = self.queried_at.is_none_or(|at| at.elapsed() >= CHECK_SEQUENCE_EVERY);
        if gap <= 0 && !has_bypassed {
            self.moved_at = Instant::now();
            self.forget_open_writer();
            if !is_sequence_due {
                return self.raise_unordered_if_due(&term).await;
            }
        } else if !is_sequence_due && gap < GAP_URGENT && !has_bypassed && self.moved_at.elapsed() < SMALL_GAP_AFTER {
            return self.raise_unordered_if_due(&term).await.or(Some(CHECK_EVERY));
        }
        let began = Instant::now();
        if began < self.not_before {
            return self.raise_unordered_if_due(&term).await.or(Some(CHECK_EVERY));
        }
        if let Err(error) = self.step(&term).await {
            return Some(cannot_move(&error));
        }
        self.note_progress();
        metrics::floor_age(self.moved_at.elapsed());
        self.not_before = Instant::now() + (began.elapsed() * QUERY_TIME_SHARE).min(THROTTLE_MAX);
        Some(if has_bypassed && gap < GAP_URGENT {
            CHECK_BYPASSED_EVERY
        } else {
            CHECK_EVERY
        })
    }

    /// Notes whether the watermark has moved. A claim that notices the end of a bypassed writer moves it, too.
    fn note_progress(&mut self) {
        let watermark = self.lanes.watermark().current().hard;
        if std::mem::replace(&mut self.watermark, watermark) == watermark {
            return;
        }
        self.moved_at = Instant::now();
        if self.lanes.watermark().bypassed().is_empty() {
            self.forget_open_writer();
        }
    }

    /// Raises the floor of the unordered rows although the watermark has no reason to move, as in an old backlog. It does so at
    /// once if many were claimed since, and otherwise after a while. Returns as [`Progress::step_if_due`].
    async fn raise_unordered_if_due(&mut self, term: &Term) -> Option<Duration> {
        let lag = self.lanes.unordered().lag();
        if lag == 0 || (lag < UNORDERED_LAG_URGENT && self.unordered_at.elapsed() < IDLE_WAIT) {
            return None;
        }
        match self.raise_unordered(term).await {
            // The query reads only what was claimed since, so it may be repeated soon.
            Ok(()) => Some(CHECK_EVERY),
            Err(error) => Some(cannot_move(&error)),
        }
    }

    async fn step(&mut self, term: &Term) -> Result<()> {
        let highest_known = self.lanes.watermark().highest_known();
        let writing = self.outbox.open_writers(term).await?;
        self.queried_at = Some(Instant::now());
        if self
            .lanes
            .watermark()
            .is_restarted(term.worker, highest_known, &writing)
        {
            error!(
                highest_id = writing.highest_id,
                highest_known,
                "the id sequence was restarted while relays run: registering anew, and floors are built anew"
            );
            return Ok(());
        }
        let is_in_order = self.is_in_order(writing.sequence);
        self.lanes.watermark().update(term.worker, |tracker| {
            if is_in_order {
                tracker.observe(writing.highest_id, &writing.writers);
            }
        });
        if self.bypassed_at.elapsed() > BYPASS_EVERY {
            self.bypassed_at = Instant::now();
            self.lanes
                .watermark()
                .update(term.worker, WatermarkTracker::bypass_old_writers);
        }
        if self.lanes.watermark().bypassed().is_empty() {
            self.forget_open_writer();
        } else {
            self.warn_of_open_writer().await?;
        }
        if self.unordered_at.elapsed() >= UNORDERED_EVERY || self.lanes.unordered().lag() >= UNORDERED_LAG_URGENT {
            self.raise_unordered(term).await?;
        }
        Ok(())
    }

    /// Are ids drawn one by one, and upwards? If not, floors do not move, because a session may use a lower id at any time.
    fn is_in_order(&mut self, sequence: Sequence) -> bool {
        let is_in_order = sequence.is_in_order();
        metrics::sequence_misconfigured(!is_in_order);
        if is_in_order {
            self.sequence_warned_at = None;
        } else if self.sequence_warned_at.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            self.sequence_warned_at = Some(Instant::now());
            error!(
                cache = sequence.cache,
                increment = sequence.increment,
                "the id sequence does not draw ids one by one: rows have no order any more, and scan floors stand still. \
                 To repair it: ALTER SEQUENCE … message_id_seq INCREMENT 1 CACHE 1"
            );
        }
        is_in_order
    }

    /// Raises the floor of the unordered rows. Every worker claims such rows, so the floor comes from the table and not from the
    /// claims of this process.
    async fn raise_unordered(&mut self, term: &Term) -> Result<()> {
        self.unordered_at = Instant::now();
        while self.raise_unordered_part(term).await? {}
        Ok(())
    }

    /// Scans one span. Returns whether there is another one to scan.
    async fn raise_unordered_part(&mut self, term: &Term) -> Result<bool> {
        let UnorderedScan {
            start,
            scan_end,
            watermark,
            bypassed,
            epoch,
        } = self.lanes.unordered().begin_scan();
        if start >= watermark.soft {
            return Ok(false);
        }
        let lowest_pending = self.outbox.lowest_unordered(term, start, scan_end).await?;
        let ended = self.outbox.ended_writers(&bypassed).await?;
        if !ended.is_empty() {
            self.lanes.watermark().writers_ended(term.worker, &ended);
            return Ok(false);
        }
        let scan = ScanResult {
            watermark,
            scanned_to: scan_end,
            lowest_pending,
        };
        self.lanes.unordered().raise_floor(term.worker, epoch, scan);
        Ok(scan_end.is_some()
            && lowest_pending.is_none()
            && self.lanes.term().is_some_and(|now| now.worker == term.worker))
    }

    /// Tells the operator which session left a transaction open after its INSERT.
    async fn warn_of_open_writer(&mut self) -> Result<()> {
        let open_for = self.moved_at.elapsed();
        if open_for < IDENTIFY_EVERY || self.identified_at.is_some_and(|at| at.elapsed() < IDENTIFY_EVERY) {
            return Ok(());
        }
        self.identified_at = Some(Instant::now());
        let Some(oldest) = self.lanes.watermark().bypassed().into_iter().min() else {
            return Ok(());
        };
        let Some(writer) = self.outbox.writer_identity(oldest).await? else {
            return Ok(());
        };
        metrics::open_writer(match writer {
            WriterIdentity::Session { pid, .. } => pid,
            WriterIdentity::Prepared { .. } => 0,
        });
        // A transaction that is prepared has no session any more, and another command ends it: this is warned of at once.
        let is_recent = |(at, warned): &(Instant, WriterIdentity)| warned == &writer && at.elapsed() < WARN_EVERY;
        if !self.warned.as_ref().is_some_and(is_recent) {
            log_open_writer(&writer, open_for);
            self.warned = Some((Instant::now(), writer));
        }
        Ok(())
    }

    fn forget_open_writer(&mut self) {
        metrics::floor_age(Duration::ZERO);
        metrics::open_writer(0);
        self.identified_at = None;
    }
}

fn log_open_writer(writer: &WriterIdentity, open_for: Duration) {
    let seconds = open_for.as_secs();
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
