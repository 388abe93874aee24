//! `outboxd verify` tells a sound history from every kind of broken one. Defects are planted in a real table and a real topic.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use testkit::*;

/// A world whose rows are published by hand, so that anything can go wrong.
struct Plot {
    world: World,
    topic: String,
    rows: HashMap<i64, Record>,
}

impl Plot {
    /// Rows of these keys in one transaction; their ids are 1, 2, …
    async fn with(partitions: i32, keys: &[&str]) -> Self {
        let world = World::new().await;
        let topic = world.topic("orders", partitions, &[]).await;
        let rows: Vec<_> = keys.iter().map(|key| (Some(*key), b"payload".to_vec())).collect();
        world.insert(&topic, &rows).await;
        let rows = "SELECT id, message_id::text, key FROM outbox.message";
        let rows = world.db.query(rows, &[]).await.expect("rows are read");
        let rows = rows.iter().map(|row| (row.get(0), record(row.get(1), row.get(2))));
        Plot {
            rows: rows.collect(),
            world,
            topic,
        }
    }

    /// Sends and marks rows, in this order.
    async fn publish(&self, ids: &[i64]) {
        for id in ids {
            self.plant(&self.rows[id]).await;
            self.mark(*id).await;
        }
    }

    async fn plant(&self, record: &Record) {
        plant(&self.world.kafka, &self.topic, record).await;
    }

    async fn mark(&self, id: i64) {
        let mark = format!("UPDATE outbox.message SET published_at = clock_timestamp() WHERE id = {id}");
        self.world.execute(&mark).await;
    }

    fn verify(&self, args: &[&str]) -> Verified {
        verify(&self.world, args)
    }
}

/// What the relay would make of such a row, on partition 0.
fn record(message_id: &str, key: &str) -> Record {
    Record {
        key: Some(key.as_bytes().to_vec()),
        payload: Some(b"payload".to_vec()),
        headers: vec![("message-id".to_owned(), Some(message_id.as_bytes().to_vec()))],
        ..Record::default()
    }
}

fn flagged(record: &Record) -> Record {
    let mut flagged = record.clone();
    let flag = ("possible-duplicate".to_owned(), Some(b"true".to_vec()));
    flagged.headers.insert(1, flag);
    flagged
}

struct Verified {
    code: Option<i32>,
    report: Value,
}

fn verify(world: &World, args: &[&str]) -> Verified {
    let args = [&["--kafka-brokers", &world.kafka, "--json"], args].concat();
    let output = world.outboxd("verify", &args);
    let report = serde_json::from_slice(&output.stdout);
    Verified {
        code: output.status.code(),
        report: report.unwrap_or_else(|error| panic!("{error}: {}", stderr_of(&output))),
    }
}

impl Verified {
    fn count(&self, finding: &str) -> u64 {
        self.report[finding]["count"]
            .as_u64()
            .expect("every finding has a count")
    }

    /// This and nothing else is found, once, at this row, and it decides the verdict.
    fn assert_only(&self, finding: &str, id: Option<i64>, code: i32) {
        for other in [
            "missing",
            "phantom",
            "duplicated",
            "out_of_order",
            "may_overlap",
            "wrong_partition",
            "altered",
            "cannot_tell",
        ] {
            assert_eq!(
                self.count(other),
                u64::from(other == finding),
                "{other}: {:#}",
                self.report
            );
        }
        if !finding.is_empty() {
            assert_eq!(self.report[finding]["first"][0]["id"].as_i64(), id, "{:#}", self.report);
        }
        assert_eq!(self.code, Some(code), "{:#}", self.report);
        let verdict = ["holds", "broken", "undecided"][code as usize];
        assert_eq!(self.report["verdict"], verdict, "{:#}", self.report);
    }
}

async fn relayed(args: &[&str]) -> World {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 500, 50).await;
    world.fill(&topic, 100, 0).await;
    let rich = format!(
        "INSERT INTO outbox.message (topic, key, payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id,
                                     aggregate_version, partition)
         VALUES ('{topic}', 'rich', '{{\"b\": 1.50, \"a\": \"ü\"}}', NULL, '{{\"t\": \"x\", \"n\": 1e400, \"gone\": null}}', 'E', 'A', '1', 3, 2),
                ('{topic}', 'gone', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
                ('{topic}', NULL, NULL, '\\x00ff', '{{}}', NULL, NULL, NULL, NULL, 1)"
    );
    world.execute(&rich).await;
    let mut relay = world.relay().args(args).start();
    world.drained(SOON).await;
    relay.stop();
    world
}

