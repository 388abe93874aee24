//! Judges the outbox in the database: its schema, its privileges and its settings. Pure.

use super::check::{CheckId, Diagnosis};
use crate::outbox::doctor::{Durability, HistoryToday, IdSequence, Trigger};
use crate::outbox::{Error, Kind};
use crate::words::{ident, size};

/// So many ids last for years at any rate that one table takes.
const IDS_LEFT_MIN: i64 = 1 << 40;

/// What verifying the schema has shown. With `migrate` the relay itself creates what is missing.
pub fn schema(verified: &Result<(), Error>, schema: &str, known: i32, migrate: bool) -> Diagnosis {
    const CHECK: CheckId = CheckId::DbSchema;
    let error = match verified {
        Ok(()) => {
            return CHECK.ok(format!(
                "the schema {schema} is there, in a version for this outboxd (V{known})"
            ));
        }
        Err(error) => error,
    };
    match error.kind() {
        Kind::Schema if migrate => CHECK.advice(
            error.to_string(),
            "The relay is set to migrate at its start (--migrate), with its own login.",
            "Nothing, if its login may create a schema and roles. Else: outboxd migrate",
        ),
        Kind::Schema => CHECK.problem(
            error.to_string(),
            "The relay ends with exit code 78 on another schema than it needs.",
            "outboxd migrate --database-url … (with the login that owns the schema)",
        ),
        Kind::Permission => CHECK.skipped("this login may not read it; see db.grants"),
        Kind::Transient | Kind::Setting | Kind::Login => CHECK.unknown(error.to_string()),
    }
}

/// `missing`: what the login lacks, in words.
pub fn grants(missing: &[String], login: &str) -> Diagnosis {
    if missing.is_empty() {
        return CheckId::DbGrants.ok(format!("{login} has every privilege that the relay needs"));
    }
    CheckId::DbGrants.problem(
        format!("{login} lacks {}", missing.join(", ")),
        "The relay ends with exit code 79 without it.",
        format!(
            "GRANT outbox_relay TO {}. If it is not the relay's login: run doctor with the relay's",
            ident(login)
        ),
    )
}

pub fn trigger(triggers: &[Trigger], schema: &str) -> Diagnosis {
    const CHECK: CheckId = CheckId::DbTrigger;
    let fires = |trigger: &&Trigger| trigger.fires.clone().unwrap_or_default();
    let enable = |name: &str| format!("ALTER TABLE {schema}.message ENABLE ALWAYS TRIGGER {name}");
    let silent = triggers
        .iter()
        .find(|trigger| !matches!(fires(trigger).as_str(), "A" | "O"));
    if let Some(Trigger { name, fires }) = silent {
        let (state, create) = match fires {
            Some(_) => ("is disabled", String::new()),
            None => ("is missing", format!("{}; ", create_trigger(name, schema))),
        };
        return CHECK.problem(
            format!("the trigger {name} of {schema}.message {state}"),
            without_trigger(name),
            format!("{create}{}", enable(name)),
        );
    }
    if let Some(Trigger { name, .. }) = triggers.iter().find(|trigger| fires(trigger) != "A") {
        return CHECK.advice(
            format!("the trigger {name} of {schema}.message does not fire where session_replication_role is replica"),
            "Tools that load rows in this way insert messages that were not checked.",
            enable(name),
        );
    }
    CHECK.ok("messages are checked, and get their lane, at INSERT")
}

const REFUSE_UPDATE: &str = "message_refuse_update";

fn without_trigger(name: &str) -> &'static str {
    if name == REFUSE_UPDATE {
        return "Nothing refuses to change the topic or the key of a message, on which the order of its key depends.";
    }
    "Messages are not checked and get no lane. The relay refuses to send those with a key, and they become dead letters."
}

/// As the first migration creates it.
fn create_trigger(name: &str, schema: &str) -> String {
    let (event, each, function) = if name == REFUSE_UPDATE {
        ("UPDATE OF topic, key, partition, lane", "STATEMENT", REFUSE_UPDATE)
    } else {
        ("INSERT", "ROW", "message_before_insert")
    };
    format!(
        "CREATE TRIGGER {name} BEFORE {event} ON {schema}.message FOR EACH {each} EXECUTE FUNCTION {schema}.{function}()"
    )
}

