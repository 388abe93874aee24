//! How the number of marked rows grew while a backlog was drained.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::process::Process;
use crate::{Deadline, Outcome};

/// A scrape costs the process a little.
const SCRAPE_EVERY: Duration = Duration::from_millis(20);

pub struct MarkProgress {
    /// From the start of the first process until rows had been claimed.
    pub start_up: Duration,
    /// Since the first claim, and how many rows had been marked by then.
    samples: Vec<(Duration, i64)>,
}

impl MarkProgress {
    /// Watches until so many rows are marked.
    pub async fn watch(processes: &[Process], rows: i64) -> Outcome<Self> {
        let deadline = Deadline::new(Duration::from_secs(900));
        let started = processes.iter().map(|process| process.started).min();
        let mut first_claim = None;
        let mut samples = Vec::new();
        loop {
            let counters: Vec<_> = processes.iter().filter_map(Process::counters).collect();
            let now = Instant::now();
            let marked = counters.iter().map(|counters| counters.marked).sum();
            if first_claim.is_none() && counters.iter().any(|counters| counters.claimed > 0) {
                first_claim = Some(now);
            }
            if let Some(first) = first_claim {
                samples.push((now - first, marked));
            }
            if marked >= rows {
                break;
            }
            deadline.or(&format!("{rows} rows to be marked; {marked} are"))?;
            sleep(SCRAPE_EVERY).await;
        }
        let since = first_claim.zip(started).map(|(first, started)| first - started);
        Ok(MarkProgress {
            start_up: since.unwrap_or_default(),
            samples,
        })
    }

    /// From the first claim to the last mark.
    pub fn took(&self) -> Duration {
        self.samples.last().map_or(Duration::ZERO, |(at, _)| *at)
    }

    /// Rows a second, from the first claim to the last mark.
    pub fn rate(&self) -> f64 {
        self.rate_between(0, i64::MAX)
    }

    pub fn rate_with_start_up(&self) -> f64 {
        let rows = self.samples.last().map_or(0, |(_, marked)| *marked);
        rows as f64 / (self.took() + self.start_up).as_secs_f64()
    }

    /// Rows a second from the moment `from` rows were marked until `to` were, or until the last.
    pub fn rate_between(&self, from: i64, to: i64) -> f64 {
        let reached = |rows: i64| self.samples.iter().find(|(_, marked)| *marked >= rows);
        let (Some(begin), Some(end)) = (reached(from), reached(to).or(self.samples.last())) else {
            return 0.0;
        };
        (end.1 - begin.1) as f64 / (end.0 - begin.0).as_secs_f64()
    }
}
