//! Whether the rate of a drain holds when there is much of everything, or something in the way.

use crate::backlog::Shape;
use crate::chart::{Bar, Chart, Whose};
use crate::mark_progress::MarkProgress;
use crate::obstacles::{Obstacle, Setup};
use crate::on_published::OnPublished;
use crate::process::Process;
use crate::progress::Progress;
use crate::report::{Cell, Section, Table, number};
use crate::rounds::Spread;
use crate::run_size::Growth;
use crate::target::Target;
use crate::wal::Moment;
use crate::{Bench, Outcome};

#[derive(Clone, Copy)]
struct Case {
    obstacle: Obstacle,
    mode: OnPublished,
    shape: Shape,
    /// Rows that each round adds and drains.
    rows: i64,
}

struct Entry {
    case: Case,
    setup: Setup,
    runs: Vec<Run>,
    /// Beside those of the same drain with nothing in the way, pair by pair.
    ratios: Vec<f64>,
    /// Over the first rows, of which the shallowest backlog has no more: from short drains of their own.
    starts: Vec<f64>,
    start_ratios: Vec<f64>,
}

struct Run {
    rate: f64,
    first_rows: f64,
    /// Bytes of WAL for each row, images of pages included: how many pages were touched is what differs.
    wal: f64,
}

pub async fn run(bench: &Bench) -> Outcome<Section> {
    let mut entries = prepare(bench).await?;
    let pairs = pairs(&entries, &bench.size.growth)?;
    let progress = Progress::new("growth", pairs.len() * bench.size.compared_rounds);
    for round in 1..=bench.size.compared_rounds {
        for (at, plain) in &pairs {
            progress.step(&format!("round {round}, {}", entries[*at].case.name()));
            if entries[*plain].case.rows == entries[*at].case.rows {
                compare(bench, round, &mut entries, *at, *plain).await?;
            } else {
                compare_starts(bench, &mut entries, *at, *plain).await?;
            }
            progress.done();
        }
    }
    let section = section(bench, &entries);
    for entry in entries {
        entry.setup.workspace.remove().await?;
    }
    Ok(section)
}

async fn prepare(bench: &Bench) -> Outcome<Vec<Entry>> {
    let cases = cases(bench);
    let progress = Progress::new("growth, preparing", cases.len());
    let mut entries = Vec::new();
    for case in cases {
        progress.step(&case.name());
        let setup = Setup::prepare(&bench.servers, case.obstacle, case.shape).await?;
        entries.push(Entry {
            case,
            setup,
            runs: Vec::new(),
            ratios: Vec::new(),
            starts: Vec::new(),
            start_ratios: Vec::new(),
        });
        progress.done();
    }
    Ok(entries)
}

/// What has something in the way, beside the same with nothing; the deepest backlog also beside the shallowest.
fn pairs(entries: &[Entry], growth: &Growth) -> Outcome<Vec<(usize, usize)>> {
    let mut pairs = Vec::new();
    for (at, Entry { case, .. }) in entries.iter().enumerate() {
        if case.obstacle == Obstacle::None {
            continue;
        }
        let plain = |rows| {
            let found = entries.iter().position(|entry| entry.case.is_plain(case, rows));
            found.ok_or_else(|| format!("nothing to compare with {}", case.name()))
        };
        pairs.push((at, plain(case.rows)?));
        if case.obstacle == Obstacle::Backlog(growth.deepest) {
            pairs.push((at, plain(growth.shallow)?));
        }
    }
    Ok(pairs)
}

fn cases(bench: &Bench) -> Vec<Case> {
    let growth = &bench.size.growth;
    let keyed = |obstacle, mode, rows| Case {
        obstacle,
        mode,
        shape: Shape::Keyed,
        rows,
    };
    let mixed = |obstacle| Case {
        obstacle,
        mode: OnPublished::Keep,
        shape: Shape::Mixed,
        rows: growth.slice,
    };
    vec![
        keyed(Obstacle::None, OnPublished::Keep, growth.shallow),
        keyed(Obstacle::None, OnPublished::Keep, growth.slice),
        keyed(Obstacle::None, OnPublished::Delete, growth.slice),
        keyed(Obstacle::Backlog(growth.deep), OnPublished::Keep, growth.slice),
        keyed(Obstacle::Backlog(growth.deepest), OnPublished::Keep, growth.slice),
        keyed(Obstacle::Kept(growth.deepest), OnPublished::Keep, growth.slice),
        keyed(Obstacle::PinnedHorizon, OnPublished::Keep, growth.slice),
        keyed(Obstacle::PinnedHorizon, OnPublished::Delete, growth.slice),
        keyed(Obstacle::OpenWriter, OnPublished::Keep, growth.slice),
        keyed(Obstacle::HeldKey(growth.held), OnPublished::Keep, growth.slice),
        keyed(Obstacle::PausedPartition(growth.held), OnPublished::Keep, growth.slice),
        mixed(Obstacle::None),
        mixed(Obstacle::PoisonedTopic),
    ]
}

