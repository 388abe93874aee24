//! Somebody locks the table, or a row, and keeps it.

use std::time::{Duration, Instant};

use testkit::*;

#[tokio::test]
async fn a_table_locked_for_long_costs_time_but_neither_the_lease_nor_the_pool() {
    let fault = Fault::new(
        22,
        "ACCESS EXCLUSIVE is held on the table for 10 s",
        "lock_timeout fires; the pool is not exhausted",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let relay = world.relay().start_ready().await;
    world.fill(&topic, 500, 50).await;
    world.fill(&topic, 500, 0).await;
    let locker = world.session().await;
    locker
        .batch_execute("BEGIN; LOCK TABLE outbox.message IN ACCESS EXCLUSIVE MODE")
        .await
        .expect("locked");
    let locked = Instant::now();
    eventually(SOON, "lock_timeout to fire", async || {
        relay.logged("PostgreSQL says 55P03").then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(10).saturating_sub(locked.elapsed())).await;
    relay.assert_alive();
    assert!(
        !relay.logged("Timeout occurred while waiting"),
        "the pool has connections left"
    );
    assert!(!relay.logged("did not answer"), "the server answers, if with a refusal");
    locker.batch_execute("COMMIT").await.expect("unlocked");
    let recovered = fault.over().until_drained(&world).await;
    let history = world.assert_promises_kept(&topic, &[&relay]).await;
    assert_eq!(
        relay.metric("outboxd_leases_lost_total"),
        Some(0.0),
        "the lease is another table"
    );
    recovered.record(history.duplicates);
}

/// An operator who has locked the oldest row that is not marked.
async fn lock_oldest(world: &World) -> tokio_postgres::Client {
    let operator = world.session().await;
    operator
        .batch_execute(
            "BEGIN; SELECT FROM outbox.message WHERE published_at IS NULL AND dead_at IS NULL ORDER BY id LIMIT 1 FOR UPDATE",
        )
        .await
        .expect("locked");
    operator
}

/// Waits until nothing but the locked row is left.
async fn all_but_the_locked_one(world: &World) {
    eventually(SOON, "all but one row to be marked", async || {
        (world.pending().await == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lock_on_one_row_delays_that_row_alone() {
    let fault = Fault::new(
        59,
        "an operator's transaction locks one pending row (SELECT … FOR UPDATE) between its claim and its mark",
        "only that row waits; it is not sent again",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 300, 100).await;
    let relay = world
        .relay()
        .failpoint("after_publish:1")
        .args(&["--tasks", "1"])
        .start_ready()
        .await;
    relay.at_failpoint("after_publish:1").await;
    let operator = lock_oldest(&world).await;
    relay.continue_from("after_publish:1");
    all_but_the_locked_one(&world).await;
    // The lane of the locked row is not held up either.
    world.fill(&topic, 300, 100).await;
    all_but_the_locked_one(&world).await;
    operator.batch_execute("COMMIT").await.expect("unlocked");
    let recovered = fault.over().until_drained(&world).await;
    world.history(&topic).await.assert_exact();
    assert_eq!(relay.metric("outboxd_possible_duplicates_total"), Some(0.0));
    recovered.record(0);
}

#[tokio::test]
async fn a_lock_on_one_row_without_a_key_delays_that_row_alone() {
    for on_published in ["keep", "delete"] {
        let world = World::new().await;
        let topic = world.topic("orders", 4, &[]).await;
        world.fill(&topic, 300, 0).await;
        let args = ["--tasks", "1", "--on-published", on_published];
        let relay = world
            .relay()
            .failpoint("after_publish_unordered:1")
            .args(&args)
            .start_ready()
            .await;
        relay.at_failpoint("after_publish_unordered:1").await;
        let operator = lock_oldest(&world).await;
        relay.continue_from("after_publish_unordered:1");
        all_but_the_locked_one(&world).await;
        world.fill(&topic, 300, 0).await;
        all_but_the_locked_one(&world).await;
        operator.batch_execute("COMMIT").await.expect("unlocked");
        world.drained(SOON).await;
        assert_eq!(world.records(&topic).await.len(), 600);
        assert_eq!(relay.metric("outboxd_possible_duplicates_total"), Some(0.0));
        eventually(SOON, "no record of a claim to be left", async || {
            (world.claims().await == 0).then_some(())
        })
        .await;
    }
}

/// What became of the batch is more than a mark: one of its rows is too large.
#[tokio::test]
async fn a_lock_on_one_row_does_not_keep_a_refusal_from_being_written() {
    for (keys, failpoint) in [(50, "after_publish:1"), (0, "after_publish_unordered:1")] {
        let world = World::new().await;
        let topic = world.topic("orders", 4, &[]).await;
        world.fill(&topic, 50, keys).await;
        let key = (keys > 0).then_some("large");
        let large = world.insert(&topic, &[(key, noise(70_000))]).await[0];
        let args = ["--tasks", "1", "--max-message-bytes", "64KiB"];
        let relay = world.relay().failpoint(failpoint).args(&args).start_ready().await;
        relay.at_failpoint(failpoint).await;
        let operator = lock_oldest(&world).await;
        relay.continue_from(failpoint);
        all_but_the_locked_one(&world).await;
        world.dead(large).await;
        operator.batch_execute("COMMIT").await.expect("unlocked");
        world.drained(SOON).await;
        world.history(&topic).await.assert_exact();
    }
}

/// Its refusal cannot be written, so that nothing else keeps it from being sent again at once.
#[tokio::test]
async fn a_refused_row_without_a_key_is_left_alone_while_it_is_locked() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[SMALL]).await;
    let large = format!("INSERT INTO outbox.message (topic, payload_bytes) VALUES ('{topic}', {TOO_LARGE})");
    world.execute(&large).await;
    let args = ["--tasks", "1"];
    let stop = "after_publish_unordered:1";
    let relay = world.relay().failpoint(stop).args(&args).start_ready().await;
    relay.at_failpoint(stop).await;
    let operator = lock_oldest(&world).await;
    relay.continue_from(stop);
    for _ in 0..5 {
        let other = world.insert(&topic, &[(None, b"1".to_vec())]).await[0];
        world.published(other).await;
    }
    assert_eq!(relay.metric("outboxd_rows_claimed_total"), Some(6.0), "each row once");
    operator.batch_execute("COMMIT").await.expect("unlocked");
    world
        .until("SELECT count(*) = 1 FROM outbox.message WHERE attempts > 0")
        .await;
}

/// The key of a row that was refused for good waits for an operator, but not where that could not be written.
#[tokio::test]
async fn a_row_refused_for_good_while_it_is_locked_is_tried_again_and_dead_then() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let large = world.insert(&topic, &[(Some("k"), noise(70_000))]).await[0];
    let args = ["--tasks", "1", "--max-message-bytes", "64KiB", "--on-dead", "hold"];
    let relay = world
        .relay()
        .failpoint("after_publish:1")
        .args(&args)
        .start_ready()
        .await;
    relay.at_failpoint("after_publish:1").await;
    let operator = lock_oldest(&world).await;
    relay.continue_from("after_publish:1");
    world.held(1).await;
    operator.batch_execute("COMMIT").await.expect("unlocked");
    world.dead(large).await;
}

#[tokio::test]
async fn a_lock_on_the_head_of_a_hold_delays_its_key_alone() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let missing = format!("{topic}-late");
    world.insert(&missing, &[(Some("k"), b"1".to_vec())]).await;
    let mut first = world.relay().start_ready().await;
    world.held(1).await;
    first.stop();
    create_topic(&world.kafka, &missing, 1, &[]).await;
    let relay = world.relay().failpoint("after_head_sent").start_ready().await;
    relay.at_failpoint("after_head_sent").await;
    let operator = lock_oldest(&world).await;
    relay.continue_from("after_head_sent");
    // Of the same lane.
    let other = world.insert(&topic, &[(Some("k"), b"2".to_vec())]).await[0];
    world.published(other).await;
    operator.batch_execute("COMMIT").await.expect("unlocked");
    eventually(SOON, "the hold to be released", async || {
        (world.holds().await == 0).then_some(())
    })
    .await;
    world.drained(SOON).await;
    assert_eq!(world.records(&missing).await.len(), 1, "it was sent once");
}

/// It is tried again by itself, beside the batches.
#[tokio::test]
async fn a_lock_on_a_held_row_that_kafka_took_at_last_does_not_send_it_again() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[SMALL]).await;
    world
        .execute(&format!(
            "INSERT INTO outbox.message (topic, key, payload_bytes) VALUES ('{topic}', 'k', {TOO_LARGE})"
        ))
        .await;
    let mut first = world.relay().start_ready().await;
    world.held(1).await;
    first.stop();
    alter_topic(&world.kafka, &topic, SMALL.0, "100000").await;
    let relay = world.relay().failpoint("after_head_sent").start_ready().await;
    relay.at_failpoint("after_head_sent").await;
    let operator = lock_oldest(&world).await;
    let failures = "SELECT failures::bigint FROM outbox.hold";
    let before = world.count(failures).await;
    relay.continue_from("after_head_sent");
    eventually(SOON, "the hold to be put away twice", async || {
        (world.count(failures).await >= before + 2).then_some(())
    })
    .await;
    operator.batch_execute("COMMIT").await.expect("unlocked");
    world.drained(SOON).await;
    assert_eq!(world.records(&topic).await.len(), 1, "it was sent once");
}

