//! When a pause is in effect: not before every live worker obeys it with all that it sends.

use std::process::{Child, Stdio};

use super::*;

/// Pauses in the background.
fn pausing(world: &World, args: &[&str]) -> Child {
    outboxd()
        .args([
            "pause",
            "--yes",
            "--database-url",
            &world.database_url,
            "--reason",
            "poison",
            "--json",
        ])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("outboxd starts")
}

async fn stops_at(failpoint: &str, key: Option<&str>) {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    world.insert(&topic, &[(key, b"claimed before".to_vec())]).await;
    // So long that enough of the claim's own lease is left to send the row afterwards.
    let relay = world.relay().args(&["--lease", "15s"]).failpoint(failpoint);
    let relay = relay.start_ready().await;
    relay.at_failpoint(failpoint).await;
    let mut pausing = pausing(&world, &["--topic", &topic]);
    world.until("SELECT count(*) = 1 FROM outbox.pause").await;
    // Long enough to hear of it and to say so.
    eventually(SOON, "the relay to know of the pause", async || {
        relay.metric("outboxd_pauses").filter(|pauses| *pauses == 1.0)
    })
    .await;
    world.lease_is_renewed_twice().await;
    assert!(
        pausing.try_wait().expect("asked").is_none(),
        "a batch is in flight that does not obey"
    );
    relay.continue_from(failpoint);
    let said = pausing.wait_with_output().expect("it ends");
    assert!(said.status.success(), "{}", stderr_of(&said));
    assert_eq!(world.records(&topic).await.len(), 1, "it was claimed before");
    world.insert(&topic, &[(key, b"written afterwards".to_vec())]).await;
    held_everywhere(&world, &topic).await;
    assert_eq!(world.records(&topic).await.len(), 1);
    resume(&world, &["--topic", &topic]);
    assert_nothing_happened(&world, &[&topic], &[&relay]).await;
}

#[tokio::test]
async fn a_pause_is_not_in_effect_while_a_batch_is_in_flight_that_was_claimed_before() {
    stops_at("after_claim", Some("k")).await;
}

#[tokio::test]
async fn nor_while_such_a_batch_of_unordered_rows_is() {
    stops_at("after_claim_unordered", None).await;
}

#[tokio::test]
async fn a_pause_is_not_in_effect_while_the_head_of_a_hold_is_being_sent() {
    let world = World::new().await;
    let missing = format!("{}.missing", world.name);
    let relay = world.relay().failpoint("after_head_sent").start_ready().await;
    world.insert(&missing, &[(Some("k"), b"{}".to_vec())]).await;
    world.held(1).await;
    assert_eq!(world.topic("missing", 1, &[]).await, missing);
    relay.at_failpoint("after_head_sent").await;
    let mut pausing = pausing(&world, &["--topic", &missing]);
    world.until("SELECT count(*) = 1 FROM outbox.pause").await;
    eventually(SOON, "the relay to know of the pause", async || {
        relay.metric("outboxd_pauses").filter(|pauses| *pauses == 1.0)
    })
    .await;
    world.lease_is_renewed_twice().await;
    assert!(pausing.try_wait().expect("asked").is_none(), "it is still being sent");
    relay.continue_from("after_head_sent");
    let said = pausing.wait_with_output().expect("it ends");
    assert!(said.status.success(), "{}", stderr_of(&said));
}

#[tokio::test]
async fn a_worker_that_does_not_answer_is_named_and_then_waited_for_no_longer_than_its_lease() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let silent = world.relay().args(&["--worker-name", "relay-2"]).start_ready().await;
    world.until("SELECT count(*) = 1 FROM outbox.worker").await;
    silent.signal("STOP");
    let impatient = [
        "--yes",
        "--timeout",
        "1s",
        "--reason",
        "poison",
        "--topic",
        topic.as_str(),
    ];
    let output = world.outboxd("pause", &impatient);
    assert_eq!(output.status.code(), Some(69), "{}", stderr_of(&output));
    assert!(stderr_of(&output).contains("relay-2"), "{}", stderr_of(&output));
    assert_eq!(
        world.count("SELECT count(*) FROM outbox.pause").await,
        1,
        "it is stored"
    );
    let said = pause(&world, &["--topic", &topic]);
    assert_eq!((&said["workers"], &said["changed"]), (&0.into(), &0.into()), "{said}");
    world.fill(&topic, 10, 2).await;
    silent.signal("CONT");
    held_everywhere(&world, &topic).await;
    assert_eq!(world.records(&topic).await.len(), 0);
}

#[tokio::test]
async fn nothing_is_paused_while_a_worker_runs_that_does_not_know_pauses() {
    let world = World::new().await;
    let relay = world.relay().args(&["--worker-name", "relay-3"]).start_ready().await;
    world.until("SELECT count(*) = 1 FROM outbox.worker").await;
    world.execute("UPDATE outbox.worker SET knows = 3").await;
    let output = world.outboxd("pause", &["--all", "--yes", "--reason", "poison"]);
    assert_eq!(output.status.code(), Some(69), "{}", stderr_of(&output));
    for words in ["relay-3", "nothing was paused", "Finish the rollout"] {
        assert!(stderr_of(&output).contains(words), "{words}: {}", stderr_of(&output));
    }
    assert_eq!(world.count("SELECT count(*) FROM outbox.pause").await, 0);
    assert_eq!(world.count("SELECT version FROM outbox.pause_version").await, 0);
    drop(relay);
}
