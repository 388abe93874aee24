//! One fault of the list in `docs/faults.md`: named, timed from its end to the recovery, and written down.
//!
//! A test that injects one says so, `let fault = Fault::new(14, "…", "…")`; stops the time from the moment the fault ends
//! to an empty backlog, `let recovered = fault.over().until_drained(&world).await`; and closes with
//! `recovered.record(duplicates)`, which fails where the document tells another story.

use std::time::Duration;
use std::{env, fs};

use crate::paths::repository;
use crate::{LEASE, Stopwatch, World};

/// What every fault is promised: the backlog is drained so long after the lease would have ended.
const GRACE: Duration = Duration::from_secs(10);

pub struct Fault {
    number: u8,
    fault: &'static str,
    promise: &'static str,
    lease: Duration,
}

/// The fault has ended; the recovery is being timed.
pub struct Over {
    fault: Fault,
    since: Stopwatch,
}

impl Fault {
    pub fn new(number: u8, fault: &'static str, promise: &'static str) -> Self {
        Fault {
            number,
            fault,
            promise,
            lease: LEASE,
        }
    }

    /// For relays that run under another lease than the tests' usual one.
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// It ends now.
    pub fn over(self) -> Over {
        Over {
            fault: self,
            since: Stopwatch::start(),
        }
    }
}

/// The backlog is drained.
pub struct Recovered {
    fault: Fault,
    took: Duration,
}

impl Over {
    /// Waits until nothing is pending, for as long as the promise allows.
    pub async fn until_drained(self, world: &World) -> Recovered {
        world
            .drained(self.time_limit().saturating_sub(self.since.without_steal()))
            .await;
        self.recovered()
    }

    /// How long the recovery may take, all told.
    pub fn time_limit(&self) -> Duration {
        self.fault.lease + GRACE
    }

    /// The backlog is drained now, as the test has seen by other means.
    pub fn recovered(self) -> Recovered {
        let (took, limit) = (self.since.elapsed(), self.time_limit());
        assert!(
            self.since.without_steal() <= limit,
            "recovery took {took:?}, promised were {limit:?}"
        );
        Recovered {
            fault: self.fault,
            took,
        }
    }
}

impl Recovered {
    /// Closes the case: so many records came more than once.
    pub fn record(self, duplicates: usize) {
        let row = self.row(duplicates);
        println!("{row}");
        if env::var_os("OUTBOXD_WRITE_FAULTS").is_some() {
            let folder = repository().join("target/faults");
            fs::create_dir_all(&folder).expect("a folder for the rows");
            fs::write(folder.join(format!("{:02}", self.fault.number)), row + "\n").expect("a row");
        } else if let Some(documented) = documented(self.fault.number) {
            let advice = "docs/faults.md tells another story: `make faults` writes it anew";
            assert_eq!(story(&documented), story(&row), "{advice}");
        }
    }

    fn row(&self, duplicates: usize) -> String {
        let Fault {
            number, fault, promise, ..
        } = &self.fault;
        let thread = std::thread::current();
        let test = thread.name().expect("a test's thread");
        let took = self.took.as_secs_f64();
        format!("| {number} | {fault} | {promise} | `{test}` | {took:.1} s | {duplicates} |")
    }
}

/// The rows of the document, by their numbers.
pub fn documented_faults() -> Vec<(u8, String)> {
    let text = fs::read_to_string(repository().join("docs/faults.md")).unwrap_or_default();
    let number = |line: &str| cells(line).get(1)?.parse().ok();
    text.lines()
        .filter_map(|line| Some((number(line)?, line.to_owned())))
        .collect()
}

fn documented(number: u8) -> Option<String> {
    let row = |(found, row)| (found == number).then_some(row);
    documented_faults().into_iter().find_map(row)
}

/// A row of the table without what was measured.
fn story(row: &str) -> Vec<String> {
    cells(row).into_iter().take(5).collect()
}

/// The cells of a row; the first is what stands before the first bar.
pub fn cells(row: &str) -> Vec<String> {
    row.split('|').map(|cell| cell.trim().to_owned()).collect()
}
