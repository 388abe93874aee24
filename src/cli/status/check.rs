//! `outboxd status --check`: do the limits hold that are given, and which ones do not?

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::config::Check;
use crate::outbox::status::{SCAN_MAX, Status};
use crate::verify::findings::Verdict;
use crate::words::age;

/// The limits, as they are given.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Check limits, for cron and probes: print those that are broken, and nothing if all hold. Exit codes: 0 they hold, 1 one
    /// is broken, 2 it could not be told
    #[arg(long)]
    pub check: bool,

    /// How old the oldest pending row may be
    #[arg(long, requires = "check", value_name = "DURATION")]
    max_oldest: Option<String>,

    /// How many rows may be pending
    #[arg(long, requires = "check", value_name = "N")]
    max_pending: Option<String>,

    /// How many rows may be dead
    #[arg(long, requires = "check", value_name = "N")]
    max_dead: Option<String>,

    /// How many keys may be held, topics parked and partitions paused, taken together
    #[arg(long, requires = "check", value_name = "N")]
    max_held: Option<String>,

    /// How many workers must be alive
    #[arg(long, requires = "check", value_name = "N", default_value = "1")]
    min_workers: String,

    /// Something may be paused: without it, a pause breaks the check
    #[arg(long, requires = "check")]
    allow_paused: bool,
}

/// The limits, checked. Those that are not given always hold.
#[derive(Debug, Default)]
pub struct Limits {
    oldest: Option<Duration>,
    pending: Option<i64>,
    dead: Option<i64>,
    held: Option<i64>,
    workers: i64,
    allow_paused: bool,
}

/// What became of one limit.
#[derive(Debug, Serialize)]
pub struct Limit {
    pub limit: &'static str,
    pub verdict: Verdict,
    pub found: String,
}

impl CheckArgs {
    pub fn limits(&self, check: &mut Check) -> Limits {
        let mut number = |flag: &str, text: &Option<String>| {
            let text = text.as_ref()?;
            Some(check.number(flag, text, 0, i64::MAX as usize) as i64)
        };
        Limits {
            pending: number("--max-pending", &self.max_pending),
            dead: number("--max-dead", &self.max_dead),
            held: number("--max-held", &self.max_held),
            workers: check.number("--min-workers", &self.min_workers, 0, 10_000) as i64,
            allow_paused: self.allow_paused,
            oldest: self
                .max_oldest
                .as_ref()
                .map(|oldest| check.duration("--max-oldest", oldest)),
        }
    }
}

impl Limits {
    /// Judges every limit that is given.
    pub fn judge(&self, status: &Status) -> Vec<Limit> {
        let backlog = &status.backlog;
        let held = backlog.held_keys + backlog.parked_topics + backlog.paused_partitions;
        let mut limits = Vec::new();
        if let Some(max) = self.oldest {
            let seconds = backlog.oldest_seconds;
            let found = format!("the oldest pending row is {} old, {max:?} allowed", age(seconds));
            limits.push(Limit::new("--max-oldest", seconds <= max.as_secs_f64(), found));
        }
        if let Some(max) = self.pending {
            limits.push(counted(
                "--max-pending",
                "pending",
                backlog.pending,
                max,
                backlog.estimated,
            ));
        }
        if let Some(max) = self.dead {
            limits.push(counted(
                "--max-dead",
                "dead",
                backlog.dead,
                max,
                backlog.dead >= SCAN_MAX,
            ));
        }
        if let Some(max) = self.held {
            let found = format!("{held} held, {max} allowed");
            limits.push(Limit::new("--max-held", held <= max, found));
        }
        let live = status.workers.iter().filter(|worker| worker.is_live()).count();
        let found = format!("{live} alive, {} needed", self.workers);
        limits.push(Limit::new("--min-workers", live as i64 >= self.workers, found));
        if !self.allow_paused {
            let found = format!("{} paused by operators", status.pauses.len());
            limits.push(Limit::new("--allow-paused", status.pauses.is_empty(), found));
        }
        limits
    }
}

impl Limit {
    fn new(limit: &'static str, holds: bool, found: String) -> Self {
        let verdict = if holds { Verdict::Holds } else { Verdict::Broken };
        Limit { limit, verdict, found }
    }
}

