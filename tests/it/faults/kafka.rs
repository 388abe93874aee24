//! Kafka as a whole is away, restarts, or falls silent with records on their way.

use std::time::Duration;

use testkit::*;
use tokio::time::sleep;

/// Several batch deadlines and message timeouts of a relay of [`World::relay`], which are one and three and a half seconds.
const LONG: Duration = Duration::from_secs(20);

/// A broker of its own with a topic on it, and a relay that knows it.
async fn own_kafka() -> (OwnKafka, World, String, Relay) {
    own_kafka_and(&[]).await
}

async fn own_kafka_and(args: &[&str]) -> (OwnKafka, World, String, Relay) {
    let kafka = OwnKafka::start();
    let world = World::on(&Stack::get().database_url, &kafka.address).await;
    let topic = world.topic("orders", 4, &[]).await;
    // One batch at a time, so that what is in flight is known.
    let relay = world
        .relay()
        .args(&["--tasks", "1", "--batch-rows", "500"])
        .args(args)
        .start_ready()
        .await;
    world.fill(&topic, 100, 10).await;
    world.drained(SOON).await;
    (kafka, world, topic, relay)
}

fn threads_of(relay: &Relay) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{}/task", relay.pid())).expect("it runs");
    threads.count()
}

async fn paused(relay: &Relay, expected: f64) {
    eventually(SOON, &format!("outboxd_publisher_paused {expected}"), async || {
        (relay.metric("outboxd_publisher_paused") == Some(expected)).then_some(())
    })
    .await;
}

/// It has paused. A broker that answers all but what counts ends that within a millisecond, so it is read in the log.
async fn has_paused(relay: &Relay) {
    eventually(SOON, "publishing to be paused", async || {
        relay.logged("publishing is paused").then_some(())
    })
    .await;
}

/// Everything flowed, in order, by the process that saw the fault begin; nobody is blamed. Answers what the topic holds.
async fn assert_recovered(world: &World, relay: &Relay, topic: &str) -> History {
    paused(relay, 0.0).await;
    world.assert_nobody_blamed().await;
    world.held(0).await;
    let history = world.history(topic).await;
    history.assert_counted_by(&[relay]);
    for zero in ["rows_dead", "rescan_found_rows", "leases_lost"] {
        assert_eq!(relay.metric(&format!("outboxd_{zero}_total")), Some(0.0), "{zero}");
    }
    assert_eq!(relay.log().matches("outboxd starts").count(), 1, "no restart");
    history
}

#[tokio::test]
async fn every_broker_down_for_long_costs_time_but_no_attempt_and_no_row() {
    let fault = Fault::new(
        27,
        "every broker is down for long (20 s: several message timeouts)",
        "publishing pauses and says so; no attempt is counted, nothing is dead-lettered",
    );
    let (kafka, world, topic, relay) = own_kafka().await;
    let writes = BackgroundWrites::start(&world, &topic);
    let threads = threads_of(&relay);
    kafka.kill();
    paused(&relay, 1.0).await;
    sleep(LONG).await;
    assert_eq!(relay.metric("outboxd_publisher_paused"), Some(1.0), "all the while");
    world.assert_nobody_blamed().await;
    assert!(world.pending().await > 500, "rows were committed all the while");

    kafka.restart();
    let over = fault.over();
    writes.stop();
    let recovered = over.until_drained(&world).await;
    let duplicates = assert_recovered(&world, &relay, &topic).await.duplicates;
    assert!(duplicates <= 500, "{duplicates} duplicates of one batch in flight");
    eventually(SOON, "the clients that were replaced to be gone", async || {
        (threads_of(&relay) <= threads + 5).then_some(())
    })
    .await;
    recovered.record(duplicates);
}

#[tokio::test]
async fn rows_wait_for_a_kafka_that_is_down_at_start() {
    let kafka = OwnKafka::start();
    let world = World::on(&Stack::get().database_url, &kafka.address).await;
    let topic = world.topic("orders", 4, &[]).await;
    kafka.kill();
    let relay = world.relay().start_ready().await;
    world.fill(&topic, 100, 10).await;
    paused(&relay, 1.0).await;
    assert_eq!(world.pending().await, 100);

    kafka.restart();
    world.drained(SOON).await;
    assert_recovered(&world, &relay, &topic).await;
}

#[tokio::test]
async fn order_holds_through_restarts_of_kafka_under_load() {
    let fault = Fault::new(
        28,
        "partition leaders move: Kafka restarts under load, once in good order, once killed",
        "no attempt is counted",
    );
    let (kafka, world, topic, relay) = own_kafka().await;
    let writes = BackgroundWrites::start(&world, &topic);
    kafka.stop();
    kafka.restart();
    world
        .until("SELECT max(published_at) > now() - interval '100 ms' FROM outbox.message")
        .await;
    kafka.kill();
    kafka.restart();
    let over = fault.over();
    writes.stop();
    let recovered = over.until_drained(&world).await;
    let duplicates = assert_recovered(&world, &relay, &topic).await.duplicates;
    assert!(
        duplicates <= 2 * 500,
        "{duplicates} duplicates of two batches in flight"
    );
    recovered.record(duplicates);
}

