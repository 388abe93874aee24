//! A worker's wall clock is wrong, or its machine was suspended. Leases go by the database's clock, and by one that counts while the machine
//! is suspended.

use std::time::{SystemTime, UNIX_EPOCH};

use testkit::*;

/// Sets a process's wall clock off. Its monotonic clock stays right, as that of a machine does whose time service is broken.
fn relay_with_clock_off(clock: &Preload, world: &World, hours: i32) -> RelayBuilder {
    world
        .relay()
        .env("LD_PRELOAD", &clock.library())
        .env("CLOCK_OFFSET", &(hours * 3600).to_string())
}

#[tokio::test]
async fn leases_of_workers_with_wrong_clocks_end_neither_early_nor_late() {
    let fault = Fault::new(25, "workers' clocks are hours off", "no lease ends early or late");
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let clock = Preload::build("clock.c");
    let mut dying = relay_with_clock_off(&clock, &world, -1).start_ready().await;
    let others = [
        relay_with_clock_off(&clock, &world, 1).start_ready().await,
        relay_with_clock_off(&clock, &world, 2).start_ready().await,
    ];
    let writes = BackgroundWrites::start(&world, &topic);
    eventually(SOON, "the lanes to be shared", async || {
        (world.lanes_per_worker().await == [21, 21, 22]).then_some(())
    })
    .await;
    let takes = world.takes().await;
    // Two leases: had any ended early, lanes would have changed hands.
    tokio::time::sleep(2 * LEASE).await;
    assert_eq!(world.takes().await, takes, "nobody lost a lane");
    let clocks = "SELECT count(*) FROM outbox.worker WHERE stopped_at IS NULL
                  AND lease_until BETWEEN clock_timestamp() AND clock_timestamp() + interval '5 seconds'";
    assert_eq!(world.count(clocks).await, 3, "every lease ends when it should");
    dying.kill();
    let over = fault.over();
    writes.stop();
    // In every lane, also in those of the dead worker.
    world.fill(&topic, 1000, 100).await;
    let recovered = over.until_drained(&world).await;
    assert!(
        world.takes().await > takes,
        "the dead worker's lanes were taken when its lease had ended"
    );
    let history = world.history(&topic).await;
    history.assert_duplicates_counted_by(&[&others[0], &others[1]]);
    world.assert_nobody_blamed().await;
    let now_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_millis() as i64;
    for record in world.records(&topic).await {
        let age_ms = now_ms - record.timestamp_ms.expect("stamped");
        assert!(
            (0..120_000).contains(&age_ms),
            "stamped by the database's clock, not {age_ms} ms ago"
        );
    }
    for relay in &others {
        assert_eq!(relay.metric("outboxd_leases_lost_total"), Some(0.0));
    }
    recovered.record(history.duplicates);
}

/// It has claimed rows and sent none of them, and renews its lease no more.
async fn asleep_with_a_claim(world: &World, topic: &str, relay: RelayBuilder) -> Relay {
    world.fill(topic, 100, 20).await;
    let relay = relay.args(&["--lease", "20s"]);
    let relay = relay.failpoint("before_renew:2").failpoint("after_claim");
    let relay = relay.start_ready().await;
    relay.at_failpoint("after_claim").await;
    relay.at_failpoint("before_renew:2").await;
    relay
}

#[tokio::test]
async fn nothing_is_sent_under_a_lease_that_ended_while_the_machine_was_suspended() {
    let fault = Fault::new(
        62,
        "a worker's machine is suspended past its lease",
        "nothing is sent under the lost lease; no duplicate",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let (clock, dir) = (Preload::build("clock.c"), tempfile::tempdir().expect("a directory"));
    let suspended = dir.path().join("suspended").display().to_string();
    let relay = world.relay().env("LD_PRELOAD", &clock.library());
    let relay = relay.env("SUSPENDED", &suspended);
    let relay = asleep_with_a_claim(&world, &topic, relay).await;
    std::fs::write(&suspended, b"").expect("a file");
    relay.continue_from("after_claim");
    eventually(SOON, "all that was claimed to be deferred", async || {
        let put_off = relay
            .metric("outboxd_rows_unacknowledged_total")
            .filter(|rows| *rows > 0.0);
        (put_off? == relay.metric("outboxd_rows_claimed_total")?).then_some(())
    })
    .await;
    assert_eq!(world.records(&topic).await.len(), 0, "its lease was over");
    relay.continue_from("before_renew:2");
    let recovered = fault.over().until_drained(&world).await;
    assert_eq!(relay.metric("outboxd_leases_lost_total"), Some(1.0));
    let history = world.history(&topic).await;
    history.assert_exact();
    recovered.record(history.duplicates);
}

/// What hides the time from both of its clocks, as a hypervisor may.
#[tokio::test]
async fn a_claim_of_a_worker_whose_lanes_were_taken_meanwhile_is_refused_before_it_is_sent() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let asleep = asleep_with_a_claim(&world, &topic, world.relay()).await;
    world
        .execute("UPDATE outbox.worker SET lease_until = clock_timestamp()")
        .await;
    let successor = world.relay().start_ready().await;
    world.drained(SOON).await;
    asleep.continue_from("after_claim");
    eventually(SOON, "its term to end", async || {
        (asleep.metric("outboxd_leases_lost_total")? >= 1.0).then_some(())
    })
    .await;
    asleep.continue_from("before_renew:2");
    let history = world.history(&topic).await;
    history.assert_exact();
    history.assert_counted_by(&[&successor]);
}