/// A delayed row has no place in the order of its key, so that its lane has nothing left to do while it waits for its mark.
#[tokio::test]
async fn a_delayed_row_that_waits_for_its_mark_is_not_sent_again() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', 'k', '\"due\"', available_at => now() - interval '1 s')"
        ))
        .await;
    let args = ["--tasks", "1"];
    let relay = world
        .relay()
        .failpoint("after_publish:1")
        .args(&args)
        .start_ready()
        .await;
    relay.at_failpoint("after_publish:1").await;
    let operator = lock_oldest(&world).await;
    relay.continue_from("after_publish:1");
    // It is due, so that it is claimed again and again.
    eventually(SOON, "the row to be claimed several times", async || {
        (relay.metric("outboxd_rows_claimed_total") >= Some(4.0)).then_some(())
    })
    .await;
    operator.batch_execute("COMMIT").await.expect("unlocked");
    world.drained(SOON).await;
    assert_eq!(world.records(&topic).await.len(), 1, "it was sent once");
    assert_eq!(relay.metric("outboxd_possible_duplicates_total"), Some(0.0));
}

/// What Kafka has already says nothing of a topic that is paused: it is probed with the next row.
#[tokio::test]
async fn a_lock_on_a_row_that_kafka_has_does_not_keep_its_topic_parked() {
    let world = World::new().await;
    let (topic, healthy) = (
        world.topic("orders", 1, &[]).await,
        world.topic("healthy", 1, &[]).await,
    );
    world.insert(&topic, &[(Some("k"), b"1".to_vec())]).await;
    let relay = world.relay().failpoint("after_publish:1").start_ready().await;
    relay.at_failpoint("after_publish:1").await;
    let operator = lock_oldest(&world).await;
    delete_topic(&world.kafka, &topic).await;
    relay.continue_from("after_publish:1");
    // While others are acknowledged, it is this topic that takes nothing, and not Kafka.
    let load = BackgroundWrites::start(&world, &healthy);
    let second = world.insert(&topic, &[(Some("k"), b"2".to_vec())]).await[0];
    world.held(1).await;
    create_topic(&world.kafka, &topic, 1, &[]).await;
    world.published(second).await;
    load.stop();
    operator.batch_execute("COMMIT").await.expect("unlocked");
    world.drained(SOON).await;
    assert_eq!(world.records(&topic).await.len(), 1, "the second row, once");
}