#[tokio::test]
async fn what_the_relay_published_holds_and_an_operator_may_see_it() {
    let mut world = relayed(&[]).await;
    world.database_url = world.login("operator", &["outbox_operator"]).await;
    let verified = verify(&world, &["--serialized-keys"]);
    verified.assert_only("", None, 0);
    assert_eq!(
        (&verified.report["rows"], &verified.report["records"]),
        (&603.into(), &603.into())
    );
}

#[tokio::test]
async fn a_small_history_is_compared_where_no_temporary_file_can_be_written() {
    let plot = Plot::with(1, &["a", "b", "a"]).await;
    plot.publish(&[1, 2, 3]).await;
    let verified = plot.verify(&["--temp-dir", "/nowhere"]);
    assert_eq!(verified.code, Some(0), "{:#}", verified.report);
    assert_eq!(verified.report["records"], 3);
    plot.mark(3).await;
    plot.plant(&plot.rows[&2]).await;
    assert_eq!(
        plot.verify(&["--temp-dir", "/nowhere"]).code,
        Some(1),
        "the duplicate is found there, too"
    );
}

#[tokio::test]
async fn archived_rows_are_compared_too() {
    let verified = verify(&relayed(&["--on-published", "archive"]).await, &["--serialized-keys"]);
    verified.assert_only("", None, 0);
    assert_eq!(verified.report["published"], 603);
}

#[tokio::test]
async fn deleted_rows_leave_nothing_to_compare() {
    let world = relayed(&["--on-published", "delete"]).await;
    let topic = format!("{}.orders", world.name);
    for verified in [verify(&world, &[]), verify(&world, &["--topic", &topic])] {
        assert_eq!(verified.code, Some(2), "{:#}", verified.report);
        let reason = verified.report["reason"].as_str().expect("a reason");
        assert!(reason.contains("--on-published delete"), "{reason}");
    }
}

#[tokio::test]
async fn a_published_row_without_a_record_is_missing_and_a_pending_or_dead_one_is_not() {
    let plot = Plot::with(1, &["a", "b", "c", "d"]).await;
    plot.publish(&[1]).await;
    plot.world
        .execute("UPDATE outbox.message SET dead_at = now() WHERE id = 2")
        .await;
    let verified = plot.verify(&[]);
    verified.assert_only("", None, 0);
    assert_eq!(
        (&verified.report["pending"], &verified.report["dead"]),
        (&2.into(), &1.into())
    );
    plot.mark(3).await;
    plot.verify(&[]).assert_only("missing", Some(3), 1);
}

#[tokio::test]
async fn a_record_without_a_row_is_a_phantom() {
    let plot = Plot::with(1, &["a", "b"]).await;
    plot.publish(&[1, 2]).await;
    plot.world.execute("DELETE FROM outbox.message WHERE id = 2").await;
    plot.verify(&[]).assert_only("phantom", None, 1);
}

#[tokio::test]
async fn a_record_older_than_what_retention_keeps_is_no_phantom_and_a_strangers_record_is_nobodys() {
    let plot = Plot::with(1, &["a"]).await;
    plot.publish(&[1]).await;
    let mut old = record("6f2c0b9e-0000-4000-8000-000000000001", "gone");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    old.timestamp_ms = Some(now.as_millis() as i64 - 2 * 3_600_000);
    plot.plant(&old).await;
    plot.plant(&Record {
        payload: Some(b"not ours".to_vec()),
        ..Record::default()
    })
    .await;
    let verified = plot.verify(&[]);
    verified.assert_only("", None, 0);
    assert_eq!(
        (&verified.report["outside"], &verified.report["foreign"]),
        (&1.into(), &1.into())
    );
}

#[tokio::test]
async fn a_repeat_is_forgiven_if_it_says_so() {
    let plot = Plot::with(1, &["a", "a"]).await;
    plot.publish(&[1, 2]).await;
    plot.plant(&flagged(&plot.rows[&1])).await;
    let verified = plot.verify(&["--serialized-keys"]);
    verified.assert_only("duplicated", Some(1), 0);
    assert_eq!(verified.report["duplicated"]["flagged"], 1);
    plot.plant(&plot.rows[&2]).await;
    let verified = plot.verify(&[]);
    assert_eq!(
        (verified.code, &verified.report["duplicated"]["unflagged"]),
        (Some(1), &1.into())
    );
}

