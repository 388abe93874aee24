//! What outboxd costs and how fast it is, beside its own physical limits and beside the relay of most tutorials.
//!
//! `make bench`, `make bench-quick`, `make bench ARGS="--only drain,latency --rounds 3"`. See `docs/performance.md`.

mod application;
mod backlog;
mod chart;
mod consumer;
mod cost;
mod cpu;
mod drain;
mod growth;
mod idle;
mod latency;
mod load;
mod machine;
mod mark_progress;
mod obstacles;
mod on_published;
mod postgres_alone;
mod process;
mod processes;
mod producer_alone;
mod progress;
mod report;
mod rounds;
mod run_size;
mod scale;
mod servers;
mod target;
mod textbook;
mod undisturbed;
mod wal;
mod warm_up;
mod workspace;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};

use crate::report::{Report, Section};
use crate::run_size::RunSize;
use crate::servers::Servers;
use crate::undisturbed::Undisturbed;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Parser)]
struct Args {
    /// Everything in small, in a few minutes
    #[arg(long)]
    quick: bool,
    /// Only these scenarios, in their usual order
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Scenario>,
    /// How often each measurement is repeated [default: 3, of what is compared in pairs 7; 1 with --quick]
    #[arg(long)]
    rounds: Option<usize>,
    /// Rows of a drained backlog [default: 500,000; 10,000 with --quick]
    #[arg(long)]
    rows: Option<i64>,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    Drain,
    Cost,
    Latency,
    Idle,
    Scale,
    Growth,
}

/// What every scenario is given.
struct Bench {
    servers: Servers,
    size: RunSize,
    undisturbed: Undisturbed,
}

#[tokio::main]
async fn main() -> ExitCode {
    // Dropping what runs ends the processes that were started.
    let outcome = tokio::select! {
        outcome = bench(Args::parse()) => outcome,
        _ = tokio::signal::ctrl_c() => return ExitCode::from(130),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn bench(args: Args) -> Outcome<()> {
    let mut size = if args.quick { RunSize::quick() } else { RunSize::full() };
    size.rows = args.rows.unwrap_or(size.rows).max(1);
    size.rounds = args.rounds.unwrap_or(size.rounds).max(1);
    size.compared_rounds = args.rounds.unwrap_or(size.compared_rounds).max(1);
    let bench = Bench {
        servers: Servers::running()?,
        undisturbed: Undisturbed::new(size.extra_time),
        size,
    };
    let mut report = Report {
        title: bench.size.title,
        rounds: bench.size.rounds,
        compared_rounds: bench.size.compared_rounds,
        machine: machine::facts(&bench.servers).await?,
        sections: Vec::new(),
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder)?;
    workspace::make_template(&bench.servers).await?;
    warm_up::broker(&bench).await?;
    for scenario in Scenario::value_variants() {
        if args.only.is_empty() || args.only.contains(scenario) {
            let section = scenario.run(&bench).await?;
            report.machine.extend(bench.undisturbed.fact(section.name));
            report.sections.push(section);
            // After each: a long run that fails late has not been for nothing.
            report.write(&folder)?;
        }
    }
    println!("{}\n{}", report.summary(), folder.join("report.md").display());
    Ok(())
}

impl Scenario {
    async fn run(self, bench: &Bench) -> Outcome<Section> {
        match self {
            Scenario::Drain => drain::run(bench).await,
            Scenario::Cost => cost::run(bench).await,
            Scenario::Latency => latency::run(bench).await,
            Scenario::Idle => idle::run(bench).await,
            Scenario::Scale => scale::run(bench).await,
            Scenario::Growth => growth::run(bench).await,
        }
    }
}

/// How long something may take before the run is given up.
struct Deadline {
    end: Instant,
}

impl Deadline {
    fn new(lasts: Duration) -> Self {
        Deadline {
            end: Instant::now() + lasts,
        }
    }

    /// An error once it is over.
    fn or(&self, awaited: &str) -> Outcome<()> {
        if Instant::now() < self.end {
            return Ok(());
        }
        Err(format!("waited too long for {awaited}").into())
    }
}
