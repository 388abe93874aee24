//! Whether the rate of a drain holds when there is much of everything, or something in the way.

use crate::backlog::Shape;
use crate::chart::{Bar, Chart, Whose};
use crate::ground::{Ground, Obstacle};
use crate::marks::Marks;
use crate::mode::Mode;
use crate::process::Process;
use crate::progress::Progress;
use crate::report::{Cell, Section, Table, number};
use crate::size::Growth;
use crate::spread::Spread;
use crate::target::Target;
use crate::wal::Moment;
use crate::{Bench, Outcome};

#[derive(Clone, Copy)]
struct Case {
    obstacle: Obstacle,
    mode: Mode,
    shape: Shape,
    /// Rows that each round adds and drains.
    rows: i64,
}

struct Entry {
    case: Case,
    ground: Ground,
    runs: Vec<Run>,
}

struct Run {
    /// Over the first so many rows as the shallowest backlog has, from each start of a process.
    first: Vec<f64>,
    /// Over the rest; none where there is no rest.
    slice: Option<f64>,
    /// Bytes of WAL for each row, images of pages included: how many pages were touched is what differs.
    wal: f64,
}

pub async fn run(bench: &Bench) -> Outcome<Section> {
    let cases = cases(bench);
    let progress = Progress::new("growth", cases.len() * (bench.size.compared_rounds + 1));
    let mut entries = Vec::new();
    for case in cases {
        progress.step(&format!("preparing {}", case.name()));
        let ground = Ground::prepare(&bench.stack, case.obstacle, case.shape).await?;
        entries.push(Entry {
            case,
            ground,
            runs: Vec::new(),
        });
        progress.done();
    }
    for round in 1..=bench.size.compared_rounds {
        for entry in &mut entries {
            progress.step(&format!("round {round}, {}", entry.case.name()));
            let run = bench.quiet.run(async || measure(bench, entry).await).await?;
            entry.runs.push(run);
            progress.done();
        }
    }
    let section = section(bench, &entries);
    for entry in entries {
        entry.ground.place.remove().await?;
    }
    Ok(section)
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
        mode: Mode::Keep,
        shape: Shape::Mixed,
        rows: growth.slice,
    };
    vec![
        keyed(Obstacle::None, Mode::Keep, growth.shallow),
        keyed(Obstacle::None, Mode::Keep, growth.slice),
        keyed(Obstacle::None, Mode::Delete, growth.slice),
        keyed(Obstacle::Backlog(growth.deep), Mode::Keep, growth.slice),
        keyed(Obstacle::Backlog(growth.deepest), Mode::Keep, growth.slice),
        keyed(Obstacle::Kept(growth.deepest), Mode::Keep, growth.slice),
        keyed(Obstacle::PinnedHorizon, Mode::Keep, growth.slice),
        keyed(Obstacle::PinnedHorizon, Mode::Delete, growth.slice),
        keyed(Obstacle::OpenWriter, Mode::Keep, growth.slice),
        keyed(Obstacle::HeldKey(growth.held), Mode::Keep, growth.slice),
        mixed(Obstacle::None),
        mixed(Obstacle::PoisonedTopic),
    ]
}

/// The shallowest backlog is drained in a fraction of a second: one start more or less lucky must not decide.
const STARTS: usize = 5;

async fn measure(bench: &Bench, entry: &Entry) -> Outcome<Run> {
    let Entry { case, ground, .. } = entry;
    let growth = &bench.size.growth;
    let _writer = ground.leave_open().await?;
    let mut first = Vec::new();
    if case.is_compared_from_the_start(growth) {
        for _ in 1..STARTS {
            ground.top_up(growth.shallow).await?;
            let marks = drain(entry, growth.shallow).await?;
            first.push(marks.rate_between(0, growth.shallow));
        }
    }
    let rows = ground.add(case.rows).await?;
    let before = Moment::now(&ground.place.db).await?;
    let marks = drain(entry, rows).await?;
    let written = before.written_since(&ground.place.db).await?;
    first.push(marks.rate_between(0, growth.shallow));
    Ok(Run {
        first,
        slice: (rows > growth.shallow).then(|| marks.rate_between(rows / 10, rows)),
        wal: (written.bytes + written.image_bytes) / rows as f64,
    })
}

