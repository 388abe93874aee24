//! Judges what keeps the server from removing old rows and old WAL, and floors from moving. Pure.

use std::time::Duration;

use super::check::{CheckId, Diagnosis};
use crate::outbox::WriterIdentity;
use crate::outbox::doctor::{Autovacuum, IdleSession, OldSnapshot, PreparedTransaction, Slot};
use crate::outbox::status::OpenWriter;
use crate::words::{age, ident, literal, size};

/// Below so many dead rows vacuum has nothing to do.
const DEAD_ROWS_MAX: i64 = 1_000_000;
/// A snapshot of unknown age is old once so many transactions have begun to write after it.
const TRANSACTIONS_MAX: i64 = 1_000_000;
/// How many transactions may begin to write after a writer of unknown age. Some of them write to the outbox.
const LATER_WRITERS_MAX: i64 = 100_000;
/// WAL that is kept for one slot.
const WAL_BYTES_MAX: i64 = 1 << 30;

pub fn autovacuum(state: &Autovacuum, schema: &str) -> Diagnosis {
    const WHY: &str =
        "Nothing removes the old versions of rows, so the tables grow, and claims read more and more of them.";
    let Autovacuum {
        dead_rows, live_rows, ..
    } = state;
    if !state.is_on {
        return CheckId::DbAutovacuum.problem(
            "autovacuum or track_counts is off on this server",
            WHY,
            "ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf()",
        );
    }
    if !state.switched_off.is_empty() {
        let resets = state
            .switched_off
            .iter()
            .map(|table| format!("ALTER TABLE {table} RESET (autovacuum_enabled, toast.autovacuum_enabled)"));
        return CheckId::DbAutovacuum.problem(
            format!("autovacuum is switched off for {}", state.switched_off.join(", ")),
            WHY,
            resets.collect::<Vec<_>>().join("; "),
        );
    }
    let found = format!("autovacuum is on; {schema}.message has about {dead_rows} dead and {live_rows} live rows");
    if *dead_rows <= DEAD_ROWS_MAX.max(*live_rows) {
        return CheckId::DbAutovacuum.ok(found);
    }
    CheckId::DbAutovacuum.advice(
        found,
        "Vacuum does not keep up, or something holds it back.",
        format!("See db.old_snapshot, db.prepared_transactions and db.slots. If these are ok: VACUUM {schema}.message"),
    )
}

/// What is known of sessions that are idle in a transaction.
#[derive(Debug)]
pub struct IdleSessions<'a> {
    pub sessions: &'a [IdleSession],
    /// Those of other logins are known as well.
    pub sees_all: bool,
    /// After how many milliseconds the server ends them, if that is known; 0: never.
    pub timeout_ms: Option<i64>,
    pub database: &'a str,
    pub login: &'a str,
}

pub fn idle_in_transaction(idle: &IdleSessions<'_>, limit: Duration) -> Diagnosis {
    const CHECK: CheckId = CheckId::DbIdleInTransaction;
    let set_timeout = format!(
        "ALTER DATABASE {} SET idle_in_transaction_session_timeout = '5min'",
        ident(idle.database)
    );
    let old: Vec<&IdleSession> = idle
        .sessions
        .iter()
        .filter(|idle| is_long(idle.seconds, limit))
        .collect();
    if !old.is_empty() {
        let who = old.iter().map(|idle| {
            let (pid, seconds) = (idle.pid, age(idle.seconds));
            format!(
                "pid {pid} ({}, login {}) for {seconds}",
                named(&idle.application),
                idle.login
            )
        });
        return CHECK.problem(
            format!("idle in a transaction: {}", who.collect::<Vec<_>>().join(", ")),
            "While it is open, vacuum removes nothing. If it has written to the outbox, its rows wait and floors stand still.",
            format!(
                "{}; and so that the server does it next time: {set_timeout}",
                terminate(old.iter().map(|idle| idle.pid))
            ),
        );
    }
    let is_without_end = idle.timeout_ms == Some(0);
    if is_without_end || !idle.sees_all {
        let never = "the server never ends a session that is idle in a transaction";
        let unseen = "what sessions of other logins do, this login may not see";
        let found = [(is_without_end, never), (!idle.sees_all, unseen)];
        let found = found.into_iter().filter_map(|(is_so, found)| is_so.then_some(found));
        let grant = format!("GRANT pg_read_all_stats TO {}", ident(idle.login));
        let fixes = [(is_without_end, set_timeout), (!idle.sees_all, grant)];
        let fixes = fixes
            .into_iter()
            .filter_map(|(is_needed, fix)| is_needed.then_some(fix));
        return CHECK.advice(
            found.collect::<Vec<_>>().join("; "),
            "One forgotten transaction keeps vacuum from removing anything.",
            fixes.collect::<Vec<_>>().join("; "),
        );
    }
    CHECK.ok(format!(
        "no session is idle in a transaction for longer than {}",
        age(limit.as_secs_f64())
    ))
}

