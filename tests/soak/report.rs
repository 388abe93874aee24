//! `report.md`, `report.json` and `lag.svg`.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

use serde_json::{Value, json};

use crate::chart;
use crate::faults::Injected;
use crate::schedule::Schedule;
use crate::verdict::{Check, Evidence};

pub fn write(folder: &Path, schedule: &Schedule, evidence: &Evidence, checks: &[Check]) -> io::Result<()> {
    fs::write(folder.join("report.md"), markdown(schedule, evidence, checks))?;
    fs::write(
        folder.join("report.json"),
        format!("{:#}", figures(schedule, evidence, checks)),
    )?;
    fs::write(folder.join("lag.svg"), chart::lag(schedule, evidence))
}

pub fn holds(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.holds)
}

/// The checks as a table.
pub fn table(checks: &[Check]) -> String {
    let mut out = "| | promise | measured | allowed |\n|---|---|---|---|\n".to_owned();
    for check in checks {
        let sign = if check.holds { "✓" } else { "✗" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "| {sign} | {} | {} | {} |",
            check.promise, check.measured, check.allowed
        );
    }
    out
}

fn markdown(schedule: &Schedule, evidence: &Evidence, checks: &[Check]) -> String {
    let verdict = if holds(checks) {
        "The promises held."
    } else {
        "The promises did NOT hold."
    };
    let mut out = format!(
        "# Soak: seed {}, {} faults in {:.0} s\n\n{verdict}\n\n{}\n![Lag over time](lag.svg)\n\n",
        schedule.seed,
        evidence.faults.len(),
        schedule.length.as_secs_f64(),
        table(checks)
    );
    out += &flow(evidence);
    out += "\n## Faults\n\n| began | fault | replica | planned | took | rows in flight before |\n|---|---|---|---|---|---|\n";
    for fault in &evidence.faults {
        out += &row(fault);
    }
    out
}

fn flow(evidence: &Evidence) -> String {
    let counters = evidence.counters();
    let cpu: f64 = evidence.lives.iter().map(|life| life.cpu_seconds).sum();
    let seconds = evidence.samples.last().map_or(1.0, |sample| sample.at.as_secs_f64());
    format!(
        "Committed {} rows, rolled back {}, unknown {}; {} poison. Published {:.0}; possible duplicates {:.0}, fenced {:.0}, \
         terms lost {:.0}, producers replaced {:.0}, in {} lives of the replicas, which used {:.0} % of a core.\n",
        evidence.committed,
        evidence.rolled_back,
        evidence.unknown,
        evidence.table.poison,
        counters.published,
        counters.possible_duplicates,
        counters.fenced,
        counters.terms_lost,
        counters.producers_rebuilt,
        evidence.lives.len(),
        cpu / seconds * 100.0
    )
}

fn row(fault: &Injected) -> String {
    let event = &fault.event;
    let replica = if event.kind.is_of_one_replica() {
        event.replica.to_string()
    } else {
        "–".to_owned()
    };
    format!(
        "| {:.1} s | {} | {replica} | {:.1} s | {:.1} s | {:.0} |\n",
        fault.began.as_secs_f64(),
        event.kind.name(),
        event.lasts.as_secs_f64(),
        fault.took.as_secs_f64(),
        fault.in_flight
    )
}

fn figures(schedule: &Schedule, evidence: &Evidence, checks: &[Check]) -> Value {
    json!({
        "holds": holds(checks),
        "seed": schedule.seed,
        "seconds": schedule.length.as_secs(),
        "checks": checks.iter().map(|check| json!({
            "promise": check.promise, "measured": check.measured, "allowed": check.allowed, "holds": check.holds,
        })).collect::<Vec<_>>(),
        "rows": { "committed": evidence.committed, "unknown": evidence.unknown, "rolled_back": evidence.rolled_back,
                  "poison": evidence.table.poison },
        "counters": evidence.counters(),
        "oracle": evidence.oracle.0,
        "faults": evidence.faults.iter().map(fault).collect::<Vec<_>>(),
        "lives": evidence.lives.iter().map(|life| json!({
            "replica": life.replica, "counters": life.counters, "cpu_seconds": life.cpu_seconds,
            "memory_mib_thirds": life.memory_thirds(), "ended_by_itself": life.ended_by_itself,
        })).collect::<Vec<_>>(),
        "samples": evidence.samples.iter().map(|sample| json!({
            "at": sample.at.as_secs_f64(), "published": sample.published,
            "lag_seconds": sample.backlog.map(|backlog| backlog.lag_seconds),
            "due": sample.backlog.map(|backlog| backlog.due),
            "connections": sample.backlog.map(|backlog| backlog.connections),
        })).collect::<Vec<_>>(),
    })
}

fn fault(fault: &Injected) -> Value {
    json!({
        "due": fault.event.at.as_secs_f64(), "began": fault.began.as_secs_f64(), "took": fault.took.as_secs_f64(),
        "fault": fault.event.kind.name(), "planned": fault.event.lasts.as_secs_f64(),
        "replica": fault.event.kind.is_of_one_replica().then_some(fault.event.replica),
        "in_flight": fault.in_flight,
    })
}
