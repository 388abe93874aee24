//! Somebody locks the table and keeps it.

use std::time::{Duration, Instant};

use crate::support::*;

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
        relay.metric("outboxd_terms_lost_total"),
        Some(0.0),
        "the lease is another table"
    );
    recovered.record(history.repeats);
}