pub fn open_writer(writer: Option<&OpenWriter>, limit: Duration) -> Diagnosis {
    const CHECK: CheckId = CheckId::DbOpenWriter;
    let fine = || {
        CHECK.ok(format!(
            "no writer is open for longer than {}",
            age(limit.as_secs_f64())
        ))
    };
    let Some(writer) = writer else {
        return fine();
    };
    let since = match writer.age_seconds {
        Some(seconds) if is_long(seconds, limit) => format!("for {}", age(seconds)),
        None if writer.later_transactions > LATER_WRITERS_MAX => {
            format!("while {} others began to write", writer.later_transactions)
        }
        _ => return fine(),
    };
    let (who, fix) = match &writer.writer {
        WriterIdentity::Session { pid, application } => (
            format!("pid {pid} ({})", named(application)),
            terminate([*pid].into_iter()),
        ),
        WriterIdentity::Prepared { gid } => (format!("the prepared transaction {gid}"), end_prepared(gid)),
    };
    CHECK.problem(
        format!("{who} has written to the outbox, and is open {since}"),
        "Its rows wait for its commit. Floors stand still meanwhile, so claims read again what has been published since.",
        fix,
    )
}

pub fn old_snapshot(snapshots: &[OldSnapshot], limit: Duration) -> Diagnosis {
    let is_old = |snapshot: &&OldSnapshot| match snapshot.seconds {
        Some(seconds) => is_long(seconds, limit),
        None => snapshot.transactions > TRANSACTIONS_MAX,
    };
    let old: Vec<&OldSnapshot> = snapshots.iter().filter(is_old).collect();
    if old.is_empty() {
        let oldest = snapshots
            .iter()
            .map(|snapshot| snapshot.transactions)
            .max()
            .unwrap_or(0);
        return CheckId::DbOldSnapshot.ok(format!("the oldest snapshot is {oldest} transactions old"));
    }
    let who = old.iter().map(|snapshot| {
        let holder = match (&snapshot.slot, snapshot.pid) {
            (Some(slot), _) => format!("replication slot {slot}"),
            (None, pid) => format!("pid {} ({})", pid.unwrap_or_default(), named(&snapshot.application)),
        };
        let since = snapshot.seconds.map(|seconds| format!("{}, ", age(seconds)));
        format!(
            "{holder}: {}{} transactions",
            since.unwrap_or_default(),
            snapshot.transactions
        )
    });
    let fixes = old.iter().map(|snapshot| match &snapshot.slot {
        Some(slot) => drop_slot(slot),
        None => terminate(snapshot.pid.into_iter()),
    });
    CheckId::DbOldSnapshot.problem(
        format!("old snapshots: {}", who.collect::<Vec<_>>().join(", ")),
        "Vacuum removes no row that was deleted or changed since, so each claim and each mark reads more.",
        format!(
            "Wait for it, if it is a backup or a report. Else: {}",
            fixes.collect::<Vec<_>>().join("; ")
        ),
    )
}

