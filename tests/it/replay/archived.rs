//! Rows that are moved back from the history.

use super::*;

#[tokio::test]
async fn a_message_has_one_row_before_during_and_after_its_replay() {
    let (world, topic, relay) = published_world(&["--on-published", "archive"], 20, 4).await;
    let rich = format!(
        "INSERT INTO outbox.message (topic, key, payload, headers, event_type, aggregate_type, aggregate_id, aggregate_version, partition,
                                     idempotency_scope, idempotency_key)
         VALUES ('{topic}', 'rich', '{{\"b\": 1.50}}', '{{\"t\": \"x\"}}', 'E', 'A', '1', 3, 2, 's', 'i');
         INSERT INTO outbox.message (topic, payload_bytes) VALUES ('{topic}', '\\x00ff');
         INSERT INTO outbox.message (topic, key) VALUES ('{topic}', 'gone')"
    );
    world.execute(&rich).await;
    world.drained(SOON).await;
    publish_an_hour_ago(&world).await;
    drop(relay);
    let rows = "SELECT (SELECT count(*) FROM outbox.message) || ' ' || (SELECT count(*) FROM outbox.history)";
    assert_eq!(world.text(rows).await, "0 23");
    let columns = "id, created_at, aggregate_version, message_id, partition, topic, key, event_type, aggregate_type, aggregate_id,
                   idempotency_scope, idempotency_key, headers, payload, payload_bytes, requeued_by";
    let content = |table: &str| {
        format!("SELECT md5(string_agg(m::text, ',' ORDER BY id)) FROM (SELECT {columns} FROM outbox.{table}) m")
    };
    let before = world.text(&content("history")).await;
    let said = replay(&world, &["--topic", &topic]);
    assert_eq!(world.text(rows).await, "23 0");
    assert_eq!(world.text(&content("message")).await, before);
    let pending = "SELECT count(*) FROM outbox.message
                   WHERE published_at IS NULL AND available_at <= now() AND attempts = 0 AND last_error IS NULL
                     AND (lane IS NULL) = (key IS NULL AND partition IS NULL)";
    assert_eq!(world.count(pending).await, 23);
    let _relay = world.relay().args(&["--on-published", "archive"]).start_ready().await;
    world.drained(SOON).await;
    assert_eq!(world.text(rows).await, "0 23");
    assert_eq!(world.text(&content("history")).await, before);
    let recorded = format!(
        "SELECT count(*) FROM outbox.history WHERE replayed_by = {}",
        said["operation"]
    );
    assert_eq!(world.count(&recorded).await, 23, "ordered and unordered rows");
    let history = world.history(&topic).await;
    history.assert_sound();
    assert_eq!((history.duplicates, history.unflagged_duplicates), (23, 0));
}

/// In the history uniqueness has ended, so a newer message may have the same idempotency key, or after a failover the same id.
#[tokio::test]
async fn a_message_whose_key_is_in_use_again_stays_in_the_history_and_is_named() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let enqueue = |number: u8| {
        format!(
            "SELECT outbox.enqueue('{topic}', 'k', '{number}', event_type => 'E', idempotency_scope => 's', idempotency_key => 'i')"
        )
    };
    world.execute(&enqueue(1)).await;
    world
        .execute(&format!("SELECT outbox.enqueue('{topic}', 'k', '2')"))
        .await;
    let relay = world.relay().args(&["--on-published", "archive"]).start_ready().await;
    world.drained(SOON).await;
    drop(relay);
    publish_an_hour_ago(&world).await;
    world.execute(&enqueue(3)).await;
    let output = world.outboxd("replay", &["--topic", &topic, "--yes", "--json"]);
    let said = json_of(&output);
    assert_eq!(
        (&said["changed"], &said["conflicts"], &said["gone"]),
        (&1.into(), &serde_json::json!([1]), &0.into())
    );
    assert!(
        stderr_of(&output).contains("message 1 stays in the history"),
        "{}",
        stderr_of(&output)
    );
    assert_eq!(world.count("SELECT count(*) FROM outbox.history").await, 1);
    assert_eq!(world.ids_where("replayed_by IS NOT NULL").await, [2]);
}

#[tokio::test]
async fn what_retention_removes_during_a_replay_is_counted_as_gone() {
    let (world, topic, relay) = published_world(&["--on-published", "archive"], 30, 3).await;
    drop(relay);
    world
        .execute(
            "CREATE TABLE outbox.history_20200101 PARTITION OF outbox.history FOR VALUES FROM ('2020-01-01Z') TO ('2020-01-02Z');
             UPDATE outbox.history SET published_at = '2020-01-01 12:00Z' WHERE id <= 10;",
        )
        .await;
    let begin = format!("SELECT matched FROM outbox.replay_begin(topics => '{{{topic}}}')");
    assert_eq!(world.count(&begin).await, 30);
    world
        .execute("SELECT outbox.history_expire('1 day'); DELETE FROM outbox.history WHERE id = 20")
        .await;
    let step = world
        .db
        .query_one("SELECT changed, gone, conflicts, finished FROM outbox.replay_step((SELECT max(operation) FROM outbox.audit))", &[])
        .await
        .expect("a step");
    let step: (i32, i32, Vec<i64>, bool) = (step.get(0), step.get(1), step.get(2), step.get(3));
    assert_eq!(step, (19, 11, vec![], true));
}

#[tokio::test]
async fn kept_rows_that_are_purged_or_replayed_by_somebody_else_are_left_alone() {
    let (world, topic, relay) = published_world(&[], 30, 3).await;
    drop(relay);
    let begin = format!("SELECT operation FROM outbox.replay_begin(topics => '{{{topic}}}')");
    let operation = world.count(&begin).await;
    world.execute("DELETE FROM outbox.message WHERE id <= 5").await;
    assert_eq!(replay(&world, &["--id", "6-10"])["changed"], 5);
    world
        .execute("UPDATE outbox.message SET published_at = now(), available_at = NULL WHERE id = 6")
        .await;
    let step = format!("SELECT changed || ' ' || gone || ' ' || finished FROM outbox.replay_step({operation})");
    assert_eq!(world.text(&step).await, "20 10 true");
    assert_eq!(
        world.ids_where(&format!("replayed_by = {operation}")).await,
        (11..=30).collect::<Vec<_>>()
    );
}
