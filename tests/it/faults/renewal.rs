//! The lease is not renewed, though the process lives.

use testkit::*;

async fn published(relay: &Relay) -> f64 {
    let metric = relay.metric("outboxd_rows_published_total");
    metric.expect("it lives")
}

#[tokio::test]
async fn a_worker_that_cannot_renew_stops_publishing_before_its_lease_ends() {
    let fault = Fault::new(
        10,
        "the heartbeat stalls while the process lives",
        "it stops publishing before its lease ends; no duplicate",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let writes = BackgroundWrites::start(&world, &topic);
    let stalled = world.relay().failpoint("before_renew:4").start_ready().await;
    stalled.at_failpoint("before_renew:4").await;
    assert!(published(&stalled).await > 0.0, "it was at work");
    let successor = world.relay().start_ready().await;
    world
        .until("(SELECT min(lease_until) <= clock_timestamp() FROM outbox.worker)")
        .await;
    let at_the_end = published(&stalled).await;
    let goal = published(&successor).await + 1000.0;
    eventually(SOON, "the successor to go on", async || {
        (published(&successor).await > goal).then_some(())
    })
    .await;
    assert_eq!(
        published(&stalled).await,
        at_the_end,
        "it has not sent since its lease ended"
    );

    writes.stop();
    stalled.continue_from("before_renew:4");
    let recovered = fault.over().until_drained(&world).await;
    eventually(SOON, "it to be back under a new lease", async || {
        (world.lanes_per_worker().await == [32, 32]).then_some(())
    })
    .await;
    let history = world.history(&topic).await;
    history.assert_exact();
    history.assert_counted_by(&[&stalled, &successor]);
    recovered.record(history.duplicates);
}

/// A process loses its lease with a batch under way, and is the one to claim the same rows again: what it
/// learns of the old batch must not be taken for the new one's.
async fn claims_again_what_it_lost(failpoint: &str, keys: usize, lose: &str) -> (Recovered, History) {
    const ROWS: usize = 30;
    let fault = Fault::new(
        9,
        "loses what it claimed, and claims the same again",
        "the old claim's mark is refused",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, ROWS, keys).await;
    let (old, new) = (format!("{failpoint}:1"), format!("{failpoint}:2"));
    let two_tasks = world.relay().args(&["--tasks", "2"]);
    let relay = two_tasks.failpoint(&old).failpoint(&new).start();
    relay.at_failpoint(&old).await;
    world.execute(lose).await;
    let over = fault.over();
    relay.at_failpoint(&new).await;
    relay.continue_from(&old);
    eventually(SOON, "the old claim's mark to be refused", async || {
        (relay.metric("outboxd_rows_fenced_total")? == ROWS as f64).then_some(())
    })
    .await;
    assert_eq!(
        world.pending().await,
        ROWS as i64,
        "the new claim has marked nothing yet"
    );
    relay.continue_from(&new);
    let recovered = over.until_drained(&world).await;
    let history = world.history(&topic).await;
    history.assert_duplicates_at_most(ROWS);
    history.assert_counted_by(&[&relay]);
    assert_eq!(history.duplicates, ROWS, "sent twice, once under each claim");
    (recovered, history)
}

#[tokio::test]
async fn a_worker_that_takes_its_lanes_again_cannot_mark_for_its_former_self() {
    let lose = "UPDATE outbox.worker SET lease_until = clock_timestamp()";
    let (recovered, history) = claims_again_what_it_lost("after_publish", 1, lose).await;
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn a_worker_that_leases_unordered_rows_again_cannot_mark_for_its_former_self() {
    let lose = "UPDATE outbox.claim SET lease_until = clock_timestamp()";
    claims_again_what_it_lost("after_publish_unordered", 0, lose).await;
}
