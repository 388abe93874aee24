//! What was in flight is written down: of what a dead worker may have sent its successor flags those rows, and hardly any other.

use testkit::*;

/// Small batches in a deep backlog: what is in flight is a small part of what is pending.
fn small_batches(world: &World) -> RelayBuilder {
    world.relay().args(&["--tasks", "2", "--batch-rows", "100"])
}

/// Kills a worker that has stopped with rows in flight; answers how many those were.
fn killed_in_flight(mut dying: Relay) -> usize {
    let in_flight = dying.metric("outboxd_in_flight_rows").expect("it lives") as usize;
    assert!(in_flight > 0, "something is in flight");
    dying.kill();
    in_flight
}

/// Every row that came again says so, and no more than three times as many as were in flight.
fn assert_flagged_few(history: &History, in_flight: usize) {
    history.assert_sound();
    let (duplicates, flagged) = (history.duplicates, history.flagged);
    println!("{in_flight} in flight, {duplicates} duplicates, {flagged} flagged");
    assert_eq!(history.unflagged_duplicates, 0, "a duplicate is flagged");
    assert!(flagged <= 3 * in_flight, "{flagged} flagged of {in_flight} in flight");
}

#[tokio::test]
async fn after_a_kill_in_a_deep_backlog_only_what_was_in_flight_is_flagged() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 20_000, 500).await;
    let dying = small_batches(&world).failpoint("delivery_report:500").start();
    dying.at_failpoint("delivery_report:500").await;
    let in_flight = killed_in_flight(dying);
    let _successor = world.relay().start_ready().await;
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    assert!(
        history.duplicates > 0,
        "what was acknowledged and not marked came again"
    );
    assert_flagged_few(&history, in_flight);
}

#[tokio::test]
async fn after_a_kill_under_a_steady_load_only_what_was_in_flight_is_flagged() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let writes = BackgroundWrites::start(&world, &topic);
    let dying = small_batches(&world).failpoint("delivery_report:300").start();
    dying.at_failpoint("delivery_report:300").await;
    let in_flight = killed_in_flight(dying);
    let _successor = world.relay().start_ready().await;
    world.until("SELECT count(*) > 2000 FROM outbox.message").await;
    writes.stop();
    world.drained(SOON).await;
    assert_flagged_few(&world.history(&topic).await, in_flight);
}

#[tokio::test]
async fn a_hold_that_outlives_a_deploy_flags_no_row_of_another_topic() {
    let fault = Fault::new(
        63,
        "a hold lives in a lane while its owner is killed and the next one deployed",
        "no row of another topic is flagged",
    );
    let world = World::new().await;
    let healthy = world.topic("healthy", 1, &[]).await;
    let missing = format!("{}.missing", world.name);
    let mut dying = world.relay().start_ready().await;
    let held = world.insert(&missing, &[(Some("k"), b"x".to_vec())]).await;
    world.held(1).await;
    dying.kill();
    let over = fault.over();
    let rows: Vec<_> = (0..50u8).map(|n| (Some("k"), vec![n])).collect();
    for _ in 0..2 {
        let mut deployed = world.relay().start_ready().await;
        for id in world.insert(&healthy, &rows).await {
            world.published(id).await;
        }
        assert_eq!(world.pending().await, 1, "the held one");
        deployed.stop();
    }
    let history = world.history(&healthy).await;
    history.assert_exact();
    assert_eq!(history.flagged, 0);
    world
        .execute(&format!("DELETE FROM outbox.message WHERE id = {}", held[0]))
        .await;
    over.until_drained(&world).await.record(history.duplicates);
}

/// A server whose worker has sent a batch and marked none of it, and stands still; the server has crashed since, and lost the record of that.
async fn crashed_without_the_record() -> (OwnPostgres, World, String, Relay) {
    let postgres = OwnPostgres::start();
    let mut world = World::on(&postgres.url, &Stack::get().kafka).await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 500, 50).await;
    let relay = small_batches(&world).args(&["--lease", "20s"]);
    let relay = relay.failpoint("after_publish").failpoint("before_renew:2").start();
    relay.at_failpoint("after_publish").await;
    relay.at_failpoint("before_renew:2").await;
    assert!(
        world.count("SELECT count(*) FROM outbox.in_flight").await > 0,
        "a batch is in flight"
    );
    postgres.crash();
    postgres.restart();
    world.db = world.session().await;
    // As where it had not reached the disk: nobody waits for that.
    world.execute("DELETE FROM outbox.in_flight").await;
    (postgres, world, topic, relay)
}

#[tokio::test]
async fn what_a_crash_of_the_server_lost_of_the_records_is_written_again_by_a_process_that_lives() {
    let (_postgres, world, topic, relay) = crashed_without_the_record().await;
    relay.continue_from("after_publish");
    relay.continue_from("before_renew:2");
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    history.assert_counted_by(&[&relay]);
    assert!(history.duplicates > 0, "its marks were refused");
    assert!(
        history.flagged < 500,
        "it knows which: {} of 500 are flagged",
        history.flagged
    );
}

#[tokio::test]
async fn everything_may_have_been_sent_where_the_server_crashed_and_no_process_is_left_to_say() {
    let (_postgres, world, topic, mut relay) = crashed_without_the_record().await;
    relay.kill();
    let successor = world.relay().start_ready().await;
    world.drained(SOON + SOON).await;
    let history = world.history(&topic).await;
    history.assert_counted_by(&[&successor]);
    assert!(history.duplicates > 0, "none of it was marked");
}
