//! `outboxd status`: what is stuck, why, and what to do next.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;

use super::Failure;
use crate::config::DatabaseArgs;
use crate::domain::partition::Partition;
use crate::outbox::status::{HoldStatus, OpenWriter, Status};
use crate::outbox::{Holder, OnPublished, Outbox, pool};

#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    /// For programs: one JSON object
    #[arg(long)]
    json: bool,
}

/// An operator waits no longer than this for one answer.
const PATIENCE: Duration = Duration::from_secs(25);

pub async fn status(args: &StatusArgs) -> Result<(), Failure> {
    let (database, schema) = args.database.validate()?;
    let pool = pool(&database, 1, PATIENCE)?;
    let outbox = Outbox::new(pool, &schema, OnPublished::Keep, PATIENCE);
    outbox.verify_schema().await?;
    let status = outbox.status().await?;
    if args.json {
        let json = serde_json::to_string_pretty(&status).map_err(|error| Failure::Broken(error.to_string()))?;
        println!("{json}");
    } else {
        print!("{}", render(&status, &schema));
    }
    Ok(())
}

fn render(status: &Status, schema: &str) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_status(&mut out, status, schema);
    out
}

fn write_status(out: &mut String, status: &Status, schema: &str) -> std::fmt::Result {
    let backlog = &status.backlog;
    let more = if backlog.capped { "at least " } else { "" };
    writeln!(
        out,
        "Backlog   {more}{} pending, oldest {}",
        backlog.pending,
        age(backlog.oldest_seconds)
    )?;
    writeln!(out, "Delayed   {}", backlog.delayed)?;
    writeln!(out, "Dead      {}", backlog.dead)?;
    writeln!(
        out,
        "Held      {} key(s), {} topic(s) parked, {} partition(s) paused",
        backlog.held_keys, backlog.parked_topics, backlog.paused_partitions
    )?;
    writeln!(out)?;
    write_workers(out, status)?;
    write_holds(out, &status.holds)?;
    write_dead(out, status)?;
    writeln!(out, "\nWhat to do")?;
    for advice in advice(status, schema) {
        writeln!(out, "  - {advice}")?;
    }
    Ok(())
}

fn write_workers(out: &mut String, status: &Status) -> std::fmt::Result {
    writeln!(out, "Workers   {}", status.workers.len())?;
    for worker in &status.workers {
        let lease = if worker.lease_left_seconds > 0.0 {
            format!("lease {}", age(worker.lease_left_seconds))
        } else {
            "EXPIRED".to_owned()
        };
        writeln!(
            out,
            "  {:<24} {:>2} lanes  {lease}, up {}, v{}",
            plain(&worker.name),
            worker.lanes.len(),
            age(worker.age_seconds),
            plain(&worker.version)
        )?;
    }
    if status.free_lanes > 0 {
        writeln!(out, "  {} lanes have no live owner", status.free_lanes)?;
    }
    Ok(())
}

fn write_holds(out: &mut String, holds: &[HoldStatus]) -> std::fmt::Result {
    if !holds.is_empty() {
        writeln!(out, "\nHeld back")?;
    }
    for hold in holds {
        let topic = plain(&hold.topic);
        let what = match (hold.unit.split_at_checked(2), Partition::of_unit(&hold.unit)) {
            (Some(("k:", key)), _) => format!("{topic} key {key:?}"),
            (Some(("p:", partition)), _) => format!("{topic} partition {}", plain(partition)),
            (_, Some(paused)) => format!("{topic} partition {} paused ({} lanes)", paused.number, hold.lanes),
            _ => format!("{topic} (whole topic, {} lanes)", hold.lanes),
        };
        let next = hold.retry_in_seconds.map_or("waits for you".to_owned(), |seconds| {
            format!("next try in {}", age(seconds))
        });
        let tried = match hold.failures {
            0 => "not tried yet".to_owned(),
            failures => format!("tried {failures}×"),
        };
        writeln!(
            out,
            "  {what}: {}, {tried}, held {}, {next}",
            plain(&hold.reason),
            age(hold.age_seconds)
        )?;
    }
    Ok(())
}

fn write_dead(out: &mut String, status: &Status) -> std::fmt::Result {
    if !status.dead.is_empty() {
        writeln!(out, "\nDead letters (newest)")?;
    }
    for dead in &status.dead {
        let key = plain(dead.key.as_deref().unwrap_or("-"));
        let reason = plain(dead.reason.as_deref().unwrap_or("no reason recorded"));
        writeln!(
            out,
            "  id {} {} key {key}: {reason} ({} ago)",
            dead.id,
            plain(&dead.topic),
            age(dead.age_seconds)
        )?;
    }
    Ok(())
}