#[tokio::test]
async fn an_inversion_is_undecided_unless_something_tells_that_the_transactions_did_not_overlap() {
    let plot = Plot::with(1, &["a", "b", "a"]).await;
    plot.publish(&[3, 2, 1]).await;
    plot.verify(&[]).assert_only("may_overlap", Some(1), 2);
    plot.verify(&["--serialized-keys"])
        .assert_only("out_of_order", Some(1), 1);
    let versions = |ascending: bool| {
        let version = if ascending { "id" } else { "-id" };
        format!("UPDATE outbox.message SET aggregate_type = 'A', aggregate_id = key, aggregate_version = {version}")
    };
    // The records carry no versions: altered, each of the three, but that is another matter.
    plot.world.execute(&versions(true)).await;
    assert_eq!(plot.verify(&[]).count("out_of_order"), 1, "the versions follow the ids");
    plot.world.execute(&versions(false)).await;
    let verified = plot.verify(&[]);
    assert_eq!((verified.count("out_of_order"), verified.count("may_overlap")), (0, 0));
}

/// What a redrive leaves in these rows.
async fn note_redrive(plot: &Plot, operation: i64, ids: &[i64]) {
    let note = "UPDATE outbox.message SET requeued_by = $1 WHERE id = ANY ($2)";
    plot.world.db.execute(note, &[&operation, &ids]).await.expect("noted");
}

#[tokio::test]
async fn redriven_rows_are_judged_among_themselves() {
    let plot = Plot::with(1, &["a", "a", "a", "a", "b"]).await;
    plot.publish(&[3, 4, 1, 2, 5]).await;
    assert_eq!(
        plot.verify(&["--serialized-keys"]).count("out_of_order"),
        2,
        "nobody has redriven them"
    );
    note_redrive(&plot, 7, &[1, 2]).await;
    plot.verify(&["--serialized-keys"]).assert_only("", None, 0);
}

#[tokio::test]
async fn redriven_rows_of_one_operation_in_the_wrong_order_are_called_so() {
    let plot = Plot::with(1, &["a", "a", "a", "a"]).await;
    plot.publish(&[3, 4, 2, 1]).await;
    note_redrive(&plot, 7, &[1, 2]).await;
    plot.verify(&["--serialized-keys"])
        .assert_only("out_of_order", Some(1), 1);
    plot.verify(&[]).assert_only("may_overlap", Some(1), 2);
    // The second operation was later, or a row of the first was refused once more.
    note_redrive(&plot, 8, &[1]).await;
    plot.verify(&["--serialized-keys"]).assert_only("", None, 0);
}

#[tokio::test]
async fn a_corrected_row_may_have_arrived_as_it_was_before() {
    let plot = Plot::with(1, &["a", "b"]).await;
    plot.publish(&[1]).await;
    plot.plant(&plot.rows[&2]).await;
    plot.world
        .execute(
            "UPDATE outbox.message SET dead_at = now() WHERE id = 2;
             SELECT outbox.dead_correct(2, payload_bytes => 'corrected')",
        )
        .await;
    plot.verify(&[]).assert_only("", None, 0);
    plot.world
        .execute("UPDATE outbox.message SET available_at = NULL, published_at = clock_timestamp() WHERE id = 2")
        .await;
    plot.verify(&[]).assert_only("altered", Some(2), 1);
    let mut corrected = flagged(&plot.rows[&2]);
    corrected.payload = Some(b"corrected".to_vec());
    plot.plant(&corrected).await;
    let verified = plot.verify(&[]);
    assert_eq!(
        (verified.count("altered"), verified.code),
        (0, Some(0)),
        "{:#}",
        verified.report
    );
}

#[tokio::test]
async fn a_row_written_after_the_other_was_published_did_overlap() {
    let plot = Plot::with(1, &["a", "a"]).await;
    plot.publish(&[2]).await;
    plot.world
        .execute("UPDATE outbox.message SET created_at = clock_timestamp() WHERE id = 1")
        .await;
    plot.publish(&[1]).await;
    plot.verify(&[]).assert_only("", None, 0);
}

#[tokio::test]
async fn a_record_on_another_partition_than_its_key_is_found() {
    let plot = Plot::with(2, &["a", "b", "c", "d", "e", "f", "g", "h"]).await;
    for (id, record) in &plot.rows {
        let mut record = record.clone();
        record.partition = outboxd_partition(&record.key_text(), 2);
        plot.plant(&record).await;
        plot.mark(*id).await;
    }
    plot.verify(&[]).assert_only("", None, 0);
    // Both partitions have older records by now: no count of partitions explains it.
    let id = plot
        .world
        .insert(&plot.topic, &[(Some("a"), b"payload".to_vec())])
        .await[0];
    let message = plot
        .world
        .text(&format!("SELECT message_id::text FROM outbox.message WHERE id = {id}"))
        .await;
    let mut astray = record(&message, "a");
    astray.partition = 1 - outboxd_partition("a", 2);
    plot.plant(&astray).await;
    plot.mark(id).await;
    plot.verify(&[]).assert_only("wrong_partition", Some(id), 1);
}

