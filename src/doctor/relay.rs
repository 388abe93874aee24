//! Judges the relays: the settings of the one that is to run, and the workers that do. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use super::check::{CheckId, Diagnosis};
use crate::outbox::PauseStatus;
use crate::outbox::status::WorkerStatus;
use crate::words::{age, count, paused, resume};

/// The rows of a dead worker wait for so long at most without a word about it.
const LEASE_MAX: Duration = Duration::from_secs(120);

/// `needed`: the shortest lease that this batch deadline permits.
pub fn lease(lease: Duration, batch_deadline: Duration, needed: Duration) -> Diagnosis {
    const CHECK: CheckId = CheckId::RelayLease;
    let found =
        format!("--lease {lease:?}, --batch-deadline {batch_deadline:?}: the lease must be at least {needed:?}");
    if lease < needed {
        return CHECK.problem(
            found,
            "A batch could be published after its lease has passed on. The relay refuses to start with these settings.",
            format!(
                "Set --lease {}s or more, or a shorter --batch-deadline",
                needed.as_secs_f64().ceil()
            ),
        );
    }
    if lease > LEASE_MAX {
        return CHECK.advice(
            found,
            "When a machine dies, the rows of its worker wait until the lease has ended.",
            "Set a shorter --lease (OUTBOXD_LEASE); the default is 15s",
        );
    }
    CHECK.ok(found)
}

/// `pending`: how many rows wait, as far as they were counted.
pub fn workers(workers: &[WorkerStatus], free_lanes: i64, pending: i64) -> Diagnosis {
    const CHECK: CheckId = CheckId::RelayWorkers;
    let (live, dead): (Vec<_>, Vec<_>) = workers.iter().partition(|worker| worker.is_live());
    if !live.is_empty() && free_lanes > 0 {
        return CHECK.advice(
            format!(
                "{} alive, and {free_lanes} lanes have no live owner",
                count(live.len(), "worker")
            ),
            "Rows of these lanes wait until a worker takes them, which it does within a lease.",
            "Run doctor again after a lease. If they are still free: outboxd status, and the logs of the workers",
        );
    }
    if !live.is_empty() {
        let names: Vec<&str> = live.iter().map(|worker| worker.name.as_str()).collect();
        return CHECK.ok(format!("{} alive: {}", count(live.len(), "worker"), names.join(", ")));
    }
    const WHY: &str = "Nothing is published while no relay runs.";
    const FIX: &str = "Start outboxd run, or find out why its pods do not: kubectl get pods, kubectl logs --previous";
    if !dead.is_empty() {
        let last = dead.iter().map(|worker| {
            let ago = age(-worker.lease_left_seconds);
            format!("{} (its lease ended {ago} ago)", worker.name)
        });
        let names = last.collect::<Vec<_>>().join(", ");
        return CHECK.problem(format!("no relay runs; these died: {names}"), WHY, FIX);
    }
    if pending > 0 {
        return CHECK.advice(
            format!("no relay runs, and {pending} rows or more are pending"),
            WHY,
            FIX,
        );
    }
    CHECK.ok("no relay runs, and nothing is pending")
}

pub fn versions(workers: &[WorkerStatus], own: &str) -> Diagnosis {
    const CHECK: CheckId = CheckId::RelayVersions;
    let live = workers.iter().filter(|worker| worker.is_live());
    let running: BTreeSet<&str> = live.map(|worker| worker.version.as_str()).collect();
    let list = running.iter().copied().collect::<Vec<_>>().join(", ");
    match running.len() {
        0 => CHECK.ok(format!("none runs; this is outboxd {own}")),
        1 if running.contains(own) => CHECK.ok(format!("all run outboxd {own}")),
        1 => CHECK.advice(
            format!("all run outboxd {list}, and this is outboxd {own}"),
            "What a check says of settings and schema holds for this version.",
            "Run the doctor of the version that is to run",
        ),
        _ => CHECK.advice(
            format!("workers run outboxd {list}"),
            "It is right during a rollout. Left like this, what only the newer version can do is not to be relied on.",
            "Finish the rollout: kubectl rollout status deployment/outboxd",
        ),
    }
}

