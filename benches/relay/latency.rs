//! How long it takes from a commit until a consumer has the record, at a steady rate; and what that costs PostgreSQL beside the
//! load itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::time::sleep;

use crate::backlog::Shape;
use crate::chart::{Bar, Chart, Whose};
use crate::consumer::{Arrival, TimingConsumer, first_copies};
use crate::load::{self, Commit, Load};
use crate::process::Process;
use crate::progress::Progress;
use crate::report::{Cell, Section, Table, number};
use crate::rounds::{Spread, percentile};
use crate::target::{Others, Target};
use crate::textbook::{self, Textbook};
use crate::workspace::Workspace;
use crate::{Bench, Outcome};

const RATES: [u64; 3] = [100, 1_000, 5_000];
const WARM_UP_RATE: u64 = 1_000;
/// Where the relay's processor time is compared with that of the load alone.
const COMPARED_RATE: u64 = 1_000;
/// More than this the textbook does not carry, and a growing backlog is no latency.
const TEXTBOOK_RATE_MAX: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contestant {
    LoadAlone,
    Outboxd,
    Textbook,
}

impl Contestant {
    fn name(self) -> &'static str {
        match self {
            Contestant::LoadAlone => "load alone",
            Contestant::Outboxd => "outboxd",
            Contestant::Textbook => "textbook",
        }
    }
}

struct Run {
    /// Sorted, in milliseconds.
    latency_ms: Vec<f64>,
    late_ms: Vec<f64>,
    commits_per_second: f64,
    /// PostgreSQL's processor time, for each commit: two runs may not have reached the same rate.
    postgres_us: f64,
}

struct Entry {
    rate: u64,
    contestant: Contestant,
    runs: Vec<Run>,
}

pub async fn run(bench: &Bench) -> Outcome<Section> {
    let size = &bench.size;
    let mut entries = entries();
    let progress = Progress::new("latency", size.compared_rounds * RATES.len());
    // Thrown away: small requests and those of consumers take other ways through the broker than a drain.
    progress.step("warming up");
    measure(bench, WARM_UP_RATE, Contestant::Outboxd).await?;
    for round in 1..=size.compared_rounds {
        for rate in RATES {
            let run = async |contestant: Contestant| {
                progress.step(&format!("round {round}, {rate} commits/s, {}", contestant.name()));
                measure(bench, rate, contestant).await
            };
            if rate == COMPARED_RATE || round <= size.rounds {
                let (ours, alone) = (
                    async || run(Contestant::Outboxd).await,
                    async || run(Contestant::LoadAlone).await,
                );
                let (ours, alone) = bench.undisturbed.pair(round, ours, alone).await?;
                push(&mut entries, rate, Contestant::Outboxd, ours);
                push(&mut entries, rate, Contestant::LoadAlone, alone);
            }
            if rate <= TEXTBOOK_RATE_MAX && round <= size.rounds {
                let textbook = bench.undisturbed.run(async || run(Contestant::Textbook).await).await?;
                push(&mut entries, rate, Contestant::Textbook, textbook);
            }
            progress.done();
        }
    }
    Ok(section(&entries))
}

fn push(entries: &mut [Entry], rate: u64, contestant: Contestant, run: Run) {
    if let Some(entry) = entries.iter_mut().find(|entry| entry.is(rate, contestant)) {
        entry.runs.push(run);
    }
}

fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    for rate in RATES {
        for contestant in [Contestant::LoadAlone, Contestant::Outboxd, Contestant::Textbook] {
            if contestant == Contestant::Textbook && rate > TEXTBOOK_RATE_MAX {
                continue;
            }
            entries.push(Entry {
                rate,
                contestant,
                runs: Vec::new(),
            });
        }
    }
    entries
}

