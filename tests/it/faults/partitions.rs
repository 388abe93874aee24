//! One partition of a topic takes nothing, or a topic gives no answer at all: nobody else waits for it.

use std::time::{Duration, Instant};

use testkit::*;

/// The partition of a topic of four that a row belongs to.
const PARTITION: &str = "coalesce(partition, outbox.murmur2(coalesce(key, message_id::text)) % 4)";

/// A cluster of two, and the second of them, which is to be killed.
fn two_brokers() -> (OwnKafka, OwnKafka) {
    let first = OwnKafka::start();
    let second = first.joined_by(2);
    (first, second)
}

/// A topic of this world on these brokers, one list of replicas for each partition.
async fn topic_on(world: &World, name: &str, replicas: &[&[i32]], settings: &[(&str, &str)]) -> String {
    let topic = format!("{}.{name}", world.name);
    create_topic_on(&world.kafka, &topic, replicas, settings).await;
    topic
}

/// Rows of every partition, with a key and without.
async fn fill_all(world: &World, topic: &str) {
    world.fill(topic, 400, 200).await;
    world.fill(topic, 100, 0).await;
    let explicit = format!(
        "INSERT INTO outbox.message (topic, partition, payload) SELECT '{topic}', n % 4, '{{}}' FROM generate_series(1, 40) n"
    );
    world.execute(&explicit).await;
}

/// What is in the topic of rows that belong to these partitions, and is flagged as a possible duplicate.
async fn flagged_on(world: &World, topic: &str, partitions: &[i32]) -> usize {
    let records = world.records(topic).await;
    let is_flagged = |record: &&Record| record.header("possible-duplicate").is_some();
    let there = records.iter().filter(|record| partitions.contains(&record.partition));
    there.filter(is_flagged).count()
}

#[tokio::test]
async fn a_partition_without_a_leader_keeps_back_its_own_rows_and_no_others() {
    let fault = Fault::new(
        56,
        "partitions of a topic have no leader (two brokers, one killed), or too few replicas in sync",
        "rows of its other partitions, with a key or without, are published; no attempt is counted, and none of them is flagged",
    );
    let (first, second) = two_brokers();
    let world = World::on(&Stack::get().database_url, &first.address).await;
    let topic = topic_on(&world, "orders", &[&[1], &[2], &[1], &[2]], &[]).await;
    let relay = world.relay().start_ready().await;
    fill_all(&world, &topic).await;
    world.drained(SOON).await;

    second.kill();
    // One row of each, beside others that are acknowledged.
    let meet = format!(
        "INSERT INTO outbox.message (topic, partition, payload) SELECT '{topic}', n, '{{}}' FROM generate_series(0, 3) n"
    );
    eventually(SOON, "both partitions to be paused", async || {
        world.execute(&meet).await;
        let paused = "SELECT count(DISTINCT unit) FROM outbox.hold WHERE unit ~ '^s:[13]/4$'";
        (world.count(paused).await == 2).then_some(())
    })
    .await;
    let rebuilds = relay.metric("outboxd_producer_rebuilds_total");
    fill_all(&world, &topic).await;
    let only_theirs =
        format!("SELECT bool_and(({PARTITION} % 2 = 1) = (published_at IS NULL)) FROM outbox.message WHERE id > 540");
    world.until(&only_theirs).await;
    let still = relay.metric("outboxd_producer_rebuilds_total");
    assert_eq!(still, rebuilds, "no other lane has waited for them");
    // Held back in each lane and among the rows without one, by their partitions and nothing else.
    world
        .until("SELECT bool_and(unit ~ '^s:[13]/4$') AND bool_or(lane = -1) FROM outbox.hold")
        .await;
    for _ in 0..5 {
        let began = Instant::now();
        let ids = world.count("SELECT max(id) FROM outbox.message").await;
        fill_all(&world, &topic).await;
        let flow = format!(
            "SELECT bool_and(published_at IS NOT NULL) FROM outbox.message WHERE id > {ids} AND {PARTITION} % 2 = 0"
        );
        world.until(&flow).await;
        let took = began.elapsed();
        println!("540 rows, half of them kept back: the others took {took:?}");
        assert!(
            took < Duration::from_secs(3),
            "they waited for the partitions that take nothing: {took:?}"
        );
    }
    world.until(&only_theirs).await;
    world.assert_nobody_blamed().await;
    let status = String::from_utf8(world.outboxd("status", &[]).stdout).expect("text");
    assert!(status.contains("2 partition(s) paused"), "{status}");
    assert_eq!(relay.metric("outboxd_publisher_paused"), Some(0.0));

    second.restart();
    let recovered = fault.over().until_drained(&world).await;
    world.held(0).await;
    world.assert_nobody_blamed().await;
    assert_eq!(
        flagged_on(&world, &topic, &[0, 2]).await,
        0,
        "rows of healthy partitions"
    );
    let history = world.history(&topic).await;
    history.assert_counted_by(&[&relay]);
    recovered.record(history.duplicates);
}