async fn drain(entry: &Entry, rows: i64) -> Outcome<Marks> {
    let Entry { case, ground, .. } = entry;
    let process = [Process::start(&ground.place, &ground.flags(case.mode))?];
    let marks = Marks::watch(&process, rows).await?;
    let [process] = process;
    process.stop().await?;
    Ok(marks)
}

impl Case {
    fn is_compared_from_the_start(&self, growth: &Growth) -> bool {
        self.rows == growth.shallow || self.obstacle == Obstacle::Backlog(growth.deepest)
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
            Obstacle::PoisonedTopic => "20 topics, one poisoned: the others".to_owned(),
        };
        format!("{what}, {}", self.mode.name())
    }
}

impl Entry {
    fn first(&self) -> Option<Spread> {
        Spread::of(self.runs.iter().flat_map(|run| run.first.iter().copied()))
    }

    /// Of each round.
    fn firsts(&self) -> Vec<f64> {
        let median = |run: &Run| Spread::of(run.first.iter().copied()).map(|spread| spread.median);
        self.runs.iter().filter_map(median).collect()
    }

    fn slices(&self) -> Vec<f64> {
        self.runs.iter().filter_map(|run| run.slice).collect()
    }

    fn slice(&self) -> Option<Spread> {
        Spread::of(self.slices())
    }
}

/// The same drain with nothing in the way.
fn plain<'a>(entries: &'a [Entry], of: &Case) -> Option<&'a Entry> {
    entries.iter().find(|entry| {
        let case = &entry.case;
        case.obstacle == Obstacle::None && case.mode == of.mode && case.shape == of.shape && case.rows == of.rows
    })
}

fn ratio(entries: &[Entry], entry: &Entry) -> Option<Spread> {
    Spread::of_ratios(&entry.slices(), &plain(entries, &entry.case)?.slices())
}

fn section(bench: &Bench, entries: &[Entry]) -> Section {
    let growth = &bench.size.growth;
    let row = |entry: &Entry| {
        vec![
            Cell::text(entry.case.name()),
            Cell::Spread(entry.slice(), 0),
            Cell::Spread(ratio(entries, entry), 2),
            Cell::Spread(entry.first(), 0),
            Cell::spread(entry.runs.iter().map(|run| run.wal), 0),
        ]
    };
    Section {
        name: "growth",
        title: "Growth",
        note: format!(
            "Each round adds {} rows to what is there and drains as many, with a new process; a checkpoint comes first. The rate \
             leaves out the first tenth, and stands beside that of the same drain with nothing in the way, round by round. \
             The column of the first rows is the rate over {} rows alone, from the first claim: all that the shallowest backlog has. It and the deepest \
             are started {STARTS} times a round for that. With twenty topics what was published stays, with and without a poisoned one; \
             otherwise a drain with nothing in the way starts from an empty table. The WAL is all that the server wrote meanwhile, \
             autovacuum included; a page is in it whole once after the checkpoint, so it grows with the pages touched.",
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
            value: entry.slice()?,
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
        of.filter_map(|entry| Some(ratio(entries, entry)?.median))
            .reduce(f64::min)
    };
    let target =
        |what: &str, bound, measured| Target::at_least(format!("drain with {what}, of one without"), bound, measured);
    let rows = |count: i64| number(count as f64, 0);
    vec![
        target(
            &format!("{} rows of backlog", rows(growth.deepest)),
            0.9,
            deepest(entries, growth.deepest, growth.shallow),
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
fn deepest(entries: &[Entry], deepest: i64, shallow: i64) -> Option<f64> {
    let deep = entries
        .iter()
        .find(|entry| entry.case.obstacle == Obstacle::Backlog(deepest))?;
    let small = entries
        .iter()
        .find(|entry| entry.case.obstacle == Obstacle::None && entry.case.rows == shallow)?;
    let first = Spread::of_ratios(&deep.firsts(), &small.firsts())?;
    Some(first.median.min(ratio(entries, deep)?.median))
}