async fn measure(bench: &Bench, rate: u64, contestant: Contestant) -> Outcome<Run> {
    let workspace = Workspace::new(&bench.servers, Shape::Keyed).await?;
    let insert = match contestant {
        Contestant::Textbook => {
            Textbook::create(&workspace).await?;
            textbook::INSERT
        }
        Contestant::LoadAlone | Contestant::Outboxd => load::INSERT,
    };
    let relay = Relay::start(&workspace, contestant).await?;
    let consumer = TimingConsumer::start(&workspace)?;
    let warm_up = Load::start(&workspace, insert, rate, 0).await?;
    sleep(bench.size.load_warm_up).await;
    let early = warm_up.stop().await?.len();
    let load = Load::start(&workspace, insert, rate, FIRST).await?;
    let (cpu, began) = (workspace.postgres.cpu_seconds(), Instant::now());
    sleep(bench.size.load).await;
    let commits = load.stop().await?;
    let seconds = began.elapsed().as_secs_f64();
    let postgres_us = (workspace.postgres.cpu_seconds() - cpu) * 1e6 / commits.len().max(1) as f64;
    let expected = if contestant == Contestant::LoadAlone {
        0
    } else {
        early + commits.len()
    };
    let arrivals = consumer.receive(expected).await?;
    relay.stop().await?;
    workspace.remove().await?;
    Ok(Run {
        latency_ms: latencies(&commits, &arrivals),
        late_ms: sorted(commits.iter().map(|commit| commit.late.as_secs_f64() * 1000.0)),
        commits_per_second: commits.len() as f64 / seconds,
        postgres_us,
    })
}

/// Above every number of the warm-up.
const FIRST: u64 = 1_000_000_000;

enum Relay {
    None,
    Outboxd(Process),
    Textbook(Arc<AtomicBool>, tokio::task::JoinHandle<Outcome<()>>),
}

impl Relay {
    async fn start(workspace: &Workspace, contestant: Contestant) -> Outcome<Self> {
        Ok(match contestant {
            Contestant::LoadAlone => Relay::None,
            Contestant::Outboxd => {
                let process = Process::start(workspace, &[])?;
                process.ready().await?;
                Relay::Outboxd(process)
            }
            Contestant::Textbook => {
                let stop = Arc::new(AtomicBool::new(false));
                Relay::Textbook(stop.clone(), Textbook::new(workspace).await?.run(stop))
            }
        })
    }

    async fn stop(self) -> Outcome<()> {
        match self {
            Relay::None => Ok(()),
            Relay::Outboxd(process) => process.stop().await,
            Relay::Textbook(stop, task) => {
                stop.store(true, Ordering::Relaxed);
                task.await?
            }
        }
    }
}