/// A leader that has written a record may step down before it answers. It then says that it does not lead, and the client
/// takes that for a record that is not there.
#[tokio::test]
async fn records_written_by_a_leader_that_stepped_down_say_so_when_they_are_sent_again() {
    let broker = LyingBroker::start().await;
    let world = World::on(&Stack::get().database_url, &broker.address).await;
    let topic = world.topic("orders", 2, &[]).await;
    let relay = world.relay().start_ready().await;
    world.fill(&topic, 100, 10).await;
    world.fill(&topic, 20, 0).await;
    world.drained(SOON).await;

    broker.step_down();
    world.fill(&topic, 50, 5).await;
    world.fill(&topic, 20, 0).await;
    broker.denied().await;
    has_paused(&relay).await;
    broker.lead();
    world.drained(SOON).await;
    let duplicates = assert_recovered(&world, &relay, &topic).await.duplicates;
    assert!(duplicates > 0, "they were written");
}

/// A broker takes any first sequence number from a producer it does not know. Where it did not take the first request of one, it
/// takes the second, and the client concludes that the first is there as well.
#[tokio::test]
async fn a_record_that_only_the_client_says_is_there_is_sent_again() {
    let fault = Fault::new(
        67,
        "the broker takes a producer's second record without its first (garbled on the wire), and the client reports both as delivered",
        "no row is marked that Kafka does not have; what is sent again says so",
    );
    let broker = LyingBroker::start().await;
    let world = World::on(&Stack::get().database_url, &broker.address).await;
    let topic = world.topic("orders", 1, &[]).await;
    let relay = world.relay().start_ready().await;
    broker.garble_next();
    world.insert(&topic, &[(Some("a"), vec![1])]).await;
    broker.garbled().await;
    // Of another lane: another task sends it meanwhile.
    world.insert(&topic, &[(Some("b"), vec![2])]).await;
    let recovered = fault.over().until_drained(&world).await;
    let history = assert_recovered(&world, &relay, &topic).await;
    recovered.record(history.duplicates);
    assert_eq!(world.records(&topic).await.len(), 2);
    assert_eq!(history.flagged, 1, "the client was not believed");
    assert_eq!(
        relay.metric("outboxd_producer_rebuilds_total"),
        Some(0.0),
        "nor given up"
    );
}

#[tokio::test]
async fn rows_behind_one_that_timed_out_but_was_written_wait_for_it() {
    let fault = Fault::new(
        29,
        "records time out and are written all the same: the broker is stopped (SIGSTOP) with requests in its socket",
        "later rows of a key wait; what is sent again says so",
    );
    let (kafka, world, topic, relay) = own_kafka().await;
    let writes = BackgroundWrites::start(&world, &topic);
    world
        .until("SELECT count(*) > 500 FROM outbox.message WHERE published_at IS NOT NULL")
        .await;
    kafka.pause();
    paused(&relay, 1.0).await;
    let unanswered = world.pending().await;
    // Past every timeout of what was sent.
    sleep(LONG / 2).await;
    assert!(world.pending().await > unanswered, "what came later waits");

    kafka.resume();
    let over = fault.over();
    writes.stop();
    let recovered = over.until_drained(&world).await;
    let duplicates = assert_recovered(&world, &relay, &topic).await.duplicates;
    assert!(duplicates > 0, "what was in the broker's socket was written");
    assert!(duplicates <= 500, "{duplicates} duplicates of one batch in flight");
    recovered.record(duplicates);
}

#[tokio::test]
async fn clients_that_lost_all_their_brokers_are_replaced() {
    // So that the idle ones ask as well.
    let often = ["--kafka-property", "topic.metadata.refresh.interval.ms=300"];
    let many_attempts = ["--max-attempts", "1000"];
    let (kafka, world, topic, relay) = own_kafka_and(&[often, many_attempts].concat()).await;
    // Refused, and to be tried again later: the producer of single records has to come back, too.
    let small = world.topic("small", 1, &[SMALL]).await;
    let too_large =
        format!("INSERT INTO outbox.message (topic, key, payload_bytes) VALUES ('{small}', 'k', {TOO_LARGE})");
    world.execute(&too_large).await;
    world.held(1).await;
    let writes = BackgroundWrites::start(&world, &topic);
    kafka.kill();
    let waking = BrokerlessBroker::at(&kafka.address).await;
    // Longer than the relay waits between two attempts to reach Kafka.
    waking.quiet_for(Duration::from_secs(4)).await;
    waking.leave().await;

    kafka.restart();
    writes.stop();
    alter_topic(&kafka.address, &small, SMALL.0, "1000000").await;
    world.drained(LEASE + Duration::from_secs(10)).await;
    world.held(0).await;
    assert_eq!(relay.metric("outboxd_rows_dead_total"), Some(0.0));
    world.history(&topic).await.assert_counted_by(&[&relay]);
}
