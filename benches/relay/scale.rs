//! Several processes: whether they are as fast as one on the same cores, how soon lanes are even after one joins or dies, how
//! long a row had to wait because of it, and what was sent twice.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::backlog::Shape;
use crate::chart::{Bar, Chart, Whose};
use crate::consumer::{TimingConsumer, first_copies};
use crate::load::{self, Commit, Load};
use crate::mark_progress::MarkProgress;
use crate::on_published::OnPublished;
use crate::process::Process;
use crate::processes::Processes;
use crate::progress::Progress;
use crate::report::{Cell, Section, Table};
use crate::rounds::Spread;
use crate::target::Target;
use crate::workspace::Workspace;
use crate::{Bench, Deadline, Outcome};

const COUNTS: [usize; 4] = [1, 2, 4, 8];
const LOAD_RATE: u64 = 500;
const POLL_INTERVAL: &str = "50ms";

struct Entry {
    processes: usize,
    rates: Vec<f64>,
    /// Beside that of one process, pair by pair.
    of_one: Vec<f64>,
}

/// A process joins three others under load; then one is killed.
struct Change {
    even_after_join: Duration,
    even_after_kill: Duration,
    longest_wait: Duration,
    repeated: usize,
}

/// One of two is killed in the middle of a drain.
struct Crash {
    repeated: i64,
    in_flight: i64,
}

pub async fn run(bench: &Bench) -> Outcome<Section> {
    let mut entries = COUNTS.map(|processes| Entry {
        processes,
        rates: Vec::new(),
        of_one: Vec::new(),
    });
    let (mut changes, mut crashes) = (Vec::new(), Vec::new());
    let progress = Progress::new(
        "scale",
        (entries.len() - 1) * bench.size.compared_rounds + 2 * bench.size.rounds,
    );
    for round in 1..=bench.size.compared_rounds {
        let [one, several @ ..] = &mut entries;
        for entry in several {
            progress.step(&format!("round {round}, {} processes drain, and one", entry.processes));
            let (here, alone) = (
                async || drain(bench, entry.processes).await,
                async || drain(bench, 1).await,
            );
            let (rate, rate_of_one) = bench.undisturbed.pair(round, here, alone).await?;
            entry.rates.push(rate);
            entry.of_one.push(rate / rate_of_one);
            one.rates.push(rate_of_one);
            progress.done();
        }
    }
    for round in 1..=bench.size.rounds {
        progress.step(&format!("round {round}, one joins, one is killed under load"));
        changes.push(change(bench).await?);
        progress.done();
        progress.step(&format!("round {round}, one is killed in a drain"));
        crashes.push(crash(bench).await?);
        progress.done();
    }
    Ok(section(bench, &entries, &changes, &crashes))
}

/// All are up before there is anything to do, or the first would have drained it while the last still started; and all poll often, or
/// the clock would start with the first that finds it while others are idle for up to 2.5 seconds.
async fn drain(bench: &Bench, count: usize) -> Outcome<f64> {
    let workspace = Workspace::new(&bench.servers, Shape::Keyed).await?;
    let flags = [
        "--on-published",
        OnPublished::Delete.name(),
        "--poll-interval-max",
        POLL_INTERVAL,
    ];
    let processes = Processes::start(&workspace, count, &flags).await?;
    workspace.checkpoint().await?;
    workspace.insert(Shape::Keyed, bench.size.rows).await?;
    let marks = MarkProgress::watch(&processes.all, bench.size.rows).await?;
    workspace.expect_delivered(bench.size.rows)?;
    drop(processes);
    workspace.remove().await?;
    Ok(marks.rate())
}

async fn change(bench: &Bench) -> Outcome<Change> {
    let workspace = Workspace::new(&bench.servers, Shape::Keyed).await?;
    let flags = bench.size.lease.flags();
    let mut processes = Processes::start(&workspace, 3, &flags).await?;
    let consumer = TimingConsumer::start(&workspace)?;
    let load = Load::start(&workspace, load::INSERT, LOAD_RATE, 0).await?;
    sleep(bench.size.load_warm_up).await;
    // From the start of the process, its own start-up included.
    processes.all.push(Process::start(&workspace, &flags)?);
    let even_after_join = processes.even(&workspace).await?;
    sleep(bench.size.load_warm_up).await;
    processes.kill_one();
    let even_after_kill = processes.even(&workspace).await?;
    sleep(bench.size.load_warm_up).await;
    let commits = load.stop().await?;
    // Not as many as were committed: repeats would pass for rows that are still to come.
    workspace.drained().await?;
    let arrivals = consumer.receive(workspace.delivered()? as usize).await?;
    drop(processes);
    workspace.remove().await?;
    let first = first_copies(&arrivals);
    Ok(Change {
        even_after_join,
        even_after_kill,
        longest_wait: longest_wait(&commits, &first)?,
        repeated: arrivals.len() - first.len(),
    })
}

/// The longest time from a row's commit until its first copy arrived.
fn longest_wait(commits: &[Commit], first: &HashMap<u64, Instant>) -> Outcome<Duration> {
    let mut longest = Duration::ZERO;
    for commit in commits {
        let at = first.get(&commit.number).ok_or("a committed row never arrived")?;
        longest = longest.max(at.saturating_duration_since(commit.at));
    }
    Ok(longest)
}

