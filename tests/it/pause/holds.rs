//! Pauses of what is held already: because Kafka refuses a row, or because a topic accepts nothing.

use super::*;

fn status(world: &World) -> serde_json::Value {
    let output = world.outboxd("status", &["--json"]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Two topics that do not exist, each parked in the lanes of its keys and among the rows without one.
async fn two_missing_topics(world: &World) -> [String; 2] {
    let missing = ["missing", "other"].map(|name| format!("{}.{name}", world.name));
    for topic in &missing {
        world.fill(topic, 60, 3).await;
        world.fill(topic, 10, 0).await;
        held_everywhere(world, topic).await;
    }
    missing
}

#[tokio::test]
async fn a_parked_topic_that_is_paused_is_not_even_probed() {
    let world = World::new().await;
    let relay = world.relay().start_ready().await;
    let [paused, other] = two_missing_topics(&world).await;
    pause(&world, &["--topic", &paused]);
    let parked = status(&world)["backlog"]["parked_topics"].clone();
    assert_eq!(parked, 1, "the paused one is not counted");
    for name in ["missing", "other"] {
        world.topic(name, 2, &[]).await;
    }
    published(&world, &other, 70).await;
    // A probe would either release the holds or postpone them.
    let due = format!(
        "SELECT bool_and(retry_at < clock_timestamp() - interval '2 seconds') FROM outbox.hold WHERE topic = '{paused}'"
    );
    world.until(&due).await;
    assert_eq!(world.records(&paused).await.len(), 0);
    resume(&world, &["--topic", &paused]);
    assert_nothing_happened(&world, &[&paused, &other], &[&relay]).await;
}

/// The oldest rows of the topic are those of the paused key. The topic is probed with others, or it would stay parked.
#[tokio::test]
async fn a_parked_topic_recovers_although_a_key_of_it_is_paused() {
    let world = World::new().await;
    let relay = world.relay().start_ready().await;
    let missing = format!("{}.missing", world.name);
    // In one lane, so that no other one is probed.
    let neighbours = world.keys_of_same_lane("k", 2).await;
    let [one, other] = [&neighbours[0], &neighbours[1]].map(String::as_str);
    let rows = |keys: &[&'static str]| -> Vec<(Option<&str>, Vec<u8>)> {
        keys.iter().map(|key| (Some(*key), b"{}".to_vec())).collect()
    };
    world.insert(&missing, &rows(&["k", "k"])).await;
    held_everywhere(&world, &missing).await;
    pause(&world, &["--topic", &missing, "--key", "k"]);
    let behind = [one, other].map(|key| (Some(key), b"{}".to_vec()));
    world.insert(&missing, &behind).await;
    world.insert(&missing, &rows(&["k"])).await;
    assert_eq!(world.topic("missing", 2, &[]).await, missing);
    published(&world, &missing, 2).await;
    let held = "SELECT count(*) = 1 AND bool_and(unit = 'k:k') FROM outbox.hold";
    world.until(held).await;
    let keys: Vec<String> = world.records(&missing).await.iter().map(Record::key_text).collect();
    assert!(!keys.contains(&"k".to_owned()), "{keys:?}");
    resume(&world, &["--topic", &missing, "--key", "k"]);
    assert_nothing_happened(&world, &[&missing], &[&relay]).await;
}

#[tokio::test]
async fn a_key_that_waits_behind_a_refused_row_is_not_tried_while_it_is_paused() {
    let world = World::new().await;
    let topic = world.topic("small", 1, &[SMALL]).await;
    let relay = world
        .relay()
        .args(&["--max-attempts", "1000"])
        .args(&["--retry-backoff-min", "100ms", "--retry-backoff-max", "100ms"])
        .start_ready()
        .await;
    for key in ["paused", "other"] {
        let rows = [(Some(key), noise(5_000)), (Some(key), b"behind".to_vec())];
        world.insert(&topic, &rows).await;
    }
    world.held(2).await;
    pause(&world, &["--topic", &topic, "--key", "paused"]);
    let attempts = |key: &str| format!("SELECT max(attempts)::bigint FROM outbox.message WHERE key = '{key}'");
    let before = world.count(&attempts("paused")).await;
    let goal = world.count(&attempts("other")).await + 5;
    world.until(&format!("({}) >= {goal}", attempts("other"))).await;
    // The decision about an attempt that was in flight may have been written since.
    assert!(world.count(&attempts("paused")).await <= before + 1, "it is not tried");
    alter_topic(&world.kafka, &topic, "max.message.bytes", "1000000").await;
    let others = "SELECT count(*) = 2 FROM outbox.message WHERE key = 'other' AND published_at IS NOT NULL";
    world.until(others).await;
    assert_eq!(published_of(&world, &topic).await, 2);
    resume(&world, &["--topic", &topic, "--key", "paused"]);
    world.drained(SOON).await;
    world.held(0).await;
    world.history(&topic).await.assert_exact();
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
}

#[tokio::test]
async fn a_dead_letter_that_is_redriven_into_a_paused_topic_waits_there() {
    let world = World::new().await;
    let topic = world.topic("small", 1, &[SMALL]).await;
    let relay = world.relay().args(&["--max-attempts", "1"]).start_ready().await;
    let ids = world
        .insert(&topic, &[(Some("k"), noise(5_000)), (None, noise(5_000))])
        .await;
    for id in &ids {
        world.dead(*id).await;
    }
    alter_topic(&world.kafka, &topic, "max.message.bytes", "1000000").await;
    pause(&world, &["--topic", &topic]);
    world.execute("SELECT outbox.redrive(ARRAY[1, 2])").await;
    held_everywhere(&world, &topic).await;
    assert_eq!(world.records(&topic).await.len(), 0);
    resume(&world, &["--topic", &topic]);
    world.drained(SOON).await;
    world.held(0).await;
    world.history(&topic).await.assert_exact();
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
}
