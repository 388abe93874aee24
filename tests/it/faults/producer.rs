//! Answers a healthy broker does not give. librdkafka's mock cluster gives them: a real broker cannot be made to.

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::support::*;

type Mock = MockCluster<'static, DefaultProducerContext>;

/// A world whose Kafka is a mock with one topic of two partitions.
async fn mocked() -> (Mock, World, String) {
    let mock = MockCluster::new(2).expect("a mock cluster");
    let world = World::on(&Stack::get().database_url, &mock.bootstrap_servers()).await;
    let topic = format!("{}.orders", world.name);
    mock.create_topic(&topic, 2, 1).expect("a topic");
    (mock, world, topic)
}

/// Fifty rows of five keys.
fn some_rows() -> Vec<(Option<&'static str>, Vec<u8>)> {
    const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
    (0..50u8).map(|n| (Some(KEYS[n as usize % 5]), vec![n])).collect()
}

async fn assert_arrived(world: &World, topic: &str) {
    world.drained(SOON).await;
    world.assert_nobody_blamed().await;
    let history = world.history(topic).await;
    history.assert_sound();
    assert_eq!(history.unflagged_repeats, 0, "a repeat says that it is one");
}

#[tokio::test]
async fn a_producer_with_a_fatal_error_is_replaced_and_its_rows_arrive_in_order() {
    let (mock, world, topic) = mocked().await;
    let relay = world.relay().start_ready().await;
    world.insert(&topic, &some_rows()).await;
    world.drained(SOON).await;
    assert_eq!(relay.metric("outboxd_producer_rebuilds_total"), Some(0.0));

    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
    mock.request_errors(RDKafkaApiKey::Produce, &[error]);
    world.insert(&topic, &some_rows()).await;
    assert_arrived(&world, &topic).await;
    assert_eq!(relay.metric("outboxd_producer_rebuilds_total"), Some(1.0));
    assert_eq!(relay.log().matches("outboxd starts").count(), 1, "no restart");
}

#[tokio::test]
async fn too_few_replicas_for_a_while_defer_rows_and_count_no_attempt() {
    let (mock, world, topic) = mocked().await;
    let relay = world.relay().start_ready().await;
    world.insert(&topic, &some_rows()).await;
    world.drained(SOON).await;

    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS;
    mock.request_errors(RDKafkaApiKey::Produce, &[error; 10_000]);
    world.insert(&topic, &some_rows()).await;
    // Each row twice: more than one batch deadline has passed.
    eventually(SOON, "the rows to be deferred", async || {
        (relay.metric("outboxd_rows_deferred_total") >= Some(100.0)).then_some(())
    })
    .await;
    world.assert_nobody_blamed().await;
    assert_eq!(world.pending().await, 50);
    mock.clear_request_errors(RDKafkaApiKey::Produce);
    assert_arrived(&world, &topic).await;
    world.held(0).await;
}

#[tokio::test]
async fn order_holds_while_partition_leaders_move() {
    let (mock, world, topic) = mocked().await;
    let _relay = world.relay().start_ready().await;
    for round in 0..10 {
        world.insert(&topic, &some_rows()).await;
        for partition in 0..2 {
            let leader = 1 + (round + partition) % 2;
            mock.partition_leader(&topic, partition, Some(leader))
                .expect("a leader");
        }
    }
    assert_arrived(&world, &topic).await;
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
    mock.request_errors(
        RDKafkaApiKey::Produce,
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
