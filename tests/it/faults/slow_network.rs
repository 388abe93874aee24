//! A link of 500 ms and 1 Mbit/s each way.

use std::time::{Duration, Instant};

use testkit::*;

const SLOW: Link = Link {
    delay: Duration::from_millis(500),
    bytes_per_second: Some(125_000),
    is_black_hole: false,
};

/// What a user gets who sets none.
const DEFAULT_LEASE: Duration = Duration::from_secs(15);

/// Rows of a kilobyte that no compression makes smaller: three megabytes take the link 24 seconds.
async fn commit_heavy_rows(world: &World, topic: &str) {
    let keys: Vec<String> = (0..50).map(|n| format!("k{n}")).collect();
    let rows: Vec<_> = (0..3000).map(|n| (Some(keys[n % 50].as_str()), noise(1000))).collect();
    world.insert(topic, &rows).await;
}

/// Rows cross the slow link for longer than a lease, and the lease is kept.
async fn crosses_a_slow_link(world: &World, proxy: &Proxy, builder: RelayBuilder) -> Recovered {
    let fault = Fault::new(
        37,
        "500 ms and 1 Mbit/s, to PostgreSQL or to Kafka",
        "leases are renewed, none is lost",
    )
    .with_lease(DEFAULT_LEASE);
    let topic = world.topic("orders", 4, &[]).await;
    let relay = builder.start_ready().await;
    world
        .until("(SELECT count(*) = 64 FROM outbox.lane WHERE owner IS NOT NULL)")
        .await;
    proxy.both_ways(SLOW);
    let slow = Instant::now();
    commit_heavy_rows(world, &topic).await;
    eventually(6 * DEFAULT_LEASE, "a thousand rows to cross the link", async || {
        (relay.metric("outboxd_rows_marked_total")? >= 1000.0).then_some(())
    })
    .await;
    println!("a thousand rows after {:?}", slow.elapsed());
    tokio::time::sleep((2 * DEFAULT_LEASE).saturating_sub(slow.elapsed())).await;
    commit_heavy_rows(world, &topic).await;
    assert_eq!(
        relay.metric("outboxd_leases_lost_total"),
        Some(0.0),
        "the lease is kept"
    );
    proxy.both_ways(Link::default());
    let recovered = fault.over().until_drained(world).await;
    let history = world.assert_promises_kept(&topic, &[&relay]).await;
    assert_eq!(
        relay.metric("outboxd_leases_lost_total"),
        Some(0.0),
        "the lease is kept"
    );
    println!("{} duplicates", history.duplicates);
    recovered
}

#[tokio::test]
async fn leases_are_kept_over_a_slow_link_to_postgresql() {
    let world = World::new().await;
    let proxy = Proxy::to_postgres(&world.database_url);
    let relay = RelayBuilder::with_defaults(&proxy.url(&world.database_url), &world.kafka);
    crosses_a_slow_link(&world, &proxy, relay).await.record(0);
}

#[tokio::test]
async fn leases_are_kept_over_a_slow_link_to_kafka() {
    let proxy = Proxy::listen();
    let kafka = OwnKafka::advertising(proxy.port);
    proxy.forward_to(&kafka.address);
    let world = World::on(&Stack::get().database_url, &proxy.address()).await;
    let relay = RelayBuilder::with_defaults(&world.database_url, &world.kafka);
    crosses_a_slow_link(&world, &proxy, relay).await;
}