pub fn sequence(ids: &IdSequence, schema: &str) -> Diagnosis {
    const CHECK: CheckId = CheckId::DbSequence;
    let IdSequence { cache, increment, .. } = ids;
    if *cache != 1 || *increment != 1 || ids.cycles {
        let cycles = if ids.cycles { ", CYCLE" } else { "" };
        return CHECK.problem(
            format!("the sequence of ids has CACHE {cache}, INCREMENT {increment}{cycles}"),
            "Ids are not drawn one by one in their order, so rows have none, and floors stand still.",
            format!("ALTER SEQUENCE {schema}.message_id_seq CACHE 1 INCREMENT 1 NO CYCLE"),
        );
    }
    if ids.ids_left < IDS_LEFT_MIN {
        return CHECK.problem(
            format!("the sequence of ids has {} left", ids.ids_left),
            "Once none is left, no message can be inserted.",
            format!("ALTER SEQUENCE {schema}.message_id_seq NO MAXVALUE"),
        );
    }
    CHECK.ok("ids are drawn one by one, in their order")
}

pub fn timeline(timeline: Option<&str>) -> Diagnosis {
    match timeline {
        Some(timeline) => CheckId::DbTimeline.ok(format!("the server is on timeline {timeline}")),
        None => CheckId::DbTimeline.advice(
            "the server does not say which timeline it is on",
            "A failover cannot be told from a restart: after either, what is pending is sent as possible-duplicate, and lanes are \
             taken one lease later.",
            "GRANT EXECUTE ON FUNCTION pg_current_wal_insert_lsn(), pg_walfile_name(pg_lsn) TO the schema's owner, where the server \
             permits it",
        ),
    }
}

pub fn synchronous_commit(durability: &Durability) -> Diagnosis {
    const CHECK: CheckId = CheckId::DbSynchronousCommit;
    let setting = &durability.synchronous_commit;
    if !durability.fsync || !durability.full_page_writes {
        return CHECK.problem(
            "fsync or full_page_writes is off on this server",
            "A crash of its machine can lose or damage anything, messages that Kafka already has among it.",
            "ALTER SYSTEM SET fsync = on; ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()",
        );
    }
    if setting == "off" {
        return CHECK.advice(
            "sessions of this login commit asynchronously (synchronous_commit = off)",
            "After a crash of the server, all pending messages are sent as possible-duplicate, and lanes are taken one lease later.",
            "ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf(); or ALTER ROLE … RESET synchronous_commit",
        );
    }
    let logins = &durability.asynchronous_logins;
    if !logins.is_empty() {
        return CHECK.advice(
            format!(
                "commits are asynchronous (synchronous_commit = off) for {}",
                logins.join(", ")
            ),
            "A crash of the server can lose a message that such a login has committed, after Kafka has got it.",
            format!(
                "ALTER ROLE {} RESET synchronous_commit, where it writes messages",
                ident(&logins[0])
            ),
        );
    }
    CHECK.ok(format!("a commit survives a crash (synchronous_commit = {setting})"))
}

