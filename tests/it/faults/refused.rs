//! Kafka refuses a record for what it is.

use std::time::Duration;

use testkit::*;

const SMALL: &[u8] = b"small";
/// Large enough to travel in a produce request of its own, so that the rows behind it are in another.
const LARGE: usize = 2_000_000;
/// Of the relays here: a batch has time to find out which of its rows is refused.
const LONG_LEASE: Duration = Duration::from_secs(15);

/// Refusals are final after two attempts, a second or so apart.
fn two_attempts(world: &World) -> RelayBuilder {
    world.relay().args(&[
        "--max-attempts",
        "2",
        "--retry-backoff-min",
        "1s",
        "--batch-deadline",
        "5s",
        "--lease",
        "15s",
    ])
}

/// Refusals are tried again every half second, for as long as the test lasts.
fn endless_retries(world: &World) -> RelayBuilder {
    world.relay().args(&[
        "--max-attempts",
        "1000",
        "--retry-backoff-min",
        "500ms",
        "--retry-backoff-max",
        "500ms",
        "--batch-deadline",
        "5s",
        "--lease",
        "15s",
    ])
}

/// Waits until the relay knows how much the topic takes.
async fn limit_is_known(relay: &Relay, topic: &str) {
    let line = format!("\"topic\":\"{topic}\",\"limit\"");
    eventually(SOON, "the topic's limit to be known", async || {
        relay.logged(&line).then_some(())
    })
    .await;
}

/// Three rows of one key to one partition, the first of them large, with one small row to another partition in the
/// middle; all in one batch. Answers their ids: the three, then the bystander.
async fn three_and_a_bystander(world: &World, topic: &str, partition: i32) -> [i64; 4] {
    let neighbour = world.keys_of_same_lane("k", 1).await;
    let other = 1 - partition;
    let rows = world
        .db
        .query(
            "INSERT INTO outbox.message (topic, key, partition, payload_bytes)
             VALUES ($1, 'k', $2, $3), ($1, $4, $5, $6), ($1, 'k', $2, $6), ($1, 'k', $2, $6) RETURNING id",
            &[&topic, &partition, &noise(LARGE), &neighbour[0], &other, &SMALL],
        )
        .await
        .expect("four rows");
    let id = |n: usize| rows[n].get(0);
    [id(0), id(2), id(3), id(1)]
}

/// Publishes one row to a partition, so that the producer knows it.
async fn introduce(world: &World, topic: &str, partition: i32) {
    world
        .execute(&format!(
            "INSERT INTO outbox.message (topic, key, partition, payload_bytes) VALUES ('{topic}', 'first', {partition}, '')"
        ))
        .await;
    world.drained(SOON).await;
}

/// A topic that took everything when the relay asked, and no longer does.
async fn shrunk_topic(world: &World, relay: &Relay, known_partitions: &[i32]) -> String {
    let topic = world.topic("orders", 2, &[("max.message.bytes", "10000000")]).await;
    for partition in known_partitions {
        introduce(world, &topic, *partition).await;
    }
    limit_is_known(relay, &topic).await;
    alter_topic(&world.kafka, &topic, "max.message.bytes", "1048588").await;
    topic
}

/// The key's other rows came after the first was given up, not before; the bystander did not wait for it.
async fn assert_followers_wait_for_the_dead(world: &World, topic: &str, [first, second, third, bystander]: [i64; 4]) {
    let reason = world.dead(first).await;
    assert!(reason.contains("MessageSizeTooLarge"), "{reason}");
    let sql = "SELECT (extract(epoch FROM dead_at) * 1000)::bigint FROM outbox.message WHERE id = ";
    let dead_at = world.count(&format!("{sql}{first}")).await;
    let records = world.records(topic).await;
    let of_key: Vec<_> = records.iter().filter(|r| r.key_text() == "k").collect();
    let uuid = async |id: i64| -> String {
        let sql = "SELECT message_id::text FROM outbox.message WHERE id = $1";
        world.db.query_one(sql, &[&id]).await.expect("a row").get(0)
    };
    let arrived: Vec<_> = of_key.iter().map(|record| record.message_id()).collect();
    assert_eq!(arrived, [uuid(second).await, uuid(third).await]);
    // The relay's idea of the database's clock is as late as an answer of it.
    let by_its_clock = dead_at - 20;
    for record in of_key {
        assert!(
            record.timestamp_ms >= Some(by_its_clock),
            "{record:?} came before {dead_at}"
        );
    }
    let waited = format!(
        "SELECT (extract(epoch FROM published_at - created_at) * 1000)::bigint FROM outbox.message WHERE id = {bystander}"
    );
    // Far below the batch deadline, which a stalled batch would have had to wait out.
    assert!(world.count(&waited).await < 3_000, "the bystander waited");
    let sql = format!("SELECT count(*) FROM outbox.message WHERE attempts > 0 AND id <> {first}");
    assert_eq!(world.count(&sql).await, 0, "only the guilty row is blamed");
}