/// The oldest row of a parked topic, without a key, is claimed like any other.
#[tokio::test]
async fn a_lock_on_the_row_that_a_parked_topic_is_probed_with_delays_that_row_alone() {
    let world = World::new().await;
    let missing = format!("{}.late", world.name);
    world
        .insert(&missing, &[(None, b"1".to_vec()), (None, b"2".to_vec())])
        .await;
    let mut first = world.relay().start_ready().await;
    world.held(1).await;
    first.stop();
    create_topic(&world.kafka, &missing, 1, &[]).await;
    let relay = world.relay().failpoint("after_head_sent").start_ready().await;
    relay.at_failpoint("after_head_sent").await;
    let operator = lock_oldest(&world).await;
    relay.continue_from("after_head_sent");
    all_but_the_locked_one(&world).await;
    operator.batch_execute("COMMIT").await.expect("unlocked");
    world.drained(SOON).await;
    assert_eq!(world.records(&missing).await.len(), 2, "each was sent once");
}

/// Its lock ends when no batch is claimed any more.
#[tokio::test]
async fn a_row_that_waits_for_its_mark_is_marked_before_its_lanes_are_given_back() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    world.fill(&topic, 10, 1).await;
    let stops = ["after_publish:1", "after_publish_unordered:1"];
    let mut first = world
        .relay()
        .failpoint(stops[0])
        .failpoint(stops[1])
        .args(&["--tasks", "2"])
        .start_ready()
        .await;
    first.at_failpoint(stops[0]).await;
    world.insert(&topic, &[(None, b"1".to_vec())]).await;
    first.at_failpoint(stops[1]).await;
    let operator = lock_oldest(&world).await;
    first.signal("TERM");
    eventually(SOON, "it to drain", async || first.logged("draining").then_some(())).await;
    first.continue_from(stops[0]);
    eventually(SOON, "the batch to be marked", async || {
        (world.pending().await == 2).then_some(())
    })
    .await;
    operator.batch_execute("COMMIT").await.expect("unlocked");
    first.continue_from(stops[1]);
    assert!(first.wait(SOON).success());
    let _second = world.relay().start_ready().await;
    world.drained(SOON).await;
    assert_eq!(world.history(&topic).await.duplicates, 0);
    assert_eq!(world.pending().await, 0);
}

/// Kafka has the row: the worker that takes over cannot know that, and says so.
#[tokio::test]
async fn a_row_that_waits_for_its_mark_is_flagged_when_its_worker_dies() {
    for (keys, failpoint) in [(1, "after_publish:1"), (0, "after_publish_unordered:1")] {
        let world = World::new().await;
        let topic = world.topic("orders", 1, &[]).await;
        world.fill(&topic, 10, keys).await;
        let mut first = world
            .relay()
            .failpoint(failpoint)
            .args(&["--tasks", "1"])
            .start_ready()
            .await;
        first.at_failpoint(failpoint).await;
        let operator = lock_oldest(&world).await;
        first.continue_from(failpoint);
        all_but_the_locked_one(&world).await;
        first.kill();
        operator.batch_execute("COMMIT").await.expect("unlocked");
        let _second = world.relay().start_ready().await;
        world.drained(SOON).await;
        let history = world.history(&topic).await;
        history.assert_duplicates_at_most(1);
        assert_eq!(history.duplicates, 1, "the locked row, and no other");
    }
}
