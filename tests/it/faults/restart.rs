//! A worker is killed and started again: it does not wait for its own lease. Not behind a transaction pooler, where sessions prove nothing.

use std::time::Duration;

use testkit::*;

/// The most rows that a worker here has in flight.
const BATCH: usize = 200;

/// A worker with one batch in flight at a time, so that what was in flight can be counted.
fn one_batch(world: &World) -> RelayBuilder {
    let rows = BATCH.to_string();
    world.relay().args(&["--tasks", "1", "--batch-rows", &rows])
}

/// The lease that a user gets who sets none: long enough to tell a worker that waits for it from one that does not.
const LONG_LEASE: Duration = Duration::from_secs(15);

/// A relay with that lease, one batch at a time.
fn default_lease(world: &World) -> RelayBuilder {
    one_batch(world).args(&["--lease", "15s"])
}

/// Kills it with a batch sent and not marked, and answers what was sent.
async fn killed_in_flight(world: &World, topic: &str, failpoint: &str, relay: RelayBuilder) -> usize {
    let mut dying = relay.failpoint(failpoint).start();
    dying.at_failpoint(failpoint).await;
    let sent = world.records(topic).await.len();
    dying.kill();
    sent
}

async fn restarted_at_once(failpoint: &str, keys: usize) {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 500, keys).await;
    let sent = killed_in_flight(&world, &topic, failpoint, default_lease(&world)).await;
    assert!(sent > 0, "some were sent");
    let successor = default_lease(&world).start();
    // It takes a second and a half where nothing else keeps the machine busy.
    world.drained(LONG_LEASE / 2).await;
    let history = world.history(&topic).await;
    history.assert_duplicates_at_most(BATCH);
    history.assert_counted_by(&[&successor]);
    assert!(history.duplicates >= sent, "{sent} were there and all came again");
    assert!(successor.logged("the process before this one is gone"));
}

#[tokio::test]
async fn a_single_worker_that_is_killed_and_restarted_does_not_wait_for_its_own_lease() {
    restarted_at_once("after_publish", 50).await;
}

#[tokio::test]
async fn unordered_rows_of_a_killed_worker_do_not_wait_for_its_lease_when_it_is_restarted() {
    restarted_at_once("after_publish_unordered", 0).await;
}

/// A worker like one of another machine: what this one's kernel says of process ids proves nothing.
async fn pretend_another_machine(world: &World) {
    world.execute("UPDATE outbox.worker SET machine = 'elsewhere'").await;
}

#[tokio::test]
async fn a_restarted_container_takes_over_from_the_one_before_it_by_the_uid_of_their_pod() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 500, 50).await;
    let in_pod = |world: &World| default_lease(world).env("OUTBOXD_POD_UID", "5a4d");
    killed_in_flight(&world, &topic, "after_publish", in_pod(&world)).await;
    pretend_another_machine(&world).await;
    let _successor = in_pod(&world).start();
    world.drained(LONG_LEASE / 2).await;
}

#[tokio::test]
async fn without_proof_of_its_end_a_worker_keeps_its_lanes_until_its_lease_ends() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 500, 50).await;
    let named = |world: &World| one_batch(world).args(&["--worker-name", "relay-0"]);
    killed_in_flight(&world, &topic, "after_publish", named(&world)).await;
    pretend_another_machine(&world).await;
    let lease_ends = "SELECT lease_until <= clock_timestamp() FROM outbox.worker WHERE machine = 'elsewhere'";
    let successor = named(&world).start();
    world.until("EXISTS (SELECT FROM outbox.lane WHERE epoch > 1)").await;
    assert!(world.is_true(lease_ends).await, "a name proves nothing");
    world.drained(SOON).await;
    assert!(!successor.logged("the process before this one is gone"));
}

/// Two deployments that were given one pod's UID by mistake.
#[tokio::test]
async fn two_live_processes_with_one_identity_leave_each_other_alone() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let twin = |world: &World| world.relay().env("OUTBOXD_POD_UID", "5a4d");
    let first = twin(&world).start_ready().await;
    world.until("SELECT count(owner) = 64 FROM outbox.lane").await;
    pretend_another_machine(&world).await;
    let second = twin(&world).start_ready().await;
    eventually(SOON, "the second to say so", async || {
        second
            .logged("another process runs with the identity of this one")
            .then_some(())
    })
    .await;
    eventually(SOON, "both to share the lanes", async || {
        (world.lanes_per_worker().await == [32, 32]).then_some(())
    })
    .await;
    world.fill(&topic, 500, 50).await;
    world.drained(SOON).await;
    world.history(&topic).await.assert_exact();
    for relay in [&first, &second] {
        assert_eq!(
            relay.metric("outboxd_leases_lost_total"),
            Some(0.0),
            "neither was fenced"
        );
    }
}