/// The first of three rows of a key is refused, by a producer that has published to these partitions before.
async fn first_of_three_is_refused(known_partitions: &[i32]) -> (Recovered, usize) {
    let fault = Fault::new(
        43,
        "the first of three rows of a key, all in one batch, is refused; also as the first record of a producer",
        "rows 2 and 3 arrive after row 1 was dead-lettered, not before; other partitions are not slowed",
    )
    .with_lease(LONG_LEASE);
    let world = World::new().await;
    let relay = two_attempts(&world).args(&["--log-level", "debug"]).start_ready().await;
    let topic = shrunk_topic(&world, &relay, known_partitions).await;
    let ids = three_and_a_bystander(&world, &topic, 1).await;
    let recovered = fault.over().until_drained(&world).await;
    assert_followers_wait_for_the_dead(&world, &topic, ids).await;
    let history = world.history(&topic).await;
    history.assert_counted_by(&[&relay]);
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
    (recovered, history.duplicates)
}

#[tokio::test]
async fn rows_behind_a_refused_one_wait_for_it_on_a_producer_that_knows_the_partition() {
    let (recovered, duplicates) = first_of_three_is_refused(&[0, 1]).await;
    recovered.record(duplicates);
}

#[tokio::test]
async fn rows_behind_a_refused_one_wait_for_it_on_a_producer_new_to_the_partition() {
    first_of_three_is_refused(&[0]).await;
}

#[tokio::test]
async fn the_very_first_record_of_a_process_may_be_refused_and_the_rows_behind_it_wait() {
    let world = World::new().await;
    let topic = world.topic("orders", 2, &[]).await;
    let ids = three_and_a_bystander(&world, &topic, 0).await;
    let _relay = two_attempts(&world).start_ready().await;
    world.drained(SOON).await;
    assert_followers_wait_for_the_dead(&world, &topic, ids).await;
}

#[tokio::test]
async fn a_refused_row_whose_topic_is_fixed_in_time_arrives_before_the_rows_behind_it() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[("max.message.bytes", "5000")]).await;
    let _relay = endless_retries(&world).start_ready().await;
    let rows = [
        (Some("k"), noise(20_000)),
        (Some("k"), SMALL.to_vec()),
        (Some("k"), SMALL.to_vec()),
    ];
    let ids = world.insert(&topic, &rows).await;
    let refused = format!(
        "SELECT count(*) FROM outbox.message WHERE id = {} AND attempts >= 2",
        ids[0]
    );
    eventually(SOON, "two refusals", async || {
        (world.count(&refused).await == 1).then_some(())
    })
    .await;
    assert_eq!(world.records(&topic).await.len(), 0, "nothing passed the refused row");
    let held = "SELECT count(*) FROM outbox.hold WHERE unit = 'k:k'";
    assert_eq!(world.count(held).await, 1, "the key is held");

    alter_topic(&world.kafka, &topic, "max.message.bytes", "1048588").await;
    world.drained(SOON).await;
    world.history(&topic).await.assert_exact();
    assert_eq!(world.records(&topic).await.len(), 3);
    world.held(0).await;
}

/// With each refusal the client counts the producer's epoch up, until it begins again.
#[tokio::test]
async fn the_producer_of_single_records_is_replaced_after_a_thousand_refusals() {
    let world = World::new().await;
    let topic = world.topic("orders", 8, &[("max.message.bytes", "2000")]).await;
    let relay = world.relay().args(&["--max-attempts", "1"]).start_ready().await;
    let rows = vec![(None, noise(3_000)); 1_100];
    world.insert(&topic, &rows).await;
    world.drained(SOON).await;
    assert_eq!(relay.metric("outboxd_rows_dead_total"), Some(1_100.0));
    assert!(relay.logged("many records that were not acknowledged"));
}