pub fn pauses(pauses: &[PauseStatus], schema: &str) -> Diagnosis {
    const CHECK: CheckId = CheckId::RelayPauses;
    if pauses.is_empty() {
        return CHECK.ok("nothing is paused");
    }
    let what = pauses.iter().map(|pause| {
        let of = paused(pause.topic.as_deref(), pause.key.as_deref());
        let (reason, login, age) = (&pause.reason, &pause.login, age(pause.age_seconds));
        format!("{of} ({reason}; by {login}, {age} ago)")
    });
    let resumes = pauses
        .iter()
        .map(|pause| resume(pause.topic.as_deref(), pause.key.as_deref(), schema));
    CHECK.advice(
        format!("paused: {}", what.collect::<Vec<_>>().join(", ")),
        "It is not sent. Its rows wait, in order.",
        format!("Once the reason is gone: {}", resumes.collect::<Vec<_>>().join("; ")),
    )
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    fn worker(version: &str, lease_left_seconds: f64) -> WorkerStatus {
        WorkerStatus {
            name: "relay-1".to_owned(),
            id: String::new(),
            version: version.to_owned(),
            lanes: Vec::new(),
            lease_left_seconds,
            age_seconds: 60.0,
        }
    }

    #[test]
    fn a_lease_is_longer_than_a_batch_and_no_longer_than_a_failover_may_take() {
        let judged = |seconds| {
            let (lease_set, deadline, needed) = (
                Duration::from_secs(seconds),
                Duration::from_secs(5),
                Duration::from_secs(10),
            );
            lease(lease_set, deadline, needed).verdict
        };
        assert_eq!(judged(9), Verdict::Problem);
        assert_eq!(judged(10), Verdict::Ok);
        assert_eq!(judged(120), Verdict::Ok);
        assert_eq!(judged(121), Verdict::Advice);
    }

    #[test]
    fn who_died_is_told_from_who_never_ran() {
        let judged = |workers_there: &[WorkerStatus], free, pending| workers(workers_there, free, pending).verdict;
        assert_eq!(judged(&[], 64, 0), Verdict::Ok);
        assert_eq!(judged(&[], 64, 1), Verdict::Advice);
        assert_eq!(judged(&[worker("1", -5.0)], 64, 0), Verdict::Problem);
        assert_eq!(judged(&[worker("1", 5.0), worker("1", -5.0)], 0, 9), Verdict::Ok);
        assert_eq!(judged(&[worker("1", 5.0)], 3, 9), Verdict::Advice);
    }

    #[test]
    fn a_pause_is_named_with_the_command_that_ends_it() {
        let pause = |topic: Option<&str>, key: Option<&str>| PauseStatus {
            topic: topic.map(str::to_owned),
            key: key.map(str::to_owned),
            reason: "broken consumer".to_owned(),
            login: "alice".to_owned(),
            age_seconds: 90.0,
        };
        assert_eq!(pauses(&[], "outbox").verdict, Verdict::Ok);
        let all = [pause(None, None), pause(Some("orders"), Some("o'brien"))];
        let paused = pauses(&all, "outbox");
        assert_eq!(paused.verdict, Verdict::Advice);
        assert!(
            paused
                .found
                .contains("everything (broken consumer; by alice, 1m 30s ago)"),
            "{}",
            paused.found
        );
        let fix = paused.fix.expect("a fix");
        assert!(
            fix.contains("outboxd resume --all; outboxd resume --topic orders --key "),
            "{fix}"
        );
    }

    #[test]
    fn versions_differ_during_a_rollout() {
        let judged = |running: &[&str]| {
            let workers: Vec<_> = running.iter().map(|version| worker(version, 5.0)).collect();
            versions(&workers, "1").verdict
        };
        assert_eq!(judged(&[]), Verdict::Ok);
        assert_eq!(judged(&["1", "1"]), Verdict::Ok);
        assert_eq!(judged(&["2"]), Verdict::Advice);
        assert_eq!(judged(&["1", "2"]), Verdict::Advice);
    }
}
