//! The life of a row.

use testkit::*;

#[tokio::test]
async fn a_committed_row_arrives_and_a_rolled_back_one_does_not() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let _relay = world.relay().start_ready().await;
    world
        .execute(&format!(
            "BEGIN; SELECT outbox.enqueue('{topic}', 'gone', '{{\"n\": 0}}'); ROLLBACK;
             BEGIN; SELECT outbox.enqueue('{topic}', 'kept', '{{\"n\": 1}}'); COMMIT;"
        ))
        .await;
    world.drained(SOON).await;
    let records = read_until(&world.kafka, &topic, 1, SOON).await;
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].key_text(), "kept");
    assert_eq!(records[0].json()["n"], 1);
}

/// Retries that come at once, so that a test need not wait for them.
const QUICK_RETRIES: [&str; 4] = ["--retry-backoff-min", "50ms", "--retry-backoff-max", "100ms"];
/// Retries that do not come by themselves while a test runs.
const LATE_RETRIES: [&str; 4] = ["--retry-backoff-min", "10m", "--retry-backoff-max", "10m"];

/// What an operator does to a hold that should be tried now.
const TRY_NOW: &str = "SELECT outbox.release_hold(topic, substr(unit, 3)) FROM outbox.hold";

#[tokio::test]
async fn keep_stamps_the_row_and_its_idempotency_key_stays_taken() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let _relay = world.relay().start_ready().await;
    let insert = format!(
        "SELECT outbox.enqueue('{topic}', 'k', '{{}}', event_type => 'Placed',
                               idempotency_scope => 'shop', idempotency_key => '1')"
    );
    world.execute(&insert).await;
    world
        .execute(&format!("SELECT outbox.enqueue('{topic}', payload => '{{}}')"))
        .await;
    world.drained(SOON).await;
    let kept = "SELECT count(*) FROM outbox.message WHERE published_at BETWEEN created_at AND clock_timestamp()
                AND attempts = 0 AND last_error IS NULL";
    assert_eq!(world.count(kept).await, 2, "one by lane, one by lease of its own");
    assert_eq!(world.count("SELECT count(*) FROM outbox.history").await, 0);
    let again = refusal_of(&world.db, &insert).await;
    assert_eq!(again.constraint(), Some("message_idempotency"));
}

/// The columns that a row takes with it into the history.
const CONTENT: &str = "id, created_at, aggregate_version, message_id, partition, attempts, topic, key, event_type,
    aggregate_type, aggregate_id, idempotency_scope, idempotency_key, headers, payload, payload_bytes";

async fn rich_rows(world: &World, topic: &str) {
    for (key, payload) in [
        ("'k'", "payload => '{\"n\": 1}'"),
        ("NULL", "payload_bytes => '\\xff00'"),
    ] {
        world
            .execute(&format!(
                "SELECT outbox.enqueue('{topic}', {key}, {payload}, headers => '{{\"h\": 1}}',
                     event_type => 'E' || coalesce({key}, ''), aggregate_type => 'order', aggregate_id => '7',
                     aggregate_version => 3, idempotency_scope => 's', idempotency_key => 'i')"
            ))
            .await;
    }
}

#[tokio::test]
async fn archive_moves_the_row_with_everything_the_application_wrote() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    rich_rows(&world, &topic).await;
    let content =
        |table: &str| format!("SELECT jsonb_agg(to_jsonb(r) ORDER BY id)::text FROM (SELECT {CONTENT} FROM {table}) r");
    let before = world.text(&content("outbox.message")).await;
    let _relay = world.relay().args(&["--on-published", "archive"]).start_ready().await;
    world.until("SELECT count(*) = 0 FROM outbox.message").await;
    assert_eq!(world.text(&content("outbox.history")).await, before);
    let stamped = "SELECT count(*) FROM outbox.history WHERE published_at BETWEEN created_at AND clock_timestamp()";
    assert_eq!(world.count(stamped).await, 2);
    assert_eq!(read_until(&world.kafka, &topic, 2, SOON).await.len(), 2);
    rich_rows(&world, &topic).await; // The idempotency key is free again: documented, and so pinned.
}

#[tokio::test]
async fn delete_leaves_nothing_behind() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    rich_rows(&world, &topic).await;
    let _relay = world.relay().args(&["--on-published", "delete"]).start_ready().await;
    world.until("SELECT count(*) = 0 FROM outbox.message").await;
    assert_eq!(read_until(&world.kafka, &topic, 2, SOON).await.len(), 2);
    assert_eq!(world.count("SELECT count(*) FROM outbox.history").await, 0);
    rich_rows(&world, &topic).await;
}

