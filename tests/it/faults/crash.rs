//! A worker is killed at an exact place; another one carries on.

use std::time::{Duration, Instant};

use testkit::*;

/// Recovery is promised within the lease and a second; more is for a slow machine.
const RECOVERED: Duration = LEASE.saturating_add(Duration::from_secs(3));

/// The most rows that [`one_batch`] has in flight.
const BATCH: usize = 200;

/// A worker with one batch in flight at a time, so that what was in flight can be counted.
fn one_batch(world: &World) -> RelayBuilder {
    let rows = BATCH.to_string();
    world.relay().args(&["--tasks", "1", "--batch-rows", &rows])
}

async fn dies_before_sending(failpoint: &str, keys: usize) -> Recovered {
    let fault = Fault::new(1, "dies after the claim, before it sends", "no duplicate");
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 500, keys).await;
    let mut dying = one_batch(&world).failpoint(failpoint).start();
    dying.at_failpoint(failpoint).await;
    assert_eq!(world.records(&topic).await.len(), 0, "it has sent nothing yet");
    let successor = world.relay().start_ready().await;
    dying.kill();
    let recovered = fault.over().until_drained(&world).await;
    let history = world.history(&topic).await;
    history.assert_exact();
    history.assert_counted_by(&[&successor]);
    recovered
}

#[tokio::test]
async fn death_between_claim_and_send_makes_no_duplicate() {
    dies_before_sending("after_claim", 50).await.record(0);
}

#[tokio::test]
async fn death_between_claim_and_send_of_unordered_rows_makes_no_duplicate() {
    dies_before_sending("after_claim_unordered", 0).await;
}

/// It dies at the failpoint with rows sent and none marked; at most `in_flight` of them come again, and say so.
async fn dies_before_marking(fault: Fault, failpoint: &str, keys: usize, in_flight: usize) -> (Recovered, History) {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 500, keys).await;
    let mut dying = one_batch(&world).failpoint(failpoint).start();
    dying.at_failpoint(failpoint).await;
    dying.kill();
    let over = fault.over();
    let sent = world.records(&topic).await.len();
    assert!(sent > 0, "some were sent");
    assert_eq!(world.pending().await, 500, "and none is marked");
    let successor = world.relay().start_ready().await;
    let recovered = over.until_drained(&world).await;
    let history = world.history(&topic).await;
    history.assert_duplicates_at_most(in_flight);
    history.assert_counted_by(&[&successor]);
    assert!(history.duplicates >= sent, "{sent} were there and all came again");
    (recovered, history)
}

fn before_mark() -> Fault {
    Fault::new(
        2,
        "dies after the acknowledgement, before the mark",
        "at most one batch twice",
    )
}

#[tokio::test]
async fn death_between_acknowledgement_and_mark_repeats_one_batch_and_says_so() {
    let (recovered, history) = dies_before_marking(before_mark(), "after_publish", 50, BATCH).await;
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn death_between_acknowledgement_and_mark_of_unordered_rows_repeats_one_batch_and_says_so() {
    dies_before_marking(before_mark(), "after_publish_unordered", 0, BATCH).await;
}

#[tokio::test]
async fn what_a_dead_worker_may_have_sent_is_remembered_though_its_successor_dies_at_once() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    world.fill(&topic, BATCH, 1).await;
    let mut first = one_batch(&world).failpoint("after_publish").start();
    first.at_failpoint("after_publish").await;
    first.kill();
    // It can have left two rows of a lane as maybe sent by its own doing.
    let mut second = world
        .relay()
        .args(&["--tasks", "1", "--batch-rows", "1"])
        .failpoint("after_claim")
        .start();
    second.at_failpoint("after_claim").await;
    second.kill();
    let _third = world.relay().start_ready().await;
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    history.assert_duplicates_at_most(BATCH);
    assert!(history.duplicates > 2, "{} were there already", history.duplicates);
}

fn mid_batch() -> Fault {
    Fault::new(
        3,
        "dies in mid-batch, part of it acknowledged",
        "only what was sent comes twice",
    )
}

#[tokio::test]
async fn death_in_mid_batch_repeats_what_was_sent_and_nothing_else() {
    // The first record to each of the four partitions goes alone: the rest of the batch waits for their answers.
    let (recovered, history) = dies_before_marking(mid_batch(), "delivery_report:2", 50, 4).await;
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn death_in_mid_batch_with_everything_sent_repeats_no_more_than_the_batch() {
    dies_before_marking(mid_batch(), "delivery_report:7", 50, BATCH).await;
}

#[tokio::test]
async fn death_in_mid_batch_of_unordered_rows_repeats_no_more_than_the_batch() {
    dies_before_marking(mid_batch(), "delivery_report:7", 0, BATCH).await;
}

#[tokio::test]
async fn unordered_rows_of_a_dead_worker_are_not_passed_by_a_floor_that_moves_on() {
    let fault = Fault::new(
        53,
        "dies with rows without a key leased, while others move on",
        "no floor passes them; published within the lease and a second",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 20, 0).await;
    let mut dying = world.relay().failpoint("after_claim_unordered").start();
    dying.at_failpoint("after_claim_unordered").await;
    let leased = "SELECT sum(cardinality(ids)) FROM outbox.claim";
    assert_eq!(world.count(leased).await, 20);
    let successor = world.relay().start_ready().await;
    dying.kill();
    let (over, killed) = (fault.over(), Instant::now());
    // The others move on, in several batches, until the dead worker's rows are free.
    while world.pending().await > 0 {
        world.fill(&topic, 500, 0).await;
        let behind = "SELECT count(*) FROM outbox.message WHERE published_at IS NULL AND id > 20";
        eventually(SOON, "the others to flow", async || {
            (world.count(behind).await == 0).then_some(())
        })
        .await;
        let passed = world.pending().await;
        assert!(killed.elapsed() < RECOVERED, "{passed} rows were passed by");
    }
    let recovered = over.recovered();
    let history = world.history(&topic).await;
    history.assert_exact();
    history.assert_counted_by(&[&successor]);
    assert_eq!(history.flagged, 20, "taken over from an expired lease");
    let others = world.count("SELECT count(*) FROM outbox.message WHERE id > 20").await;
    assert!(others >= 2000, "a floor had reason to move: {others} rows");
    recovered.record(history.duplicates);
}

/// A claim that returns rows unsent must keep their flag: an earlier owner may have sent them.
#[tokio::test]
async fn unordered_rows_of_a_dead_worker_may_still_have_been_sent_when_the_next_claim_leaves_them_behind() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let rows: Vec<_> = (0..5).map(|_| (None, noise(700_000))).collect();
    world.insert(&topic, &rows).await;
    world.abandon_pending().await;
    // Room for one of them at a time: a claim gives back the others.
    let relay = world.relay().args(&["--tasks", "1", "--max-in-flight-bytes", "1MiB"]);
    let relay = relay.start_ready().await;
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    history.assert_exact();
    assert_eq!(history.flagged, 5, "the dead worker may have sent any of them");
    let uncertain = relay.metric("outboxd_possible_duplicates_total{cause=\"uncertain\"}");
    assert_eq!(uncertain, Some(5.0));
}