/// Refusals take their time, one after the other: the other rows of the batch do not wait for them.
#[tokio::test]
async fn a_topic_that_refuses_every_key_is_found_out_beside_the_batch_and_flows_in_order_when_fixed() {
    let world = World::new().await;
    let ill = world.topic("ill", 8, &[("max.message.bytes", "2000")]).await;
    let relay = endless_retries(&world)
        .args(&["--log-level", "debug"])
        .start_ready()
        .await;
    introduce(&world, &ill, 0).await;
    limit_is_known(&relay, &ill).await;
    let healthy = world.topic("healthy", 1, &[]).await;
    // Of each row its own: n is named, or one would do for all.
    let noise = "(SELECT string_agg(gen_random_uuid()::text, '') FROM generate_series(1, uuids) WHERE n > 0)";
    world
        .execute(&format!(
            "INSERT INTO outbox.message (topic, key, payload_bytes)
             SELECT topic, 'key-' || n % 300, convert_to({noise}, 'UTF8')
             FROM generate_series(1, 600) n, (VALUES ('{ill}', 100), ('{healthy}', 1)) t (topic, uuids)"
        ))
        .await;
    // In the same batch as rows that have not even been tried.
    world
        .until(&format!(
            "SELECT EXISTS (SELECT FROM outbox.hold WHERE failures = 0)
                AND NOT EXISTS (SELECT FROM outbox.message WHERE topic = '{healthy}' AND published_at IS NULL)"
        ))
        .await;
    world
        .until("SELECT count(*) = 300 AND min(failures) > 0 FROM outbox.hold")
        .await;
    let tried = "SELECT count(*) FROM outbox.message WHERE attempts > 0";
    assert_eq!(world.count(tried).await, 300, "the head of each key, and nobody else");
    alter_topic(&world.kafka, &ill, "max.message.bytes", "1048588").await;
    world.drained(SOON).await;
    world.held(0).await;
    for topic in [&ill, &healthy] {
        world.history(topic).await.assert_exact();
    }
    assert_eq!(relay.metric("outboxd_rows_dead_total"), Some(0.0));
}

#[tokio::test]
async fn a_record_too_large_is_a_dead_letter_with_its_reason_and_delays_nobody_else() {
    let fault = Fault::new(
        33,
        "a record is too large for its topic (2 MB)",
        "a dead letter with the reason; other keys flow meanwhile, its own key afterwards",
    )
    .with_lease(LONG_LEASE);
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let relay = two_attempts(&world).start_ready().await;
    let rows = [
        (Some("big"), noise(LARGE)),
        (None, noise(LARGE)),
        (Some("big"), SMALL.to_vec()),
        (Some("other"), SMALL.to_vec()),
        (None, SMALL.to_vec()),
    ];
    let ids = world.insert(&topic, &rows).await;
    let recovered = fault.over().until_drained(&world).await;
    for large in [ids[0], ids[1]] {
        let reason = world.dead(large).await;
        assert!(reason.contains("MessageSizeTooLarge"), "{reason}");
    }
    let order = format!(
        "SELECT count(*) FROM outbox.message big, outbox.message behind, outbox.message other
         WHERE big.id = {} AND behind.id = {} AND other.id IN ({}, {}) AND big.attempts = 2 AND behind.attempts = 0
           AND other.published_at < big.dead_at AND big.dead_at <= behind.published_at",
        ids[0], ids[2], ids[3], ids[4]
    );
    assert_eq!(world.count(&order).await, 2, "others before, the key's own after");
    let history = world.history(&topic).await;
    history.assert_exact();
    world.held(0).await;
    assert_eq!(relay.metric("outboxd_rows_dead_total"), Some(2.0));
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn a_batch_refused_as_a_whole_is_split_and_no_innocent_row_is_blamed() {
    let world = World::new().await;
    let relay = endless_retries(&world)
        .args(&["--log-level", "debug"])
        .start_ready()
        .await;
    let topic = world.topic("orders", 1, &[]).await;
    introduce(&world, &topic, 0).await;
    limit_is_known(&relay, &topic).await;
    alter_topic(&world.kafka, &topic, "max.message.bytes", "6000").await;
    let keys: Vec<String> = (0..60).map(|n| format!("key-{}", n % 20)).collect();
    let rows: Vec<_> = keys.iter().map(|key| (Some(key.as_str()), noise(1_000))).collect();
    world.insert(&topic, &rows).await;
    world.drained(SOON).await;
    assert!(
        relay.logged("Kafka refused a batch"),
        "the batch was refused as a whole"
    );
    world.assert_nobody_blamed().await;
    let history = world.history(&topic).await;
    history.assert_sound();
    assert_eq!(history.unflagged_duplicates, 0);
    world.held(0).await;
}