/// A drain with something in the way, beside the same with nothing.
async fn compare(bench: &Bench, round: usize, entries: &mut [Entry], at: usize, plain: usize) -> Outcome<()> {
    let run = async |at: usize| measure(bench, &entries[at]).await;
    let (with, without) = (async || run(at).await, async || run(plain).await);
    let (with, without) = bench.undisturbed.pair(round, with, without).await?;
    entries[at].ratios.push(with.rate / without.rate);
    entries[at].runs.push(with);
    entries[plain].runs.push(without);
    Ok(())
}

/// The shallowest backlog is drained in a fraction of a second: one start more or less lucky must not decide.
const STARTS: usize = 5;

/// Short drains of the first rows, alternately.
async fn compare_starts(bench: &Bench, entries: &mut [Entry], deep: usize, shallow: usize) -> Outcome<()> {
    for turn in 1..=STARTS {
        let start = async |at: usize| start(&entries[at], bench.size.growth.shallow).await;
        let (of_deep, of_shallow) = (async || start(deep).await, async || start(shallow).await);
        let (of_deep, of_shallow) = bench.undisturbed.pair(turn, of_deep, of_shallow).await?;
        entries[deep].starts.push(of_deep);
        entries[deep].start_ratios.push(of_deep / of_shallow);
        entries[shallow].starts.push(of_shallow);
    }
    Ok(())
}

async fn start(entry: &Entry, rows: i64) -> Outcome<f64> {
    entry.setup.top_up(rows).await?;
    Ok(drain(entry, rows).await?.rate_between(0, rows))
}

async fn measure(bench: &Bench, entry: &Entry) -> Outcome<Run> {
    let Entry { case, setup, .. } = entry;
    let _writer = setup.leave_open().await?;
    let rows = setup.add(case.rows).await?;
    let before = Moment::now(&setup.workspace.db).await?;
    let marks = drain(entry, rows).await?;
    let written = before.written_since(&setup.workspace.db).await?;
    Ok(Run {
        rate: marks.rate_between(rows / 10, rows),
        first_rows: marks.rate_between(0, bench.size.growth.shallow),
        wal: (written.bytes + written.image_bytes) / rows as f64,
    })
}

async fn drain(entry: &Entry, rows: i64) -> Outcome<MarkProgress> {
    let Entry { case, setup, .. } = entry;
    let process = [Process::start(&setup.workspace, &setup.flags(case.mode))?];
    let marks = MarkProgress::watch(&process, rows).await?;
    let [process] = process;
    process.stop().await?;
    Ok(marks)
}

impl Case {
    /// Is this the same with nothing in the way, over so many rows?
    fn is_plain(&self, of: &Case, rows: i64) -> bool {
        self.obstacle == Obstacle::None && self.mode == of.mode && self.shape == of.shape && self.rows == rows
    }

    fn name(&self) -> String {
        let what = match self.obstacle {
            Obstacle::None if self.shape == Shape::Mixed => "20 topics, all healthy".to_owned(),
            Obstacle::None => format!("{} rows, nothing in the way", number(self.rows as f64, 0)),
            Obstacle::Backlog(rows) => format!("{} rows of backlog", number(rows as f64, 0)),
            Obstacle::Kept(rows) => format!("{} kept rows behind", number(rows as f64, 0)),
            Obstacle::PinnedHorizon => "pinned vacuum horizon".to_owned(),
            Obstacle::OpenWriter => "a writer left open".to_owned(),
            Obstacle::HeldKey(rows) => format!("{} rows held behind one key", number(rows as f64, 0)),
            Obstacle::PausedPartition(keys) => {
                format!(
                    "one partition of eight paused, {} keys on it: the others",
                    number(keys as f64, 0)
                )
            }
            Obstacle::PoisonedTopic => "20 topics, one poisoned: the others".to_owned(),
        };
        format!("{what}, {}", self.mode.name())
    }
}

