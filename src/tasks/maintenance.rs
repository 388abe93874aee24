//! Retention, sampled gauges and the rescan. One worker does this: the owner of lane 0.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::time::sleep;
use tracing::{error, info, warn};

use super::Shutdown;
use crate::domain::retention::{Retention, Table};
use crate::domain::sample::Counters;
use crate::lanes::Lanes;
use crate::metrics;
use crate::outbox::{OnPublished, Outbox, Purge, Result};

const SAMPLE_EVERY: Duration = Duration::from_secs(15);
/// Commands, inbox and duplicates are less urgent than the backlog, and many applications use none of them.
const CONSUMERS_EVERY: Duration = Duration::from_secs(60);
/// Most rows that a sample scans. It is an estimate, and must not become a load.
const SAMPLE_ROWS_MAX: i64 = 10_000;
/// Most rows that one statement of retention removes.
const PURGE_ROWS: i32 = 2_000;
/// The pause after such a statement, if there is more to remove.
const PURGE_PAUSE: Duration = Duration::from_millis(200);
const CHECK_EVERY: Duration = Duration::from_secs(1);
const PURGE_AFTER_FAILURE: Duration = Duration::from_secs(60);
const PURGE_EVERY: Duration = Duration::from_secs(600);
/// The rescan scans the whole table slowly, for rows that a floor has passed by mistake. One step scans this many rows.
const RESCAN_ROWS: i64 = 5_000;
const RESCAN_EVERY: Duration = Duration::from_secs(60);
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(3600);
/// Most orphaned commands that one statement ends.
const ORPHANED_ROWS: i32 = 1_000;
/// The wait after a statement that found fewer.
const ORPHANED_EVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub on_published: OnPublished,
    pub retention: Retention,
    /// Commands whose lock ran out this long ago are failed for good. `None` if this is never done.
    pub end_orphaned_after: Option<Duration>,
}

/// When each job is due, and how far it has come.
struct Jobs {
    sample_at: Instant,
    consumers_at: Instant,
    /// The database's counters at the last sample. The metrics count what was added since.
    counted: Option<Counters>,
    finished_at: Instant,
    /// Until when finished inbox messages are counted. What was finished before the first sample was counted by others.
    finished_until: Option<SystemTime>,
    orphaned_at: Instant,
    purges: Vec<PurgeJob>,
    rescan_at: Instant,
    rescan_cursor: i64,
    housekeeping_at: Instant,
}

/// Retention of one table.
struct PurgeJob {
    purge: Purge,
    /// When the next statement is due.
    at: Instant,
    /// Rows removed by this pass so far.
    purged: i64,
}

/// Does maintenance while this process owns lane 0.
pub struct MaintenanceTask {
    pub lanes: Arc<Lanes>,
    pub outbox: Arc<Outbox>,
    pub settings: Settings,
}