/// The next step for each thing that is not as it should be.
fn advice(status: &Status, schema: &str) -> Vec<String> {
    let mut advice = Vec::new();
    let live = status.workers.iter().filter(|w| w.lease_left_seconds > 0.0).count();
    if live == 0 {
        advice.push("No relay is running: start `outboxd run`, or look at why its pods do not.".to_owned());
    } else if status.free_lanes > 0 {
        advice.push("Some lanes have no owner; a running worker takes them within a lease.".to_owned());
    }
    if let Some(hold) = status.holds.iter().find(|hold| hold.unit.is_empty()) {
        advice.push(format!(
            "Topic {} takes nothing ({}): create it or grant the relay write access; it is tried again by itself.",
            plain(&hold.topic),
            plain(&hold.reason)
        ));
    }
    let paused = |hold: &HoldStatus| Partition::of_unit(&hold.unit);
    if let Some((hold, partition)) = status.holds.iter().find_map(|hold| Some((hold, paused(hold)?))) {
        advice.push(format!(
            "Partition {} of topic {} takes nothing ({}): see to its leader and its in-sync replicas; it is tried again by itself, and \
             rows of the topic's other partitions go on.",
            partition.number,
            plain(&hold.topic),
            plain(&hold.reason)
        ));
    }
    if status
        .holds
        .iter()
        .any(|hold| !hold.unit.is_empty() && paused(hold).is_none() && hold.retry_in_seconds.is_some())
    {
        advice.push(
            "A key is held behind a row Kafka refuses: fix the topic's limits, or wait until the row is dead."
                .to_owned(),
        );
    }
    let waits_for_you = |hold: &&HoldStatus| hold.retry_in_seconds.is_none() && paused(hold).is_none();
    if let Some(hold) = status.holds.iter().find(waits_for_you) {
        advice.push(format!(
            "Topic {} waits behind a dead letter: SELECT {schema}.release_hold({}) leaves it dead and lets the rows behind it flow; \
             redrive and discard do so, too.",
            plain(&hold.topic),
            hold_arguments(hold),
        ));
    }
    if status.backlog.dead > 0 {
        let ids: Vec<String> = status.dead.iter().map(|dead| dead.id.to_string()).collect();
        let ids = ids.join(", ");
        advice.push(format!(
            "Dead letters: once the cause is fixed, SELECT {schema}.redrive(ARRAY[{ids}]) sends them again; \
             SELECT {schema}.discard(ARRAY[{ids}]) removes them for good."
        ));
    }
    advice.extend(status.open_writer.as_ref().and_then(about_writer));
    if advice.is_empty() {
        advice.push("Nothing: all is well.".to_owned());
    }
    advice
}

/// A hold as `release_hold` is told of it.
fn hold_arguments(hold: &HoldStatus) -> String {
    let topic = literal(&hold.topic);
    match hold.unit.split_at_checked(2) {
        Some(("k:", key)) => format!("{topic}, {}", literal(key)),
        Some(("p:", partition)) => format!("{topic}, partition => {}", literal(partition)),
        _ => topic,
    }
}

