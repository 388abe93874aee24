//! What an operator does to dead letters and holds, through the functions that are there for it.

use std::time::Duration;

use testkit::*;
use tokio_postgres::Client;

/// What an operator asks for flows within this time. The safety net comes later.
const SECONDS: Duration = Duration::from_secs(10);

/// Key 'k' begins with a row that Kafka refuses, and a row without a key is refused, too; the rows are 1 to 3. The relay gives up at once.
async fn world_with_dead_letters(on_dead: &str) -> (World, String, Relay, Client) {
    let world = World::new().await;
    let topic = world.topic("small", 1, &[SMALL]).await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', 'k', payload_bytes => {TOO_LARGE});
             SELECT outbox.enqueue('{topic}', 'k', '2');
             SELECT outbox.enqueue('{topic}', payload_bytes => {TOO_LARGE});"
        ))
        .await;
    let policy = ["--max-attempts", "1", "--on-dead", on_dead];
    let relay = world.relay().args(&policy).start_ready().await;
    world
        .until("SELECT count(*) = 2 FROM outbox.message WHERE dead_at IS NOT NULL")
        .await;
    let operator = connect(&world.login("operator", &["outbox_operator"]).await).await;
    (world, topic, relay, operator)
}

/// The number that a function answers.
async fn answer(operator: &Client, call: &str) -> i64 {
    let row = operator.query_one(&format!("SELECT outbox.{call}"), &[]).await;
    row.expect(call).get(0)
}

#[tokio::test]
async fn redriven_rows_flow_in_seconds_though_floors_have_passed_them() {
    let (world, topic, relay, operator) = world_with_dead_letters("continue").await;
    world.drained(SOON).await;
    world.floor_passes(1).await;
    alter_topic(&world.kafka, &topic, "max.message.bytes", "1000000").await;
    assert_eq!(answer(&operator, "redrive('{1,2,3,99}')").await, 2, "only what is dead");
    world.drained(SECONDS).await;
    let redriven =
        "SELECT count(*) FROM outbox.message WHERE published_at IS NOT NULL AND available_at IS NULL AND attempts = 0";
    assert_eq!(world.count(redriven).await, 3);
    assert_eq!(world.records(&topic).await.len(), 3);
    assert_eq!(
        relay.metric("outboxd_rescan_found_rows_total"),
        Some(0.0),
        "not by the safety net"
    );
    assert_eq!(answer(&operator, "redrive('{1,2,3}')").await, 0, "published for good");
}

#[tokio::test]
async fn a_key_that_waits_behind_a_dead_letter_continues_in_order_once_it_is_redriven() {
    let (world, topic, _relay, operator) = world_with_dead_letters("hold").await;
    world.until("SELECT retry_at = 'infinity' FROM outbox.hold").await;
    alter_topic(&world.kafka, &topic, "max.message.bytes", "1000000").await;
    assert_eq!(answer(&operator, "redrive(ARRAY[1])").await, 1);
    eventually(SECONDS, "the key to flow again", async || {
        (world.pending().await == 0 && world.holds().await == 0).then_some(())
    })
    .await;
    assert_eq!(answer(&operator, "discard(ARRAY[3])").await, 1);
    world.history(&topic).await.assert_exact();
    // The oracle does not compare a redriven row with those that have waited behind it.
    let sizes: Vec<usize> = world
        .records(&topic)
        .await
        .iter()
        .map(|record| record.payload.as_ref().map_or(0, Vec::len))
        .collect();
    assert_eq!(sizes, [4800, 1], "the redriven row first");
}

#[tokio::test]
async fn a_discarded_dead_letter_is_gone_and_the_key_behind_it_continues() {
    let (world, topic, _relay, operator) = world_with_dead_letters("hold").await;
    world.until("SELECT retry_at = 'infinity' FROM outbox.hold").await;
    assert_eq!(answer(&operator, "discard('{1,2}')").await, 1, "not the pending row");
    eventually(SECONDS, "the key to flow again", async || {
        (world.pending().await == 0 && world.holds().await == 0).then_some(())
    })
    .await;
    assert_eq!(answer(&operator, "discard('{1,2}')").await, 0, "not the published row");
    let left = "SELECT string_agg(id::text, ',' ORDER BY id) FROM outbox.message";
    assert_eq!(world.text(left).await, "2,3");
    assert_eq!(world.records(&topic).await.len(), 1);
}

#[tokio::test]
async fn a_released_key_leaves_its_dead_letter_behind() {
    let (world, topic, _relay, operator) = world_with_dead_letters("hold").await;
    world.until("SELECT retry_at = 'infinity' FROM outbox.hold").await;
    for other in [
        format!("release_hold('{topic}')"),
        format!("release_hold('{topic}', 'other')"),
        format!("release_hold('{topic}', partition => 0)"),
    ] {
        assert_eq!(answer(&operator, &other).await, 0, "{other}");
    }
    assert_eq!(answer(&operator, &format!("release_hold('{topic}', 'k')")).await, 1);
    eventually(SECONDS, "the key to flow again", async || {
        (world.pending().await == 0 && world.holds().await == 0).then_some(())
    })
    .await;
    assert!(
        world
            .is_true("SELECT dead_at IS NOT NULL FROM outbox.message WHERE id = 1")
            .await
    );
}

#[tokio::test]
async fn a_hold_is_released_by_its_partition_or_as_a_whole_topic() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
             VALUES (1, 't', 'p:3', 0, '', 'infinity'), (1, 't', 'k:3', 0, '', 'infinity'),
                    (1, 't', '', 0, '', 'infinity'), (2, 't', '', 0, '', 'infinity'), (2, 'other', '', 0, '', 'infinity')",
        )
        .await;
    let operator = connect(&world.login("operator", &["outbox_operator"]).await).await;
    let due = "SELECT coalesce(string_agg(topic || unit, ',' ORDER BY topic, unit), '') FROM outbox.hold WHERE retry_at <= now()";
    assert_eq!(answer(&operator, "release_hold('t', partition => 3)").await, 1);
    assert_eq!(world.text(due).await, "tp:3");
    assert_eq!(answer(&operator, "release_hold('t')").await, 2, "in every lane");
    assert_eq!(world.text(due).await, "t,t,tp:3");
}
