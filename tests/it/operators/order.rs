//! Redriving many rows under load keeps the order of each key.

use std::collections::{HashMap, HashSet};
use std::process::Stdio;
use std::time::Duration;

use super::*;

/// As many as the application that writes meanwhile has: its rows are of the same keys.
const KEYS: usize = 100;

/// Each key has this many redriven rows at least, so that an order can be broken.
const ROWS: usize = 10_000;

/// While an application writes rows of the same keys, and a relay is killed in the middle.
async fn redriving_keeps_key_order(rows: usize, within: Duration) {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    fill_with_dead_letters(&world, &topic, rows, KEYS).await;
    let writer = BackgroundWrites::start(&world, &topic);
    let survivor = world.relay().start_ready().await;
    let mut killed = world.relay().start_ready().await;
    world
        .until("SELECT count(*) > 200 FROM outbox.message WHERE published_at IS NOT NULL")
        .await;
    let command = world
        .command("dead redrive")
        .args(["--yes", "--json", "--reason", "the limit is raised"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("outboxd starts");
    let arrived = "SELECT count(*) FROM outbox.message WHERE requeued_by IS NOT NULL AND published_at IS NOT NULL";
    eventually(within, "a tenth of the redriven rows", async || {
        (world.count(arrived).await >= rows as i64 / 10).then_some(())
    })
    .await;
    killed.kill();
    let _successor = world.relay().start_ready().await;
    let redriven = json_of(&command.wait_with_output().expect("it ends"));
    assert_eq!(redriven["changed"], rows, "{redriven}");
    eventually(within, "all redriven rows", async || {
        (world.count(arrived).await == rows as i64).then_some(())
    })
    .await;
    writer.stop();
    world.drained(within).await;

    let history = world.history(&topic).await;
    history.assert_sound();
    assert_eq!(history.unflagged_duplicates, 0, "a duplicate is flagged");
    assert_eq!(
        survivor.metric("outboxd_rescan_found_rows_total"),
        Some(0.0),
        "not by the safety net"
    );
    assert_ascending(&world.records(&topic).await, rows);
}

/// The same without the oracle: the first copies of the redriven rows of a key arrive in the order in which they were written.
fn assert_ascending(records: &[Record], rows: usize) {
    let (mut seen, mut last) = (HashSet::new(), HashMap::new());
    for record in records.iter().filter(|record| !record.json()["n"].is_null()) {
        if seen.insert(record.message_id()) {
            let number = record.json()["n"].as_u64().expect("a number");
            let before = last.insert(record.key_text(), number).unwrap_or(0);
            assert!(before < number, "key {}: {number} after {before}", record.key_text());
        }
    }
    assert_eq!(seen.len(), rows, "each arrived");
}

#[tokio::test]
async fn redriving_ten_thousand_rows_under_load_keeps_the_order_of_each_key() {
    redriving_keeps_key_order(ROWS, SOON * 2).await;
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn redriving_a_hundred_thousand_rows_under_load_keeps_the_order_of_each_key() {
    redriving_keeps_key_order(10 * ROWS, SOON * 10).await;
}

#[tokio::test]
async fn a_row_that_is_refused_again_is_redriven_by_another_operation() {
    let world = World::new().await;
    let topic = world.topic("small", 1, &[SMALL]).await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', 'k', payload_bytes => {TOO_LARGE});
             SELECT outbox.enqueue('{topic}', 'k', '2');
             SELECT outbox.enqueue('{topic}', 'other', '3');
             UPDATE outbox.message SET dead_at = now(), attempts = 5, last_error = 'refused';
             SELECT outbox.enqueue('{topic}', 'k', '4');"
        ))
        .await;
    let _relay = world.relay().args(&["--max-attempts", "1"]).start_ready().await;
    world.drained(SOON).await;
    json_of(&world.outboxd("dead redrive", &["--yes", "--json"]));
    world.drained(SOON).await;
    assert_eq!(world.ids_where("dead_at IS NOT NULL").await, [1], "dead again");
    alter_topic(&world.kafka, &topic, "max.message.bytes", "1000000").await;
    json_of(&world.outboxd("dead redrive", &["--id", "1", "--yes", "--json"]));
    world.drained(SOON).await;
    world.history(&topic).await.assert_exact();
    let operations = "SELECT count(DISTINCT requeued_by) FROM outbox.message WHERE requeued_by IS NOT NULL";
    assert_eq!(world.count(operations).await, 2, "a row carries the last one");
}

#[tokio::test]
async fn an_archived_row_keeps_the_record_of_its_redrive() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    fill_with_dead_letters(&world, &topic, 4, 2).await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', payload => '5'); UPDATE outbox.message SET dead_at = now()"
        ))
        .await;
    let _relay = world.relay().args(&["--on-published", "archive"]).start_ready().await;
    let redriven = json_of(&world.outboxd("dead redrive", &["--yes", "--json"]));
    world.until("SELECT count(*) = 5 FROM outbox.history").await;
    let kept = format!(
        "SELECT count(*) FROM outbox.history WHERE requeued_by = {}",
        redriven["operation"]
    );
    assert_eq!(world.count(&kept).await, 5, "ordered and unordered rows");
    world.history(&topic).await.assert_exact();
}
