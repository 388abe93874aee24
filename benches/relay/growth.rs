//! Whether the rate of a drain holds when there is much of everything, or something in the way.

use crate::backlog::Shape;
use crate::chart::{Bar, Chart, Whose};
use crate::ground::{Ground, Obstacle};
use crate::marks::Marks;
use crate::mode::Mode;
use crate::neighbours::in_turn;
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
    /// Of the same drain with nothing in the way, each beside its neighbour in time.
    ratios: Vec<f64>,
    /// Of the first rows, to all of the shallowest backlog.
    first_ratios: Vec<f64>,
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
    let mut entries = prepare(bench).await?;
    let contests = contests(&entries, &bench.size.growth);
    let runs = contests.iter().map(|contest| contest.entries().len()).sum::<usize>();
    let progress = Progress::new("growth", runs * bench.size.compared_rounds);
    for round in 1..=bench.size.compared_rounds {
        for contest in &contests {
            for at in in_turn(round, contest.entries()) {
                let entry = &mut entries[at];
                progress.step(&format!("round {round}, {}", entry.case.name()));
                let run = bench.quiet.run(async || measure(bench, entry).await).await?;
                entry.runs.push(run);
                progress.done();
            }
            contest.compare(&mut entries);
        }
    }
    let section = section(bench, &entries);
    for entry in entries {
        entry.ground.place.remove().await?;
    }
    Ok(section)
}

async fn prepare(bench: &Bench) -> Outcome<Vec<Entry>> {
    let cases = cases(bench);
    let progress = Progress::new("growth, preparing", cases.len());
    let mut entries = Vec::new();
    for case in cases {
        progress.step(&case.name());
        let ground = Ground::prepare(&bench.stack, case.obstacle, case.shape).await?;
        entries.push(Entry {
            case,
            ground,
            runs: Vec::new(),
            ratios: Vec::new(),
            first_ratios: Vec::new(),
        });
        progress.done();
    }
    Ok(entries)
}

/// A drain with something in the way, and the same without it.
struct Contest {
    entry: usize,
    plain: usize,
    shallow: Option<usize>,
}

fn contests(entries: &[Entry], growth: &Growth) -> Vec<Contest> {
    let plain = |of: &Case, rows| {
        entries.iter().position(|entry| {
            let case = &entry.case;
            case.obstacle == Obstacle::None && case.mode == of.mode && case.shape == of.shape && case.rows == rows
        })
    };
    let contest = |(at, entry): (usize, &Entry)| {
        let case = &entry.case;
        let deepest = case.obstacle == Obstacle::Backlog(growth.deepest);
        (case.obstacle != Obstacle::None).then_some(Contest {
            entry: at,
            plain: plain(case, case.rows)?,
            shallow: deepest.then(|| plain(case, growth.shallow)).flatten(),
        })
    };
    entries.iter().enumerate().filter_map(contest).collect()
}

impl Contest {
    fn entries(&self) -> Vec<usize> {
        self.shallow.into_iter().chain([self.entry, self.plain]).collect()
    }

    /// Its last runs, with each other.
    fn compare(&self, entries: &mut [Entry]) {
        let slice = |at: usize| entries[at].runs.last()?.slice;
        let first = |at: usize| entries[at].runs.last()?.first_rows();
        let ratio = slice(self.entry).zip(slice(self.plain));
        let first_ratio = first(self.entry).zip(self.shallow.and_then(first));
        let entry = &mut entries[self.entry];
        entry.ratios.extend(ratio.map(|(with, without)| with / without));
        entry
            .first_ratios
            .extend(first_ratio.map(|(deep, shallow)| deep / shallow));
    }
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

impl Run {
    /// The median of its starts.
    fn first_rows(&self) -> Option<f64> {
        Spread::of(self.first.iter().copied()).map(|spread| spread.median)
    }
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

    fn slice(&self) -> Option<Spread> {
        Spread::of(self.runs.iter().filter_map(|run| run.slice))
    }

    fn ratio(&self) -> Option<Spread> {
        Spread::of(self.ratios.iter().copied())
    }
}

fn section(bench: &Bench, entries: &[Entry]) -> Section {
    let growth = &bench.size.growth;
    let row = |entry: &Entry| {
        vec![
            Cell::text(entry.case.name()),
            Cell::Spread(entry.slice(), 0),
            Cell::Spread(entry.ratio(), 2),
            Cell::Spread(entry.first(), 0),
            Cell::spread(entry.runs.iter().map(|run| run.wal), 0),
        ]
    };
    Section {
        name: "growth",
        title: "Growth",
        note: format!(
            "Each round adds {} rows to what is there and drains as many, with a new process; a checkpoint comes first. The rate \
             leaves out the first tenth. The same drain with nothing in the way runs right before or after it, in turns, and they are \
             compared pair by pair. The column of the first rows is the rate over {} rows alone, from the first claim: all that the \
             shallowest backlog has. It and the deepest are started {STARTS} times a round for that. With twenty topics what was published \
             stays, with and without a poisoned one; otherwise a drain with nothing in the way starts from an empty table. The WAL is all \
             that the server wrote meanwhile, autovacuum included; a page is in it whole once after the checkpoint, so it grows with the \
             pages touched.",
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
    let first = Spread::of(deep.first_ratios.iter().copied())?;
    Some(first.median.min(deep.ratio()?.median))
}
