//! How much of everything: a full run, and one in small that only shows that everything works.

use std::time::Duration;

pub struct RunSize {
    pub title: &'static str,
    pub rounds: usize,
    /// Of what is compared in pairs, by less than the machine's own speed differs within a minute.
    pub compared_rounds: usize,
    /// Rows of a drained backlog; of the larger ones; of what the textbook gets, which would otherwise take all day.
    pub rows: i64,
    pub large_rows: i64,
    pub textbook_rows: i64,
    /// Rows over which costs are counted.
    pub cost_rows: i64,
    /// Single-row commits in one round, of each table.
    pub commits: usize,
    /// How long a load lasts, after how long a warm-up, and how long an idle process is watched.
    pub load: Duration,
    pub load_warm_up: Duration,
    pub idle: Duration,
    /// Before that: until wake-ups have slowed down, what is asked once a minute has been asked once, since preparing a statement
    /// counts as one, and sessions have told what they counted; PostgreSQL lets an idle one take ten seconds for it.
    pub settle: Duration,
    /// How long the whole may last longer to have the processors to itself.
    pub extra_time: Duration,
    pub lease: Lease,
    pub growth: Growth,
    pub warm_up: WarmUp,
}

/// At most so many rounds of so many records.
pub struct WarmUp {
    pub rows: i64,
    pub rounds: usize,
}

/// How long a killed process keeps its lanes.
pub struct Lease {
    pub lasts: Duration,
    flags: &'static [&'static str],
}

impl Lease {
    pub fn flags(&self) -> Vec<&'static str> {
        self.flags.to_vec()
    }
}

pub struct Growth {
    /// Over how many rows the rate is taken.
    pub slice: i64,
    pub shallow: i64,
    pub deep: i64,
    pub deepest: i64,
    pub held: i64,
}

impl RunSize {
    pub fn full() -> Self {
        RunSize {
            title: "outboxd bench",
            rounds: 3,
            compared_rounds: 7,
            rows: 500_000,
            large_rows: 50_000,
            textbook_rows: 20_000,
            cost_rows: 200_000,
            commits: 4_000,
            load: Duration::from_secs(15),
            load_warm_up: Duration::from_secs(1),
            // What a daemon does once a minute is in it once.
            idle: Duration::from_secs(60),
            settle: Duration::from_secs(75),
            extra_time: Duration::from_secs(30 * 60),
            // The default.
            lease: Lease {
                lasts: Duration::from_secs(15),
                flags: &[],
            },
            growth: Growth {
                slice: 200_000,
                shallow: 10_000,
                deep: 1_000_000,
                deepest: 5_000_000,
                held: 100_000,
            },
            warm_up: WarmUp {
                rows: 200_000,
                rounds: 40,
            },
        }
    }

    pub fn quick() -> Self {
        RunSize {
            title: "outboxd bench, in small: it shows that everything runs, its figures mean little",
            rounds: 1,
            compared_rounds: 1,
            rows: 10_000,
            large_rows: 2_000,
            textbook_rows: 2_000,
            cost_rows: 10_000,
            commits: 200,
            load: Duration::from_millis(400),
            load_warm_up: Duration::from_millis(200),
            idle: Duration::from_secs(1),
            settle: Duration::from_millis(500),
            extra_time: Duration::ZERO,
            lease: Lease {
                lasts: Duration::from_secs(5),
                flags: &["--lease", "5s", "--batch-deadline", "1s"],
            },
            growth: Growth {
                slice: 10_000,
                shallow: 5_000,
                deep: 15_000,
                deepest: 30_000,
                held: 5_000,
            },
            warm_up: WarmUp {
                rows: 50_000,
                rounds: 3,
            },
        }
    }
}
