//! A topic takes nothing: missing, forbidden, or gone. The others do not notice.

use std::time::Duration;

use testkit::*;

fn status(world: &World) -> serde_json::Value {
    let output = world.outboxd("status", &["--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[tokio::test]
async fn a_missing_topic_is_parked_and_its_rows_arrive_in_order_once_it_exists() {
    let fault = Fault::new(
        34,
        "a topic is missing; likewise one that is forbidden",
        "the topic is parked, nothing is dead-lettered and nothing else held up; it flows once it may",
    );
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
    let recovered = fault.over().until_drained(&world).await;
    world.history(&missing).await.assert_exact();
    world.history(&healthy).await.assert_exact();
    world.held(0).await;
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
    recovered.record(0);
}

/// As where a topic comes and goes: one process lets go of it while another is about to park it.
#[tokio::test]
async fn a_hold_that_waited_for_a_release_knows_of_what_that_release_set_free() {
    let world = World::new().await;
    let healthy = world.topic("healthy", 1, &[]).await;
    let missing = format!("{}.missing", world.name);
    let mut before = world.relay().start_ready().await;
    world.unordered_floor_passes(&healthy, 11).await;
    world.drained(SOON).await;
    before.stop();
    let relay = world.relay().failpoint("after_publish_unordered").start_ready().await;
    world.insert(&missing, &[(None, b"parks".to_vec())]).await;
    relay.at_failpoint("after_publish_unordered").await;

    world
        .execute(&format!(
            "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, failures, retry_at)
             VALUES (-1, '{missing}', '', 5, 'missing', 1, 'infinity')"
        ))
        .await;
    let release = world.session().await;
    release
        .batch_execute(
            "BEGIN; DELETE FROM outbox.hold; UPDATE outbox.lane SET floor = 5, epoch = epoch + 1 WHERE lane = -1",
        )
        .await
        .expect("as a release does");
    relay.continue_from("after_publish_unordered");
    // A worker that claims waits as well, for the lock.
    world
        .until(
            "SELECT count(*) > 0 FROM pg_stat_activity
             WHERE query LIKE '%INSERT INTO outbox.hold%' AND wait_event_type = 'Lock' AND datname = current_database()",
        )
        .await;
    release.batch_execute("COMMIT").await.expect("committed");
    world.held(1).await;
    assert_eq!(world.count("SELECT resume_floor FROM outbox.hold").await, 5);
}

#[tokio::test]
async fn a_forbidden_topic_is_parked_and_its_rows_arrive_in_order_once_writing_is_granted() {
    let kafka = OwnKafka::guarded();
    let world = World::on(&Stack::get().database_url, &kafka.address).await;
    let healthy = world.topic("healthy", 2, &[]).await;
    // What we may not even see is found out by asking, what we may only read by sending.
    let forbidden = [
        world.topic("hidden", 2, &[]).await,
        world.topic("read_only", 2, &[]).await,
    ];
    kafka.grant("User:somebody", "Write", &forbidden[0]);
    kafka.grant("User:*", "Read", &forbidden[1]);
    let relay = world.relay().start_ready().await;
    for topic in &forbidden {
        world.fill(topic, 50, 5).await;
        world.fill(topic, 20, 0).await;
    }
    // Each in five lanes and among the rows without one.
    world.held(12).await;
    world.fill(&healthy, 100, 10).await;
    let flows =
        format!("SELECT count(*) = 100 FROM outbox.message WHERE topic = '{healthy}' AND published_at > created_at");
    world.until(&flows).await;
    world.assert_nobody_blamed().await;
    assert_eq!(world.pending().await, 140, "and nothing of the forbidden ones");
    assert_eq!(relay.metric("outboxd_publisher_paused"), Some(0.0));

    for topic in &forbidden {
        kafka.grant("User:*", "All", topic);
    }
    world.drained(SOON).await;
    world.held(0).await;
    for topic in [&healthy, &forbidden[0], &forbidden[1]] {
        world.history(topic).await.assert_counted_by(&[&relay]);
    }
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
}

#[tokio::test]
async fn a_parked_topic_flows_though_the_rows_it_is_tried_with_are_refused() {
    let world = World::new().await;
    let missing = format!("{}.missing", world.name);
    let relay = world
        .relay()
        .args(&["--max-attempts", "2", "--retry-backoff-min", "500ms"])
        .start_ready()
        .await;
    let rows = [
        (Some("k"), noise(20_000)),
        (Some("k"), b"small".to_vec()),
        (None, noise(20_000)),
        (None, b"small".to_vec()),
    ];
    let ids = world.insert(&missing, &rows).await;
    world.held(2).await;

    assert_eq!(world.topic("missing", 1, &[SMALL]).await, missing);
    world.drained(SOON).await;
    for large in [ids[0], ids[2]] {
        let reason = world.dead(large).await;
        assert!(reason.contains("MessageSizeTooLarge"), "{reason}");
    }
    world.held(0).await;
    world.history(&missing).await.assert_exact();
    assert_eq!(relay.metric("outboxd_rows_retried_total"), Some(2.0), "each once");
    assert_eq!(relay.metric("outboxd_rows_dead_total"), Some(2.0));
    assert_eq!(relay.log().matches("dead letter").count(), 2);
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
}

#[tokio::test]
async fn a_key_released_while_its_topic_is_parked_is_found_again() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[("max.message.bytes", "5000")]).await;
    let relay = world.relay().args(&["--max-attempts", "1000"]).start_ready().await;
    let neighbours = world.keys_of_same_lane("k", 2).await;
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
        // As a whole, or the one partition that it had.
        let parked = "SELECT count(*) FROM outbox.hold WHERE unit !~ '^k:'";
        (world.count(parked).await == 1).then_some(())
    })
    .await;

    // An operator discards the refused row: the key has nothing to wait for but the topic.
    world
        .execute(&format!("DELETE FROM outbox.message WHERE id = {}", ids[0]))
        .await;
    eventually(SOON, "the key to be released", async || {
        let keys = "SELECT count(*) FROM outbox.hold WHERE unit ~ '^k:'";
        (world.count(keys).await == 0).then_some(())
    })
    .await;
    // And its lane was polled again: what the topic keeps back is passed once more.
    world.floor_passes(ids[1]).await;
    world.topic("orders", 1, &[]).await;
    world.drained(Duration::from_secs(60)).await;
    assert_eq!(
        relay.metric("outboxd_rescan_found_rows_total"),
        Some(0.0),
        "found by the release, not by the safety net"
    );
    world.history(&topic).await.assert_sound();
}