impl MaintenanceTask {
    /// Runs until `shutdown.draining`.
    pub async fn run(&self, shutdown: &Shutdown) {
        let mut jobs = Jobs::new(self.settings.on_published);
        while !shutdown.draining.is_cancelled() {
            let wait = if self.lanes.ownership().owns(0) {
                jobs.wait()
            } else {
                CHECK_EVERY
            };
            tokio::select! {
                () = sleep(wait) => {}
                () = shutdown.draining.cancelled() => return,
            }
            if !self.lanes.ownership().owns(0) {
                metrics::not_sampled();
                // The next owner counts from its first sample on. What is added before that is not counted.
                (jobs.counted, jobs.finished_until) = (None, None);
                continue;
            }
            if let Err(error) = jobs.step(&self.outbox, self.settings).await {
                metrics::database_error();
                warn!(%error, "maintenance failed; trying again");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// The tables that retention applies to. Published rows are in their table only if they are kept there.
fn purges(on_published: OnPublished, at: Instant) -> Vec<PurgeJob> {
    let kept = |table: &Table| *table != Table::Message || on_published == OnPublished::Keep;
    let tables = Table::ALL.into_iter().filter(kept).map(Purge::of);
    tables.map(|purge| PurgeJob { purge, at, purged: 0 }).collect()
}

impl Jobs {
    fn new(on_published: OnPublished) -> Self {
        let now = Instant::now();
        Jobs {
            sample_at: now,
            consumers_at: now,
            counted: None,
            finished_at: now,
            finished_until: None,
            orphaned_at: now,
            purges: purges(on_published, now),
            rescan_at: now + RESCAN_EVERY,
            rescan_cursor: 0,
            housekeeping_at: now,
        }
    }

    /// Time until the next step. It is short only while retention has more to remove.
    fn wait(&self) -> Duration {
        let is_purging = self.purges.iter().any(|job| job.at <= Instant::now());
        if is_purging { PURGE_PAUSE } else { CHECK_EVERY }
    }

    async fn step(&mut self, outbox: &Outbox, settings: Settings) -> Result<()> {
        let now = Instant::now();
        if now >= self.sample_at {
            self.sample_at = now + SAMPLE_EVERY;
            let topics = metrics::labelled_topics();
            let sample = outbox.sample_backlog(SAMPLE_ROWS_MAX, &topics).await;
            // In an outage this process still believes that it owns lane 0, and an old sample would pass for a new one.
            metrics::backlog(&sample.inspect_err(|_| metrics::not_sampled())?);
        }
        if now >= self.consumers_at {
            self.consumers_at = now + CONSUMERS_EVERY;
            metrics::commands(&outbox.sample_commands(SAMPLE_ROWS_MAX, metrics::OPERATIONS_MAX).await?);
            metrics::inbox(&outbox.sample_inbox(SAMPLE_ROWS_MAX).await?);
            let counted = outbox.sample_counters().await?;
            metrics::counted(self.counted.as_ref(), &counted);
            self.counted = Some(counted);
        }
        if now >= self.finished_at {
            self.finished_at = now + CONSUMERS_EVERY;
            self.sample_finished(outbox).await?;
        }
        if now >= self.housekeeping_at {
            self.housekeeping_at = now + HOUSEKEEPING_EVERY;
            outbox.delete_stale().await?;
            if settings.on_published == OnPublished::Archive {
                keep_history(outbox, settings.retention.published).await?;
            }
        }
        if now >= self.rescan_at {
            self.rescan(outbox).await?;
        }
        if let Some(age) = settings.end_orphaned_after.filter(|_| now >= self.orphaned_at) {
            self.end_orphaned(outbox, age).await?;
        }
        for job in self.purges.iter_mut().filter(|job| now >= job.at) {
            // If this one fails, the others are due before it is again.
            job.at = now + PURGE_AFTER_FAILURE;
            job.step(outbox, settings.retention).await?;
        }
        Ok(())
    }

    /// Counts inbox messages that were finished since the last sample.
    async fn sample_finished(&mut self, outbox: &Outbox) -> Result<()> {
        let Some(counted) = &self.counted else { return Ok(()) };
        let sample = outbox.sample_finished(self.finished_until, SAMPLE_ROWS_MAX, counted, metrics::INBOX_BUCKETS);
        let finished = sample.await?;
        metrics::finished(&finished);
        self.finished_until = Some(finished.until);
        if finished.is_full {
            self.finished_at = Instant::now();
        }
        Ok(())
    }

    /// Fails commands for good that no worker has ended, and logs their number, since their effect is unknown.
    async fn end_orphaned(&mut self, outbox: &Outbox, age: Duration) -> Result<()> {
        self.orphaned_at = Instant::now() + ORPHANED_EVERY;
        let ended = outbox.end_orphaned(age, ORPHANED_ROWS).await?;
        metrics::commands_orphaned(ended);
        if ended > 0 {
            warn!(commands = ended, older_than = ?age, "orphaned commands were failed for good");
        }
        if ended == i64::from(ORPHANED_ROWS) {
            self.orphaned_at = Instant::now();
        }
        Ok(())
    }

    async fn rescan(&mut self, outbox: &Outbox) -> Result<()> {
        self.rescan_at = Instant::now() + RESCAN_EVERY;
        let (reached, found) = outbox.rescan(self.rescan_cursor, RESCAN_ROWS).await?;
        self.rescan_cursor = reached.unwrap_or(0);
        if found > 0 {
            metrics::rescan_found_rows(found);
            error!(
                rows = found,
                "the safety net found rows that a floor had passed; they are published now. Please report this"
            );
        }
        Ok(())
    }
}

async fn keep_history(outbox: &Outbox, retention: Duration) -> Result<()> {
    outbox.history_prepare().await?;
    let days = outbox.history_expire(retention).await?;
    if days.locked > 0 {
        info!(
            days = days.locked,
            "another session reads the history, for example a backup; expired days are dropped later"
        );
    }
    Ok(())
}

impl PurgeJob {
    async fn step(&mut self, outbox: &Outbox, retention: Retention) -> Result<()> {
        let table = self.purge.table;
        let (purged, finished) = outbox.purge(&mut self.purge, PURGE_ROWS, retention).await?;
        metrics::rows_purged(table, purged);
        self.purged += purged;
        if finished {
            if self.purged > 0 {
                info!(table = table.name(), rows = self.purged, "retention pass done");
            }
            self.purged = 0;
        }
        self.at = Instant::now() + if finished { PURGE_EVERY } else { Duration::ZERO };
        Ok(())
    }
}