/// Rows are counted up to a bound. Beyond it, it cannot be told whether a higher limit holds.
fn counted(limit: &'static str, what: &str, found: i64, max: i64, is_bound: bool) -> Limit {
    let about = if is_bound { "about " } else { "" };
    let text = format!("{about}{found} {what}, {max} allowed");
    let mut limit = Limit::new(limit, found <= max, text);
    if is_bound && found <= max {
        limit.verdict = Verdict::Undecided;
    }
    limit
}

#[cfg(test)]
mod tests {
    use super::super::render::tests::quiet;
    use super::*;
    use crate::outbox::PauseStatus;
    use crate::outbox::status::WorkerStatus;

    fn broken(limits: &Limits, status: &Status) -> Vec<(&'static str, Verdict)> {
        let judged = limits.judge(status).into_iter();
        let broken = judged.filter(|limit| limit.verdict != Verdict::Holds);
        broken.map(|limit| (limit.limit, limit.verdict)).collect()
    }

    /// Every limit at zero, and no worker needed.
    fn strict() -> Limits {
        Limits {
            oldest: Some(Duration::ZERO),
            pending: Some(0),
            dead: Some(0),
            held: Some(0),
            workers: 0,
            allow_paused: false,
        }
    }

    #[test]
    fn a_quiet_outbox_keeps_every_limit() {
        assert!(broken(&strict(), &quiet()).is_empty());
        assert_eq!(strict().judge(&quiet()).len(), 6, "and each is judged");
        assert_eq!(Limits::default().judge(&quiet()).len(), 2);
    }

    #[test]
    fn each_limit_is_broken_by_its_own_count() {
        let mut status = quiet();
        status.backlog.oldest_seconds = 0.1;
        assert_eq!(broken(&strict(), &status), [("--max-oldest", Verdict::Broken)]);
        let mut status = quiet();
        status.backlog.pending = 1;
        assert_eq!(broken(&strict(), &status), [("--max-pending", Verdict::Broken)]);
        let mut status = quiet();
        status.backlog.dead = 1;
        assert_eq!(broken(&strict(), &status), [("--max-dead", Verdict::Broken)]);
        for hold in [
            |status: &mut Status| status.backlog.held_keys = 1,
            |status: &mut Status| status.backlog.parked_topics = 1,
            |status: &mut Status| status.backlog.paused_partitions = 1,
        ] {
            let mut status = quiet();
            hold(&mut status);
            assert_eq!(broken(&strict(), &status), [("--max-held", Verdict::Broken)]);
        }
    }

    fn worker(lease_left_seconds: f64) -> WorkerStatus {
        WorkerStatus {
            name: "relay-1".to_owned(),
            id: String::new(),
            version: "1".to_owned(),
            lanes: Vec::new(),
            lease_left_seconds,
            age_seconds: 60.0,
        }
    }

    #[test]
    fn a_worker_whose_lease_has_ended_is_not_alive() {
        let needed = Limits {
            workers: 1,
            ..Limits::default()
        };
        let mut status = quiet();
        status.workers.push(worker(-1.0));
        assert_eq!(broken(&needed, &status), [("--min-workers", Verdict::Broken)]);
        status.workers.push(worker(1.0));
        assert!(broken(&needed, &status).is_empty());
    }

    #[test]
    fn a_pause_breaks_the_check_unless_it_is_allowed() {
        let mut status = quiet();
        status.pauses.push(PauseStatus {
            topic: None,
            key: None,
            reason: "broken consumer".to_owned(),
            login: "alice".to_owned(),
            age_seconds: 1.0,
        });
        assert_eq!(
            broken(&Limits::default(), &status),
            [("--allow-paused", Verdict::Broken)]
        );
        let allowed = Limits {
            allow_paused: true,
            ..Limits::default()
        };
        assert!(broken(&allowed, &status).is_empty());
    }

    #[test]
    fn what_was_not_counted_to_its_end_may_break_a_limit_and_cannot_keep_it() {
        let mut status = quiet();
        (status.backlog.pending, status.backlog.estimated) = (100_000, true);
        let at_most = |pending| Limits {
            pending: Some(pending),
            ..Limits::default()
        };
        assert_eq!(broken(&at_most(99_999), &status), [("--max-pending", Verdict::Broken)]);
        assert_eq!(
            broken(&at_most(100_000), &status),
            [("--max-pending", Verdict::Undecided)]
        );
        status.backlog.estimated = false;
        assert_eq!(broken(&at_most(100_000), &status), []);
    }
}
