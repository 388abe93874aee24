//! What `outboxd status` shows, as text.

use std::fmt::Write as _;

use super::pauses::write_pauses;
use crate::advice::advice;
use crate::domain::partition::Partition;
use crate::outbox::HeldUnit;
use crate::outbox::status::Status;
use crate::words::{age, plain};

pub fn render(status: &Status, schema: &str) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_status(&mut out, status, schema);
    out
}

fn write_status(out: &mut String, status: &Status, schema: &str) -> std::fmt::Result {
    let backlog = &status.backlog;
    let about = if backlog.estimated { "about " } else { "" };
    writeln!(
        out,
        "Backlog   {about}{} pending, oldest {}",
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
    write_pauses(out, &status.pauses)?;
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
        let lease = if worker.is_live() {
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

fn write_holds(out: &mut String, holds: &[HeldUnit]) -> std::fmt::Result {
    if !holds.is_empty() {
        writeln!(out, "\nHeld back")?;
    }
    for hold in holds {
        let topic = plain(&hold.topic);
        let what = match (hold.unit.split_at_checked(2), Partition::of_unit(&hold.unit)) {
            (Some(("k:", key)), _) => format!("{topic} key {key:?}"),
            (Some(("p:", partition)), _) => format!("{topic} partition {}", plain(partition)),
            (_, Some(paused)) => format!("{topic} partition {} paused ({} lanes)", paused.number, hold.holds),
            _ => format!("{topic} (whole topic, {} lanes)", hold.holds),
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
            plain(&hold.error),
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
        let error = plain(dead.error.as_deref().unwrap_or("no reason recorded"));
        writeln!(
            out,
            "  id {} {} key {key}: {error} ({} ago)",
            dead.id,
            plain(&dead.topic),
            age(dead.age_seconds)
        )?;
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::domain::sample::Sample;
    use crate::outbox::status::{DeadStatus, OpenWriter, WorkerStatus};
    use crate::outbox::{PauseStatus, WriterIdentity};
    use proptest::prelude::*;

    pub fn quiet() -> Status {
        Status {
            backlog: Sample::default(),
            workers: Vec::new(),
            free_lanes: 0,
            pauses: Vec::new(),
            holds: Vec::new(),
            dead: Vec::new(),
            open_writer: None,
        }
    }

    pub fn session(application: &str) -> WriterIdentity {
        WriterIdentity::Session {
            pid: 42,
            application: application.into(),
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
            error: Some("too large".into()),
            age_seconds: 61.0,
        });
        status.holds.push(HeldUnit {
            topic: "gone".into(),
            unit: String::new(),
            holds: 2,
            failures: 3,
            error: "unknown topic".into(),
            head_id: None,
            age_seconds: 5.0,
            retry_in_seconds: Some(1.0),
        });
        status.holds.push(HeldUnit {
            topic: "busy".into(),
            unit: "k:7".into(),
            holds: 1,
            failures: 0,
            error: "its turn has not come".into(),
            head_id: Some(7),
            age_seconds: 1.0,
            retry_in_seconds: Some(0.0),
        });
        status.holds.push(HeldUnit {
            topic: "lame".into(),
            unit: "s:3/12".into(),
            holds: 64,
            failures: 1,
            error: "no leader".into(),
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
        assert!(text.contains("`outboxd dead redrive --id 7` sends"), "{text}");
        assert!(text.contains("`outboxd dead discard --id 7` removes"), "{text}");
    }

    /// A status with this text wherever others choose the text.
    fn status_with(text: &str, writer: WriterIdentity) -> Status {
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
        status.holds.extend(units.map(|(unit, retry_in_seconds)| HeldUnit {
            topic: text.into(),
            unit,
            holds: 1,
            failures: 1,
            error: text.into(),
            head_id: Some(1),
            age_seconds: 1.0,
            retry_in_seconds,
        }));
        status.dead.push(DeadStatus {
            id: 1,
            topic: text.into(),
            key: Some(text.into()),
            attempts: 1,
            error: Some(text.into()),
            age_seconds: 1.0,
        });
        status.pauses.push(PauseStatus {
            topic: Some(text.into()),
            key: Some(text.into()),
            reason: text.into(),
            login: text.into(),
            age_seconds: 1.0,
        });
        status.open_writer = Some(OpenWriter {
            writer,
            age_seconds: Some(100.0),
            later_transactions: 0,
        });
        status
    }

    #[test]
    fn a_hold_that_waits_for_an_operator_is_named_as_the_command_takes_it() {
        for (unit, arguments) in [
            ("k:customer 42", "--topic orders --key 'customer 42'"),
            ("p:3", "--topic orders --partition 3"),
            ("", "--topic orders"),
        ] {
            let mut status = quiet();
            status.holds.push(HeldUnit {
                topic: "orders".into(),
                unit: unit.into(),
                holds: 1,
                failures: 1,
                error: "too large".into(),
                head_id: Some(7),
                age_seconds: 5.0,
                retry_in_seconds: None,
            });
            let text = render(&status, "outbox");
            let command = format!("`outboxd hold release {arguments}` ");
            assert!(text.contains(&command), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_of_others_reaches_the_terminal_raw(text: String, control in "[\x00-\x1f\x7f-\u{9f}]{0,4}") {
            let text = format!("{text}{control}");
            let lines = render(&status_with("x", session("x")), "outbox").lines().count();
            for writer in [session(&text), WriterIdentity::Prepared { gid: text.clone() }] {
                let shown = render(&status_with(&text, writer), "outbox");
                prop_assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{:?}", shown);
                prop_assert_eq!(shown.lines().count(), lines);
            }
        }

        #[test]
        fn any_status_is_json_that_says_the_same(text: String) {
            let json = serde_json::to_string_pretty(&status_with(&text, session(&text))).expect("serialises");
            let value: serde_json::Value = serde_json::from_str(&json).expect("parses");
            prop_assert_eq!(&value["dead"][0]["error"], &serde_json::Value::from(text.as_str()));
            prop_assert_eq!(&value["workers"][0]["name"], &serde_json::Value::from(text.as_str()));
        }
    }
}
