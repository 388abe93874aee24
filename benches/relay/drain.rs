//! How fast a backlog is drained, beside what PostgreSQL and Kafka each allow and what the textbook does.

use std::time::Duration;

use tokio::task::block_in_place;

use crate::backlog::Shape;
use crate::chart::{Bar, Chart, Whose};
use crate::mark_progress::MarkProgress;
use crate::on_published::OnPublished;
use crate::postgres_alone::PostgresAlone;
use crate::process::Process;
use crate::producer_alone::ProducerAlone;
use crate::progress::Progress;
use crate::report::{Cell, Section, Table};
use crate::rounds::Spread;
use crate::target::{Others, Target};
use crate::textbook::Textbook;
use crate::workspace::Workspace;
use crate::{Bench, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contestant {
    Outboxd(OnPublished),
    PostgresAlone(OnPublished),
    ProducerAlone,
    Textbook,
}

impl Contestant {
    fn name(self) -> String {
        match self {
            Contestant::Outboxd(mode) => format!("outboxd, {}", mode.name()),
            Contestant::PostgresAlone(mode) => format!("postgres alone, {}", mode.name()),
            Contestant::ProducerAlone => "producer alone".to_owned(),
            Contestant::Textbook => "textbook".to_owned(),
        }
    }

    fn whose(self) -> Whose {
        match self {
            Contestant::Outboxd(_) => Whose::Ours,
            Contestant::PostgresAlone(_) | Contestant::ProducerAlone => Whose::Limit,
            Contestant::Textbook => Whose::Other,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Run {
    rate: f64,
    /// Only where there is something to start.
    started: Option<Started>,
}

#[derive(Clone, Copy, Debug)]
struct Started {
    rate_with_start_up: f64,
    start_up: Duration,
    memory_mib: f64,
}

struct Entry {
    shape: Shape,
    contestant: Contestant,
    rows: i64,
    runs: Vec<Run>,
    /// What outboxd's rate was of it, pair by pair: where it is a target.
    outboxd_of_it: Vec<f64>,
}

/// Ours, and those beside which its rate is a target.
const COMPARED_SHAPE: Shape = Shape::Keyed;
const COMPARED: [Contestant; 3] = [
    Contestant::Outboxd(OnPublished::Delete),
    Contestant::PostgresAlone(OnPublished::Delete),
    Contestant::Textbook,
];

pub async fn run(bench: &Bench) -> Outcome<Section> {
    let size = &bench.size;
    let (mut compared, mut others): (Vec<_>, Vec<_>) = entries(bench).into_iter().partition(Entry::is_compared);
    let steps = others.len() * size.rounds + (compared.len() - 1) * size.compared_rounds + WARM_UP.len();
    let progress = Progress::new("drain", steps);
    warm_up(bench, &progress).await?;
    for round in 1..=size.compared_rounds {
        compare(bench, round, &mut compared, &progress).await?;
        if round > size.rounds {
            continue;
        }
        for entry in &mut others {
            progress.step(&format!("round {round}, {}", entry.name()));
            entry
                .runs
                .push(bench.undisturbed.run(async || entry.measure(bench).await).await?);
            progress.done();
        }
    }
    let mut entries: Vec<Entry> = compared.into_iter().chain(others).collect();
    entries.sort_by_key(|entry| entry.shape as usize);
    Ok(section(&entries))
}

/// The first beside each of the others.
async fn compare(bench: &Bench, round: usize, compared: &mut [Entry], progress: &Progress) -> Outcome<()> {
    let [ours, others @ ..] = compared else { return Ok(()) };
    for other in others {
        progress.step(&format!(
            "round {round}, {} beside {}",
            ours.name(),
            other.contestant.name()
        ));
        let (this, that) = (async || ours.measure(bench).await, async || other.measure(bench).await);
        let (this, that) = bench.undisturbed.pair(round, this, that).await?;
        other.outboxd_of_it.push(this.rate / that.rate);
        ours.runs.push(this);
        other.runs.push(that);
        progress.done();
    }
    Ok(())
}

fn entries(bench: &Bench) -> Vec<Entry> {
    let size = &bench.size;
    let mut contests: Vec<(Shape, Contestant)> = Vec::new();
    for mode in OnPublished::ALL {
        contests.push((Shape::Keyed, Contestant::Outboxd(mode)));
        contests.push((Shape::Keyed, Contestant::PostgresAlone(mode)));
    }
    for shape in [Shape::Unordered, Shape::OneKey, Shape::TenKilobytes, Shape::Mixed] {
        contests.push((shape, Contestant::Outboxd(OnPublished::Delete)));
        contests.push((shape, Contestant::PostgresAlone(OnPublished::Delete)));
    }
    for shape in [
        Shape::Keyed,
        Shape::Unordered,
        Shape::OneKey,
        Shape::TenKilobytes,
        Shape::Mixed,
    ] {
        contests.push((shape, Contestant::ProducerAlone));
        contests.push((shape, Contestant::Textbook));
    }
    // Those of one shape side by side: in time as well as in the table.
    contests.sort_by_key(|(shape, _)| *shape as usize);
    let rows = |shape, contestant| match (shape, contestant) {
        (Shape::TenKilobytes, Contestant::Textbook) => size.textbook_rows.min(size.large_rows),
        (_, Contestant::Textbook) => size.textbook_rows,
        (Shape::TenKilobytes, _) => size.large_rows,
        _ => size.rows,
    };
    let entry = |(shape, contestant)| Entry {
        shape,
        contestant,
        rows: rows(shape, contestant),
        runs: Vec::new(),
        outboxd_of_it: Vec::new(),
    };
    contests.into_iter().map(entry).collect()
}

/// Of the machine: caches, PostgreSQL's WAL files. The broker is warm already.
const WARM_UP: [Contestant; 2] = [Contestant::Outboxd(OnPublished::Keep), Contestant::Textbook];

async fn warm_up(bench: &Bench, progress: &Progress) -> Outcome<()> {
    for contestant in WARM_UP {
        progress.step(&format!("warming up, {}", contestant.name()));
        measure(bench, Shape::Keyed, contestant, bench.size.textbook_rows).await?;
        progress.done();
    }
    Ok(())
}

async fn measure(bench: &Bench, shape: Shape, contestant: Contestant, rows: i64) -> Outcome<Run> {
    let workspace = Workspace::new(&bench.servers, shape).await?;
    let run = match contestant {
        Contestant::Outboxd(mode) => outboxd(&workspace, shape, mode, rows).await?,
        Contestant::PostgresAlone(mode) => {
            workspace.fill(shape, rows).await?;
            let alone = PostgresAlone::new(&workspace, mode, shape).await?;
            Run::without_start(rows, alone.drain(shape, rows).await?)
        }
        Contestant::ProducerAlone => {
            let alone = ProducerAlone::new(&workspace, shape, rows).await?;
            Run::without_start(rows, block_in_place(|| alone.send_all())?)
        }
        Contestant::Textbook => {
            Textbook::create(&workspace).await?;
            Textbook::fill(&workspace, shape, rows).await?;
            let took = Textbook::new(&workspace).await?.drain().await?;
            workspace.expect_delivered(rows)?;
            Run::without_start(rows, took)
        }
    };
    workspace.remove().await?;
    Ok(run)
}

async fn outboxd(workspace: &Workspace, shape: Shape, mode: OnPublished, rows: i64) -> Outcome<Run> {
    workspace.fill(shape, rows).await?;
    let process = [Process::start(workspace, &["--on-published", mode.name()])?];
    let marks = MarkProgress::watch(&process, rows).await?;
    workspace.expect_delivered(rows)?;
    Ok(Run {
        rate: marks.rate(),
        started: Some(Started {
            rate_with_start_up: marks.rate_with_start_up(),
            start_up: marks.start_up,
            memory_mib: process[0].memory_mib_max(),
        }),
    })
}

impl Run {
    fn without_start(rows: i64, took: Duration) -> Self {
        Run {
            rate: rows as f64 / took.as_secs_f64(),
            started: None,
        }
    }
}

impl Entry {
    fn is_compared(&self) -> bool {
        self.shape == COMPARED_SHAPE && COMPARED.contains(&self.contestant)
    }

    fn name(&self) -> String {
        format!("{}, {}", self.shape.name(), self.contestant.name())
    }

    async fn measure(&self, bench: &Bench) -> Outcome<Run> {
        measure(bench, self.shape, self.contestant, self.rows).await
    }

    fn spread(&self, of: impl Fn(&Started) -> f64, places: usize) -> Cell {
        Cell::spread(self.runs.iter().filter_map(|run| run.started.as_ref().map(&of)), places)
    }

    fn rate(&self) -> Option<Spread> {
        Spread::of(self.runs.iter().map(|run| run.rate))
    }

    fn outboxd_of_it(&self) -> Option<Spread> {
        Spread::of(self.outboxd_of_it.iter().copied())
    }

    fn row(&self) -> Vec<Cell> {
        vec![
            Cell::text(self.shape.name()),
            Cell::text(self.contestant.name()),
            Cell::Number(Some(self.rows as f64), 0),
            Cell::Spread(self.rate(), 0),
            Cell::Spread(self.outboxd_of_it(), 2),
            self.spread(|started| started.rate_with_start_up, 0),
            self.spread(|started| started.start_up.as_secs_f64() * 1000.0, 0),
            self.spread(|started| started.memory_mib, 1),
        ]
    }
}

fn section(entries: &[Entry]) -> Section {
    Section {
        name: "drain",
        title: "Drain",
        note: "A backlog that was just written is drained by one process. The rate is from the first claim to the last mark; \
               beside it the rate that includes starting the process, and how long that took until its first claim. \
               `postgres alone` runs the product's own claim and mark statements from one client and publishes nothing; \
               `producer alone` sends the same records from memory; neither can be beaten by much. Where outboxd's rate beside another is a \
               target, the two drain one right after the other, in turns, and are compared pair by pair."
            .to_owned(),
        tables: vec![Table {
            columns: vec![
                "rows of",
                "contestant",
                "rows",
                "messages/s",
                "outboxd, delete, of it",
                "with start-up",
                "start-up ms",
                "peak memory MiB",
            ],
            rows: entries.iter().map(Entry::row).collect(),
        }],
        charts: vec![chart(entries)],
        targets: targets(entries),
    }
}

/// Producer alone is several times everything else: its bar would leave no room to compare the others.
fn chart(entries: &[Entry]) -> Chart {
    let shown = entries
        .iter()
        .filter(|entry| entry.contestant != Contestant::ProducerAlone);
    let bar = |entry: &Entry| {
        Some(Bar {
            label: format!("{}: {}", entry.shape.name(), entry.contestant.name()),
            whose: entry.contestant.whose(),
            value: entry.rate()?,
        })
    };
    Chart {
        name: "drain",
        title: "Messages a second while a backlog is drained",
        unit: "msg/s",
        places: 0,
        bars: shown.filter_map(bar).collect(),
    }
}

fn targets(entries: &[Entry]) -> Vec<Target> {
    let find = |shape, contestant| {
        entries
            .iter()
            .find(|entry| entry.shape == shape && entry.contestant == contestant)
    };
    let rate = |shape, contestant| find(shape, contestant)?.rate().map(|rate| rate.median);
    let ours = |shape, mode| rate(shape, Contestant::Outboxd(mode));
    let drain = |shape: Shape, mode: OnPublished, least| {
        let promise = format!("drain, {}, {}", shape.name(), mode.name());
        let target = Target::at_least(promise, least, ours(shape, mode)).shown("msg/s", 0);
        target.in_summary(Others {
            postgres_alone: rate(shape, Contestant::PostgresAlone(mode)),
            producer_alone: rate(shape, Contestant::ProducerAlone),
            textbook: rate(shape, Contestant::Textbook),
        })
    };
    let ratio = |to| Some(find(COMPARED_SHAPE, to)?.outboxd_of_it()?.median);
    let memory = |large: bool| {
        let sized = entries
            .iter()
            .filter(|entry| (entry.shape == Shape::TenKilobytes) == large);
        let runs = sized.flat_map(|entry| &entry.runs);
        runs.filter_map(|run| Some(run.started?.memory_mib)).reduce(f64::max)
    };
    vec![
        drain(Shape::Keyed, OnPublished::Delete, 110_000.0),
        drain(Shape::Keyed, OnPublished::Keep, 75_000.0),
        drain(Shape::Keyed, OnPublished::Archive, 70_000.0),
        drain(Shape::Unordered, OnPublished::Delete, 70_000.0),
        Target::at_least(
            "drain, delete, of postgres alone",
            0.85,
            ratio(Contestant::PostgresAlone(OnPublished::Delete)),
        ),
        Target::at_least("drain, delete, of the textbook", 10.0, ratio(Contestant::Textbook)).shown("×", 1),
        Target::at_most("memory in the drain, rows of 200 bytes, highest", 40.0, memory(false))
            .shown("MiB", 1)
            .in_summary(Others::default()),
        Target::at_most("memory in the drain, rows of 10 KB, highest", 40.0, memory(true)).shown("MiB", 1),
    ]
}
