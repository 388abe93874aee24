//! A server that accepts and says nothing: noticed by our own clocks, since no connection breaks.

use std::time::{Duration, Instant};

use testkit::*;

/// A statement is given up when a lease has passed, a session that does not come about sooner.
#[tokio::test]
async fn a_black_hole_before_postgresql_is_noticed_before_the_lease_ends() {
    let fault = Fault::new(
        36,
        "a silent black hole to PostgreSQL, or to Kafka",
        "noticed within the configured timeouts",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let proxy = Proxy::to_postgres(&world.database_url);
    let relay = world.relay_through(&proxy).start_ready().await;
    let writes = BackgroundWrites::start(&world, &topic);
    flowing(&world).await;
    proxy.both_ways(Link::BLACK_HOLE);
    let silent = Instant::now();
    let noticed = "the database did not answer within";
    eventually(LEASE, noticed, async || relay.logged(noticed).then_some(())).await;
    println!("noticed after {:?}", silent.elapsed());
    // Long enough for every statement under way to have met the silence.
    tokio::time::sleep(LEASE.saturating_sub(silent.elapsed())).await;
    relay.assert_alive();
    proxy.both_ways(Link::default());
    let over = fault.over();
    writes.stop();
    let recovered = over.until_drained(&world).await;
    let history = world.assert_promises_kept(&topic, &[&relay]).await;
    recovered.record(history.duplicates);
}

/// Connections whose way a firewall has forgotten, while new ones get through.
#[tokio::test]
async fn connections_gone_silent_do_not_cost_the_lease() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let proxy = Proxy::to_postgres(&world.database_url);
    let relay = world.relay_through(&proxy).start_ready().await;
    let writes = BackgroundWrites::start(&world, &topic);
    flowing(&world).await;
    proxy.forget();
    let goal = world.count("SELECT max(id) FROM outbox.message").await + 100;
    world
        .until(&format!(
            "(SELECT count(*) = 0 FROM outbox.message WHERE id <= {goal} AND published_at IS NULL)"
        ))
        .await;
    writes.stop();
    world.drained(LEASE).await;
    world.assert_promises_kept(&topic, &[&relay]).await;
    assert_eq!(relay.metric("outboxd_leases_lost_total"), Some(0.0));
}

#[tokio::test]
async fn a_black_hole_before_kafka_is_noticed_within_the_batch_deadline() {
    let proxy = Proxy::listen();
    let kafka = OwnKafka::advertising(proxy.port);
    proxy.forward_to(&kafka.address);
    let fault = Fault::new(
        36,
        "a silent black hole to Kafka",
        "noticed within the configured timeouts",
    );
    let world = World::on(&Stack::get().database_url, &proxy.address()).await;
    let topic = world.topic("orders", 4, &[]).await;
    let relay = world.relay().start_ready().await;
    let writes = BackgroundWrites::start(&world, &topic);
    flowing(&world).await;
    proxy.both_ways(Link::BLACK_HOLE);
    // The batch deadline and its overrun, and one request for the topic.
    let within = Duration::from_secs(1 + 2 + 3 + 1);
    eventually(within, "publishing to be paused", async || {
        (relay.metric("outboxd_publisher_paused") == Some(1.0)).then_some(())
    })
    .await;
    relay.assert_alive();
    proxy.both_ways(Link::default());
    let over = fault.over();
    writes.stop();
    over.until_drained(&world).await;
    world.assert_promises_kept(&topic, &[&relay]).await;
    assert_eq!(
        relay.metric("outboxd_leases_lost_total"),
        Some(0.0),
        "PostgreSQL was there"
    );
}

/// Waits until rows flow.
async fn flowing(world: &World) {
    world
        .until("(SELECT count(*) > 500 FROM outbox.message WHERE published_at IS NOT NULL)")
        .await;
}
