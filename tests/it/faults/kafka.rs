//! Kafka as a whole is away.

use std::time::{Duration, Instant};

use crate::support::*;

/// The lease of [`World::relay`], and what recovery may take beyond it.
const RECOVERY: Duration = Duration::from_secs(5 + 10);

/// Ten keys and some rows without one.
fn some_rows(count: usize) -> Vec<(Option<&'static str>, Vec<u8>)> {
    const KEYS: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    (0..count)
        .map(|n| ((n % 4 > 0).then(|| KEYS[n % 10]), n.to_string().into_bytes()))
        .collect()
}

async fn paused(relay: &Relay, expected: f64) {
    eventually(SOON, &format!("outboxd_publisher_paused {expected}"), async || {
        (relay.metric("outboxd_publisher_paused") == Some(expected)).then_some(())
    })
    .await;
}

/// The fault is over: everything flows, in order, by the process that saw it begin.
async fn assert_recovers(world: &World, relay: &Relay, topic: &str) {
    world.drained(RECOVERY).await;
    paused(relay, 0.0).await;
    world.assert_nobody_blamed().await;
    world.held(0).await;
    let history = world.history(topic).await;
    history.assert_sound();
    assert_eq!(history.unflagged_repeats, 0, "a repeat says that it is one");
    assert_eq!(relay.metric("outboxd_rows_dead_total"), Some(0.0));
    assert_eq!(relay.log().matches("outboxd starts").count(), 1, "no restart");
    assert_eq!(relay.metric("outboxd_terms_lost_total"), Some(0.0));
}

#[tokio::test]
async fn every_broker_down_for_long_costs_time_but_no_attempt_and_no_row() {
    let kafka = OwnKafka::start();
    let world = World::on(&Stack::get().database_url, &kafka.address).await;
    let topic = world.topic("orders", 4, &[]).await;
    let relay = world.relay().start_ready().await;
    world.insert(&topic, &some_rows(100)).await;
    world.drained(SOON).await;

    kafka.kill();
    let killed = Instant::now();
    // Three batch deadlines and their overrun; rows are committed all the while.
    while killed.elapsed() < Duration::from_secs(5) {
        world.insert(&topic, &some_rows(10)).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    paused(&relay, 1.0).await;
    world.assert_nobody_blamed().await;
    assert!(world.pending().await > 100);

    kafka.restart();
    assert_recovers(&world, &relay, &topic).await;
}

#[tokio::test]
async fn rows_wait_for_a_kafka_that_is_down_at_start() {
    let kafka = OwnKafka::start();
    let world = World::on(&Stack::get().database_url, &kafka.address).await;
    let topic = world.topic("orders", 4, &[]).await;
    kafka.kill();
    let relay = world.relay().start_ready().await;
    world.insert(&topic, &some_rows(100)).await;
    paused(&relay, 1.0).await;
    assert_eq!(world.pending().await, 100);

    kafka.restart();
    assert_recovers(&world, &relay, &topic).await;
}
