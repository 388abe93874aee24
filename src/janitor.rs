//! Retention, gauges and the safety net, by one worker only: the owner of lane 0.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::lanes::Lanes;
use crate::metrics;
use crate::outbox::{Counted, OnPublished, Outbox, Result};

/// No row is removed sooner after it was published.
pub const RETENTION_LEAST: Duration = Duration::from_secs(3600);

const SAMPLE_EVERY: Duration = Duration::from_secs(15);
/// The most rows a sample walks: an estimate of the backlog must not become a load.
const SAMPLE_WALK: i64 = 10_000;
/// So many operations have a series of their own.
const SAMPLE_OPERATIONS: i64 = 20;
/// One step of retention, and the rest after it.
const PURGE_ROWS: i64 = 2_000;
const PURGE_REST: Duration = Duration::from_millis(200);
const PURGE_EVERY: Duration = Duration::from_secs(600);
/// The safety net: a slow walk over the whole table.
const RESCAN_ROWS: i64 = 5_000;
const RESCAN_EVERY: Duration = Duration::from_secs(30);
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub on_published: OnPublished,
    pub retention: Duration,
}

/// Where each chore stands.
struct Chores {
    sample_at: Instant,
    /// By the database, at the last sample: what is new since then is ours to count.
    counted: Option<Counted>,
    purge_at: Instant,
    purge_cursor: i64,
    rescan_at: Instant,
    rescan_cursor: i64,
    housekeeping_at: Instant,
}

/// Sweeps until `draining`.
pub async fn sweep(lanes: &Lanes, outbox: &Outbox, settings: Settings, draining: &CancellationToken) {
    let now = Instant::now();
    let mut chores = Chores {
        sample_at: now,
        counted: None,
        purge_at: now,
        purge_cursor: 0,
        rescan_at: now + RESCAN_EVERY,
        rescan_cursor: 0,
        housekeeping_at: now,
    };
    while !draining.is_cancelled() {
        tokio::select! {
            () = sleep(PURGE_REST) => {}
            () = draining.cancelled() => return,
        }
        if !lanes.owns(0) {
            metrics::backlog_unsampled();
            // Somebody else counts now.
            chores.counted = None;
            continue;
        }
        if let Err(error) = chores.step(outbox, settings).await {
            metrics::database_error();
            warn!(%error, "housekeeping failed; trying again");
            sleep(Duration::from_secs(1)).await;
        }
    }
}

impl Chores {
    async fn step(&mut self, outbox: &Outbox, settings: Settings) -> Result<()> {
        let now = Instant::now();
        if now >= self.sample_at {
            self.sample_at = now + SAMPLE_EVERY;
            metrics::backlog(&outbox.sample(SAMPLE_WALK).await?);
            metrics::commands(&outbox.sample_commands(SAMPLE_WALK, SAMPLE_OPERATIONS).await?);
            let intake = outbox.sample_intake(SAMPLE_WALK).await?;
            metrics::intake(&intake, self.counted.replace(intake.counted));
        }
        if now >= self.housekeeping_at {
            self.housekeeping_at = now + HOUSEKEEPING_EVERY;
            outbox.forget_workers().await?;
            if settings.on_published == OnPublished::Archive {
                outbox.history_prepare().await?;
                outbox.history_drop(settings.retention).await?;
            }
        }
        if now >= self.purge_at && settings.on_published == OnPublished::Keep {
            self.purge(outbox, settings.retention).await?;
        }
        if now >= self.rescan_at {
            self.rescan(outbox).await?;
        }
        Ok(())
    }

    /// One step of retention; a pass ends where the rows become too young.
    async fn purge(&mut self, outbox: &Outbox, retention: Duration) -> Result<()> {
        let (reached, purged, young) = outbox.purge(self.purge_cursor, PURGE_ROWS, retention).await?;
        metrics::rows_purged(purged);
        match reached {
            Some(reached) if !young => self.purge_cursor = reached,
            _ => {
                if self.purge_cursor > 0 {
                    info!(up_to_id = self.purge_cursor, "retention pass done");
                }
                self.purge_cursor = 0;
                self.purge_at = Instant::now() + PURGE_EVERY;
            }
        }
        Ok(())
    }

    async fn rescan(&mut self, outbox: &Outbox) -> Result<()> {
        self.rescan_at = Instant::now() + RESCAN_EVERY;
        let (reached, found) = outbox.rescan(self.rescan_cursor, RESCAN_ROWS).await?;
        self.rescan_cursor = reached.unwrap_or(0);
        if found > 0 {
            metrics::rows_forgotten(found);
            error!(
                rows = found,
                "the safety net found rows that a floor had passed; they are published now. Please report this"
            );
        }
        Ok(())
    }
}
