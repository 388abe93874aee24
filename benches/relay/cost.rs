//! What a message costs, counted: WAL, processor time, statements, allocations; and what the application's own INSERT costs.

use testkit::Allocations;

use crate::application::{self, Commit};
use crate::backlog::Shape;
use crate::chart::{Bar, Chart, Whose};
use crate::mark_progress::MarkProgress;
use crate::on_published::OnPublished;
use crate::process::Process;
use crate::progress::Progress;
use crate::report::{Cell, Section, Table};
use crate::rounds::Spread;
use crate::target::{Others, Target};
use crate::textbook::Textbook;
use crate::wal::{self, Moment};
use crate::workspace::Workspace;
use crate::{Bench, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contestant {
    Keyed(OnPublished),
    Unordered(OnPublished),
    Textbook,
}

/// Of one message.
#[derive(Clone, Copy, Debug)]
struct Cost {
    wal: f64,
    wal_images: f64,
    postgres_us: f64,
    /// Unknown where the relay is a part of this harness.
    relay_us: Option<f64>,
    statements: f64,
    /// Vacuum afterwards, of what the relay left behind.
    vacuum_wal: f64,
    vacuum_us: f64,
}

struct Entry {
    contestant: Contestant,
    rows: i64,
    costs: Vec<Cost>,
    /// Unknown where the relay is a part of this harness.
    allocations: Option<f64>,
}

pub async fn run(bench: &Bench) -> Outcome<Section> {
    bench.servers.without_autovacuum(count(bench)).await
}

async fn count(bench: &Bench) -> Outcome<Section> {
    let mut entries = entries(bench);
    let mut commits = Vec::new();
    let progress = Progress::new("cost", (entries.len() + 1) * bench.size.rounds + entries.len());
    for round in 1..=bench.size.rounds {
        for entry in &mut entries {
            progress.step(&format!("round {round}, {}", entry.contestant.name()));
            let run = async || measure(bench, entry.contestant, entry.rows).await;
            entry.costs.push(bench.undisturbed.run(run).await?);
            progress.done();
        }
        progress.step(&format!("round {round}, single-row commits"));
        let run = async || application::measure(&bench.servers, bench.size.commits).await;
        commits.push(bench.undisturbed.run(run).await?);
        progress.done();
    }
    for entry in &mut entries {
        progress.step(&format!("allocations, {}", entry.contestant.name()));
        entry.allocations = allocations(bench, entry.contestant).await?;
        progress.done();
    }
    Ok(section(&entries, &commits))
}

fn entries(bench: &Bench) -> Vec<Entry> {
    let mut contestants: Vec<Contestant> = OnPublished::ALL.into_iter().map(Contestant::Keyed).collect();
    contestants.extend(OnPublished::ALL.into_iter().map(Contestant::Unordered));
    contestants.push(Contestant::Textbook);
    let entry = |contestant| Entry {
        contestant,
        rows: match contestant {
            Contestant::Textbook => bench.size.textbook_rows,
            _ => bench.size.cost_rows,
        },
        costs: Vec::new(),
        allocations: None,
    };
    contestants.into_iter().map(entry).collect()
}

async fn measure(bench: &Bench, contestant: Contestant, rows: i64) -> Outcome<Cost> {
    let shape = contestant.shape();
    let workspace = Workspace::new(&bench.servers, shape).await?;
    let table = match contestant {
        Contestant::Textbook => {
            Textbook::create(&workspace).await?;
            Textbook::fill(&workspace, shape, rows).await?;
            "textbook.outbox"
        }
        _ => {
            workspace.fill(shape, rows).await?;
            "outbox.message"
        }
    };
    let meter = Meter::start(&workspace).await?;
    let relay_us = match contestant.mode() {
        Some(mode) => Some(outboxd(&workspace, mode, rows).await? / rows as f64),
        None => {
            Textbook::new(&workspace).await?.drain().await?;
            None
        }
    };
    let relayed = meter.read(&workspace).await?;
    let meter = Meter::start(&workspace).await?;
    workspace.db.batch_execute(&format!("VACUUM {table}")).await?;
    let vacuumed = meter.read(&workspace).await?;
    workspace.expect_delivered(rows)?;
    workspace.remove().await?;
    let each = |total: f64| total / rows as f64;
    Ok(Cost {
        wal: each(relayed.wal.bytes),
        wal_images: each(relayed.wal.image_bytes),
        postgres_us: each(relayed.cpu_us),
        relay_us,
        statements: each(relayed.statements),
        vacuum_wal: each(vacuumed.wal.bytes),
        vacuum_us: each(vacuumed.cpu_us),
    })
}

/// Drains it; answers the processor time of the relay in microseconds.
async fn outboxd(workspace: &Workspace, mode: OnPublished, rows: i64) -> Outcome<f64> {
    let process = [Process::start(workspace, &["--on-published", mode.name()])?];
    MarkProgress::watch(&process, rows).await?;
    let [process] = process;
    let cpu_us = process.cpu_seconds() * 1e6;
    // Sessions tell what they have counted when they end.
    process.stop().await?;
    Ok(cpu_us)
}

/// Connections, statements and topics are made once: they are no message's cost.
const WARM_UP_ROWS: i64 = 2_000;

/// Allocations of the relay for one message. In a run of their own, since counting takes time; and in one: counts do not jitter.
async fn allocations(bench: &Bench, contestant: Contestant) -> Outcome<Option<f64>> {
    let Some(mode) = contestant.mode() else {
        return Ok(None);
    };
    let (shape, rows) = (contestant.shape(), bench.size.cost_rows);
    let workspace = Workspace::new(&bench.servers, shape).await?;
    let allocations = Allocations::start();
    let flags = ["--on-published", mode.name()];
    let process = Process::start_in(allocations.environment(), &workspace, &flags)?;
    workspace.insert(shape, WARM_UP_ROWS).await?;
    workspace.drained().await?;
    let before = allocations.so_far();
    workspace.insert(shape, rows).await?;
    workspace.drained().await?;
    let counted = allocations.so_far() - before;
    workspace.expect_delivered(WARM_UP_ROWS + rows)?;
    drop(process);
    workspace.remove().await?;
    Ok(Some(counted as f64 / rows as f64))
}

/// What PostgreSQL did since.
struct Meter {
    wal: Moment,
    cpu_seconds: f64,
    transactions: i64,
}

struct Reading {
    wal: wal::Written,
    cpu_us: f64,
    statements: f64,
}

impl Meter {
    async fn start(workspace: &Workspace) -> Outcome<Self> {
        Ok(Meter {
            wal: Moment::now(&workspace.db).await?,
            transactions: workspace.transactions().await?,
            cpu_seconds: workspace.postgres.cpu_seconds(),
        })
    }

    async fn read(&self, workspace: &Workspace) -> Outcome<Reading> {
        // A session tells what it has done when it ends.
        workspace.left_alone().await?;
        // First: reading the WAL takes time of its own.
        let cpu_us = (workspace.postgres.cpu_seconds() - self.cpu_seconds) * 1e6;
        Ok(Reading {
            cpu_us,
            statements: (workspace.transactions().await? - self.transactions) as f64,
            wal: self.wal.written_since(&workspace.db).await?,
        })
    }
}

impl Contestant {
    fn name(self) -> String {
        match self {
            Contestant::Keyed(mode) => format!("outboxd, {}", mode.name()),
            Contestant::Unordered(mode) => format!("outboxd, {}, no key", mode.name()),
            Contestant::Textbook => "textbook".to_owned(),
        }
    }

    /// None where the relay is not ours.
    fn mode(self) -> Option<OnPublished> {
        match self {
            Contestant::Keyed(mode) | Contestant::Unordered(mode) => Some(mode),
            Contestant::Textbook => None,
        }
    }

    fn shape(self) -> Shape {
        match self {
            Contestant::Unordered(_) => Shape::Unordered,
            Contestant::Keyed(_) | Contestant::Textbook => Shape::Keyed,
        }
    }

    fn whose(self) -> Whose {
        match self {
            Contestant::Textbook => Whose::Other,
            Contestant::Keyed(_) | Contestant::Unordered(_) => Whose::Ours,
        }
    }
}

impl Entry {
    fn spread(&self, of: impl Fn(&Cost) -> f64) -> Option<Spread> {
        Spread::of(self.costs.iter().map(of))
    }

    fn relay_us(&self) -> Option<Spread> {
        Spread::of(self.costs.iter().filter_map(|cost| cost.relay_us))
    }

    fn row(&self) -> Vec<Cell> {
        vec![
            Cell::text(self.contestant.name()),
            Cell::Spread(self.spread(|cost| cost.wal), 0),
            Cell::Spread(self.spread(|cost| cost.wal_images), 0),
            Cell::Spread(self.spread(|cost| cost.postgres_us), 1),
            Cell::Spread(self.relay_us(), 1),
            Cell::Number(self.allocations, 1),
            Cell::Spread(self.spread(|cost| cost.statements * 1000.0), 2),
            Cell::Spread(self.spread(|cost| cost.vacuum_wal), 0),
            Cell::Spread(self.spread(|cost| cost.vacuum_us), 1),
        ]
    }
}

fn section(entries: &[Entry], commits: &[Commit]) -> Section {
    Section {
        name: "cost",
        title: "Cost of a message",
        note: "Counted while a backlog of rows of about 200 bytes is drained by a relay that is started for it. WAL without \
               full-page images, and those beside it; processor time of all of PostgreSQL and of the relay; statements by the \
               transactions that PostgreSQL counts, each statement being one; allocations of the relay, the Kafka client's \
               included, in a run of their own after a warm-up. Vacuum runs later and on its own: what it does about \
               the rows that were marked is shown apart. The second table is the application's side: one row and its commit, from \
               one session, against a table of topic, key and payload with nothing but a primary key."
            .to_owned(),
        tables: vec![costs(entries), inserts(commits)],
        charts: vec![chart(entries)],
        targets: targets(entries, commits),
    }
}

fn costs(entries: &[Entry]) -> Table {
    Table {
        columns: vec![
            "contestant",
            "WAL B",
            "full-page images B",
            "PostgreSQL µs",
            "relay µs",
            "relay's allocations",
            "statements per 1,000",
            "vacuum WAL B",
            "vacuum µs",
        ],
        rows: entries.iter().map(Entry::row).collect(),
    }
}

fn inserts(commits: &[Commit]) -> Table {
    Table {
        columns: vec!["INSERT and commit into", "µs", "ratio"],
        rows: vec![
            vec![
                Cell::text("a bare table"),
                Cell::spread(commits.iter().map(|commit| commit.bare), 0),
                Cell::Number(Some(1.0), 2),
            ],
            vec![
                Cell::text("outbox.message"),
                Cell::spread(commits.iter().map(|commit| commit.outbox), 0),
                Cell::spread(commits.iter().map(|commit| commit.outbox / commit.bare), 2),
            ],
        ],
    }
}

fn chart(entries: &[Entry]) -> Chart {
    let bar = |entry: &Entry| {
        Some(Bar {
            label: entry.contestant.name(),
            whose: entry.contestant.whose(),
            value: entry.spread(|cost| cost.wal)?,
        })
    };
    Chart {
        name: "wal",
        title: "Bytes of WAL that the relay causes for each message, without full-page images",
        unit: "B",
        places: 0,
        bars: entries.iter().filter_map(bar).collect(),
    }
}

fn targets(entries: &[Entry], commits: &[Commit]) -> Vec<Target> {
    let median = |contestant, of: fn(&Cost) -> f64| {
        let entry = entries.iter().find(|entry| entry.contestant == contestant)?;
        Some(entry.spread(of)?.median)
    };
    let target = |what: &str, mode: OnPublished, most, of| {
        let promise = format!("{what} a message, {}", mode.name());
        Target::at_most(promise, most, median(Contestant::Keyed(mode), of)).in_summary(Others {
            textbook: median(Contestant::Textbook, of),
            ..Others::default()
        })
    };
    let wal = |mode, most| target("WAL", mode, most, |cost| cost.wal).shown("B", 0);
    let postgres = |mode, most| {
        let target = target("PostgreSQL's processor time", mode, most, |cost| cost.postgres_us);
        target.shown("µs", 1)
    };
    let relay_us = entries.iter().filter_map(|entry| Some(entry.relay_us()?.median));
    let allocations = entries.iter().filter_map(|entry| entry.allocations);
    let insert = Spread::of(commits.iter().map(|commit| commit.outbox / commit.bare));
    vec![
        wal(OnPublished::Delete, 100.0),
        wal(OnPublished::Keep, 180.0),
        wal(OnPublished::Archive, 450.0),
        postgres(OnPublished::Delete, 12.0),
        postgres(OnPublished::Keep, 17.0),
        Target::at_most(
            "relay's processor time a message, the dearest mode",
            6.0,
            relay_us.reduce(f64::max),
        )
        .shown("µs", 1)
        .in_summary(Others::default()),
        Target::at_most(
            "relay's allocations a message, the dearest mode",
            10.5,
            allocations.reduce(f64::max),
        )
        .shown("", 1)
        .in_summary(Others::default()),
        Target::at_most(
            "the application's INSERT and commit, of a bare one",
            1.5,
            insert.map(|ratio| ratio.median),
        )
        .shown("×", 2),
    ]
}
