//! What `outboxd status` and the page advise: the next step for each thing that is not as it should be.

use crate::domain::partition::Partition;
use crate::outbox::status::{OpenWriter, Status};
use crate::outbox::{HeldUnit, PauseStatus, WriterIdentity};
use crate::words::{age, command, literal, option, paused, plain, resume};

/// One sentence or two for each. Commands are between backticks, and nothing in it controls a terminal.
pub fn advice(status: &Status, schema: &str) -> Vec<String> {
    let mut advice = Vec::new();
    let live = status.workers.iter().filter(|worker| worker.is_live()).count();
    if live == 0 {
        advice.push("No relay is running: start `outboxd run`, or find out why its pods do not.".to_owned());
    } else if status.free_lanes > 0 {
        advice.push("Some lanes have no owner; a running worker takes them within a lease.".to_owned());
    }
    advice.extend(about_pauses(&status.pauses, schema));
    advice.extend(about_holds(&status.holds, schema));
    if status.backlog.dead > 0 {
        let ids: Vec<String> = status.dead.iter().map(|dead| dead.id.to_string()).collect();
        let ids = format!("--id {}", ids.join(","));
        advice.push(format!(
            "Dead letters: once the cause is fixed, `{}` sends them again; `{}` removes them for good; `{}` shows all.",
            command("dead redrive", &ids, schema),
            command("dead discard", &ids, schema),
            command("dead list", "", schema)
        ));
    }
    advice.extend(status.open_writer.as_ref().and_then(about_writer));
    if advice.is_empty() {
        advice.push("Nothing: all is well.".to_owned());
    }
    advice
}

/// How to end the pause that covers most.
fn about_pauses(pauses: &[PauseStatus], schema: &str) -> Option<String> {
    let pause = pauses.first()?;
    let (topic, key) = (pause.topic.as_deref(), pause.key.as_deref());
    let (what, resume) = (paused(topic, key), resume(topic, key, schema));
    let more = match pauses.len() {
        1 => String::new(),
        count => format!(" ({} more are paused)", count - 1),
    };
    Some(format!(
        "An operator has paused {what}: once the reason is gone, `{resume}`{more}."
    ))
}

/// Advice about the rows that may not be published now: one sentence for each kind of hold.
fn about_holds(holds: &[HeldUnit], schema: &str) -> Vec<String> {
    let mut advice = Vec::new();
    if let Some(hold) = holds.iter().find(|hold| hold.unit.is_empty()) {
        advice.push(format!(
            "Topic {} takes nothing ({}): create it or grant the relay write access; it is tried again by itself.",
            plain(&hold.topic),
            plain(&hold.error)
        ));
    }
    let paused = |hold: &HeldUnit| Partition::of_unit(&hold.unit);
    if let Some((hold, partition)) = holds.iter().find_map(|hold| Some((hold, paused(hold)?))) {
        advice.push(format!(
            "Partition {} of topic {} takes nothing ({}): see to its leader and its in-sync replicas; it is tried again by itself, and \
             rows of the topic's other partitions are published.",
            partition.number,
            plain(&hold.topic),
            plain(&hold.error)
        ));
    }
    let is_tried_again = |hold: &HeldUnit| paused(hold).is_none() && hold.retry_in_seconds.is_some();
    if holds.iter().any(|hold| !hold.unit.is_empty() && is_tried_again(hold)) {
        advice.push(
            "A key is held behind a row Kafka refuses: fix the topic's limits, or wait until the row is dead."
                .to_owned(),
        );
    }
    let waits_for_you = |hold: &&HeldUnit| hold.retry_in_seconds.is_none() && paused(hold).is_none();
    if let Some(hold) = holds.iter().find(waits_for_you) {
        advice.push(format!(
            "Topic {} waits behind a dead letter: `{}` leaves it dead and lets the rows behind it flow; `outboxd dead redrive` and \
             `outboxd dead discard` do so, too.",
            plain(&hold.topic),
            command("hold release", &hold_filter(hold), schema),
        ));
    }
    advice
}