/// A hold knows how many partitions there were: no row slips out of it, or into it, and no key overtakes itself.
#[tokio::test]
async fn a_topic_that_grows_while_a_partition_is_paused_keeps_its_order() {
    let (first, second) = two_brokers();
    let world = World::on(&Stack::get().database_url, &first.address).await;
    let topic = topic_on(&world, "orders", &[&[1], &[2], &[1], &[2]], &[]).await;
    let relay = world.relay().start_ready().await;
    fill_all(&world, &topic).await;
    world.drained(SOON).await;
    second.kill();
    fill_all(&world, &topic).await;
    let only_theirs =
        format!("SELECT bool_and(({PARTITION} % 2 = 1) = (published_at IS NULL)) FROM outbox.message WHERE id > 540");
    world.until(&only_theirs).await;

    grow_topic(&world.kafka, &topic, 8).await;
    world.fill(&topic, 400, 200).await;
    world.until(&only_theirs).await;
    second.restart();
    world.drained(SOON).await;
    world.held(0).await;
    world.history(&topic).await.assert_counted_by(&[&relay]);
}

#[tokio::test]
async fn partitions_below_their_in_sync_minimum_are_paused_and_nothing_is_blamed() {
    let (first, second) = two_brokers();
    let world = World::on(&Stack::get().database_url, &first.address).await;
    let replicated = topic_on(
        &world,
        "replicated",
        &[&[1, 2], &[1, 2]],
        &[("min.insync.replicas", "2")],
    )
    .await;
    let healthy = topic_on(&world, "healthy", &[&[1], &[1]], &[]).await;
    let relay = world.relay().start_ready().await;
    for topic in [&replicated, &healthy] {
        world.fill(topic, 100, 20).await;
    }
    world.drained(SOON).await;

    second.kill();
    let load = BackgroundWrites::start(&world, &healthy);
    // Until the controller has noticed, the first broker waits for the second one.
    eventually(SOON, "both partitions to be paused", async || {
        world.fill(&replicated, 40, 20).await;
        let paused = "SELECT count(DISTINCT unit) FROM outbox.hold WHERE unit ~ '^s:[01]/2$' AND failures > 1";
        (world.count(paused).await == 2).then_some(())
    })
    .await;
    let flows =
        format!("SELECT max(published_at) > now() - interval '500 ms' FROM outbox.message WHERE topic = '{healthy}'");
    world.until(&flows).await;
    let said = "SELECT bool_or(reason ~ 'NotEnoughReplicas') FROM outbox.hold";
    world.until(said).await;
    world.assert_nobody_blamed().await;

    second.restart();
    load.stop();
    world.drained(SOON).await;
    world.held(0).await;
    world.assert_nobody_blamed().await;
    world.history(&replicated).await.assert_counted_by(&[&relay]);
    world.history(&healthy).await.assert_counted_by(&[&relay]);
}

