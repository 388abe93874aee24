//! Retention, sampled gauges and the rescan. One worker does this: the owner of lane 0.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{Interval, MissedTickBehavior, interval, sleep};
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

/// How far the jobs have come.
struct Jobs<'a> {
    outbox: &'a Outbox,
    settings: Settings,
    /// The database's counters at the last sample. The metrics count what was added since.
    counted: Option<Counters>,
    purges: Vec<PurgeJob>,
    rescan_cursor: i64,
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
        let draining = &shutdown.draining;
        let mut jobs = Jobs::new(&self.outbox, self.settings);
        let (mut sample, mut consumers) = (every(SAMPLE_EVERY), every(CONSUMERS_EVERY));
        let (mut housekeeping, mut orphaned) = (every(HOUSEKEEPING_EVERY), every(ORPHANED_EVERY));
        let mut rescan = every(RESCAN_EVERY);
        rescan.reset();
        while !draining.is_cancelled() {
            if !self.lanes.ownership().owns(0) {
                metrics::not_sampled();
                // The next owner counts from its first sample on. What is added before that is not counted.
                jobs.counted = None;
                draining.run_until_cancelled(sleep(CHECK_EVERY)).await;
                continue;
            }
            let done = tokio::select! {
                _ = sample.tick() => jobs.sample_backlog().await,
                _ = consumers.tick() => jobs.sample_consumers().await,
                _ = housekeeping.tick() => jobs.keep_house().await,
                _ = rescan.tick() => jobs.rescan().await,
                _ = orphaned.tick() => jobs.end_orphaned(&mut orphaned).await,
                () = sleep(jobs.purge_wait()) => jobs.purge().await,
                () = draining.cancelled() => return,
            };
            if let Err(error) = done {
                metrics::database_error();
                warn!(%error, "maintenance failed; trying again");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// An interval that is due at once. While another worker owns lane 0, its ticks are not made up for.
fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

impl<'a> Jobs<'a> {
    fn new(outbox: &'a Outbox, settings: Settings) -> Self {
        // Published rows are in their table only if they are kept there.
        let kept = |table: &Table| *table != Table::Message || settings.on_published == OnPublished::Keep;
        let (tables, at) = (Table::ALL.into_iter().filter(kept).map(Purge::of), Instant::now());
        Jobs {
            outbox,
            settings,
            counted: None,
            purges: tables.map(|purge| PurgeJob { purge, at, purged: 0 }).collect(),
            rescan_cursor: 0,
        }
    }

    async fn sample_backlog(&self) -> Result<()> {
        metrics::backlog(&self.outbox.sample_backlog(SAMPLE_ROWS_MAX).await?);
        Ok(())
    }

    async fn sample_consumers(&mut self) -> Result<()> {
        let commands = self.outbox.sample_commands(SAMPLE_ROWS_MAX, metrics::OPERATIONS_MAX);
        metrics::commands(&commands.await?);
        metrics::inbox(&self.outbox.sample_inbox(SAMPLE_ROWS_MAX).await?);
        let counted = self.outbox.sample_counters().await?;
        metrics::counted(self.counted.as_ref(), &counted);
        self.counted = Some(counted);
        Ok(())
    }

    async fn keep_house(&self) -> Result<()> {
        self.outbox.delete_stale_workers().await?;
        self.outbox.delete_stale_claims().await?;
        self.outbox.delete_stale_in_flight().await?;
        if self.settings.on_published == OnPublished::Archive {
            self.keep_history().await?;
        }
        Ok(())
    }

    async fn keep_history(&self) -> Result<()> {
        self.outbox.history_prepare().await?;
        let days = self.outbox.history_expire(self.settings.retention.published).await?;
        if days.locked > 0 {
            info!(
                days = days.locked,
                "another session reads the history, for example a backup; expired days are dropped later"
            );
        }
        Ok(())
    }

    /// Time until retention checks whether a statement is due. It is short only while there is more to remove.
    fn purge_wait(&self) -> Duration {
        let is_purging = self.purges.iter().any(|job| job.at <= Instant::now());
        if is_purging { PURGE_PAUSE } else { CHECK_EVERY }
    }

    async fn purge(&mut self) -> Result<()> {
        let now = Instant::now();
        for job in self.purges.iter_mut().filter(|job| now >= job.at) {
            // If this one fails, the others are due before it is again.
            job.at = now + PURGE_AFTER_FAILURE;
            job.step(self.outbox, self.settings.retention).await?;
        }
        Ok(())
    }

    /// Fails commands for good that no worker has ended, and logs their number, since their effect is unknown.
    async fn end_orphaned(&self, interval: &mut Interval) -> Result<()> {
        let Some(age) = self.settings.end_orphaned_after else {
            return Ok(());
        };
        let ended = self.outbox.end_orphaned(age, ORPHANED_ROWS).await?;
        metrics::commands_orphaned(ended);
        if ended > 0 {
            warn!(commands = ended, older_than = ?age, "orphaned commands were failed for good");
        }
        if ended == i64::from(ORPHANED_ROWS) {
            interval.reset_after(CHECK_EVERY);
        }
        Ok(())
    }

    async fn rescan(&mut self) -> Result<()> {
        let (reached, found) = self.outbox.rescan(self.rescan_cursor, RESCAN_ROWS).await?;
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