pub fn prepared_transactions(prepared: &[PreparedTransaction], limit: Duration) -> Diagnosis {
    const CHECK: CheckId = CheckId::DbPreparedTransactions;
    let old: Vec<_> = prepared
        .iter()
        .filter(|prepared| is_long(prepared.seconds, limit))
        .collect();
    if old.is_empty() {
        return CHECK.ok(format!("{} prepared, none for long", prepared.len()));
    }
    let who = old
        .iter()
        .map(|prepared| format!("{} of {} for {}", prepared.gid, prepared.owner, age(prepared.seconds)));
    CHECK.problem(
        format!("prepared and not ended: {}", who.collect::<Vec<_>>().join(", ")),
        "It survives its session and a restart of the server, keeps its locks, and keeps vacuum from removing anything.",
        format!("As its owner or a superuser, in this database: {}", end_prepared(&old[0].gid)),
    )
}

pub fn slots(slots: &[Slot]) -> Diagnosis {
    const CHECK: CheckId = CheckId::DbSlots;
    let described = |slot: &&Slot| {
        let state = if slot.is_active { "active" } else { "nobody reads it" };
        format!("{} ({state}, keeps {} of WAL)", slot.name, size(slot.kept_bytes))
    };
    let of = |wanted: &dyn Fn(&&Slot) -> bool| slots.iter().filter(wanted).collect::<Vec<&Slot>>();
    let list = |some: &[&Slot]| some.iter().map(described).collect::<Vec<_>>().join(", ");
    let drops = |some: &[&Slot]| {
        some.iter()
            .map(|slot| drop_slot(&slot.name))
            .collect::<Vec<_>>()
            .join("; ")
    };
    let large = of(&|slot| slot.kept_bytes > WAL_BYTES_MAX);
    if !large.is_empty() {
        return CHECK.problem(
            format!("replication slots keep much WAL: {}", list(&large)),
            "The disk of the server fills up, and a server without room takes no writes.",
            format!(
                "Start the consumer of the slot. If it is gone: {}. For the future: ALTER SYSTEM SET max_slot_wal_keep_size = '10GB'",
                drops(&large)
            ),
        );
    }
    let lost = of(&|slot| slot.wal_status == "lost");
    if !lost.is_empty() {
        return CHECK.advice(
            format!("replication slots whose WAL is gone: {}", list(&lost)),
            "Their consumers cannot continue.",
            drops(&lost),
        );
    }
    let inactive = of(&|slot| !slot.is_active);
    if !inactive.is_empty() {
        return CHECK.advice(
            format!("replication slots that nobody reads: {}", list(&inactive)),
            "The server keeps all WAL from here on until somebody does, and its disk fills up.",
            format!("Start the consumer of the slot. If it is gone: {}", drops(&inactive)),
        );
    }
    CHECK.ok(format!("{} replication slots, none keeps much WAL", slots.len()))
}

fn is_long(seconds: f64, limit: Duration) -> bool {
    seconds > limit.as_secs_f64()
}

fn named(application: &str) -> &str {
    if application.is_empty() { "unnamed" } else { application }
}

fn terminate(pids: impl Iterator<Item = i32>) -> String {
    let calls = pids.map(|pid| format!("SELECT pg_terminate_backend({pid})"));
    calls.collect::<Vec<_>>().join("; ")
}

fn end_prepared(gid: &str) -> String {
    let gid = literal(gid);
    format!("COMMIT PREPARED {gid}, or ROLLBACK PREPARED {gid}")
}

