//! The order of replayed rows, and how fast they are sent.

use super::*;

/// The order of each key holds while an application writes rows of the same keys, and a relay is killed in the middle.
async fn replaying_keeps_key_order(on_published: &str) {
    const ROWS: usize = 5_000;
    let args = ["--on-published", on_published];
    let (world, topic, survivor) = published_world(&args, ROWS, 100).await;
    let writer = BackgroundWrites::start(&world, &topic);
    let mut killed = world.relay().args(&args).start_ready().await;
    world.lease_is_renewed_twice().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let rows = format!("1-{ROWS}");
    let command = start_replay(&world, &["--id", &rows, "--rate", "4000"], dir.path(), None);
    world
        .until("SELECT count(*) BETWEEN 1 AND 4000 FROM outbox.replay_row")
        .await;
    killed.kill();
    let _successor = world.relay().args(&args).start_ready().await;
    let said = finished(command, dir.path());
    assert_eq!(said["changed"], ROWS, "{said}");
    writer.stop();
    world.drained(SOON * 2).await;

    let history = world.history(&topic).await;
    history.assert_sound();
    assert_eq!(history.unflagged_duplicates, 0, "each repeat says so");
    assert_eq!(
        survivor.metric("outboxd_rescan_found_rows_total"),
        Some(0.0),
        "not by the safety net"
    );
    assert_eq!(
        assert_repeats_ascend(&world.records(&topic).await),
        ROWS,
        "each arrived again"
    );
}

#[tokio::test]
async fn replaying_kept_rows_under_load_keeps_the_order_of_each_key() {
    replaying_keeps_key_order("keep").await;
}

#[tokio::test]
async fn replaying_the_history_under_load_keeps_the_order_of_each_key() {
    replaying_keeps_key_order("archive").await;
}

/// The rows of the history lie in an order of their own: by the time of publishing, and those of a batch in any order.
#[tokio::test]
async fn rows_of_the_history_are_replayed_in_the_order_of_their_ids() {
    let (world, topic, relay) = published_world(&["--on-published", "archive"], 2_500, 5).await;
    drop(relay);
    world
        .execute(
            "CREATE TABLE shuffled AS SELECT * FROM outbox.history;
             DELETE FROM outbox.history;
             INSERT INTO outbox.history SELECT * FROM shuffled ORDER BY md5(id::text);",
        )
        .await;
    let said = replay(&world, &["--topic", &topic, "--rate", "100000"]);
    assert_eq!(said["changed"], 2_500);
    let steps = "SELECT bool_and(ids[1] > before) FROM (
                     SELECT a.ids, lag(a.ids[cardinality(a.ids)]) OVER (ORDER BY a.id) AS before
                     FROM (SELECT a.id, ARRAY(SELECT i FROM unnest(a.ids) AS i ORDER BY i) AS ids
                           FROM outbox.audit a WHERE a.changed > 0) AS a) AS steps
                 WHERE before IS NOT NULL";
    assert!(world.is_true(steps).await, "each step takes the next ids");
    let _relay = world.relay().args(&["--on-published", "archive"]).start_ready().await;
    world.drained(SOON).await;
    let records = world.records(&topic).await;
    assert_eq!(assert_repeats_ascend(&records), 2_500);
    assert_copies(&records, 2_500, |_| 2);
}

#[tokio::test]
async fn no_more_messages_are_sent_in_a_second_than_the_rate() {
    let (world, topic, _relay) = published_world(&[], 600, 10).await;
    let said = replay(&world, &["--topic", &topic, "--rate", "200"]);
    assert_eq!(
        (&said["changed"], &said["estimated_seconds"]),
        (&600.into(), &3.0.into())
    );
    // The last of six steps is sent after two and a half seconds.
    let between = "SELECT (extract(epoch FROM max(at) - min(at)) * 1000)::bigint FROM outbox.audit WHERE changed > 0";
    let between = world.count(between).await;
    assert!(between >= 2_400, "{between} ms");
    assert_eq!(world.count("SELECT max(changed)::bigint FROM outbox.audit").await, 100);
    world.drained(SOON).await;
    assert_copies(&world.records(&topic).await, 600, |_| 2);
}

/// Where no relay takes them, rows stay in the replay instead of piling up before every claim.
#[tokio::test]
async fn a_replay_waits_for_the_relay_while_ten_thousand_rows_are_due() {
    const ROWS: usize = 12_000;
    let (world, topic, relay) = published_world(&[], ROWS, 100).await;
    drop(relay);
    let dir = tempfile::tempdir().expect("a temporary directory");
    // Twelve steps are enough for all rows, so a thirteenth arrival would not come if nothing were waited for.
    let point = "before_chunk:13";
    let command = start_replay(
        &world,
        &["--topic", &topic, "--rate", "100000"],
        dir.path(),
        Some(point),
    );
    failpoint::reached(dir.path(), point).await;
    assert_eq!(world.pending().await, 10_000);
    assert_eq!(world.count("SELECT count(*) FROM outbox.replay_row").await, 2_000);
    failpoint::continue_from(dir.path(), point);
    let _relay = world.relay().start_ready().await;
    assert_eq!(finished(command, dir.path())["changed"], ROWS);
    world.drained(SOON * 2).await;
    assert_copies(&world.records(&topic).await, ROWS as u64, |_| 2);
}

#[tokio::test]
async fn a_replay_of_rows_without_a_key_sends_each_of_them_again() {
    let (world, topic, relay) = published_world(&[], 500, 0).await;
    assert_eq!(replay(&world, &["--topic", &topic, "--rate", "100000"])["changed"], 500);
    world.drained(SOON).await;
    assert_copies(&world.records(&topic).await, 500, |_| 2);
    let replayed = relay.metric("outboxd_possible_duplicates_total{cause=\"replay\"}");
    assert_eq!(
        (replayed, relay.metric("outboxd_possible_duplicates_total")),
        (Some(500.0), Some(500.0))
    );
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
}

#[tokio::test]
async fn a_replayed_row_is_kept_as_long_as_one_that_was_just_published() {
    let (world, topic, _relay) = published_world(&[], 10, 2).await;
    let said = replay(&world, &["--topic", &topic]);
    world.drained(SOON).await;
    let again = format!(
        "SELECT count(*) FROM outbox.message
         WHERE published_at > now() - interval '1 minute' AND available_at IS NULL AND replayed_by = {}",
        said["operation"]
    );
    assert_eq!(world.count(&again).await, 10);
    let purged = world.outboxd("purge", &["--retention", "1h", "--json"]);
    assert_eq!(json_of(&purged)["rows"]["message"], 0);
}
