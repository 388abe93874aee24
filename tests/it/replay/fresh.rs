//! What was published just now: a worker may still repeat its mark.

use super::*;

/// Makes what a replay has noted old enough, and kept rows with it. Rows of the history stay in their places.
async fn let_a_minute_pass(world: &World) {
    world
        .execute(
            "BEGIN;
             UPDATE outbox.replay_row SET published_at = published_at - interval '1 minute';
             UPDATE outbox.message SET published_at = published_at - interval '1 minute' WHERE published_at IS NOT NULL;
             COMMIT",
        )
        .await;
}

#[tokio::test]
async fn a_row_that_was_published_just_now_waits_with_all_rows_behind_it() {
    for on_published in ["keep", "archive"] {
        let (world, topic, mut relay) = published_world(&["--on-published", on_published], 30, 3).await;
        relay.stop();
        for table in ["message", "history"] {
            let fresh = format!("UPDATE outbox.{table} SET published_at = clock_timestamp() WHERE id = 11");
            world.execute(&fresh).await;
        }
        let begin = format!("SELECT operation FROM outbox.replay_begin(topics => '{{{topic}}}')");
        let operation = world.count(&begin).await;
        let step = format!(
            "SELECT changed || ' ' || gone || ' ' || (wait > interval '30 s') || ' ' || finished FROM outbox.replay_step({operation})"
        );
        assert_eq!(world.text(&step).await, "10 0 true false");
        assert_eq!(world.text(&step).await, "0 0 true false");
        let_a_minute_pass(&world).await;
        assert_eq!(world.text(&step).await, "20 0 false true");
    }
}

/// It may come back and repeat a mark, however long ago that was.
#[tokio::test]
async fn a_row_waits_while_a_worker_that_owns_lanes_is_cut_off() {
    let (world, topic, relay) = published_world(&[], 30, 3).await;
    drop(relay);
    world
        .execute("UPDATE outbox.worker SET renewed_at = renewed_at - interval '2 hours'")
        .await;
    let begin = format!("SELECT operation FROM outbox.replay_begin(topics => '{{{topic}}}')");
    let operation = world.count(&begin).await;
    let step = format!("SELECT changed || ' ' || gone || ' ' || finished FROM outbox.replay_step({operation})");
    assert_eq!(world.text(&step).await, "0 0 false");
    world
        .execute("UPDATE outbox.lane SET owner = NULL, epoch = epoch + 1 WHERE lane >= 0")
        .await;
    assert_eq!(world.text(&step).await, "30 0 true", "nobody's mark counts any more");
}

/// A mark commits, and its answer does not arrive. Before the worker repeats the mark, an operator replays the rows. Were they
/// pending again by then, they would be marked and never sent.
#[tokio::test]
async fn a_mark_that_is_repeated_swallows_no_replayed_row() {
    const MARK: &str = "SET published_at = clock_timestamp(), available_at = NULL\nWHERE id = ANY ($5::bigint[])";
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let proxy = Proxy::to_postgres(&world.database_url);
    let _relay = world.relay_through(&proxy).start_ready().await;
    proxy.spoil_answer(MARK, Answer::Silenced);
    world.fill(&topic, 10, 1).await;
    proxy.spoiled().await;
    world.drained(SOON).await;
    let marks = proxy.times_executed(MARK);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let command = start_replay(&world, &["--topic", &topic], dir.path(), None);
    eventually(SOON, "the mark to be repeated", async || {
        (proxy.times_executed(MARK) > marks).then_some(())
    })
    .await;
    let_a_minute_pass(&world).await;
    assert_eq!(finished(command, dir.path())["changed"], 10);
    world.drained(SOON).await;
    assert_copies(&world.records(&topic).await, 10, |_| 2);
}