fn drop_slot(name: &str) -> String {
    format!("SELECT pg_drop_replication_slot({})", literal(name))
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(300);

    fn autovacuum_with(dead_rows: i64, live_rows: i64) -> Verdict {
        let state = Autovacuum {
            is_on: true,
            switched_off: Vec::new(),
            dead_rows,
            live_rows,
        };
        autovacuum(&state, "outbox").verdict
    }

    #[test]
    fn dead_rows_count_once_there_are_more_than_live_ones() {
        assert_eq!(autovacuum_with(1_000_000, 0), Verdict::Ok);
        assert_eq!(autovacuum_with(1_000_001, 0), Verdict::Advice);
        assert_eq!(autovacuum_with(5_000_000, 5_000_000), Verdict::Ok);
    }

    #[test]
    fn a_slot_is_a_problem_by_what_it_keeps_and_worth_a_word_once_nobody_reads_it() {
        let slot = |is_active, wal_status: &str, kept_bytes| Slot {
            name: "cdc".to_owned(),
            is_active,
            wal_status: wal_status.to_owned(),
            kept_bytes,
        };
        assert_eq!(slots(&[]).verdict, Verdict::Ok);
        assert_eq!(slots(&[slot(true, "reserved", 1 << 30)]).verdict, Verdict::Ok);
        assert_eq!(
            slots(&[slot(true, "extended", (1 << 30) + 1)]).verdict,
            Verdict::Problem
        );
        assert_eq!(slots(&[slot(false, "reserved", 16)]).verdict, Verdict::Advice);
        let lost = slots(&[slot(false, "lost", 0)]);
        assert!(
            lost.fix
                .is_some_and(|fix| fix == "SELECT pg_drop_replication_slot('cdc')")
        );
    }

    #[test]
    fn a_snapshot_of_unknown_age_is_judged_by_the_transactions_since() {
        let snapshot = |transactions, seconds| OldSnapshot {
            pid: Some(7),
            slot: None,
            application: "pg_dump".to_owned(),
            transactions,
            seconds,
        };
        assert_eq!(old_snapshot(&[], LIMIT).verdict, Verdict::Ok);
        assert_eq!(old_snapshot(&[snapshot(9, Some(300.0))], LIMIT).verdict, Verdict::Ok);
        assert_eq!(
            old_snapshot(&[snapshot(9, Some(301.0))], LIMIT).verdict,
            Verdict::Problem
        );
        assert_eq!(old_snapshot(&[snapshot(1_000_000, None)], LIMIT).verdict, Verdict::Ok);
        let hidden = old_snapshot(&[snapshot(1_000_001, None)], LIMIT);
        assert_eq!(hidden.verdict, Verdict::Problem);
        assert!(hidden.fix.is_some_and(|fix| fix.contains("pg_terminate_backend(7)")));
    }

    #[test]
    fn a_writer_of_unknown_age_is_judged_by_those_after_it() {
        let writer = |age_seconds, later_transactions| OpenWriter {
            writer: WriterIdentity::Prepared {
                gid: "o'brien".to_owned(),
            },
            age_seconds,
            later_transactions,
        };
        let judged = |writer: &OpenWriter| open_writer(Some(writer), LIMIT).verdict;
        assert_eq!(open_writer(None, LIMIT).verdict, Verdict::Ok);
        assert_eq!(judged(&writer(Some(299.0), 1 << 40)), Verdict::Ok);
        assert_eq!(judged(&writer(Some(301.0), 0)), Verdict::Problem);
        assert_eq!(judged(&writer(None, 100_000)), Verdict::Ok);
        let fix = open_writer(Some(&writer(None, 100_001)), LIMIT).fix;
        assert!(fix.is_some_and(|fix| fix.contains("ROLLBACK PREPARED 'o''brien'")));
    }

    #[test]
    fn what_a_login_may_not_see_is_said_and_is_no_problem() {
        let judged = |sees_all, timeout_ms, seconds: &[f64]| {
            let sessions: Vec<IdleSession> = seconds
                .iter()
                .map(|seconds| IdleSession {
                    pid: 7,
                    login: "shop".to_owned(),
                    application: String::new(),
                    seconds: *seconds,
                })
                .collect();
            let idle = IdleSessions {
                sessions: &sessions,
                sees_all,
                timeout_ms: Some(timeout_ms),
                database: "app",
                login: "relay",
            };
            let Diagnosis { verdict, fix, .. } = idle_in_transaction(&idle, LIMIT);
            (verdict, fix.unwrap_or_default())
        };
        assert_eq!(judged(true, 1, &[299.0]).0, Verdict::Ok);
        assert_eq!(judged(true, 1, &[299.0, 301.0]).0, Verdict::Problem);
        let (verdict, fix) = judged(false, 1, &[]);
        assert_eq!(
            (verdict, fix.as_str()),
            (Verdict::Advice, "GRANT pg_read_all_stats TO relay")
        );
        let (verdict, fix) = judged(true, 0, &[]);
        assert_eq!(verdict, Verdict::Advice);
        assert!(fix.starts_with("ALTER DATABASE app SET"), "{fix}");
    }
}
