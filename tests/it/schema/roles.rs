//! Who may do what.

use testkit::*;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

async fn denied(client: &Client, statement: &str) {
    let error = client.batch_execute(statement).await.expect_err(statement);
    assert_eq!(
        error.code(),
        Some(&SqlState::INSUFFICIENT_PRIVILEGE),
        "{statement}: {error}"
    );
}

#[tokio::test]
async fn a_producer_writes_its_own_columns_and_nothing_else() {
    let world = World::new().await;
    let producer = connect(&world.login("producer", &["outbox_producer"]).await).await;
    producer
        .batch_execute(
            "INSERT INTO outbox.message (topic, key, payload, headers, event_type, aggregate_type, aggregate_id,
                 aggregate_version, idempotency_scope, idempotency_key, available_at, partition, message_id)
             VALUES ('t', 'k', '1', '{}', 'E', 'a', '1', 1, 's', 'i', now(), 0, gen_random_uuid());
             INSERT INTO outbox.message (topic, payload_bytes) VALUES ('t', '\\x00');
             SELECT outbox.enqueue('t', 'k', '2');",
        )
        .await
        .expect("what a producer is for");
    assert_eq!(world.pending().await, 3);
    for (column, value) in [
        ("created_at", "now()"),
        ("published_at", "now()"),
        ("dead_at", "now()"),
        ("attempts", "1"),
        ("last_error", "''"),
    ] {
        let insert = format!("INSERT INTO outbox.message (topic, key, {column}) VALUES ('t', 'k', {value})");
        denied(&producer, &insert).await;
    }
    for statement in [
        "INSERT INTO outbox.message (id, topic, key) OVERRIDING SYSTEM VALUE VALUES (-5, 't', 'k')",
        "COPY outbox.message (id, topic, key) FROM STDIN",
        "SELECT topic FROM outbox.message",
        "UPDATE outbox.message SET available_at = now()",
        "DELETE FROM outbox.message",
        "TRUNCATE outbox.message",
        "SELECT nextval('outbox.message_id_seq')",
        "SELECT setval('outbox.message_id_seq', 1)",
        "SELECT last_value FROM outbox.message_id_seq",
        "UPDATE outbox.lane SET floor = 0",
        "SELECT FROM outbox.worker",
        "SELECT FROM outbox.hold",
        "SELECT FROM outbox.claim",
        "SELECT FROM outbox.history",
        "SELECT FROM outbox.schema_history",
        "SELECT outbox.history_expire('1 day')",
        "SELECT outbox.history_prepare()",
        "SELECT outbox.redrive(ARRAY[1])",
        "SELECT outbox.discard(ARRAY[1])",
        "SELECT outbox.release_hold('t', 'k')",
        "SELECT outbox.dead_redrive(ARRAY[1])",
        "SELECT outbox.dead_correct(1, '{}')",
        "SELECT outbox.dead_discard(ARRAY[1])",
        "SELECT outbox.hold_release('t', 'k')",
        "SELECT outbox.holds_release('{t}', '{k:k}')",
        "SELECT FROM outbox.audit",
        "SELECT outbox.purge_message('1 day')",
        "CREATE TABLE outbox.mine ()",
    ] {
        denied(&producer, statement).await;
    }
}

#[tokio::test]
async fn a_login_without_a_role_can_do_nothing() {
    let world = World::new().await;
    let stranger = connect(&world.login("stranger", &[]).await).await;
    denied(&stranger, "SELECT outbox.enqueue('t', 'k', '1')").await;
    denied(&stranger, "INSERT INTO outbox.message (topic, key) VALUES ('t', 'k')").await;
    denied(&stranger, "SELECT outbox.redrive(ARRAY[1])").await;
    denied(&stranger, "SELECT outbox.dead_redrive(ARRAY[1])").await;
    denied(&stranger, "SELECT FROM outbox.audit").await;
}

