//! A replay that is killed or stopped is run again, and no row is lost or sent twice.

use super::*;

const ROWS: usize = 2_500;

const AT_ONCE: [&str; 2] = ["--rate", "100000"];

/// A replay of three steps, of which two are done.
async fn stopped_before_the_third_step(world: &World, topic: &str, dir: &Path) -> Child {
    let args = [&["--topic", topic], &AT_ONCE[..]].concat();
    let child = start_replay(world, &args, dir, Some("before_chunk:3"));
    failpoint::reached(dir, "before_chunk:3").await;
    child
}

/// Every message was audited once, in one operation.
async fn assert_one_operation(world: &World, rows: usize) {
    let audited = format!(
        "SELECT count(*) = {rows} AND count(DISTINCT row_id) = {rows} AND count(DISTINCT a.operation) = 1
         FROM outbox.audit a, unnest(a.ids) AS audited (row_id)"
    );
    assert!(world.is_true(&audited).await);
    assert_eq!(
        world.count("SELECT count(*) FROM outbox.replay_row").await,
        0,
        "nothing is left"
    );
}

async fn a_killed_replay_continues(on_published: &str) {
    let (world, topic, _relay) = published_world(&["--on-published", on_published], ROWS, 10).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut child = stopped_before_the_third_step(&world, &topic, dir.path()).await;
    child.kill().expect("killed");
    child.wait().expect("gone");
    let args = [&["--topic", topic.as_str()], &AT_ONCE[..]].concat();
    let dry = json_of(&world.outboxd("replay", &[&["--dry-run", "--json"], &args[..]].concat()));
    assert_eq!(dry["matched"], 500, "{dry}");
    let said = replay(&world, &args);
    assert_eq!((&said["changed"], &said["matched"]), (&500.into(), &500.into()));
    assert_eq!(
        (&said["continued"], said["operation"].is_i64()),
        (&said["operation"], true)
    );
    assert_one_operation(&world, ROWS).await;
    world.drained(SOON).await;
    let records = world.records(&topic).await;
    assert_copies(&records, ROWS as u64, |_| 2);
    assert_eq!(assert_repeats_ascend(&records), ROWS);
    world.history(&topic).await.assert_sound();
}

#[tokio::test]
async fn a_replay_of_kept_rows_that_is_killed_in_the_middle_is_run_again() {
    a_killed_replay_continues("keep").await;
}

#[tokio::test]
async fn a_replay_of_the_history_that_is_killed_in_the_middle_is_run_again() {
    a_killed_replay_continues("archive").await;
}

/// Killed wherever it happens to be, and so in transactions, too.
#[tokio::test]
async fn a_replay_that_is_killed_again_and_again_loses_and_doubles_nothing() {
    let (world, topic, _relay) = published_world(&["--on-published", "archive"], ROWS, 10).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let args = ["--topic", &topic, "--rate", "400"];
    for left in [2_200, 1_700, 900] {
        let mut child = start_replay(&world, &args, dir.path(), None);
        let taken = format!("SELECT count(*) BETWEEN 1 AND {left} FROM outbox.replay_row");
        world.until(&taken).await;
        child.kill().expect("killed");
        child.wait().expect("gone");
    }
    replay(&world, &[&["--topic", topic.as_str()], &AT_ONCE[..]].concat());
    assert_one_operation(&world, ROWS).await;
    world.drained(SOON).await;
    assert_copies(&world.records(&topic).await, ROWS as u64, |_| 2);
    let twice = "SELECT count(*) FROM (SELECT message_id FROM outbox.message UNION ALL SELECT message_id FROM outbox.history) m";
    assert_eq!(world.count(twice).await, ROWS as i64, "one row for each message");
}