impl Entry {
    fn rate(&self) -> Option<Spread> {
        Spread::of(self.runs.iter().map(|run| run.rate))
    }

    fn ratio(&self) -> Option<Spread> {
        Spread::of(self.ratios.iter().copied())
    }

    fn first_rows(&self) -> Option<Spread> {
        let of_runs = self.runs.iter().map(|run| run.first_rows);
        Spread::of(of_runs.chain(self.starts.iter().copied()))
    }
}

fn section(bench: &Bench, entries: &[Entry]) -> Section {
    let growth = &bench.size.growth;
    let row = |entry: &Entry| {
        vec![
            Cell::text(entry.case.name()),
            Cell::Spread(entry.rate(), 0),
            Cell::Spread(entry.ratio(), 2),
            Cell::Spread(entry.first_rows(), 0),
            Cell::spread(entry.runs.iter().map(|run| run.wal), 0),
        ]
    };
    Section {
        name: "growth",
        title: "Growth",
        note: format!(
            "{} rows are added to what is there and as many drained, with a new process; a checkpoint comes first. The rate \
             leaves out the first tenth. The same drain with nothing in the way runs right before or after it, in turns, and they are \
             compared pair by pair: so it runs once for each that is compared with it. The column of the first rows is the rate over {} \
             rows alone, from the first claim: all that the shallowest backlog has. It and the deepest are also drained of so many \
             by turns, {STARTS} times a round. With twenty topics what was published stays, with and without a poisoned one; otherwise a \
             drain with nothing in the way starts from an empty table. The WAL is all that the server wrote meanwhile, autovacuum included; \
             a page is in it whole once after the checkpoint, so it grows with the pages touched.",
            number(growth.slice as f64, 0),
            number(growth.shallow as f64, 0)
        ),
        tables: vec![Table {
            columns: vec![
                "with",
                "messages/s",
                "of the same with nothing in the way",
                "first rows, messages/s",
                "WAL with images, B a row",
            ],
            rows: entries.iter().map(row).collect(),
        }],
        charts: vec![chart(entries)],
        targets: targets(bench, entries),
    }
}

fn chart(entries: &[Entry]) -> Chart {
    let bar = |entry: &Entry| {
        Some(Bar {
            label: entry.case.name(),
            whose: match entry.case.obstacle {
                Obstacle::None => Whose::Limit,
                _ => Whose::Ours,
            },
            value: entry.rate()?,
        })
    };
    Chart {
        name: "growth",
        title: "Messages a second with something in the way; grey: with nothing",
        unit: "msg/s",
        places: 0,
        bars: entries.iter().filter_map(bar).collect(),
    }
}

fn targets(bench: &Bench, entries: &[Entry]) -> Vec<Target> {
    let growth = &bench.size.growth;
    // Where a case is run in several modes, the worst counts.
    let worst = |obstacle| {
        let of = entries.iter().filter(|entry| entry.case.obstacle == obstacle);
        of.filter_map(|entry| Some(entry.ratio()?.median)).reduce(f64::min)
    };
    let target =
        |what: &str, bound, measured| Target::at_least(format!("drain with {what}, of one without"), bound, measured);
    let rows = |count: i64| number(count as f64, 0);
    vec![
        target(
            &format!("{} rows of backlog", rows(growth.deepest)),
            0.9,
            deepest(entries, growth.deepest),
        ),
        target(
            &format!("{} kept rows", rows(growth.deepest)),
            0.9,
            worst(Obstacle::Kept(growth.deepest)),
        ),
        target("a pinned vacuum horizon", 0.8, worst(Obstacle::PinnedHorizon)),
        target("a writer left open", 0.6, worst(Obstacle::OpenWriter)),
        target(
            &format!("{} rows held behind one key", rows(growth.held)),
            0.9,
            worst(Obstacle::HeldKey(growth.held)),
        ),
        target(
            "one poisoned topic, the other nineteen",
            0.9,
            worst(Obstacle::PoisonedTopic),
        ),
    ]
}

/// Like with like: the first rows against all of the shallow backlog, the slice against the same slice alone. The lower counts.
fn deepest(entries: &[Entry], deepest: i64) -> Option<f64> {
    let deep = entries
        .iter()
        .find(|entry| entry.case.obstacle == Obstacle::Backlog(deepest))?;
    let first = Spread::of(deep.start_ratios.iter().copied())?;
    Some(first.median.min(deep.ratio()?.median))
}