/// A topic with a small limit; key 'bad' begins with a row that is too large for it, key 'good' does not.
async fn world_with_a_refused_row() -> (World, String) {
    let world = World::new().await;
    let topic = world.topic("small", 1, &[SMALL]).await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', 'bad', payload_bytes => {TOO_LARGE});
             SELECT outbox.enqueue('{topic}', 'bad', '2');
             SELECT outbox.enqueue('{topic}', 'good', '3');"
        ))
        .await;
    (world, topic)
}

fn keys(records: &[Record]) -> Vec<String> {
    records.iter().map(Record::key_text).collect()
}

#[tokio::test]
async fn a_refused_row_holds_its_key_until_it_is_dead_and_then_the_key_continues() {
    let (world, topic) = world_with_a_refused_row().await;
    let _relay = world
        .relay()
        .args(&["--max-attempts", "2"])
        .args(&LATE_RETRIES)
        .start_ready()
        .await;
    world
        .until("SELECT attempts = 1 FROM outbox.message WHERE id = 1")
        .await;
    world
        .until("SELECT published_at IS NOT NULL FROM outbox.message WHERE id = 3")
        .await;
    let retried = "SELECT last_error LIKE '%too large%' AND dead_at IS NULL FROM outbox.message WHERE id = 1";
    assert!(
        world.is_true(retried).await,
        "{}",
        world.text("SELECT last_error FROM outbox.message WHERE id = 1").await
    );
    let held = format!(
        "SELECT head_id = 1 AND unit = 'k:bad' AND topic = '{topic}' AND retry_at > now() + interval '4 min'
             AND reason LIKE '%too large%' FROM outbox.hold"
    );
    assert!(world.is_true(&held).await);
    assert_eq!(keys(&read_until(&world.kafka, &topic, 1, SOON).await), ["good"]);
    assert_eq!(world.pending().await, 2, "the key waits behind its refused row");

    world.execute(TRY_NOW).await;
    world
        .until("SELECT dead_at IS NOT NULL FROM outbox.message WHERE id = 1")
        .await;
    world.drained(SOON).await;
    let dead = "SELECT attempts = 2 AND last_error LIKE '%too large%' AND published_at IS NULL
                FROM outbox.message WHERE id = 1";
    assert!(world.is_true(dead).await);
    assert_eq!(world.count("SELECT count(*) FROM outbox.hold").await, 0);
    assert_eq!(keys(&read_until(&world.kafka, &topic, 2, SOON).await), ["good", "bad"]);
}

#[tokio::test]
async fn a_refused_row_is_tried_as_often_as_allowed_and_by_itself() {
    let (world, topic) = world_with_a_refused_row().await;
    let relay = world
        .relay()
        .args(&["--max-attempts", "3"])
        .args(&QUICK_RETRIES)
        .start_ready()
        .await;
    world.drained(SOON).await;
    assert!(
        world
            .is_true("SELECT attempts = 3 AND dead_at IS NOT NULL FROM outbox.message WHERE id = 1")
            .await
    );
    assert_eq!(keys(&read_until(&world.kafka, &topic, 2, SOON).await), ["good", "bad"]);
    assert_eq!(relay.metric("outboxd_rows_retried_total"), Some(2.0));
    assert_eq!(relay.metric("outboxd_rows_dead_total"), Some(1.0));
    assert!(relay.logged("dead letter"));
}

/// Two tasks send the two keys at once and the client puts both records into one produce batch.
#[tokio::test]
async fn an_innocent_row_that_shares_a_batch_with_a_refused_one_is_not_condemned() {
    let (world, topic) = world_with_a_refused_row().await;
    let policy = ["--max-attempts", "1", "--tasks", "2"];
    let _relay = world.relay().args(&policy).args(&QUICK_RETRIES).start_ready().await;
    world.drained(SOON).await;
    let condemned = "SELECT array_agg(id) = '{1}' FROM outbox.message WHERE dead_at IS NOT NULL OR attempts > 0";
    assert!(world.is_true(condemned).await);
    let mut keys = keys(&read_until(&world.kafka, &topic, 2, SOON).await);
    keys.sort_unstable();
    assert_eq!(keys, ["bad", "good"]);
}

