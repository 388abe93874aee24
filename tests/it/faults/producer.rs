//! Answers a healthy broker does not give. librdkafka's mock cluster gives them: a real broker cannot be made to.

use std::time::Duration;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use testkit::*;

/// Rows claimed together are sent together: none is left unsent behind a request that failed.
const IN_ONE_REQUEST: [&str; 2] = ["--kafka-property", "linger.ms=200"];

type Mock = MockCluster<'static, DefaultProducerContext>;

/// A world whose Kafka is a mock with one topic of two partitions.
async fn mocked() -> (Mock, World, String) {
    let mock = MockCluster::new(2).expect("a mock cluster");
    let world = World::on(&Stack::get().database_url, &mock.bootstrap_servers()).await;
    let topic = format!("{}.orders", world.name);
    mock.create_topic(&topic, 2, 1).expect("a topic");
    (mock, world, topic)
}

/// From now on produce requests are answered so, and properly again afterwards.
fn fail(mock: &Mock, errors: &[RDKafkaRespErr]) {
    mock.clear_request_errors(RDKafkaApiKey::Produce);
    mock.request_errors(RDKafkaApiKey::Produce, errors);
}

async fn deferred(relay: &Relay, rows: f64) {
    eventually(SOON, "the rows to be deferred", async || {
        (relay.metric("outboxd_rows_unacknowledged_total") >= Some(rows)).then_some(())
    })
    .await;
}

/// Everything has arrived, in order, and nobody is blamed. Answers what the topic holds.
async fn assert_arrived(world: &World, relay: &Relay, topic: &str) -> History {
    world.drained(SOON).await;
    world.assert_nobody_blamed().await;
    world.held(0).await;
    let history = world.history(topic).await;
    history.assert_counted_by(&[relay]);
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
    assert_eq!(relay.log().matches("outboxd starts").count(), 1, "no restart");
    history
}

#[tokio::test]
async fn a_producer_with_a_fatal_error_is_replaced_and_its_rows_arrive_in_order() {
    let fault = Fault::new(
        30,
        "fatal idempotence error (OUT_OF_ORDER_SEQUENCE, from a mock: a sound broker does not answer so)",
        "the producer is replaced and its unacknowledged rows are sent again, in order",
    );
    let (mock, world, topic) = mocked().await;
    // The mock would take a second request behind the one it refuses, which no broker does.
    let relay = world.relay().args(&IN_ONE_REQUEST).start_ready().await;
    world.fill(&topic, 50, 5).await;
    world.drained(SOON).await;
    assert_eq!(relay.metric("outboxd_producer_rebuilds_total"), Some(0.0));

    fail(&mock, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER]);
    world.fill(&topic, 50, 5).await;
    let recovered = fault.over().until_drained(&world).await;
    assert_eq!(relay.metric("outboxd_producer_rebuilds_total"), Some(1.0));
    recovered.record(assert_arrived(&world, &relay, &topic).await.duplicates);
}

#[tokio::test]
async fn too_few_replicas_for_long_defer_rows_and_count_no_attempt() {
    let fault = Fault::new(
        35,
        "too few in-sync replicas for long (15 s: several message timeouts; from a mock: a lone broker is enough for itself)",
        "rows are deferred, no attempt is counted",
    );
    let (mock, world, topic) = mocked().await;
    let relay = world.relay().start_ready().await;
    let writes = BackgroundWrites::start(&world, &topic);
    world
        .until("SELECT count(*) > 100 FROM outbox.message WHERE published_at IS NOT NULL")
        .await;
    fail(&mock, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS; 100_000]);
    tokio::time::sleep(Duration::from_secs(15)).await;
    deferred(&relay, 100.0).await;
    assert!(world.pending().await > 100, "nothing gets through");
    world.assert_nobody_blamed().await;

    fail(&mock, &[]);
    let over = fault.over();
    writes.stop();
    let recovered = over.until_drained(&world).await;
    recovered.record(assert_arrived(&world, &relay, &topic).await.duplicates);
}

