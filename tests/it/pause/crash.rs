//! A pause outlives the process that set it and those that obey it.

use std::process::Stdio;

use super::*;

#[tokio::test]
async fn a_pause_outlives_the_workers_that_knew_it_and_a_takeover() {
    let world = World::new().await;
    let paused = world.topic("paused", 2, &[]).await;
    let other = world.topic("other", 2, &[]).await;
    let mut first = world.relay().start_ready().await;
    pause(&world, &["--topic", &paused]);
    for topic in [&paused, &other] {
        world.fill(topic, 100, 10).await;
        world.fill(topic, 20, 0).await;
    }
    published(&world, &other, 120).await;
    held_everywhere(&world, &paused).await;
    let second = world.relay().start_ready().await;
    first.kill();
    eventually(SOON, "the other worker to take the lanes", async || {
        second.metric("outboxd_lanes_owned").filter(|owned| *owned == 64.0)
    })
    .await;
    for topic in [&paused, &other] {
        world.fill(topic, 100, 10).await;
        world.fill(topic, 20, 0).await;
    }
    published(&world, &other, 240).await;
    assert_eq!(world.records(&paused).await.len(), 0);
    assert_eq!(second.metric("outboxd_pauses"), Some(1.0));
    resume(&world, &["--topic", &paused]);
    world.drained(SOON).await;
    world.held(0).await;
    let history = world.history(&paused).await;
    history.assert_exact();
    assert_eq!(history.flagged, 0, "nobody had sent any of it");
    assert_eq!(second.metric("outboxd_rescan_found_rows_total"), Some(0.0));
}

/// Unordered rows are claimed as soon as a worker is registered, before its first renewal.
#[tokio::test]
async fn a_worker_that_starts_obeys_from_its_first_claim_on() {
    let world = World::new().await;
    let paused = world.topic("paused", 1, &[]).await;
    let other = world.topic("other", 1, &[]).await;
    let said = pause(&world, &["--topic", &paused]);
    assert_eq!(said["workers"], 0, "{said}");
    world.fill(&paused, 50, 0).await;
    world.fill(&other, 50, 0).await;
    let relay = world.relay().failpoint("before_renew").start_ready().await;
    relay.at_failpoint("before_renew").await;
    published(&world, &other, 50).await;
    assert_eq!(world.records(&paused).await.len(), 0);
    relay.continue_from("before_renew");
    resume(&world, &["--topic", &paused]);
    assert_nothing_happened(&world, &[&paused, &other], &[&relay]).await;
}

#[tokio::test]
async fn a_pause_takes_effect_although_who_asked_for_it_is_killed() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let relay = world.relay().failpoint("before_renew").start_ready().await;
    relay.at_failpoint("before_renew").await;
    let mut asking = outboxd()
        .args([
            "pause",
            "--yes",
            "--database-url",
            &world.database_url,
            "--topic",
            &topic,
        ])
        .args(["--reason", "broken consumer"])
        .stdout(Stdio::null())
        .spawn()
        .expect("outboxd starts");
    world.until("SELECT count(*) = 1 FROM outbox.pause").await;
    asking.kill().expect("it is killed");
    asking.wait().expect("it ends");
    relay.continue_from("before_renew");
    world
        .until(
            "SELECT w.pauses_seen = v.version FROM outbox.worker w, outbox.pause_version v
             WHERE w.stopped_at IS NULL AND w.lease_until > clock_timestamp()",
        )
        .await;
    world.fill(&topic, 10, 2).await;
    held_everywhere(&world, &topic).await;
    assert_eq!(world.records(&topic).await.len(), 0);
    resume(&world, &["--topic", &topic]);
    assert_nothing_happened(&world, &[&topic], &[&relay]).await;
}

#[tokio::test]
async fn rows_that_a_dead_worker_had_sent_wait_and_say_so_when_they_come_again() {
    let world = World::new().await;
    let topic = world.topic("orders", 2, &[]).await;
    world.fill(&topic, 40, 4).await;
    // One batch at a time: another would still be on its way when the records are counted.
    let mut dying = world.relay().args(&["--tasks", "1"]).failpoint("after_publish").start();
    dying.at_failpoint("after_publish").await;
    let sent = world.records(&topic).await.len();
    assert!(
        sent > 0 && world.pending().await == 40,
        "{sent} were sent, none is marked"
    );
    told(&world, "pause", &["--topic", &topic, "--reason", "poison", "--no-wait"]);
    dying.kill();
    let mut first = world.relay().start_ready().await;
    held_everywhere(&world, &topic).await;
    assert_eq!(world.records(&topic).await.len(), sent);
    // What may have been sent is handed over once more, and known all the same.
    first.stop();
    let second = world.relay().start_ready().await;
    resume(&world, &["--topic", &topic]);
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    history.assert_duplicates_at_most(40);
    assert!(history.duplicates >= sent, "all of them came again");
    history.assert_counted_by(&[&second]);
    world.assert_nobody_blamed().await;
}

/// A relay that has not heard of the resume adds a hold at most, which is due at once.
#[tokio::test]
async fn a_relay_that_has_not_heard_of_a_resume_strands_nothing() {
    let world = World::new().await;
    let topic = world.topic("orders", 2, &[]).await;
    // Who is stopped there does not renew: the lease must outlast it.
    let builder = || world.relay().args(&["--lease", "40s"]);
    let stale = builder().failpoint("before_renew").start_ready().await;
    stale.at_failpoint("before_renew").await;
    stale.continue_from("before_renew");
    let fresh = builder().start_ready().await;
    eventually(SOON.saturating_mul(2), "both to share the lanes", async || {
        (world.lanes_per_worker().await == [32, 32]).then_some(())
    })
    .await;
    pause(&world, &["--topic", &topic]);
    stale.stop_again_at("before_renew");
    stale.at_failpoint("before_renew").await;
    let said = told(&world, "resume", &["--topic", &topic, "--no-wait"]);
    assert_eq!(said["in_effect"], false, "{said}");
    let resumed = "SELECT count(*) = 1 FROM outbox.worker w, outbox.pause_version v WHERE w.pauses_seen = v.version";
    world.until(resumed).await;
    world.fill(&topic, 400, 100).await;
    world.fill(&topic, 50, 0).await;
    world
        .until("SELECT count(*) > 0 FROM outbox.hold WHERE lane >= 0")
        .await;
    assert!(world.pending().await > 0, "it holds what it has");
    stale.continue_from("before_renew");
    assert_nothing_happened(&world, &[&topic], &[&stale, &fresh]).await;
}
