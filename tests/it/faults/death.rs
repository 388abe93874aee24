//! A worker is killed at an exact place; another one carries on.

use std::time::{Duration, Instant};

use crate::support::*;

/// Recovery is promised within the lease and a second; the rest is for a slow machine.
const RECOVERED: Duration = LEASE.saturating_add(Duration::from_secs(3));

/// A worker with one batch in flight at a time, so that what was in flight can be counted.
fn one_batch(world: &World) -> RelayBuilder {
    world.relay().args(&["--tasks", "1", "--batch-rows", "200"])
}

/// Kills the worker and waits until the other has published everything; answers how long that took.
async fn kill_and_recover(world: &World, dying: &mut Relay) -> Duration {
    let killed = Instant::now();
    dying.kill();
    world.drained(RECOVERED).await;
    killed.elapsed()
}

async fn dies_before_sending(failpoint: &str, keys: usize) -> Recovered {
    let fault = Fault::new(1, "dies after the claim, before it sends", "no duplicate");
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 500, keys).await;
    let mut dying = one_batch(&world).failpoint(failpoint).start();
    dying.at_failpoint(failpoint).await;
    assert_eq!(world.records(&topic).await.len(), 0, "it has sent nothing yet");
    let _successor = world.relay().start_ready().await;
    dying.kill();
    let recovered = fault.over().until_drained(&world).await;
    world.history(&topic).await.assert_exact();
    recovered
}

#[tokio::test]
async fn death_between_claim_and_send_makes_no_duplicate() {
    dies_before_sending("after_claim", 50).await.record(0);
}

#[tokio::test]
async fn death_between_claim_and_send_of_keyless_rows_makes_no_duplicate() {
    dies_before_sending("after_claim_keyless", 0).await;
}

async fn dies_before_marking(failpoint: &str, keys: usize) {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 500, keys).await;
    let mut dying = one_batch(&world).failpoint(failpoint).start();
    dying.at_failpoint(failpoint).await;
    let in_flight = world.records(&topic).await.len();
    assert!(
        (1..=200).contains(&in_flight),
        "one batch was sent, not {in_flight} rows"
    );
    assert_eq!(world.pending().await, 500, "and nothing is marked");
    let _successor = world.relay().start_ready().await;
    let took = kill_and_recover(&world, &mut dying).await;
    println!("recovered {took:?} after the kill, {in_flight} rows in flight");
    let history = world.history(&topic).await;
    history.assert_sound();
    assert_eq!(
        history.repeats, in_flight,
        "what was in flight came twice, and nothing else"
    );
    assert_eq!(history.unflagged_repeats, 0);
}

#[tokio::test]
async fn death_between_acknowledgement_and_mark_repeats_one_batch_and_says_so() {
    dies_before_marking("after_publish", 50).await;
}

#[tokio::test]
async fn death_between_acknowledgement_and_mark_of_keyless_rows_repeats_one_batch_and_says_so() {
    dies_before_marking("after_publish_keyless", 0).await;
}

#[tokio::test]
async fn keyless_rows_of_a_dead_worker_are_not_passed_by_a_floor_that_moves_on() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 20, 0).await;
    let mut dying = world.relay().failpoint("after_claim_keyless").start();
    dying.at_failpoint("after_claim_keyless").await;
    let leased = "SELECT count(*) FROM outbox.message WHERE claim_token IS NOT NULL";
    assert_eq!(world.count(leased).await, 20);
    let successor = world.relay().start_ready().await;
    let killed = Instant::now();
    dying.kill();
    // The others move on, in several batches, until the dead worker's rows are free.
    while world.pending().await > 0 {
        world.fill(&topic, 500, 0).await;
        let behind = "SELECT count(*) FROM outbox.message WHERE published_at IS NULL AND id > 20";
        eventually(SOON, "the others to flow", async || {
            (world.count(behind).await == 0).then_some(())
        })
        .await;
        assert!(
            killed.elapsed() < RECOVERED,
            "{} rows were passed by",
            world.pending().await
        );
    }
    println!("recovered {:?} after the kill", killed.elapsed());
    let history = world.history(&topic).await;
    history.assert_exact();
    assert_eq!(history.flagged, 20, "taken over from an expired lease");
    let others = world.count("SELECT count(*) FROM outbox.message WHERE id > 20").await;
    assert!(others >= 2000, "a floor had reason to move: {others} rows");
    assert_eq!(successor.metric("outboxd_rows_forgotten_total"), Some(0.0));
}

/// A claim that gives rows back unsent must not make them look fresh: an earlier owner may have sent them.
#[tokio::test]
async fn keyless_rows_of_a_dead_worker_stay_suspect_when_the_next_claim_leaves_them_behind() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let rows: Vec<_> = (0..5).map(|_| (None, noise(700_000))).collect();
    world.insert(&topic, &rows).await;
    world
        .execute("UPDATE outbox.message SET claim_token = gen_random_uuid(), lease_until = now()")
        .await;
    // Room for one of them at a time: a claim gives back the others.
    let relay = world.relay().args(&["--tasks", "1", "--max-in-flight-bytes", "1MiB"]);
    let relay = relay.start_ready().await;
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    history.assert_exact();
    assert_eq!(history.flagged, 5, "the dead worker may have sent any of them");
    assert_eq!(relay.metric("outboxd_possible_duplicates_total"), Some(5.0));
}
