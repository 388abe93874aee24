//! A topic gets more partitions under a running relay.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use testkit::*;

/// A relay asks for the partition count once a minute.
const NOTICED: Duration = Duration::from_secs(60 + 15);

/// The partitions each key has gone to, in row order, without repetition.
async fn journeys(world: &World, records: &[Record]) -> BTreeMap<String, Vec<i32>> {
    let places: HashMap<String, i32> = records.iter().map(|r| (r.message_id(), r.partition)).collect();
    let keyed = "SELECT key, message_id::text FROM outbox.message WHERE key IS NOT NULL ORDER BY id";
    let mut journeys: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for row in world.db.query(keyed, &[]).await.expect(keyed) {
        let journey = journeys.entry(row.get(0)).or_default();
        let place = places[row.get::<_, &str>(1)];
        if journey.last() != Some(&place) {
            journey.push(place);
        }
    }
    journeys
}

#[tokio::test]
async fn a_topic_that_grows_is_noticed_and_warned_of_and_each_key_moves_once() {
    let fault = Fault::new(
        38,
        "a topic's partition count grows",
        "noticed within a minute, with a warning; a key moves once, and is in order in each of its two partitions",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 2, &[]).await;
    let relay = world.relay().start_ready().await;
    let writes = BackgroundWrites::start(&world, &topic);
    world
        .until("SELECT count(*) > 1000 FROM outbox.message WHERE published_at IS NOT NULL")
        .await;
    grow_topic(&world.kafka, &topic, 5).await;
    eventually(NOTICED, "a warning", async || {
        relay.logged("the partition count changed").then_some(())
    })
    .await;
    let noticed = world.count("SELECT max(id) FROM outbox.message").await;
    world
        .until(&format!(
            "SELECT count(*) > 1000 FROM outbox.message WHERE id > {noticed} AND published_at IS NOT NULL"
        ))
        .await;
    let over = fault.over();
    writes.stop();
    let recovered = over.until_drained(&world).await;

    let records = world.records(&topic).await;
    let partitions: BTreeSet<i32> = records.iter().map(|record| record.partition).collect();
    assert_eq!(partitions, (0..5).collect(), "all are in use");
    let journeys = journeys(&world, &records).await;
    assert!(journeys.values().all(|journey| journey.len() <= 2), "{journeys:?}");
    assert!(journeys.values().any(|journey| journey.len() == 2), "{journeys:?}");
    // Of a topic that has grown, order is judged within each partition.
    let history = world.history(&topic).await;
    assert!(history.findings.grown.contains(&topic));
    history.assert_exact();
    assert!(!relay.logged("topic parked"), "growing disturbs nobody");
    world.assert_nobody_blamed().await;
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn a_topic_that_grows_keeps_flowing_though_the_producer_has_not_heard_of_it() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[SMALL]).await;
    let relay = world
        .relay()
        .args(&["--max-attempts", "1000", "--retry-backoff-max", "1s"])
        .start_ready()
        .await;
    world.fill(&topic, 100, 50).await;
    // Whenever a held key is tried again, the relay asks for the partition count: it knows before its producer does.
    world.insert(&topic, &[(Some("held"), noise(20_000))]).await;
    world.until("SELECT count(*) = 1 FROM outbox.hold").await;
    grow_topic(&world.kafka, &topic, 5).await;
    eventually(SOON, "a warning", async || {
        relay.logged("the partition count changed").then_some(())
    })
    .await;
    world.fill(&topic, 100, 50).await;
    world
        .until("SELECT count(*) = 200 FROM outbox.message WHERE published_at IS NOT NULL")
        .await;
    assert!(!relay.logged("topic parked"), "growing disturbs nobody");
    let partitions: BTreeSet<i32> = world.records(&topic).await.iter().map(|r| r.partition).collect();
    assert_eq!(partitions, (0..5).collect(), "all are in use");
}

#[tokio::test]
async fn a_topic_made_anew_with_fewer_partitions_flows_again() {
    let world = World::new().await;
    let topic = world.topic("orders", 5, &[]).await;
    let relay = world.relay().start_ready().await;
    world.fill(&topic, 100, 50).await;
    world.drained(SOON).await;
    delete_topic(&world.kafka, &topic).await;
    create_topic(&world.kafka, &topic, 1, &[]).await;
    world.fill(&topic, 100, 50).await;
    world.drained(SOON).await;
    world.held(0).await;
    world.assert_nobody_blamed().await;
    // The records of these went with the topic.
    world.execute("DELETE FROM outbox.message WHERE id <= 100").await;
    world.history(&topic).await.assert_counted_by(&[&relay]);
}
