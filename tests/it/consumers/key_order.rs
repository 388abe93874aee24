//! Order per key in the inbox: one at a time, nobody overtaken, nobody forgotten.

use super::*;

#[tokio::test]
async fn of_two_messages_of_a_key_stored_at_once_one_is_at_work_at_a_time() {
    let world = World::new().await;
    let slow = world.session().await;
    slow.batch_execute("BEGIN; SELECT outbox.inbox_receive('c', 's', 'low', '{}', key => 'k')")
        .await
        .expect("stored");
    receive(&world, "high", ", key => 'k'").await;
    let high = claim(&world.db, 10, "1 minute").await["high"];
    slow.batch_execute("COMMIT").await.expect("stored");
    assert!(
        claim(&world.db, 10, "1 minute").await.is_empty(),
        "the other is at work"
    );
    world.execute(&done(high)).await;
    assert_eq!(names(&claim(&world.db, 10, "1 minute").await), ["low"]);
}

#[tokio::test]
async fn messages_of_a_key_are_worked_off_one_after_the_other_and_others_pass() {
    let world = World::new().await;
    for (message, key) in [("1", "a"), ("2", "a"), ("3", "b"), ("4", "a"), ("5", "b")] {
        receive(&world, message, &format!(", key => '{key}', max_attempts => 2")).await;
    }
    receive(&world, "6", "").await;
    let first = claim(&world.db, 10, "1 minute").await;
    assert_eq!(names(&first), ["1", "3", "6"], "the head of each key");
    assert!(claim(&world.db, 10, "1 minute").await.is_empty(), "2, 4 and 5 wait");
    world.execute(&done(first["3"])).await;
    assert_eq!(names(&claim(&world.db, 10, "1 minute").await), ["5"]);
    world.execute(&fail(first["1"])).await;
    let again = claim(&world.db, 10, "1 minute").await;
    assert_eq!(names(&again), ["1"], "nothing overtakes a failed message of its key");
    world.execute(&fail(again["1"])).await;
    assert!(claim(&world.db, 10, "1 minute").await.is_empty(), "nor poison");
    let held = "SELECT blocked = 2 FROM outbox.inbox_poison WHERE consumer = 'c'";
    assert!(world.is_true(held).await);
    let (id, _) = first["1"];
    assert!(world.is_true(&format!("outbox.inbox_discard('c', {id})")).await);
    let next = claim(&world.db, 10, "1 minute").await;
    assert_eq!(names(&next), ["2"]);
    world.execute(&done(next["2"])).await;
    assert_eq!(names(&claim(&world.db, 10, "1 minute").await), ["4"]);
}

#[tokio::test]
async fn a_message_stored_while_its_head_is_being_finished_is_not_forgotten() {
    let world = World::new().await;
    receive(&world, "1", ", key => 'k'").await;
    let worker = world.session().await;
    let head = claim(&worker, 1, "1 minute").await["1"];
    worker
        .batch_execute(&format!("BEGIN; {}", done(head)))
        .await
        .expect("finishing");
    receive(&world, "2", ", key => 'k'").await;
    assert!(
        claim(&world.db, 1, "1 minute").await.is_empty(),
        "its head is unfinished still"
    );
    worker.batch_execute("COMMIT").await.expect("finished");
    assert_eq!(names(&claim(&world.db, 1, "1 minute").await), ["2"]);
}

#[tokio::test]
async fn a_worker_that_finishes_a_head_waits_for_a_message_being_stored_behind_it_and_wakes_it() {
    let world = World::new().await;
    receive(&world, "1", ", key => 'k'").await;
    let worker = world.session().await;
    let head = claim(&worker, 1, "1 minute").await["1"];
    world.execute("BEGIN").await;
    receive(&world, "2", ", key => 'k'").await;
    receive(&world, "3", ", key => 'k'").await;
    let finishing = tokio::spawn(async move { worker.batch_execute(&done(head)).await });
    world.blocked(1).await;
    assert_eq!(
        world
            .count("SELECT count(*) FROM outbox.inbox_message WHERE behind")
            .await,
        2
    );
    world.execute("COMMIT").await;
    finishing.await.expect("ran").expect("finished");
    let next = claim(&world.db, 10, "1 minute").await;
    assert_eq!(names(&next), ["2"]);
    world.execute(&done(next["2"])).await;
    assert_eq!(names(&claim(&world.db, 10, "1 minute").await), ["3"]);
}