#[tokio::test]
async fn with_on_dead_hold_the_key_waits_for_an_operator() {
    let (world, topic) = world_with_a_refused_row().await;
    let policy = ["--max-attempts", "1", "--on-dead", "hold"];
    let _relay = world.relay().args(&policy).args(&QUICK_RETRIES).start_ready().await;
    world
        .until("SELECT retry_at = 'infinity' FROM outbox.hold WHERE unit = 'k:bad'")
        .await;
    world
        .until("SELECT dead_at IS NOT NULL FROM outbox.message WHERE id = 1")
        .await;
    // A row of another key that comes later passes: the lane was polled again, and the held key was not taken.
    world
        .execute(&format!("SELECT outbox.enqueue('{topic}', 'good', '4')"))
        .await;
    world
        .until("SELECT published_at IS NOT NULL FROM outbox.message WHERE id = 4")
        .await;
    assert_eq!(world.pending().await, 1, "the second row of the held key");

    world.execute(TRY_NOW).await;
    world.drained(SOON).await;
    assert_eq!(world.count("SELECT count(*) FROM outbox.hold").await, 0);
    assert_eq!(
        keys(&read_until(&world.kafka, &topic, 3, SOON).await),
        ["good", "good", "bad"]
    );
    assert_eq!(
        world
            .count("SELECT count(*) FROM outbox.message WHERE dead_at IS NOT NULL")
            .await,
        1
    );
}

#[tokio::test]
async fn a_dead_letter_is_redriven_once_its_cause_is_fixed() {
    let (world, topic) = world_with_a_refused_row().await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', payload_bytes => {TOO_LARGE})"
        ))
        .await;
    let _relay = world
        .relay()
        .args(&["--max-attempts", "1"])
        .args(&QUICK_RETRIES)
        .start_ready()
        .await;
    world
        .until("SELECT count(*) = 2 FROM outbox.message WHERE dead_at IS NOT NULL")
        .await;
    world.drained(SOON).await;
    alter_topic(&world.kafka, &topic, "max.message.bytes", "1000000").await;
    world
        .execute("SELECT outbox.redrive(ARRAY(SELECT id FROM outbox.message WHERE dead_at IS NOT NULL))")
        .await;
    world.drained(SOON).await;
    let redriven = "SELECT count(*) FROM outbox.message
                    WHERE id IN (1, 4) AND published_at IS NOT NULL AND available_at IS NULL AND attempts = 0";
    assert_eq!(world.count(redriven).await, 2, "one with a key, one without");
    let records = read_until(&world.kafka, &topic, 4, SOON).await;
    assert_eq!(records.len(), 4);
    assert_eq!(
        records
            .iter()
            .filter(|record| record.payload.as_ref().is_some_and(|p| p.len() == 4800))
            .count(),
        2
    );
}

#[tokio::test]
async fn a_row_without_a_key_is_refused_alone_and_nobody_waits_for_it() {
    let world = World::new().await;
    let topic = world.topic("small", 1, &[SMALL]).await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', payload_bytes => {TOO_LARGE});
             SELECT outbox.enqueue('{topic}', payload => '2');"
        ))
        .await;
    let _relay = world
        .relay()
        .args(&["--max-attempts", "2"])
        .args(&LATE_RETRIES)
        .start_ready()
        .await;
    world
        .until("SELECT attempts = 1 FROM outbox.message WHERE id = 1")
        .await;
    world
        .until("SELECT published_at IS NOT NULL FROM outbox.message WHERE id = 2")
        .await;
    let waits = "SELECT available_at > now() AND dead_at IS NULL AND last_error LIKE '%too large%'
                 FROM outbox.message WHERE id = 1";
    assert!(world.is_true(waits).await, "its own retry time");
    assert_eq!(world.claims().await, 0, "and no claim: it was certainly not sent");
    assert_eq!(world.count("SELECT count(*) FROM outbox.hold").await, 0);

    world
        .execute("UPDATE outbox.message SET available_at = now() WHERE id = 1")
        .await;
    world
        .until("SELECT dead_at IS NOT NULL AND attempts = 2 FROM outbox.message WHERE id = 1")
        .await;
}

#[tokio::test]
async fn a_row_that_came_in_past_the_trigger_is_refused_rather_than_sent_out_of_order() {
    let world = World::new().await;
    let topic = world.topic("past", 1, &[]).await;
    world
        .execute(&format!(
            "ALTER TABLE outbox.message DISABLE TRIGGER zz_message_before_insert;
             INSERT INTO outbox.message (topic, key, payload) SELECT '{topic}', 'k', '1' FROM generate_series(1, 500);
             INSERT INTO outbox.message (topic, partition, payload) VALUES ('{topic}', 0, '2');
             ALTER TABLE outbox.message ENABLE ALWAYS TRIGGER zz_message_before_insert;
             SELECT outbox.enqueue('{topic}', 'k', '3');
             SELECT outbox.enqueue('{topic}', payload => '4');"
        ))
        .await;
    let relay = world
        .relay()
        .args(&["--batch-rows", "100"])
        .args(&LATE_RETRIES)
        .start_ready()
        .await;
    world.drained(SOON).await;
    let refused = "SELECT count(*) = 501 AND max(id) = 501 FROM outbox.message
                   WHERE dead_at IS NOT NULL AND attempts = 1 AND last_error LIKE '%zz_message_before_insert%'";
    assert!(world.is_true(refused).await, "at once, and with what to do about it");
    let claimed = relay.metric("outboxd_rows_claimed_total");
    assert!(
        claimed.is_some_and(|rows| rows < 1_000.0),
        "none waits for another of its key: {claimed:?}"
    );
    let mut sent: Vec<_> = read_until(&world.kafka, &topic, 2, SOON)
        .await
        .into_iter()
        .map(|record| record.payload.unwrap_or_default())
        .collect();
    sent.sort();
    assert_eq!(sent, [b"3".to_vec(), b"4".to_vec()], "the others went on");
}