/// Every writer is open for a moment; nothing is said of those.
fn about_writer(writer: &OpenWriter) -> Option<String> {
    const LONG: f64 = 60.0;
    const MANY: i64 = 1_000;
    let (who, what_to_do) = match &writer.holder {
        Holder::Session { pid, application } => {
            let name = if application.is_empty() { "unnamed" } else { application };
            (
                format!("pid {pid}, {}", plain(name)),
                format!("commit it, or SELECT pg_terminate_backend({pid})."),
            )
        }
        Holder::Prepared { gid } => (
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

/// Whoever writes a key or a broker's message must not write to the operator's terminal.
fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// An SQL string that can be pasted, with escapes where the text itself may not reach the terminal raw.
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

fn age(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
    let rounded = if whole < Duration::from_secs(10) {
        Duration::from_millis(whole.as_millis() as u64)
    } else {
        Duration::from_secs(whole.as_secs())
    };
    humantime::format_duration(rounded).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::status::{Backlog, DeadStatus, WorkerStatus};
    use proptest::prelude::*;

    fn quiet() -> Status {
        Status {
            backlog: Backlog {
                pending: 0,
                capped: false,
                oldest_seconds: 0.0,
                delayed: 0,
                dead: 0,
                held_keys: 0,
                parked_topics: 0,
                paused_partitions: 0,
            },
            workers: Vec::new(),
            free_lanes: 0,
            holds: Vec::new(),
            dead: Vec::new(),
            open_writer: None,
        }
    }

    #[test]
    fn without_a_relay_the_first_advice_is_to_start_one() {
        assert!(render(&quiet(), "outbox").contains("No relay is running"));
    }

    #[test]
    fn a_parked_topic_and_a_dead_letter_say_what_to_do() {
        let mut status = quiet();
        status.backlog.dead = 1;
        status.dead.push(DeadStatus {
            id: 7,
            topic: "orders".into(),
            key: None,
            attempts: 5,
            reason: Some("too large".into()),
            age_seconds: 61.0,
        });
        status.holds.push(HoldStatus {
            topic: "gone".into(),
            unit: String::new(),
            lanes: 2,
            failures: 3,
            reason: "unknown topic".into(),
            head_id: None,
            age_seconds: 5.0,
            retry_in_seconds: Some(1.0),
        });
        status.holds.push(HoldStatus {
            topic: "busy".into(),
            unit: "k:7".into(),
            lanes: 1,
            failures: 0,
            reason: "its turn has not come".into(),
            head_id: Some(7),
            age_seconds: 1.0,
            retry_in_seconds: Some(0.0),
        });
        status.holds.push(HoldStatus {
            topic: "lame".into(),
            unit: "s:3/12".into(),
            lanes: 64,
            failures: 1,
            reason: "no leader".into(),
            head_id: None,
            age_seconds: 2.0,
            retry_in_seconds: Some(1.0),
        });
        let text = render(&status, "outbox");
        assert!(text.contains("lame partition 3 paused (64 lanes): no leader"), "{text}");
        assert!(
            text.contains("Partition 3 of topic lame takes nothing (no leader)"),
            "{text}"
        );
        assert!(text.contains("unknown topic, tried 3×, held 5s"), "{text}");
        assert!(text.contains("its turn has not come, not tried yet, held 1s"), "{text}");
        assert!(text.contains("id 7 orders key -: too large (1m 1s ago)"), "{text}");
        assert!(text.contains("Topic gone takes nothing"), "{text}");
        assert!(text.contains("SELECT outbox.redrive(ARRAY[7]) sends"), "{text}");
        assert!(text.contains("SELECT outbox.discard(ARRAY[7]) removes"), "{text}");
    }

    fn session(application: &str) -> Holder {
        Holder::Session {
            pid: 42,
            application: application.into(),
        }
    }

    /// A status with this text wherever somebody else chooses the text.
    fn saying(text: &str, holder: Holder) -> Status {
        let mut status = quiet();
        status.workers.push(WorkerStatus {
            name: text.into(),
            id: text.into(),
            version: text.into(),
            lanes: vec![0],
            lease_left_seconds: 1.0,
            age_seconds: 1.0,
        });
        let units = [
            (format!("k:{text}"), None),
            (format!("p:{text}"), Some(1.0)),
            (String::new(), Some(1.0)),
        ];
        status.holds.extend(units.map(|(unit, retry_in_seconds)| HoldStatus {
            topic: text.into(),
            unit,
            lanes: 1,
            failures: 1,
            reason: text.into(),
            head_id: Some(1),
            age_seconds: 1.0,
            retry_in_seconds,
        }));
        status.dead.push(DeadStatus {
            id: 1,
            topic: text.into(),
            key: Some(text.into()),
            attempts: 1,
            reason: Some(text.into()),
            age_seconds: 1.0,
        });
        status.open_writer = Some(OpenWriter {
            holder,
            age_seconds: Some(100.0),
            later_transactions: 0,
        });
        status
    }

    #[test]
    fn a_writer_that_stays_open_is_named_also_to_who_may_not_see_since_when() {
        let named = |age_seconds, later_transactions| {
            about_writer(&OpenWriter {
                holder: session("billing"),
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
            holder: Holder::Prepared { gid: "o'brien".into() },
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
    fn a_hold_that_waits_for_an_operator_is_named_as_the_function_takes_it() {
        for (unit, arguments) in [
            ("k:o'brien", "'orders', 'o''brien'"),
            ("p:3", "'orders', partition => '3'"),
            ("", "'orders'"),
        ] {
            let mut status = quiet();
            status.holds.push(HoldStatus {
                topic: "orders".into(),
                unit: unit.into(),
                lanes: 1,
                failures: 1,
                reason: "too large".into(),
                head_id: Some(7),
                age_seconds: 5.0,
                retry_in_seconds: None,
            });
            let text = render(&status, "outbox");
            let call = format!("SELECT outbox.release_hold({arguments}) ");
            assert!(text.contains(&call), "{text}");
        }
    }

    #[test]
    fn a_held_key_is_named_by_a_literal_that_can_be_pasted() {
        assert_eq!(literal("k:o'brien"), "'k:o''brien'");
        assert_eq!(literal(r"k:a\b"), r"'k:a\b'");
        assert_eq!(literal("k:a\\b\n"), r"E'k:a\\b\u000a'");
    }

    proptest! {
        #[test]
        fn no_text_of_others_reaches_the_terminal_raw(text: String, control in "[\x00-\x1f\x7f-\u{9f}]{0,4}") {
            let text = format!("{text}{control}");
            let lines = render(&saying("x", session("x")), "outbox").lines().count();
            for holder in [session(&text), Holder::Prepared { gid: text.clone() }] {
                let shown = render(&saying(&text, holder), "outbox");
                prop_assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{:?}", shown);
                prop_assert_eq!(shown.lines().count(), lines);
            }
        }

        #[test]
        fn any_status_is_json_that_says_the_same(text: String) {
            let json = serde_json::to_string_pretty(&saying(&text, session(&text))).expect("serialises");
            let value: serde_json::Value = serde_json::from_str(&json).expect("parses");
            prop_assert_eq!(&value["dead"][0]["reason"], &serde_json::Value::from(text.as_str()));
            prop_assert_eq!(&value["workers"][0]["name"], &serde_json::Value::from(text.as_str()));
        }
    }
}