#[tokio::test]
async fn a_topic_that_is_fixed_flows_soon_beside_one_that_gives_no_answer() {
    let fault = Fault::new(
        57,
        "a topic gives no answer (its broker is stopped, SIGSTOP), held in every lane, beside a missing topic and refused keys that are fixed",
        "what is fixed flows within 10 s; no attempt is counted for it, and nothing that was not in flight is flagged",
    );
    let (first, second) = two_brokers();
    let world = World::on(&Stack::get().database_url, &first.address).await;
    let silent = topic_on(&world, "silent", &[[2].as_slice(); 8], &[]).await;
    let healthy = topic_on(&world, "healthy", &[&[1], &[1]], &[]).await;
    let refusing = topic_on(&world, "refusing", &[&[1]], &[SMALL]).await;
    let missing = format!("{}.missing", world.name);
    let relay = world
        .relay()
        .args(&["--max-attempts", "1000", "--retry-backoff-max", "2s"])
        .start_ready()
        .await;
    world.fill(&silent, 640, 640).await;
    world.fill(&healthy, 100, 20).await;
    world.drained(SOON).await;

    // What has arrived in the broker's socket gives no answer, either; when its session has run out its partitions have no leader.
    second.pause();
    let load = BackgroundWrites::start(&world, &healthy);
    world.fill(&silent, 1280, 640).await;
    world.fill(&silent, 100, 0).await;
    world
        .until(&format!(
            "SELECT count(DISTINCT lane) = 65 FROM outbox.hold WHERE topic = '{silent}'"
        ))
        .await;
    world.fill(&missing, 200, 50).await;
    world.fill(&missing, 20, 0).await;
    let too_large = format!(
        "INSERT INTO outbox.message (topic, key, payload_bytes) SELECT '{refusing}', 'k' || n, {TOO_LARGE} FROM generate_series(1, 20) n"
    );
    world.execute(&too_large).await;
    world
        .until(&format!(
            "SELECT count(*) >= 20 FROM outbox.hold WHERE topic = '{refusing}'"
        ))
        .await;
    world
        .until(&format!(
            "SELECT bool_or(lane = -1) FROM outbox.hold WHERE topic = '{missing}'"
        ))
        .await;

    create_topic_on(&world.kafka, &missing, &[[1].as_slice(); 4], &[]).await;
    alter_topic(&world.kafka, &refusing, SMALL.0, "1048588").await;
    let over = fault.over();
    let flow = format!(
        "SELECT bool_and(published_at IS NOT NULL) FROM outbox.message WHERE topic IN ('{missing}', '{refusing}')"
    );
    let began = Instant::now();
    world.until(&flow).await;
    let took = began.elapsed();
    println!("what was fixed flowed after {took:?}");
    assert!(
        took < Duration::from_secs(10),
        "it waited for the silent topic: {took:?}"
    );
    let recovered = over.recovered();
    let attempts = format!("SELECT count(*) FROM outbox.message WHERE attempts > 0 AND topic <> '{refusing}'");
    assert_eq!(world.count(&attempts).await, 0);

    second.resume();
    load.stop();
    world.drained(Duration::from_secs(60)).await;
    world.held(0).await;
    let history = world.history(&missing).await;
    history.assert_exact();
    assert_eq!(history.flagged, 0, "none of them was in flight");
    // Each of these was tried. The client may ask the stopped broker who it is before it sends anything: what it was given meanwhile got no
    // answer, and may be there for all we know. One is given to it at a time.
    let history = world.history(&refusing).await;
    history.assert_exact();
    assert!(history.flagged <= 3, "{} of 20 rows were flagged", history.flagged);
    let history = world.history(&silent).await;
    history.assert_counted_by(&[&relay]);
    world.history(&healthy).await.assert_counted_by(&[&relay]);
    recovered.record(history.duplicates);
}