#[tokio::test]
async fn a_delayed_row_keeps_nobody_waiting_and_joins_its_key_when_due() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let _relay = world.relay().start_ready().await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', 'k', '\"tomorrow\"', available_at => now() + interval '1 day');
             SELECT outbox.enqueue('{topic}', 'k', '\"soon\"', available_at => now() + interval '1 s');
             SELECT outbox.enqueue('{topic}', NULL, '\"soon, no key\"', available_at => now() + interval '1 s');
             SELECT outbox.enqueue('{topic}', 'k', '\"now\"');"
        ))
        .await;
    let due_at: i64 = world
        .count("SELECT (extract(epoch FROM available_at) * 1000)::bigint FROM outbox.message WHERE id = 2")
        .await;
    let records = read_until(&world.kafka, &topic, 3, SOON).await;
    let time_of = |payload: &str| {
        let record = records.iter().find(|record| record.json() == payload).expect(payload);
        record.timestamp_ms.expect("a timestamp")
    };
    assert_eq!(records.len(), 3, "not the one of tomorrow");
    assert!(time_of("soon") >= due_at && time_of("soon, no key") >= due_at);
    assert!(
        time_of("now") < due_at,
        "it did not wait for the delayed one of its key"
    );
    world
        .until("SELECT count(*) = 3 FROM outbox.message WHERE published_at IS NOT NULL AND available_at IS NULL")
        .await;
    assert_eq!(world.pending().await, 1);
}

#[tokio::test]
async fn a_row_without_a_key_is_claimed_while_it_is_sent_and_the_claim_ends_with_the_mark() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    // Written first: a claim that finds nothing stops there as well.
    world
        .execute(&format!("SELECT outbox.enqueue('{topic}', payload => '1')"))
        .await;
    let relay = world.relay().failpoint("after_claim_unordered").start_ready().await;
    world.until("SELECT count(*) = 1 FROM outbox.claim").await;
    let claimed = "SELECT c.ids = ARRAY[m.id] AND c.maybe_sent = '{}' AND c.lease_until > now() + interval '3 s'
                          AND c.worker = w.id AND m.published_at IS NULL AND m.attempts = 0
                   FROM outbox.claim c, outbox.message m, outbox.worker w";
    assert!(world.is_true(claimed).await);
    relay.continue_from("after_claim_unordered");
    world.until("SELECT published_at IS NOT NULL FROM outbox.message").await;
    assert_eq!(world.claims().await, 0);
}

#[tokio::test]
async fn a_row_that_somebody_has_locked_keeps_no_other_waiting() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    world.fill(&topic, 20, 0).await;
    let somebody = world.session().await;
    somebody
        .batch_execute("BEGIN; SELECT FROM outbox.message WHERE id = 1 FOR UPDATE")
        .await
        .expect("locked");
    let relay = world.relay().start_ready().await;
    world
        .until("SELECT count(*) = 19 FROM outbox.message WHERE published_at IS NOT NULL")
        .await;
    assert_eq!(
        relay.metric("outboxd_database_errors_total"),
        Some(0.0),
        "no claim waited for it"
    );
    somebody.batch_execute("ROLLBACK").await.expect("unlocked");
    world.drained(SOON).await;
    world.history(&topic).await.assert_exact();
}

#[tokio::test]
async fn no_update_reaches_an_impossible_state() {
    let world = World::new().await;
    world
        .execute("SELECT outbox.enqueue('t', 'k', '1'); SELECT outbox.enqueue('t', payload => '2');")
        .await;
    let impossible = [
        ("published_at = now(), dead_at = now()", 1),
        ("published_at = now(), available_at = now()", 1),
        ("dead_at = now(), available_at = now()", 1),
        ("published_at = now(), available_at = now()", 2),
    ];
    for (change, id) in impossible {
        let update = format!("UPDATE outbox.message SET {change} WHERE id = {id}");
        let error = refusal_of(&world.db, &update).await;
        assert_eq!(
            error.constraint(),
            Some("message_is_not_two_of_delayed_published_and_dead"),
            "{update}"
        );
    }
}