#[tokio::test]
async fn two_that_run_at_once_share_one_replay() {
    let (world, topic, _relay) = published_world(&[], ROWS, 10).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let first = stopped_before_the_third_step(&world, &topic, dir.path()).await;
    let second = replay(&world, &[&["--topic", topic.as_str()], &AT_ONCE[..]].concat());
    assert_eq!(second["changed"], 500);
    failpoint::continue_from(dir.path(), "before_chunk:3");
    assert_eq!(finished(first, dir.path())["changed"], 2_000);
    let said = std::fs::read_to_string(dir.path().join("log")).expect("a log");
    assert!(
        said.contains("another `outboxd replay` has sent or dropped the last 500"),
        "{said}"
    );
    assert_one_operation(&world, ROWS).await;
    world.drained(SOON).await;
    assert_copies(&world.records(&topic).await, ROWS as u64, |_| 2);
}

#[tokio::test]
async fn a_signal_stops_it_between_two_steps() {
    let (world, topic, _relay) = published_world(&[], ROWS, 10).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let args = ["--topic", &topic, "--rate", "2", "--log-level", "debug"];
    let child = start_replay(&world, &args, dir.path(), None);
    world.until("SELECT count(*) > 1 FROM outbox.audit").await;
    signal("INT", child.id().into());
    let output = child.wait_with_output().expect("it ends");
    let said = std::fs::read_to_string(dir.path().join("log")).expect("a log");
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("the same command again does the rest"), "{said}");
    let stopped: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(stopped["stopped"], true);
    let left = world.count("SELECT count(*) FROM outbox.replay_row").await;
    assert_eq!(left + stopped["changed"].as_i64().expect("a number"), ROWS as i64);
}

#[tokio::test]
async fn another_replay_with_the_same_filter_ends_the_one_that_was_stopped() {
    let (world, topic, _relay) = published_world(&[], ROWS, 10).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut child = stopped_before_the_third_step(&world, &topic, dir.path()).await;
    child.kill().expect("killed");
    child.wait().expect("gone");
    world.drained(SOON).await;
    publish_an_hour_ago(&world).await;
    let args = [&["--topic", topic.as_str(), "--new"], &AT_ONCE[..]].concat();
    let said = replay(&world, &args);
    assert_eq!((&said["changed"], &said["continued"]), (&ROWS.into(), &Value::Null));
    world.drained(SOON).await;
    assert_copies(&world.records(&topic).await, ROWS as u64, |number| {
        if number <= 2_000 { 3 } else { 2 }
    });
    publish_an_hour_ago(&world).await;
    let later = replay(
        &world,
        &[&["--topic", topic.as_str(), "--dry-run"], &AT_ONCE[..]].concat(),
    );
    assert_eq!(
        (&later["matched"], &later["continued"]),
        (&ROWS.into(), &Value::Null),
        "both are over"
    );
}

#[tokio::test]
async fn a_replay_belongs_to_the_login_that_began_it() {
    let (world, topic, _relay) = published_world(&[], 20, 2).await;
    let alice = connect(&world.login("alice", &["outbox_operator"]).await).await;
    let bob = connect(&world.login("bob", &["outbox_operator"]).await).await;
    let begin = format!("SELECT operation FROM outbox.replay_begin(topics => '{{{topic}}}')");
    let operation: i64 = alice.query_one(&begin, &[]).await.expect("begun").get(0);
    let step = format!("SELECT changed FROM outbox.replay_step({operation}, 7)");
    let refused = refusal_of(&bob, &step).await;
    assert_eq!(refused.code().code(), "42501", "{refused}");
    assert_eq!(
        world.count("SELECT count(*) FROM outbox.replay_row").await,
        20,
        "and it changes nothing"
    );
    let changed: i32 = alice.query_one(&step, &[]).await.expect("a step").get(0);
    assert_eq!(changed, 7);
    for wrong in ["replay_step(4711)", "replay_step(1, 0)", "replay_step(1, NULL)"] {
        refusal_of(&alice, &format!("SELECT outbox.{wrong}")).await;
    }
    for hidden in [
        "replay_kept(1, 0, 9, now())",
        "replay_archived(1, 0, 9, now())",
        "replayable(NULL, NULL, NULL, NULL, NULL)",
    ] {
        let refused = refusal_of(&alice, &format!("SELECT outbox.{hidden}")).await;
        assert_eq!(refused.code().code(), "42501", "{hidden}");
    }
    refusal_of(&alice, "DELETE FROM outbox.replay_row").await;
}