fn outboxd_partition(key: &str, count: i32) -> i32 {
    // As in the Java client's own test of `Utils.murmur2`: the relay's answer is pinned there.
    outboxd::domain::partition::PartitionChoice::of_key(key.as_bytes())
        .partition(count)
        .expect("it exists")
}

#[tokio::test]
async fn a_topic_that_grew_is_named_and_nobody_accused() {
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let plot = Plot::with(1, &keys).await;
    plot.publish(&[1, 2, 3, 4, 5, 6, 7, 8]).await;
    grow_topic(&plot.world.kafka, &plot.topic, 3).await;
    eventually(SOON, "the new partitions to be seen", async || {
        let verified = plot.verify(&[]);
        (verified.report["grown"][0].as_str() == Some(&plot.topic)).then(|| verified.assert_only("", None, 0))
    })
    .await;
}

#[tokio::test]
async fn an_altered_payload_key_or_header_is_found() {
    for part in ["payload", "key", "headers"] {
        let plot = Plot::with(1, &["a", "b"]).await;
        plot.publish(&[1]).await;
        let mut altered = plot.rows[&2].clone();
        match part {
            "payload" => altered.payload = Some(b"other".to_vec()),
            "key" => altered.key = Some(b"other".to_vec()),
            _ => altered.headers.push(("more".to_owned(), None)),
        }
        plot.plant(&altered).await;
        plot.mark(2).await;
        let verified = plot.verify(&[]);
        verified.assert_only("altered", Some(2), 1);
        let what = verified.report["altered"]["first"][0]["what"]
            .as_str()
            .expect("a reason");
        assert!(what.starts_with(part), "{what}");
    }
}

#[tokio::test]
async fn what_the_topic_no_longer_keeps_is_not_called_missing() {
    let plot = Plot::with(1, &["a", "b", "c"]).await;
    plot.publish(&[1, 2, 3]).await;
    forget_records(&plot.world.kafka, &plot.topic, 0, 1).await;
    plot.verify(&[]).assert_only("cannot_tell", Some(1), 2);
    alter_topic(&plot.world.kafka, &plot.topic, "cleanup.policy", "compact").await;
    plot.verify(&[]).assert_only("cannot_tell", Some(1), 2);
}

#[tokio::test]
async fn since_leaves_out_what_is_older() {
    let plot = Plot::with(1, &["a", "b"]).await;
    plot.publish(&[2]).await;
    plot.world
        .execute("UPDATE outbox.message SET created_at = now() - interval '1 day', published_at = now() - interval '1 day' WHERE id = 1")
        .await;
    plot.verify(&[]).assert_only("missing", Some(1), 1);
    plot.verify(&["--since", "1h"]).assert_only("", None, 0);
    plot.verify(&["--since", "2020-01-01T00:00:00Z"])
        .assert_only("missing", Some(1), 1);
}

#[tokio::test]
async fn who_cannot_be_reached_leaves_it_undecided_and_bad_usage_is_said() {
    let plot = Plot::with(1, &["a"]).await;
    plot.publish(&[1]).await;
    let nowhere = outboxd()
        .args([
            "verify",
            "--database-url",
            "postgres://nobody@127.0.0.1:1/x",
            "--kafka-brokers",
            "x",
            "--json",
        ])
        .output()
        .expect("outboxd runs");
    assert_eq!(nowhere.status.code(), Some(2), "{}", stderr_of(&nowhere));
    let report: Value = serde_json::from_slice(&nowhere.stdout).expect("a report all the same");
    assert_eq!(report["verdict"], "undecided");
    let silent = plot.world.outboxd("verify", &["--kafka-brokers", "127.0.0.1:1"]);
    assert_eq!(silent.status.code(), Some(2), "{}", stderr_of(&silent));
    assert!(stderr_of(&silent).contains("Kafka"), "{}", stderr_of(&silent));
    for wrong in [&["--since", "soon"][..], &["--no-such-flag"]] {
        let args = [&["--kafka-brokers", &plot.world.kafka], wrong].concat();
        assert_eq!(plot.world.outboxd("verify", &args).status.code(), Some(64), "{wrong:?}");
    }
}

#[tokio::test]
async fn people_read_the_verdict_first_and_then_where_to_look() {
    let plot = Plot::with(1, &["a", "b"]).await;
    plot.publish(&[1]).await;
    plot.mark(2).await;
    let output = plot.world.outboxd("verify", &["--kafka-brokers", &plot.world.kafka]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("A promise was BROKEN: 1 missing."), "{text}");
    let message = plot.rows[&2].message_id();
    let offender = format!(
        "  row 2 message {message} at {}/0/-: published, but not in the topic",
        plot.topic
    );
    assert!(text.contains(&offender), "{text}");
    assert!(text.contains("Send it again"), "{text}");
}
