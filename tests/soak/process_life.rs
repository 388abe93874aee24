//! One process from its start to its end: what it counted, what it weighed.

use std::fs;

use testkit::Relay;

/// What a scrape says; the counters begin at 0 in each life.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Counters {
    pub published: f64,
    pub possible_duplicates: f64,
    pub dead: f64,
    pub fenced: f64,
    pub forgotten: f64,
    pub terms_lost: f64,
    pub producers_rebuilt: f64,
}

impl Counters {
    pub fn in_answer(answer: &str) -> Option<Self> {
        let total = |name| Relay::metric_in(answer, name);
        Some(Counters {
            published: total("outboxd_rows_published_total")?,
            possible_duplicates: total("outboxd_possible_duplicates_total")?,
            dead: total("outboxd_rows_dead_total")?,
            fenced: total("outboxd_rows_fenced_total")?,
            forgotten: total("outboxd_rescan_found_rows_total")?,
            terms_lost: total("outboxd_leases_lost_total")?,
            producers_rebuilt: total("outboxd_producer_rebuilds_total")?,
        })
    }

    pub fn plus(self, other: Counters) -> Self {
        Counters {
            published: self.published + other.published,
            possible_duplicates: self.possible_duplicates + other.possible_duplicates,
            dead: self.dead + other.dead,
            fenced: self.fenced + other.fenced,
            forgotten: self.forgotten + other.forgotten,
            terms_lost: self.terms_lost + other.terms_lost,
            producers_rebuilt: self.producers_rebuilt + other.producers_rebuilt,
        }
    }
}

/// One process from its start to its end.
#[derive(Clone, Debug)]
pub struct ProcessLife {
    pub replica: usize,
    pid: u32,
    pub address: String,
    pub paused: bool,
    pub told_to_end: bool,
    /// As of the last scrape.
    pub counters: Counters,
    /// Resident memory in KiB, once a second.
    pub memory_kib: Vec<u64>,
    pub cpu_seconds: f64,
    /// Ended without being told to: how.
    pub ended_by_itself: Option<String>,
}

impl ProcessLife {
    pub fn of(replica: usize, relay: &Relay) -> Self {
        ProcessLife {
            replica,
            pid: relay.pid(),
            address: relay.address().expect("it is ready"),
            paused: false,
            told_to_end: false,
            counters: Counters::default(),
            memory_kib: Vec::new(),
            cpu_seconds: 0.0,
            ended_by_itself: None,
        }
    }

    pub fn weigh(&mut self) {
        let Some((memory_kib, cpu_seconds)) = weight(self.pid) else {
            return;
        };
        self.memory_kib.push(memory_kib);
        self.cpu_seconds = cpu_seconds;
    }

    /// The medians of the first and of the last third, in MiB: do they differ, something grows.
    pub fn memory_thirds(&self) -> (f64, f64) {
        let third = (self.memory_kib.len() / 3).max(1);
        let last = self.memory_kib.len().saturating_sub(third);
        (
            median_mib(&self.memory_kib[..third.min(self.memory_kib.len())]),
            median_mib(&self.memory_kib[last..]),
        )
    }
}

/// Resident memory in KiB and processor time in seconds.
fn weight(pid: u32) -> Option<(u64, f64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some((resident.split_whitespace().next()?.parse().ok()?, ticks / 100.0))
}

fn median_mib(kib: &[u64]) -> f64 {
    let mut sorted = kib.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).map_or(0.0, |kib| *kib as f64 / 1024.0)
}