/// A relay may see a row before its writer hears that it is committed: that counts as no time at all.
fn latencies(commits: &[Commit], arrivals: &[Arrival]) -> Vec<f64> {
    let first = first_copies(arrivals);
    let waited = |commit: &Commit| Some(first.get(&commit.number)?.saturating_duration_since(commit.at));
    sorted(
        commits
            .iter()
            .filter_map(waited)
            .map(|waited| waited.as_secs_f64() * 1000.0),
    )
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

impl Entry {
    fn is(&self, rate: u64, contestant: Contestant) -> bool {
        self.rate == rate && self.contestant == contestant
    }

    fn latency(&self, share: f64) -> Option<Spread> {
        Spread::of(self.runs.iter().filter_map(|run| percentile(&run.latency_ms, share)))
    }

    fn late(&self, share: f64) -> Option<Spread> {
        Spread::of(self.runs.iter().filter_map(|run| percentile(&run.late_ms, share)))
    }

    fn postgres(&self) -> Option<Spread> {
        Spread::of(self.runs.iter().map(|run| run.postgres_us))
    }

    /// Pair by pair.
    fn postgres_of(&self, other: &Entry) -> Option<Spread> {
        let pairs = self.runs.iter().zip(&other.runs);
        // Its clock ticks every hundredth of a second: a short load may have used none.
        let pairs = pairs.filter(|(_, that)| that.postgres_us > 0.0);
        Spread::of(pairs.map(|(this, that)| this.postgres_us / that.postgres_us))
    }

    fn row(&self, alone: Option<&Entry>) -> Vec<Cell> {
        let mut row = vec![
            Cell::Number(Some(self.rate as f64), 0),
            Cell::text(self.contestant.name()),
            Cell::spread(self.runs.iter().map(|run| run.commits_per_second), 0),
        ];
        row.extend([0.5, 0.95, 0.99, 0.999, 1.0].map(|share| Cell::Spread(self.latency(share), 1)));
        row.extend([0.99, 1.0].map(|share| Cell::Spread(self.late(share), 1)));
        row.push(Cell::Spread(self.postgres(), 0));
        row.push(Cell::Spread(alone.and_then(|alone| self.postgres_of(alone)), 2));
        row
    }
}

fn section(entries: &[Entry]) -> Section {
    let row = |entry: &Entry| {
        let alone = (entry.contestant == Contestant::Outboxd).then(|| find(entries, entry.rate, Contestant::LoadAlone));
        entry.row(alone.flatten())
    };
    Section {
        name: "latency",
        title: "Latency",
        note: "Single rows committed at a steady rate, on a clock of its own: the time from the moment a commit returned until a \
               consumer had the record, after a warm-up. Beside it how late the load itself was: what is late there is \
               not the relay's doing. Processor time of PostgreSQL for each commit, also for the load without any relay: that one runs \
               right before or after, in turns, and they are compared pair by pair. The textbook's load goes to a table of its own, \
               which is cheaper to write to."
            .to_owned(),
        tables: vec![Table {
            columns: vec![
                "commits/s",
                "contestant",
                "reached",
                "p50 ms",
                "p95 ms",
                "p99 ms",
                "p99.9 ms",
                "max ms",
                "load late p99 ms",
                "load late max ms",
                "PostgreSQL µs a commit",
                "of the load alone",
            ],
            rows: entries.iter().map(row).collect(),
        }],
        charts: vec![chart(entries)],
        targets: targets(entries),
    }
}

fn chart(entries: &[Entry]) -> Chart {
    let mut bars = Vec::new();
    for entry in entries {
        let whose = match entry.contestant {
            Contestant::LoadAlone => continue,
            Contestant::Outboxd => Whose::Ours,
            Contestant::Textbook => Whose::Other,
        };
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            let rate = number(entry.rate as f64, 0);
            let label = format!("{rate} commits/s: {}, {name}", entry.contestant.name());
            bars.extend(entry.latency(share).map(|value| Bar { label, whose, value }));
        }
    }
    Chart {
        name: "latency",
        title: "Milliseconds from commit to consumer",
        unit: "ms",
        places: 1,
        bars,
    }
}

fn find(entries: &[Entry], rate: u64, contestant: Contestant) -> Option<&Entry> {
    entries.iter().find(|entry| entry.is(rate, contestant))
}

fn targets(entries: &[Entry]) -> Vec<Target> {
    let latency = |rate, contestant, share| Some(find(entries, rate, contestant)?.latency(share)?.median);
    let at_1000 = |name: &str, share, most| {
        let ours = latency(1_000, Contestant::Outboxd, share);
        let target = Target::at_most(format!("latency at 1,000/s, {name}"), most, ours).shown("ms", 1);
        target.in_summary(Others {
            textbook: latency(1_000, Contestant::Textbook, share),
            ..Others::default()
        })
    };
    let alone = find(entries, COMPARED_RATE, Contestant::LoadAlone);
    let ratio = find(entries, COMPARED_RATE, Contestant::Outboxd).zip(alone);
    vec![
        at_1000("p50", 0.5, 6.0),
        at_1000("p99", 0.99, 25.0),
        Target::at_most(
            "PostgreSQL's processor time at 1,000/s, of the load alone",
            1.6,
            ratio.and_then(|(with, without)| Some(with.postgres_of(without)?.median)),
        )
        .shown("×", 2),
        Target::at_most(
            "latency at 5,000/s, p99",
            50.0,
            latency(5_000, Contestant::Outboxd, 0.99),
        )
        .shown("ms", 1),
    ]
}