pub fn history_days(today: &HistoryToday, schema: &str) -> Diagnosis {
    const CHECK: CheckId = CheckId::DbHistoryDays;
    const WHY: &str =
        "Such rows stay in the default partition, and retention deletes them one by one instead of dropping a day.";
    if !today.has_today && today.is_running {
        return CHECK.advice(
            format!("{schema}.history has no partition for today, though a relay runs"),
            WHY,
            format!("SELECT {schema}.history_prepare(), while no backup has the table locked"),
        );
    }
    if today.default_bytes > 0 {
        let bytes = size(today.default_bytes);
        return CHECK.advice(
            format!("{schema}.history_default has {bytes} of rows whose day had no partition"),
            WHY,
            "Nothing, if it was one day: they are deleted by age. Else find what locks the table (see db.old_snapshot).",
        );
    }
    CHECK.ok(if today.has_today {
        "each day has its partition"
    } else {
        "the relay will make the partitions when it starts"
    })
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn a_missing_schema_is_the_relays_own_task_if_it_migrates() {
        let missing = || Err(Error::Schema("the outbox schema is missing".to_owned()));
        assert_eq!(schema(&Ok(()), "outbox", 3, false).verdict, Verdict::Ok);
        assert_eq!(schema(&missing(), "outbox", 3, false).verdict, Verdict::Problem);
        assert_eq!(schema(&missing(), "outbox", 3, true).verdict, Verdict::Advice);
        let silence = Err(Error::Busy("later".to_owned()));
        assert_eq!(schema(&silence, "outbox", 3, true).verdict, Verdict::Unknown);
    }

    #[test]
    fn a_trigger_fires_always_or_is_named() {
        let judged = |fires: Option<&str>| {
            let triggers = [
                ("message_refuse_update", Some("A")),
                ("zz_message_before_insert", fires),
            ];
            let triggers = triggers.map(|(name, fires)| Trigger {
                name: name.to_owned(),
                fires: fires.map(str::to_owned),
            });
            trigger(&triggers, "outbox")
        };
        assert_eq!(judged(Some("A")).verdict, Verdict::Ok);
        assert_eq!(judged(Some("O")).verdict, Verdict::Advice);
        for silent in [Some("D"), Some("R"), None] {
            let problem = judged(silent);
            assert_eq!(problem.verdict, Verdict::Problem, "{silent:?}");
            assert!(problem.found.contains("zz_message_before_insert"), "{}", problem.found);
        }
    }

    #[test]
    fn ids_are_drawn_one_by_one_and_do_not_run_out() {
        let right = IdSequence {
            cache: 1,
            increment: 1,
            cycles: false,
            ids_left: i64::MAX - 7,
        };
        assert_eq!(sequence(&right, "outbox").verdict, Verdict::Ok);
        for wrong in [
            IdSequence { cache: 10, ..right },
            IdSequence { increment: -1, ..right },
            IdSequence { cycles: true, ..right },
            IdSequence {
                ids_left: 1000,
                ..right
            },
        ] {
            assert_eq!(sequence(&wrong, "outbox").verdict, Verdict::Problem, "{wrong:?}");
        }
    }

    #[test]
    fn a_day_without_a_partition_is_worth_a_word_once_a_relay_runs() {
        let judged = |has_today, default_bytes, is_running| {
            let today = HistoryToday {
                has_today,
                default_bytes,
                is_running,
            };
            history_days(&today, "outbox").verdict
        };
        assert_eq!(judged(false, 0, false), Verdict::Ok, "before the first start");
        assert_eq!(judged(false, 0, true), Verdict::Advice);
        assert_eq!(judged(true, 8192, true), Verdict::Advice);
        assert_eq!(judged(true, 0, true), Verdict::Ok);
    }

    #[test]
    fn what_a_crash_costs_is_judged_by_the_worst_setting() {
        let durable = Durability {
            fsync: true,
            full_page_writes: true,
            synchronous_commit: "on".to_owned(),
            asynchronous_logins: Vec::new(),
        };
        assert_eq!(synchronous_commit(&durable).verdict, Verdict::Ok);
        let off = Durability {
            synchronous_commit: "off".to_owned(),
            ..durable.clone()
        };
        assert_eq!(synchronous_commit(&off).verdict, Verdict::Advice);
        let shop = Durability {
            asynchronous_logins: vec!["shop".to_owned()],
            ..durable.clone()
        };
        assert!(
            synchronous_commit(&shop)
                .fix
                .is_some_and(|fix| fix.starts_with("ALTER ROLE shop RESET"))
        );
        let unsafe_disk = Durability {
            fsync: false,
            ..durable
        };
        assert_eq!(synchronous_commit(&unsafe_disk).verdict, Verdict::Problem);
    }
}