async fn crash(bench: &Bench) -> Outcome<Crash> {
    let workspace = Workspace::new(&bench.servers, Shape::Keyed).await?;
    let rows = bench.size.rows;
    let mut flags = bench.size.lease.flags();
    flags.extend(["--on-published", OnPublished::Delete.name()]);
    let mut processes = Processes::start(&workspace, 2, &flags).await?;
    workspace.insert(Shape::Keyed, rows).await?;
    let in_flight = in_the_middle(&processes.all, rows).await?;
    processes.kill_one();
    workspace.drained().await?;
    let delivered = workspace.delivered()?;
    let arrivals = TimingConsumer::start(&workspace)?.receive(delivered as usize).await?;
    drop(processes);
    workspace.remove().await?;
    let arrived = first_copies(&arrivals).len() as i64;
    if arrived < rows {
        return Err(format!("{rows} rows, of which {arrived} arrived").into());
    }
    Ok(Crash {
        repeated: delivered - rows,
        in_flight,
    })
}

/// Waits until the last process has claimed its part of the backlog by half; answers the most it had claimed and not marked.
async fn in_the_middle(processes: &[Process], rows: i64) -> Outcome<i64> {
    let deadline = Deadline::new(Duration::from_secs(120));
    let half = rows / processes.len() as i64 / 2;
    let mut most = 0;
    loop {
        if let Some(counters) = processes.last().and_then(Process::counters) {
            most = most.max(counters.claimed - counters.marked);
            if counters.claimed >= half {
                return Ok(most);
            }
        }
        deadline.or("a drain to be half done")?;
        sleep(Duration::from_millis(1)).await;
    }
}

fn section(bench: &Bench, entries: &[Entry], changes: &[Change], crashes: &[Crash]) -> Section {
    let lease = bench.size.lease.lasts.as_secs();
    Section {
        name: "scale",
        title: "Scale-out",
        note: format!(
            "Processes that are all up before the backlog is committed drain it, delete mode; one alone does so right before or after \
             them, in turns, and they are compared pair by pair. Idle, they poll every {POLL_INTERVAL}, not every 2.5 s, so that all find it \
             at once. Then, under {LOAD_RATE} commits a second: a fourth process joins three, and one is killed with SIGKILL; lanes are \
             even when no process owns two more than another, counted from the start of the joining process and from the kill. The lease \
             was {lease} s. Last, one of two is killed in the middle of a drain: what was sent twice, against the most rows it had claimed \
             and not marked."
        ),
        tables: vec![rates(entries), changed(changes), crashed(crashes)],
        charts: vec![chart(entries)],
        targets: targets(bench, entries, changes, crashes),
    }
}

impl Entry {
    fn rate(&self) -> Option<Spread> {
        Spread::of(self.rates.iter().copied())
    }

    fn of_one(&self) -> Option<Spread> {
        Spread::of(self.of_one.iter().copied())
    }
}

fn rates(entries: &[Entry]) -> Table {
    let row = |entry: &Entry| {
        vec![
            Cell::Number(Some(entry.processes as f64), 0),
            Cell::Spread(entry.rate(), 0),
            Cell::Spread(entry.of_one(), 2),
        ]
    };
    Table {
        columns: vec!["processes", "messages/s", "of one"],
        rows: entries.iter().map(row).collect(),
    }
}

fn changed(changes: &[Change]) -> Table {
    let seconds = |of: fn(&Change) -> Duration| Cell::spread(changes.iter().map(|change| of(change).as_secs_f64()), 2);
    Table {
        columns: vec![
            "even after a join s",
            "even after a kill s",
            "longest wait of a row s",
            "sent twice",
        ],
        rows: vec![vec![
            seconds(|change| change.even_after_join),
            seconds(|change| change.even_after_kill),
            seconds(|change| change.longest_wait),
            Cell::spread(changes.iter().map(|change| change.repeated as f64), 0),
        ]],
    }
}

fn crashed(crashes: &[Crash]) -> Table {
    Table {
        columns: vec!["sent twice after a kill in a drain", "most rows in flight"],
        rows: vec![vec![
            Cell::spread(crashes.iter().map(|crash| crash.repeated as f64), 0),
            Cell::spread(crashes.iter().map(|crash| crash.in_flight as f64), 0),
        ]],
    }
}

fn chart(entries: &[Entry]) -> Chart {
    let bar = |entry: &Entry| {
        Some(Bar {
            label: format!("{} processes", entry.processes),
            whose: Whose::Ours,
            value: entry.rate()?,
        })
    };
    Chart {
        name: "scale",
        title: "Messages a second by processes on the same cores",
        unit: "msg/s",
        places: 0,
        bars: entries.iter().filter_map(bar).collect(),
    }
}

/// The worst round counts: these are promises, not speeds.
fn targets(bench: &Bench, entries: &[Entry], changes: &[Change], crashes: &[Crash]) -> Vec<Target> {
    let worst = |of: fn(&Change) -> Duration| changes.iter().map(|change| of(change).as_secs_f64()).reduce(f64::max);
    let repeated = crashes
        .iter()
        .map(|crash| crash.repeated as f64 / crash.in_flight.max(1) as f64)
        .reduce(f64::max);
    let lease_and_one = bench.size.lease.lasts.as_secs_f64() + 1.0;
    vec![
        Target::at_least(
            "drain by 8 processes, of one",
            0.9,
            entries.last().and_then(|entry| Some(entry.of_one()?.median)),
        ),
        Target::at_most("lanes even after a join", 3.0, worst(|change| change.even_after_join)).shown("s", 2),
        Target::at_most(
            "longest wait of a row, a kill included",
            lease_and_one,
            worst(|change| change.longest_wait),
        )
        .shown("s", 2),
        Target::at_most("sent twice after a kill, of the rows in flight", 1.0, repeated),
    ]
}