#[tokio::test]
async fn a_message_that_the_finisher_of_its_head_could_not_see_is_woken_by_a_later_claim() {
    let world = World::new().await;
    receive(&world, "1", ", key => 'k'").await;
    let worker = world.session().await;
    let head = claim(&worker, 1, "1 minute").await["1"];
    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM outbox.inbox_message";
    worker.batch_execute(snapshot).await.expect("a snapshot");
    receive(&world, "2", ", key => 'k'").await;
    worker
        .batch_execute(&format!("{}; COMMIT", done(head)))
        .await
        .expect("finished");
    assert!(
        world
            .is_true("SELECT behind FROM outbox.inbox_message WHERE message_id = '2'")
            .await
    );
    eventually(SOON, "the message to be claimed", async || {
        claim(&world.db, 1, "1 minute").await.contains_key("2").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_search_for_stranded_messages_is_bounded_and_the_next_one_continues_behind_it() {
    let world = World::new().await;
    // Of two consumers, each key with a message that nobody stands before and one that does stand behind it.
    world
        .execute(
            "INSERT INTO outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, max_attempts, priority, key, behind)
             SELECT 'c' || n % 2, 's', n || place, '\\x01', now(), 1, 0, 'k' || n, true
             FROM generate_series(1, 20) n, unnest('{a,b}'::text[]) place ORDER BY n, place",
        )
        .await;
    let woken = "SELECT count(*) FROM outbox.inbox_message WHERE NOT behind";
    for expected in [8, 16, 20, 20] {
        world.execute("SELECT outbox.inbox_wake_stranded(8)").await;
        assert_eq!(world.count(woken).await, expected);
    }
    let heads = "SELECT bool_and(message_id LIKE '%a' <> behind) FROM outbox.inbox_message";
    assert!(world.is_true(heads).await, "only the first message of its key");
}

#[tokio::test]
async fn a_search_for_stranded_messages_costs_the_same_however_many_keys_wait() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, max_attempts, priority, key, behind)
             SELECT 'c', 's', n::text, '\\x01', now(), 1, 0, 'k' || n, true FROM generate_series(1, 20000) n;
             ANALYZE outbox.inbox_message",
        )
        .await;
    let blocks = cost(&world.db, "SELECT outbox.inbox_wake_stranded(100)", "Shared Hit Blocks").await;
    assert!(blocks < 5000, "{blocks} blocks for a hundred keys");
}

#[tokio::test]
async fn many_waiting_messages_of_one_key_cost_the_others_nothing() {
    let world = World::new().await;
    receive(&world, "head", ", key => 'k'").await;
    world
        .execute(
            "INSERT INTO outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, max_attempts, priority, key, behind)
             SELECT 'c', 's', n::text, '\\x01', now(), 1, 0, 'k', true FROM generate_series(1, 50000) n",
        )
        .await;
    receive(&world, "other", ", key => 'o'").await;
    receive(&world, "last", ", key => 'k'").await;
    assert!(
        world
            .is_true("SELECT behind FROM outbox.inbox_message WHERE message_id = 'last'")
            .await
    );
    let claim_all = "SELECT * FROM outbox.inbox_claim('c', 10)";
    let blocks = cost(&world.db, claim_all, "Shared Hit Blocks").await;
    assert!(blocks < 1000, "{blocks} blocks for two messages");
    let claimed =
        "SELECT string_agg(message_id, ' ' ORDER BY message_id) FROM outbox.inbox_message WHERE claimed_at IS NOT NULL";
    assert_eq!(world.text(claimed).await, "head other");
    let head = world
        .count("SELECT id FROM outbox.inbox_message WHERE message_id = 'head'")
        .await;
    let blocks = cost(&world.db, &done((head, 1)), "Shared Hit Blocks").await;
    assert!(blocks < 1000, "{blocks} blocks to finish one message");
    let next = claim(&world.db, 10, "1 minute").await;
    assert_eq!(names(&next), ["1"]);
}

#[tokio::test]
async fn workers_at_once_keep_the_order_of_every_key() {
    let world = World::new().await;
    world
        .execute(
            "CREATE TABLE log (at bigint GENERATED ALWAYS AS IDENTITY, key text, n integer);
             SELECT outbox.inbox_receive('c', 's', n::text, to_jsonb(n), key => 'k' || n % 5) FROM generate_series(1, 200) n",
        )
        .await;
    let mut sessions = Vec::new();
    for _ in 0..8 {
        let session = world.session().await;
        sessions.push(tokio::spawn(async move {
            let unfinished = "SELECT count(*) FROM outbox.inbox_message WHERE done_at IS NULL";
            while session.query_one(unfinished, &[]).await.expect("a count").get::<_, i64>(0) > 0 {
                for message in claim(&session, 3, "1 minute").await.values() {
                    let work = format!(
                        "BEGIN; INSERT INTO log (key, n) SELECT key, payload::integer FROM outbox.inbox_message WHERE id = {};
                         {}; COMMIT",
                        message.0,
                        done(*message)
                    );
                    session.batch_execute(&work).await.expect("worked");
                }
            }
        }));
    }
    for session in sessions {
        session.await.expect("ran");
    }
    let in_order = "SELECT count(*) = 200 AND bool_and(n > before) FROM (
                        SELECT n, lag(n, 1, 0) OVER (PARTITION BY key ORDER BY at) AS before FROM log) l";
    assert!(world.is_true(in_order).await);
}
