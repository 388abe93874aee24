//! Retention, gauges and the safety net, by one worker only: the owner of lane 0.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::{error, info, warn};

use super::Shutdown;
use crate::domain::retention::{Retention, Table};
use crate::domain::sample::Counters;
use crate::lanes::Lanes;
use crate::metrics;
use crate::outbox::{OnPublished, Outbox, Purge, Result};

const SAMPLE_EVERY: Duration = Duration::from_secs(15);
/// Commands, inbox, duplicates: less urgent than the backlog, and not everybody has any.
const INTAKE_EVERY: Duration = Duration::from_secs(60);
/// The most rows a sample scans: an estimate of the backlog must not become a load.
const SAMPLE_ROWS_MAX: i64 = 10_000;
/// One step of retention, and the pause after it.
const PURGE_ROWS: i32 = 2_000;
const PURGE_PAUSE: Duration = Duration::from_millis(200);
const CHECK_EVERY: Duration = Duration::from_secs(1);
const PURGE_AFTER_FAILURE: Duration = Duration::from_secs(60);
const PURGE_EVERY: Duration = Duration::from_secs(600);
/// The safety net: a slow scan of the whole table.
const RESCAN_ROWS: i64 = 5_000;
const RESCAN_EVERY: Duration = Duration::from_secs(60);
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(3600);
/// Most orphaned commands ended in one statement, and the wait after one that found fewer.
const ORPHANED_ROWS: i32 = 1_000;
const ORPHANED_EVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub on_published: OnPublished,
    pub retention: Retention,
    /// Commands whose lock ran out so long ago are failed for good; `None`: never.
    pub end_orphaned_after: Option<Duration>,
}

/// Where each job stands.
struct Jobs {
    sample_at: Instant,
    intake_at: Instant,
    /// By the database, at the last sample: what is new since then is ours to count.
    counted: Option<Counters>,
    orphaned_at: Instant,
    purges: Vec<PurgeJob>,
    rescan_at: Instant,
    rescan_cursor: i64,
    housekeeping_at: Instant,
}

/// One table's retention: its pass, and when the next one begins.
struct PurgeJob {
    purge: Purge,
    at: Instant,
    purged: i64,
}

/// Samples, purges and rescans while this process owns lane 0.
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
            let wait = if self.lanes.owns(0) { jobs.wait() } else { CHECK_EVERY };
            tokio::select! {
                () = sleep(wait) => {}
                () = shutdown.draining.cancelled() => return,
            }
            if !self.lanes.owns(0) {
                metrics::not_sampled();
                // The next owner counts from its first sample on; what grew in between is not counted.
                jobs.counted = None;
                continue;
            }
            if let Err(error) = jobs.step(&self.outbox, self.settings).await {
                metrics::database_error();
                warn!(%error, "housekeeping failed; trying again");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Published rows are in the table only where they are kept.
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
            intake_at: now,
            counted: None,
            orphaned_at: now,
            purges: purges(on_published, now),
            rescan_at: now + RESCAN_EVERY,
            rescan_cursor: 0,
            housekeeping_at: now,
        }
    }

    /// Time until the next check of what is due: short only while a purge has more to remove.
    fn wait(&self) -> Duration {
        let is_purging = self.purges.iter().any(|job| job.at <= Instant::now());
        if is_purging { PURGE_PAUSE } else { CHECK_EVERY }
    }

    async fn step(&mut self, outbox: &Outbox, settings: Settings) -> Result<()> {
        let now = Instant::now();
        if now >= self.sample_at {
            self.sample_at = now + SAMPLE_EVERY;
            metrics::backlog(&outbox.sample_backlog(SAMPLE_ROWS_MAX).await?);
        }
        if now >= self.intake_at {
            self.intake_at = now + INTAKE_EVERY;
            metrics::commands(&outbox.sample_commands(SAMPLE_ROWS_MAX, metrics::OPERATIONS_MAX).await?);
            metrics::inbox(&outbox.sample_inbox(SAMPLE_ROWS_MAX).await?);
            let counted = outbox.sample_counters().await?;
            metrics::counted(self.counted.as_ref(), &counted);
            self.counted = Some(counted);
        }
        if now >= self.housekeeping_at {
            self.housekeeping_at = now + HOUSEKEEPING_EVERY;
            outbox.delete_stale_workers().await?;
            outbox.delete_stale_claims().await?;
            outbox.delete_stale_in_flight().await?;
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
            // Should it fail, the others have their turn before it has another.
            job.at = now + PURGE_AFTER_FAILURE;
            job.step(outbox, settings.retention).await?;
        }
        Ok(())
    }

    /// Fails commands for good that nobody ended, and says so: each is one whose effect nobody knows.
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
            "somebody reads the history, as a backup does; days that are old enough are dropped later"
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
