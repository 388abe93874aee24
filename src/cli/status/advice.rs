//! What `outboxd status` advises: the next step for each thing that is not as it should be.

use super::pauses;
use super::render::{age, plain};
use crate::domain::partition::Partition;
use crate::outbox::WriterIdentity;
use crate::outbox::status::{HoldStatus, OpenWriter, Status};

/// The next step for each thing that is not as it should be.
pub fn advice(status: &Status, schema: &str) -> Vec<String> {
    let mut advice = Vec::new();
    let live = status.workers.iter().filter(|w| w.lease_left_seconds > 0.0).count();
    if live == 0 {
        advice.push("No relay is running: start `outboxd run`, or find out why its pods do not.".to_owned());
    } else if status.free_lanes > 0 {
        advice.push("Some lanes have no owner; a running worker takes them within a lease.".to_owned());
    }
    advice.extend(pauses::advice(&status.pauses));
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

/// Advice about the rows that may not be published now: one sentence for each kind of hold.
fn about_holds(holds: &[HoldStatus], schema: &str) -> Vec<String> {
    let mut advice = Vec::new();
    if let Some(hold) = holds.iter().find(|hold| hold.unit.is_empty()) {
        advice.push(format!(
            "Topic {} takes nothing ({}): create it or grant the relay write access; it is tried again by itself.",
            plain(&hold.topic),
            plain(&hold.reason)
        ));
    }
    let paused = |hold: &HoldStatus| Partition::of_unit(&hold.unit);
    if let Some((hold, partition)) = holds.iter().find_map(|hold| Some((hold, paused(hold)?))) {
        advice.push(format!(
            "Partition {} of topic {} takes nothing ({}): see to its leader and its in-sync replicas; it is tried again by itself, and \
             rows of the topic's other partitions are published.",
            partition.number,
            plain(&hold.topic),
            plain(&hold.reason)
        ));
    }
    let is_tried_again = |hold: &HoldStatus| paused(hold).is_none() && hold.retry_in_seconds.is_some();
    if holds.iter().any(|hold| !hold.unit.is_empty() && is_tried_again(hold)) {
        advice.push(
            "A key is held behind a row Kafka refuses: fix the topic's limits, or wait until the row is dead."
                .to_owned(),
        );
    }
    let waits_for_you = |hold: &&HoldStatus| hold.retry_in_seconds.is_none() && paused(hold).is_none();
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

/// A command to paste. Where the database is, the environment says.
fn command(subcommand: &str, arguments: &str, schema: &str) -> String {
    let schema = match schema {
        "outbox" => String::new(),
        other => format!("--schema {other}"),
    };
    let words = ["outboxd", subcommand, &schema, arguments];
    words
        .into_iter()
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The filter of `hold release` for a hold.
fn hold_filter(hold: &HoldStatus) -> String {
    let topic = option("--topic", &hold.topic);
    match hold.unit.split_at_checked(2) {
        Some(("k:", key)) => format!("{topic} {}", option("--key", key)),
        Some(("p:", partition)) => format!("{topic} {}", option("--partition", partition)),
        _ => topic,
    }
}

/// A flag and its value. A value that looks like a flag itself is tied to its own.
fn option(flag: &str, value: &str) -> String {
    let separator = if value.starts_with('-') { '=' } else { ' ' };
    format!("{flag}{separator}{}", shell_word(value))
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

/// A word of a shell's command line to paste. Control characters are escaped as bash, zsh and ksh read them, since they must not
/// reach the terminal.
fn shell_word(text: &str) -> String {
    if !text.contains(char::is_control) {
        return shell_words::quote(text).into_owned();
    }
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '\\' | '\'' => escaped.extend(['\\', c]),
            c if c.is_control() => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => escaped.push(c),
        }
    }
    format!("$'{escaped}'")
}

/// An SQL string literal to paste. Control characters are escaped, since they must not reach the terminal.
fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if !text.contains(char::is_control) {
        return format!("'{quoted}'");
    }
    let mut escaped = String::new();
    for c in quoted.replace('\\', r"\\").chars() {
        if c.is_control() {
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            escaped.push(c);
        }
    }
    format!("E'{escaped}'")
}

#[cfg(test)]
mod tests {
    use super::super::render::tests::session;
    use super::*;

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

    #[test]
    fn a_name_is_a_literal_that_can_be_pasted() {
        assert_eq!(literal("o'brien"), "'o''brien'");
        assert_eq!(literal(r"a\b"), r"'a\b'");
        assert_eq!(literal("a\\b\n"), r"E'a\\b\u000a'");
    }

    #[test]
    fn a_held_key_is_a_word_that_can_be_pasted() {
        for key in ["customer-42", "", "o'brien", "a b", "$(id)", "-n", "a\\b"] {
            let words = shell_words::split(&format!("--key {}", shell_word(key)));
            assert_eq!(words.expect("words"), ["--key", key], "{key}");
        }
        assert_eq!(shell_word("it's a\\b\n"), r"$'it\'s a\\b\u000a'");
    }

    #[test]
    fn a_value_that_looks_like_a_flag_is_tied_to_its_own() {
        assert_eq!(option("--key", "-n"), "--key=-n");
        assert_eq!(option("--key", "n"), "--key n");
    }

    #[test]
    fn a_command_names_the_schema_if_it_is_another_one() {
        assert_eq!(command("dead list", "", "outbox"), "outboxd dead list");
        assert_eq!(
            command("dead redrive", "--id 7", "other"),
            "outboxd dead redrive --schema other --id 7"
        );
    }
}
