//! What it costs to have nothing to do; what a process weighs, and how soon it works.

use std::fs;
use std::time::Instant;

use tokio::time::sleep;

use crate::backlog::Shape;
use crate::mark_progress::MarkProgress;
use crate::process::Process;
use crate::progress::Progress;
use crate::report::{Cell, Section, Table};
use crate::rounds::Spread;
use crate::target::{Others, Target};
use crate::workspace::{OUTBOXD, Workspace};
use crate::{Bench, Outcome};

const PROCESS_COUNTS: [usize; 2] = [1, 8];

/// Of each process.
struct Idle {
    statements_per_second: f64,
    relay_percent: f64,
    /// Of all of PostgreSQL, by all processes.
    postgres_percent: f64,
    memory_mib: f64,
}

struct Case {
    processes: usize,
    runs: Vec<Idle>,
}

struct Start {
    first_claim_ms: f64,
    memory_mib_loaded: f64,
}

pub async fn run(bench: &Bench) -> Outcome<Section> {
    let mut cases = PROCESS_COUNTS.map(|processes| Case {
        processes,
        runs: Vec::new(),
    });
    let mut starts = Vec::new();
    let progress = Progress::new("idle", (cases.len() + 1) * bench.size.rounds);
    for round in 1..=bench.size.rounds {
        for case in &mut cases {
            progress.step(&format!("round {round}, {} idle", case.processes));
            // An idle process hardly wants processors: what it lacks of them says nothing.
            case.runs.push(watch(bench, case.processes).await?);
            progress.done();
        }
        progress.step(&format!("round {round}, start and load"));
        starts.push(bench.undisturbed.run(async || start(bench).await).await?);
        progress.done();
    }
    section(&cases, &starts)
}

async fn watch(bench: &Bench, count: usize) -> Outcome<Idle> {
    let workspace = Workspace::new(&bench.servers, Shape::Keyed).await?;
    let idle = bench
        .servers
        .without_autovacuum(watch_at(&workspace, bench, count))
        .await;
    workspace.remove().await?;
    idle
}

async fn watch_at(workspace: &Workspace, bench: &Bench, count: usize) -> Outcome<Idle> {
    let processes: Vec<Process> = (0..count)
        .map(|_| Process::start(workspace, &[]))
        .collect::<Outcome<_>>()?;
    for process in &processes {
        process.ready().await?;
    }
    sleep(bench.size.settle).await;
    let cpu = || processes.iter().map(Process::cpu_seconds).sum::<f64>();
    let before = (workspace.transactions().await?, cpu(), workspace.postgres.cpu_seconds());
    let began = Instant::now();
    sleep(bench.size.idle).await;
    let seconds = began.elapsed().as_secs_f64();
    let each = count as f64 * seconds;
    Ok(Idle {
        relay_percent: (cpu() - before.1) / each * 100.0,
        postgres_percent: (workspace.postgres.cpu_seconds() - before.2) / seconds * 100.0,
        statements_per_second: (workspace.transactions().await? - before.0) as f64 / each,
        memory_mib: processes.iter().map(Process::memory_mib).fold(0.0, f64::max),
    })
}

async fn start(bench: &Bench) -> Outcome<Start> {
    let workspace = Workspace::new(&bench.servers, Shape::Keyed).await?;
    let rows = bench.size.cost_rows;
    workspace.fill(Shape::Keyed, rows).await?;
    let process = [Process::start(&workspace, &[])?];
    let marks = MarkProgress::watch(&process, rows).await?;
    let start = Start {
        first_claim_ms: marks.start_up.as_secs_f64() * 1000.0,
        memory_mib_loaded: process[0].memory_mib_max(),
    };
    drop(process);
    workspace.remove().await?;
    Ok(start)
}

impl Case {
    fn spread(&self, of: impl Fn(&Idle) -> f64) -> Option<Spread> {
        Spread::of(self.runs.iter().map(of))
    }

    fn row(&self) -> Vec<Cell> {
        vec![
            Cell::Number(Some(self.processes as f64), 0),
            Cell::Spread(self.spread(|idle| idle.statements_per_second), 2),
            Cell::Spread(self.spread(|idle| idle.relay_percent), 2),
            Cell::Spread(self.spread(|idle| idle.postgres_percent), 2),
            Cell::Spread(self.spread(|idle| idle.memory_mib), 1),
        ]
    }
}

fn section(cases: &[Case], starts: &[Start]) -> Outcome<Section> {
    let binary_mib = fs::metadata(OUTBOXD)?.len() as f64 / 1024.0 / 1024.0;
    Ok(Section {
        name: "idle",
        title: "Idle",
        note: "Processes with nothing to do and default settings. Statements and processor time of each process; PostgreSQL's is \
               that of the whole server, its own background work included but for autovacuum, which is off meanwhile: its visits would \
               count as statements. Then a start with a backlog waiting: the time until the first claim had been answered, and the \
               memory while it was drained."
            .to_owned(),
        tables: vec![
            Table {
                columns: vec![
                    "processes",
                    "statements/s each",
                    "processor % each",
                    "PostgreSQL %",
                    "memory MiB, largest",
                ],
                rows: cases.iter().map(Case::row).collect(),
            },
            Table {
                columns: vec!["start to first claim ms", "memory under load MiB", "binary MiB"],
                rows: vec![vec![
                    Cell::spread(starts.iter().map(|start| start.first_claim_ms), 0),
                    Cell::spread(starts.iter().map(|start| start.memory_mib_loaded), 1),
                    Cell::Number(Some(binary_mib), 1),
                ]],
            },
        ],
        charts: Vec::new(),
        targets: targets(cases),
    })
}

fn targets(cases: &[Case]) -> Vec<Target> {
    let worst = |of: fn(&Idle) -> f64| {
        cases
            .iter()
            .filter_map(|case| Some(case.spread(of)?.median))
            .reduce(f64::max)
    };
    let target = |what: &str, most, of, unit, places| {
        let target = Target::at_most(format!("idle, {what} of a process"), most, worst(of));
        target.shown(unit, places).in_summary(Others::default())
    };
    vec![
        target("statements", 1.0, |idle| idle.statements_per_second, "/s", 2),
        target("processor time", 0.3, |idle| idle.relay_percent, "%", 2),
        target("memory", 20.0, |idle| idle.memory_mib, "MiB", 1),
    ]
}
