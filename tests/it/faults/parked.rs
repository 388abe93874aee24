//! A topic takes nothing: missing, or gone. The others do not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::*;

fn status(world: &World) -> serde_json::Value {
    let output = world.outboxd("status", &["--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[tokio::test]
async fn a_missing_topic_is_parked_and_its_rows_arrive_in_order_once_it_exists() {
    let world = World::new().await;
    let healthy = world.topic("healthy", 2, &[]).await;
    let missing = format!("{}.missing", world.name);
    let relay = world.relay().start_ready().await;
    let rows: Vec<_> = (0..60u8)
        .map(|n| ([Some("a"), Some("b"), None][n as usize % 3], vec![n]))
        .collect();
    world.insert(&missing, &rows[..30]).await;
    // Lanes of "a" and "b", and the rows without one.
    world.held(3).await;
    world.insert(&missing, &rows[30..]).await;
    let flowing = world.insert(&healthy, &rows).await;
    for id in flowing {
        world.published(id).await;
    }
    world.assert_nobody_blamed().await;
    assert_eq!(world.pending().await, 60);
    let units = world.count("SELECT count(*) FROM outbox.hold WHERE unit <> ''").await;
    assert_eq!(units, 0, "the whole topic is parked, not its keys");
    let status = status(&world);
    assert_eq!(status["backlog"]["parked_topics"], 1, "{status}");
    assert_eq!(status["holds"][0]["topic"], missing.as_str(), "{status}");
    assert_eq!(relay.metric("outboxd_publisher_paused"), Some(0.0));

    assert_eq!(world.topic("missing", 2, &[]).await, missing);
    world.drained(SOON).await;
    world.history(&missing).await.assert_exact();
    world.history(&healthy).await.assert_exact();
    world.held(0).await;
    assert_eq!(relay.metric("outboxd_rows_forgotten_total"), Some(0.0));
}

#[tokio::test]
async fn a_key_released_while_its_topic_is_parked_is_found_again() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[("max.message.bytes", "5000")]).await;
    let relay = world.relay().args(&["--max-attempts", "1000"]).start_ready().await;
    let neighbours = world.neighbours("k", 2).await;
    let rows = [(Some("k"), noise(20_000)), (Some("k"), b"behind".to_vec())];
    let ids = world.insert(&topic, &rows).await;
    world.held(1).await;
    world.floor_passes(ids[1]).await;
    delete_topic(&world.kafka, &topic).await;
    // Keeps Kafka answering, so that the silence of the deleted topic is its own.
    let healthy = world.topic("healthy", 1, &[]).await;
    let bystander = [(Some(neighbours[1].as_str()), b"healthy".to_vec())];
    world
        .insert(&topic, &[(Some(neighbours[0].as_str()), b"parks".to_vec())])
        .await;
    eventually(SOON, "the topic to be parked", async || {
        world.insert(&healthy, &bystander).await;
        let parked = "SELECT count(*) FROM outbox.hold WHERE unit = ''";
        (world.count(parked).await == 1).then_some(())
    })
    .await;

    // An operator discards the refused row: the key has nothing to wait for but the topic.
    world
        .execute(&format!("DELETE FROM outbox.message WHERE id = {}", ids[0]))
        .await;
    eventually(SOON, "the key to be released", async || {
        let keys = "SELECT count(*) FROM outbox.hold WHERE unit <> ''";
        (world.count(keys).await == 0).then_some(())
    })
    .await;
    // And its lane has looked again: what the topic keeps back is passed once more.
    world.floor_passes(ids[1]).await;
    world.topic("orders", 1, &[]).await;
    world.drained(Duration::from_secs(60)).await;
    assert_eq!(
        relay.metric("outboxd_rows_forgotten_total"),
        Some(0.0),
        "found by the release, not by the safety net"
    );
    world.history(&topic).await.assert_sound();
}

/// Publishes rows one after another; answers the median of their latencies in milliseconds.
async fn median_latency(world: &World, topic: &str, count: usize) -> f64 {
    let mut ids = Vec::new();
    for n in 0..count {
        let key = format!("key-{n}");
        let inserted = world.insert(topic, &[(Some(&key), b"x".to_vec())]).await;
        world.published(inserted[0]).await;
        ids.extend(inserted);
    }
    let sql = "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM published_at - created_at) * 1000)
               FROM outbox.message WHERE id = ANY ($1)";
    world.db.query_one(sql, &[&ids]).await.expect("a median").get(0)
}

#[tokio::test]
async fn a_parked_topic_with_a_steady_inflow_does_not_slow_the_others() {
    let world = World::new().await;
    let healthy = world.topic("healthy", 2, &[]).await;
    let _relay = world.relay().start_ready().await;
    let before = median_latency(&world, &healthy, 40).await;

    let done = Arc::new(AtomicBool::new(false));
    let (session, missing, stop) = (world.session().await, format!("{}.missing", world.name), done.clone());
    let inflow = tokio::spawn(async move {
        let sql = "INSERT INTO outbox.message (topic, key, payload_bytes) VALUES ($1, $2, ''), ($1, NULL, '')";
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            let key = format!("key-{}", count % 200);
            session.execute(sql, &[&missing, &key]).await.expect("inserted");
            count += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        count
    });
    eventually(SOON, "the topic to be parked in every lane", async || {
        (world.holds().await > 30).then_some(())
    })
    .await;
    let during = median_latency(&world, &healthy, 40).await;
    done.store(true, Ordering::Relaxed);
    let sick_rows = inflow.await.expect("rows kept coming");
    assert!(sick_rows > 100, "{sick_rows} rows of the sick topic");
    assert!(
        during < before * 3.0 + 60.0,
        "median latency rose from {before:.0} ms to {during:.0} ms"
    );
    world.assert_nobody_blamed().await;
}