/// A relay that is not the owner goes through everything it ever does to a row.
async fn the_relay_role_is_enough(on_published: &str) {
    let world = World::new().await;
    let url = world.login("relay", &["outbox_relay"]).await;
    let topic = world.topic("small", 2, &[SMALL]).await;
    let missing = format!("{}.late", world.name);
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', 'bad', payload_bytes => {TOO_LARGE});
             SELECT outbox.enqueue('{topic}', 'bad', '2');
             SELECT outbox.enqueue('{topic}', NULL, payload_bytes => {TOO_LARGE});
             SELECT outbox.enqueue('{topic}', NULL, '4');
             SELECT outbox.enqueue('{topic}', 'later', '5', available_at => now() + interval '1 ms');
             SELECT outbox.enqueue('{missing}', 'parked', '6');
             SELECT outbox.enqueue('{missing}', NULL, '7');"
        ))
        .await;
    let mut relay = world
        .relay_as(&url)
        .args(&["--on-published", on_published])
        .args(&[
            "--max-attempts",
            "2",
            "--retry-backoff-min",
            "50ms",
            "--retry-backoff-max",
            "100ms",
        ])
        .start_ready()
        .await;
    world
        .until("SELECT count(*) = 2 FROM outbox.hold WHERE unit = ''")
        .await;
    create_topic(&world.kafka, &missing, 1, &[]).await;
    world.drained(SOON).await;
    world.until("SELECT count(*) = 0 FROM outbox.hold").await;
    assert_eq!(
        world
            .count("SELECT count(*) FROM outbox.message WHERE dead_at IS NOT NULL")
            .await,
        2
    );
    assert_eq!(read_until(&world.kafka, &topic, 3, SOON).await.len(), 3);
    assert_eq!(read_until(&world.kafka, &missing, 2, SOON).await.len(), 2);
    let kept = world
        .count("SELECT count(*) FROM outbox.message WHERE published_at IS NOT NULL")
        .await;
    let archived = world.count("SELECT count(*) FROM outbox.history").await;
    let expected = match on_published {
        "keep" => (5, 0),
        "archive" => (0, 5),
        _ => (0, 0),
    };
    assert_eq!((kept, archived), expected);
    if on_published == "archive" {
        world
            .until("SELECT count(*) >= 3 FROM pg_class WHERE relname ~ '^history_[0-9]{8}$'")
            .await;
    }
    relay.stop();
    assert!(!relay.logged("42501"), "nothing was denied:\n{}", relay.log());
    assert_eq!(world.claims().await, 0, "every claim ended with its rows");
    assert_eq!(
        world
            .count("SELECT count(*) FROM outbox.lane WHERE owner IS NOT NULL")
            .await,
        0
    );
}

#[tokio::test]
async fn the_relay_role_is_enough_to_keep() {
    the_relay_role_is_enough("keep").await;
}

#[tokio::test]
async fn the_relay_role_is_enough_to_archive() {
    the_relay_role_is_enough("archive").await;
}

#[tokio::test]
async fn the_relay_role_is_enough_to_delete() {
    the_relay_role_is_enough("delete").await;
}

#[tokio::test]
async fn the_relay_role_cannot_change_what_the_application_wrote() {
    let world = World::new().await;
    let relay = connect(&world.login("relay", &["outbox_relay"]).await).await;
    for statement in [
        "UPDATE outbox.message SET payload = '2'",
        "UPDATE outbox.message SET topic = 'other'",
        "INSERT INTO outbox.message (topic, key) VALUES ('t', 'k')",
        "SELECT nextval('outbox.message_id_seq')",
        "DELETE FROM outbox.history",
        "DELETE FROM outbox.lane",
        "DELETE FROM outbox.schema_history",
        "UPDATE outbox.message SET requeued_by = 1",
        "SELECT outbox.dead_redrive(ARRAY[1])",
        "SELECT FROM outbox.audit",
    ] {
        denied(&relay, statement).await;
    }
}

#[tokio::test]
async fn an_operator_sees_the_status_and_redrives_but_changes_no_content() {
    let world = World::new().await;
    world
        .execute(
            "SELECT outbox.enqueue('t', 'k', '1');
             UPDATE outbox.message SET dead_at = now(), attempts = 5, last_error = 'refused';
             INSERT INTO outbox.hold (lane, topic, unit, head_id, resume_floor, reason, retry_at)
             SELECT lane, topic, 'k:k', id, 0, 'refused', 'infinity' FROM outbox.message;",
        )
        .await;
    let url = world.login("operator", &["outbox_operator"]).await;
    let status = outboxd()
        .args(["status", "--database-url", &url])
        .output()
        .expect("runs");
    assert!(status.status.success(), "{}", stderr_of(&status));
    assert!(String::from_utf8_lossy(&status.stdout).contains("Dead      1"));
    let operator = connect(&url).await;
    for statement in [
        "SELECT outbox.release_hold('t', 'k')",
        "SELECT outbox.redrive(ARRAY[1])",
        "SELECT outbox.discard(ARRAY[1])",
        "SELECT outbox.hold_release('t', 'k')",
        "SELECT outbox.holds_release('{t}', '{k:k}')",
        "SELECT outbox.dead_redrive(ARRAY[1])",
        "SELECT outbox.dead_correct(1, '{}')",
        "SELECT outbox.dead_discard(ARRAY[1])",
        "SELECT FROM outbox.audit",
    ] {
        operator.batch_execute(statement).await.expect(statement);
    }
    for statement in [
        "UPDATE outbox.message SET published_at = now(), available_at = NULL",
        "UPDATE outbox.message SET dead_at = NULL",
        "UPDATE outbox.message SET available_at = now()",
        "UPDATE outbox.message SET attempts = 0, last_error = NULL",
        "UPDATE outbox.message SET requeued_by = 1",
        "DELETE FROM outbox.message",
        "UPDATE outbox.hold SET retry_at = now()",
        "UPDATE outbox.message SET payload = '2'",
        "INSERT INTO outbox.message (topic, key) VALUES ('t', 'k')",
        "UPDATE outbox.hold SET resume_floor = 0",
        "DELETE FROM outbox.hold",
        "UPDATE outbox.lane SET floor = 0",
        "DELETE FROM outbox.claim",
        "DELETE FROM outbox.history",
    ] {
        denied(&operator, statement).await;
    }
}
