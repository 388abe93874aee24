//! Did the promises hold? Every one with what was measured.

use std::time::Duration;

use crate::faults::Injected;
use crate::oracle::Oracle;
use crate::process_life::{Counters, ProcessLife};
use crate::replicas::{IN_FLIGHT_MAX, LEASE, REPLICAS, connections_max};
use crate::sampler::Sample;
use crate::writers::{DELAY_MAX, OPEN_MAX};

/// What every fault is promised: the backlog is drained so long after the lease would have ended.
pub const GRACE: Duration = Duration::from_secs(10);
/// What a sample may be late by.
const SCRAPE: Duration = Duration::from_secs(2);
const SAMPLES_OF_A_QUIET_PERIOD: usize = 3;

/// How many rows may be flagged as possible duplicates, for each row in flight at a fault.
const FLAGS_MAX: f64 = 3.0;

/// Below this, memory may do what it likes.
const MEMORY_MIB_FREE: f64 = 100.0;
const MEMORY_GROWTH_MAX: f64 = 1.3;

/// How long the last row may take after the last fault: delayed ones are due only then.
pub fn drain_max() -> Duration {
    LEASE + GRACE + DELAY_MAX
}

/// Everything that is judged.
pub struct Evidence {
    pub oracle: Oracle,
    pub faults: Vec<Injected>,
    pub samples: Vec<Sample>,
    pub lives: Vec<ProcessLife>,
    /// `None`: not within the time it is given.
    pub drained: Option<Duration>,
    pub table: Table,
    pub committed: u64,
    pub unknown: u64,
    pub rolled_back: u64,
}

/// What the table itself says in the end.
pub struct Table {
    pub rows: i64,
    pub poison: i64,
    pub poison_alive: i64,
    pub innocents_blamed: i64,
}

pub struct Check {
    pub promise: &'static str,
    pub measured: String,
    pub allowed: String,
    pub holds: bool,
}

impl Evidence {
    pub fn checks(&self) -> Vec<Check> {
        let mut checks = self.delivery();
        checks.extend(self.duplicates());
        checks.extend(self.dead_letters());
        checks.extend([
            self.drain(),
            self.quiet_periods(),
            self.lag(),
            self.memory(),
            self.connections(),
            self.alive(),
            self.kept(),
        ]);
        checks
    }

    fn delivery(&self) -> Vec<Check> {
        let none = |promise, finding| at_most(promise, self.oracle.count(finding), 0);
        vec![
            Check {
                promise: "verdict of outboxd verify",
                measured: self.oracle.verdict().to_owned(),
                allowed: "holds".to_owned(),
                holds: self.oracle.verdict() == "holds",
            },
            none("rows missing", "missing"),
            none("phantom records", "phantom"),
            none("rows out of order", "out_of_order"),
            none("rows on a wrong partition", "wrong_partition"),
            none("records altered", "altered"),
            at_most("rows found by the safety net only", self.counters().forgotten as u64, 0),
        ]
    }

    fn duplicates(&self) -> Vec<Check> {
        let duplicated = self.oracle.count("duplicated");
        vec![
            at_most("duplicates without the flag", self.oracle.unflagged(), 0),
            at_most(
                "duplicates, by what was in flight at the faults",
                duplicated,
                self.duplicates_max(),
            ),
            at_most(
                "duplicates, by the relays' own count",
                duplicated,
                self.counters().possible_duplicates as u64,
            ),
            self.flags(),
        ]
    }

    /// A flag that is always on says nothing.
    fn flags(&self) -> Check {
        let unknown = self
            .faults
            .iter()
            .filter(|fault| fault.event.kind.returns_maybe_sent() > 0);
        let in_flight: f64 = unknown.map(|fault| self.in_flight(fault)).sum();
        at_most(
            "rows sent with a flag, by what was in flight in such faults",
            self.counters().possible_duplicates as u64,
            (FLAGS_MAX * in_flight) as u64,
        )
    }

    /// The most rows seen in flight just before a fault or while it lasted: a broker that is stopped is sent more until that is noticed.
    fn in_flight(&self, fault: &Injected) -> f64 {
        let lasted = fault.began..=fault.began + fault.took;
        let samples = self.samples.iter().filter(|sample| lasted.contains(&sample.at));
        samples.map(|sample| sample.in_flight).fold(fault.in_flight, f64::max)
    }

    fn dead_letters(&self) -> Vec<Check> {
        vec![
            at_most("poison rows not dead", self.table.poison_alive as u64, 0),
            at_most("other rows dead or blamed", self.table.innocents_blamed as u64, 0),
        ]
    }

    /// Rows that can have been in flight at faults after which their outcome is unknown.
    fn duplicates_max(&self) -> u64 {
        let unknown: usize = self
            .faults
            .iter()
            .map(|fault| fault.event.kind.returns_maybe_sent())
            .sum();
        (unknown * IN_FLIGHT_MAX) as u64
    }

