//! Many faults, for long, under load, and at the end the question whether the promises held.
//!
//! `make soak MINUTES=10`, or `cargo test --release --test soak -- --minutes 10 --seed 42`. See `docs/soak.md`.

mod chart;
mod environment;
mod faults;
mod oracle;
mod process_life;
mod progress;
mod replicas;
mod report;
mod sampler;
mod schedule;
mod verdict;
mod writers;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{fs, io};

use clap::Parser;
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use crate::environment::Environment;
use crate::oracle::Oracle;
use crate::progress::Progress;
use crate::sampler::Sampler;
use crate::schedule::Schedule;
use crate::verdict::{Evidence, Table, drain_max};
use crate::writers::{POISON, Writers};

#[derive(Parser)]
struct Args {
    /// How long faults are injected
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The same seed breaks the same things at the same times [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let schedule = Schedule::new(seed, Duration::from_secs(args.minutes * 60));
    println!("{schedule}");
    // Ctrl-C stops the replicas as well: there is nothing left to judge, only to clean up.
    let outcome = tokio::select! {
        outcome = soak(&schedule) => outcome,
        _ = tokio::signal::ctrl_c() => return ExitCode::from(130),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the report cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn soak(schedule: &Schedule) -> io::Result<bool> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/soak");
    let logs = folder.join("logs");
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&logs)?;
    let environment = Arc::new(Environment::start(&logs).await);
    let evidence = gather(schedule, &environment).await;
    let checks = evidence.checks();
    report::write(&folder, schedule, &evidence, &checks)?;
    println!("{}", report::table(&checks));
    println!("{}", folder.join("report.md").display());
    Ok(report::holds(&checks))
}

/// Writes and breaks until the schedule is played, then lets everything drain and asks the oracle.
async fn gather(schedule: &Schedule, environment: &Arc<Environment>) -> Evidence {
    let start = Instant::now();
    let writers = Writers::start(environment, schedule.seed);
    let progress = Arc::new(Progress::new(schedule, &writers.written));
    let sampler = Sampler::start(environment, start, &progress);
    let faults = faults::play(schedule, environment, start, &progress).await;
    let written = writers.stop().await;
    let drained = drain(environment).await;
    let samples = sampler.stop().await;
    progress.clear();
    Evidence {
        oracle: block_in_place(|| Oracle::ask(environment)),
        faults,
        samples,
        lives: environment
            .replicas
            .iter()
            .flat_map(|replica| replica.lives())
            .collect(),
        drained,
        table: table(environment).await,
        committed: written.committed.load(Ordering::Relaxed),
        unknown: written.unknown.load(Ordering::Relaxed),
        rolled_back: written.rolled_back.load(Ordering::Relaxed),
    }
}

/// How long it takes until nothing is pending.
async fn drain(environment: &Environment) -> Option<Duration> {
    const PENDING: &str = "SELECT count(*) FROM outbox.message WHERE published_at IS NULL AND dead_at IS NULL";
    let began = Instant::now();
    let session = environment.session().await;
    let empty = async {
        while session
            .query_one(PENDING, &[])
            .await
            .expect("PostgreSQL is up")
            .get::<_, i64>(0)
            > 0
        {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(drain_max(), empty).await.ok()?;
    Some(began.elapsed())
}

async fn table(environment: &Environment) -> Table {
    let sql = "SELECT count(*), count(*) FILTER (WHERE event_type = $1),
                      count(*) FILTER (WHERE event_type = $1 AND dead_at IS NULL),
                      count(*) FILTER (WHERE event_type IS DISTINCT FROM $1 AND (dead_at IS NOT NULL OR attempts > 0))
               FROM outbox.message";
    let row = environment.session().await.query_one(sql, &[&POISON]).await;
    let row = row.expect("PostgreSQL is up");
    Table {
        rows: row.get(0),
        poison: row.get(1),
        poison_alive: row.get(2),
        innocents_blamed: row.get(3),
    }
}