#[tokio::test]
async fn a_record_purged_while_it_waits_for_a_retry_may_have_landed_and_says_so() {
    let (mock, world, topic) = mocked().await;
    let relay = world.relay().args(&IN_ONE_REQUEST).start_ready().await;
    world.fill(&topic, 50, 5).await;
    world.drained(SOON).await;

    // The broker gave up waiting for its replicas: the record may be there. The client puts it back into its queue.
    fail(&mock, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT; 10_000]);
    world.fill(&topic, 50, 5).await;
    deferred(&relay, 100.0).await;
    fail(&mock, &[]);
    let history = assert_arrived(&world, &relay, &topic).await;
    assert_eq!(history.flagged, 50, "each of them may be a second copy");
}

#[tokio::test]
async fn an_unordered_record_that_may_have_landed_says_so_however_often_it_is_held_up_afterwards() {
    let (mock, world, topic) = mocked().await;
    let relay = world.relay().args(&IN_ONE_REQUEST).start_ready().await;
    world.fill(&topic, 50, 0).await;
    world.drained(SOON).await;
    fail(&mock, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT; 10_000]);
    world.fill(&topic, 20, 0).await;
    deferred(&relay, 20.0).await;
    // The second time they certainly do not land. That says nothing about the first.
    fail(&mock, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS; 10_000]);
    let before = relay.metric("outboxd_rows_unacknowledged_total").expect("it runs");
    deferred(&relay, before + 40.0).await;
    fail(&mock, &[]);
    let history = assert_arrived(&world, &relay, &topic).await;
    assert_eq!(history.flagged, 20, "each of them may be a second copy");
}

#[tokio::test]
async fn an_unordered_record_that_may_have_landed_says_so_though_it_is_refused_afterwards() {
    let (mock, world, topic) = mocked().await;
    let relay = world.relay().start_ready().await;
    fail(&mock, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT; 10_000]);
    world.fill(&topic, 1, 0).await;
    deferred(&relay, 1.0).await;
    // Once in a batch and once alone: that is one attempt.
    fail(&mock, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE; 2]);
    world.drained(SOON).await;
    assert_eq!(world.count("SELECT attempts::bigint FROM outbox.message").await, 1);
    let history = world.history(&topic).await;
    history.assert_counted_by(&[&relay]);
    assert_eq!(history.flagged, 1, "it may be a second copy");
}

#[tokio::test]
async fn a_topic_that_refuses_our_clock_is_parked_and_no_row_is_blamed() {
    let (mock, world, topic) = mocked().await;
    let relay = world.relay().start_ready().await;
    fail(&mock, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP; 10_000]);
    world.fill(&topic, 50, 5).await;
    world
        .until("SELECT count(DISTINCT lane) = 5 FROM outbox.hold WHERE unit = ''")
        .await;
    world.assert_nobody_blamed().await;
    fail(&mock, &[]);
    assert_arrived(&world, &relay, &topic).await;
}

#[tokio::test]
async fn order_holds_while_partition_leaders_move_between_brokers() {
    let (mock, world, topic) = mocked().await;
    let relay = world.relay().start_ready().await;
    for round in 0..10 {
        world.fill(&topic, 50, 5).await;
        for partition in 0..2 {
            let leader = 1 + (round + partition) % 2;
            mock.partition_leader(&topic, partition, Some(leader))
                .expect("a leader");
        }
    }
    assert_arrived(&world, &relay, &topic).await;
}

#[tokio::test]
async fn a_key_is_not_held_for_ever_by_a_fatal_error_of_the_producer_that_retries_it() {
    let (mock, world, topic) = mocked().await;
    let relay = world
        .relay()
        .args(&["--retry-backoff-min", "200ms", "--retry-backoff-max", "500ms"])
        .start_ready()
        .await;
    // Refused once, and the retry meets the fatal error.
    fail(
        &mock,
        &[
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
        ],
    );
    world
        .insert(&topic, &[(Some("a"), vec![1]), (Some("a"), vec![2])])
        .await;
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    history.assert_sound();
    world.held(0).await;
    assert_eq!(relay.metric("outboxd_rows_dead_total"), Some(0.0));
}