    fn drain(&self) -> Check {
        let seconds = |duration: Duration| format!("{:.1} s", duration.as_secs_f64());
        Check {
            promise: "backlog drained after the last fault",
            measured: self.drained.map_or("not in time".to_owned(), seconds),
            allowed: format!("≤ {}", seconds(drain_max())),
            holds: self.drained.is_some(),
        }
    }

    /// At the end of a quiet period nothing waits but what its writer keeps open.
    fn quiet_periods(&self) -> Check {
        let worst = self.lags_after_quiet_periods().into_iter().fold(0.0, f64::max);
        let allowed = (OPEN_MAX + SCRAPE).as_secs_f64();
        Check {
            promise: "lag after a quiet period of the lease and ten seconds",
            measured: format!("{worst:.1} s at most"),
            allowed: format!("≤ {allowed:.1} s"),
            holds: worst <= allowed,
        }
    }

    /// The best of the last samples before each fault that a quiet period came before: one may meet a row just committed.
    fn lags_after_quiet_periods(&self) -> Vec<f64> {
        let ends = self.faults.iter().filter(|fault| fault.event.after_quiet_period);
        ends.map(|end| {
            let samples = self.samples.iter().rev().filter(|sample| sample.at <= end.began);
            let backlogs = samples
                .take(SAMPLES_OF_A_QUIET_PERIOD)
                .filter_map(|sample| sample.backlog);
            backlogs.map(|backlog| backlog.lag_seconds).fold(f64::MAX, f64::min)
        })
        .collect()
    }

    fn lag(&self) -> Check {
        let (measured, allowed) = (self.lag_max(), self.lag_allowed());
        Check {
            promise: "longest lag",
            measured: format!("{measured:.1} s"),
            allowed: format!("≤ {allowed:.1} s"),
            holds: measured <= allowed,
        }
    }

    pub fn lag_max(&self) -> f64 {
        let backlogs = self.samples.iter().filter_map(|sample| sample.backlog);
        backlogs.map(|backlog| backlog.lag_seconds).fold(0.0, f64::max)
    }

    /// From one quiet period to the next, faults may follow each other faster than what they break recovers.
    fn lag_allowed(&self) -> f64 {
        let stretches = self.faults.chunk_by(|_, next| !next.event.after_quiet_period);
        let longest = stretches.map(|stretch| {
            let ends = stretch.iter().map(|fault| fault.began + fault.took);
            ends.max().unwrap_or_default() - stretch[0].began
        });
        (longest.max().unwrap_or_default().max(OPEN_MAX) + LEASE + GRACE).as_secs_f64()
    }

    fn memory(&self) -> Check {
        let worst = self
            .lives
            .iter()
            .map(ProcessLife::memory_thirds)
            .max_by(|a, b| a.1.total_cmp(&b.1));
        let (first, last) = worst.unwrap_or_default();
        let flat = |(first, last): (f64, f64)| last <= MEMORY_MIB_FREE || last <= first * MEMORY_GROWTH_MAX;
        Check {
            promise: "memory of a replica, first and last third of its life",
            measured: format!("{first:.0} MiB, {last:.0} MiB at most"),
            allowed: format!("≤ {MEMORY_MIB_FREE} MiB, or × {MEMORY_GROWTH_MAX}"),
            holds: self.lives.iter().map(ProcessLife::memory_thirds).all(flat),
        }
    }

    fn connections(&self) -> Check {
        let backlogs = self.samples.iter().filter_map(|sample| sample.backlog);
        let most = backlogs.map(|backlog| backlog.connections).max().unwrap_or(0);
        at_most(
            "connections of all replicas",
            most as u64,
            (REPLICAS * connections_max()) as u64,
        )
    }

    fn alive(&self) -> Check {
        let ended: Vec<_> = self
            .lives
            .iter()
            .filter_map(|life| life.ended_by_itself.as_deref())
            .collect();
        at_most("replicas that ended by themselves", ended.len() as u64, 0)
    }

    /// The table is what delivery is measured by: it must hold what the writers know to be committed.
    fn kept(&self) -> Check {
        let most = self.committed + self.unknown + self.faults.len() as u64;
        let rows = self.table.rows as u64;
        Check {
            promise: "rows in the table",
            measured: rows.to_string(),
            allowed: format!("{} … {most}", self.committed),
            holds: (self.committed..=most).contains(&rows),
        }
    }

    pub fn counters(&self) -> Counters {
        self.lives
            .iter()
            .fold(Counters::default(), |sum, life| sum.plus(life.counters))
    }
}

fn at_most(promise: &'static str, measured: u64, allowed: u64) -> Check {
    Check {
        promise,
        measured: measured.to_string(),
        allowed: if allowed == 0 {
            "0".to_owned()
        } else {
            format!("≤ {allowed}")
        },
        holds: measured <= allowed,
    }
}