/// The filter of `hold release` for a hold.
fn hold_filter(hold: &HeldUnit) -> String {
    let topic = option("--topic", &hold.topic);
    match hold.unit.split_at_checked(2) {
        Some(("k:", key)) => format!("{topic} {}", option("--key", key)),
        Some(("p:", partition)) => format!("{topic} {}", option("--partition", partition)),
        _ => topic,
    }
}

/// Advice about a writer that stays open. Every writer is open for a moment, so a young one gets none.
fn about_writer(writer: &OpenWriter) -> Option<String> {
    const LONG: f64 = 60.0;
    const MANY: i64 = 1_000;
    let (who, what_to_do) = match &writer.writer {
        WriterIdentity::Session { pid, application } => {
            let name = if application.is_empty() { "unnamed" } else { application };
            (
                format!("pid {pid}, {}", plain(name)),
                format!("commit it, or SELECT pg_terminate_backend({pid})."),
            )
        }
        WriterIdentity::Prepared { gid } => (
            "prepared, so no session's".to_owned(),
            format!("COMMIT PREPARED {gid}, or ROLLBACK PREPARED {gid}.", gid = literal(gid)),
        ),
    };
    match writer.age_seconds {
        Some(seconds) => (seconds > LONG).then(|| {
            let open = age(seconds);
            format!("A transaction has been open for {open} after writing to the outbox ({who}): {what_to_do}")
        }),
        None => (writer.later_transactions >= MANY).then(|| {
            format!(
                "A transaction has written to the outbox and is open, though {} began to write after it ({who}; since when, only a login with \
                 pg_read_all_stats sees). If it is forgotten: {what_to_do}",
                writer.later_transactions
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(application: &str) -> WriterIdentity {
        WriterIdentity::Session {
            pid: 42,
            application: application.into(),
        }
    }

    #[test]
    fn the_command_that_ends_a_pause_is_named() {
        let pause = |topic: Option<&str>, key: Option<&str>| PauseStatus {
            topic: topic.map(str::to_owned),
            key: key.map(str::to_owned),
            reason: "broken consumer".to_owned(),
            login: "alice".to_owned(),
            age_seconds: 90.0,
        };
        assert_eq!(about_pauses(&[], "outbox"), None);
        let pauses = [pause(None, None), pause(Some("orders"), Some("o'brien"))];
        let said = about_pauses(&pauses, "outbox").expect("advice");
        assert!(said.contains("`outboxd resume --all` (1 more"), "{said}");
        let said = about_pauses(&pauses[1..], "outbox").expect("advice");
        let flags = said.split("`outboxd resume ").nth(1).expect("a command");
        let flags = shell_words::split(flags.trim_end_matches("`.")).expect("words");
        assert_eq!(flags, ["--topic", "orders", "--key", "o'brien"]);
    }

    #[test]
    fn a_writer_that_stays_open_is_named_also_to_who_may_not_see_since_when() {
        let named = |age_seconds, later_transactions| {
            about_writer(&OpenWriter {
                writer: session("billing"),
                age_seconds,
                later_transactions,
            })
        };
        let shown = named(Some(61.0), 0).expect("open for long");
        assert!(
            shown.contains("open for 1m") && shown.contains("pg_terminate_backend(42)"),
            "{shown}"
        );
        let hidden = named(None, 1_000).expect("open for long, it seems");
        assert!(
            hidden.contains("billing") && hidden.contains("pg_read_all_stats"),
            "{hidden}"
        );
        assert_eq!(
            (named(Some(59.0), 5_000), named(None, 999)),
            (None, None),
            "every writer is open for a moment"
        );
    }

    #[test]
    fn a_transaction_left_prepared_is_ended_by_its_name() {
        let shown = about_writer(&OpenWriter {
            writer: WriterIdentity::Prepared { gid: "o'brien".into() },
            age_seconds: Some(61.0),
            later_transactions: 0,
        });
        let shown = shown.expect("open for long");
        assert!(
            shown.contains("COMMIT PREPARED 'o''brien'") && shown.contains("ROLLBACK PREPARED 'o''brien'"),
            "{shown}"
        );
    }
}
