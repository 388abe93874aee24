//! `outboxd purge`: applies retention now, until nothing is left to remove.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Map, Value, json};

use super::Failure;
use super::progress::bar;
use crate::config::{Check, DatabaseArgs, RetentionArgs};
use crate::domain::retention::{Retention, Table};
use crate::outbox::{HistoryDays, Outbox, Purge, PurgeResult};

#[derive(Args, Debug)]
pub struct PurgeArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    retention: RetentionArgs,

    /// Maximum number of rows removed in one step
    #[arg(
        long,
        env = "OUTBOXD_PURGE_BATCH_ROWS",
        default_value_t = 2000,
        value_name = "N",
        value_parser = clap::value_parser!(i32).range(1..=100_000)
    )]
    purge_batch_rows: i32,

    /// Count what would be removed, and remove nothing
    #[arg(long, env = "OUTBOXD_DRY_RUN")]
    dry_run: bool,

    /// Print one JSON object, for programs
    #[arg(long)]
    json: bool,
}

const BAR: &str = "{prefix:<19} {bar:40.green} {pos}/{len} rows";

/// The count reads the whole outbox, which may be large. A step never takes long.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(600);

pub async fn purge(args: &PurgeArgs) -> Result<(), Failure> {
    let (database, retention) = Check::run(|check| {
        let (database, retention) = (args.database.database(check), args.retention.retention(check));
        Some((database?, retention))
    })?;
    let outbox = Outbox::open(&database, &args.database.schema, STATEMENT_TIMEOUT).await?;
    let started = Instant::now();
    let purged = if args.dry_run {
        outbox.purgeable(retention).await?
    } else {
        remove(&outbox, retention, args.purge_batch_rows).await?
    };
    if args.json {
        println!("{}", as_json(&purged, args.dry_run, started.elapsed()));
    } else {
        println!("{}", summary(&purged, args.dry_run, started.elapsed()));
    }
    Ok(())
}

/// Removes step by step until nothing is left.
async fn remove(outbox: &Outbox, retention: Retention, limit: i32) -> Result<PurgeResult, Failure> {
    let bar = bar(0, BAR);
    if !bar.is_hidden() {
        // The count is needed for the progress bar alone, and it reads the whole outbox.
        let old = outbox.purgeable(retention).await?;
        bar.set_length(old.rows.iter().map(|(_, rows)| rows.unsigned_abs()).sum());
    }
    let mut rows = Vec::new();
    for table in Table::ALL {
        bar.set_prefix(table.name());
        let (mut purge, mut total) = (Purge::of(table), 0);
        loop {
            let (removed, finished) = outbox.purge(&mut purge, limit, retention).await?;
            total += removed;
            bar.inc(removed.unsigned_abs());
            if finished {
                break;
            }
        }
        rows.push((table, total));
    }
    let history = outbox.history_expire(retention.published).await?;
    bar.finish_and_clear();
    Ok(PurgeResult { rows, history })
}

fn summary(purged: &PurgeResult, dry_run: bool, took: Duration) -> String {
    let verb = if dry_run { "Would remove" } else { "Removed" };
    let rows = purged.rows.iter();
    let rows: Vec<String> = rows
        .map(|(table, rows)| format!("{rows} of {}", table.name()))
        .collect();
    let (rows, days, seconds) = (rows.join(", "), purged.history.dropped, took.as_secs_f64());
    let left = match purged.history.locked {
        0 => String::new(),
        locked => format!(", {locked} left because somebody reads the history, as a backup does"),
    };
    format!("{verb} rows: {rows}; days of history: {days}{left} ({seconds:.1} s)")
}

fn as_json(purged: &PurgeResult, dry_run: bool, took: Duration) -> Value {
    let rows = purged.rows.iter();
    let rows: Map<String, Value> = rows
        .map(|(table, rows)| (table.name().to_owned(), json!(rows)))
        .collect();
    let HistoryDays { dropped, locked } = purged.history;
    json!({
        "dry_run": dry_run, "rows": rows, "history_days": dropped, "history_days_locked": locked, "seconds": took.as_secs_f64()
    })
}
