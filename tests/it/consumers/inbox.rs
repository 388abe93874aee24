//! The inbox: what is stored is claimed, by one worker at a time, and finished by the worker that has it.

use super::*;

#[tokio::test]
async fn what_is_received_is_what_is_claimed() {
    let world = World::new().await;
    let received =
        "outbox.inbox_receive('c', 's', 'm', '{\"n\": 1}', key => 'k', event_type => 'E', headers => '{\"h\": \"v\"}')";
    assert!(world.is_true(received).await);
    assert!(!world.is_true(received).await, "known");
    let claimed = "SELECT (source, message_id, key, event_type, headers, payload, payload_bytes, token, attempt)
                        IS NOT DISTINCT FROM
                          ('s', 'm', 'k', 'E', '{\"h\": \"v\"}'::jsonb, '{\"n\": 1}'::jsonb, NULL::bytea, 1, 1)
                   AND lease_until BETWEEN clock_timestamp() + interval '50 s' AND clock_timestamp() + interval '1 min'
                   FROM outbox.inbox_claim('c')";
    assert!(world.is_true(claimed).await);
    assert!(!world.is_true(received).await, "known while it is worked on");
}

#[tokio::test]
async fn sessions_that_claim_at_once_get_different_messages_and_every_one_of_them() {
    let world = World::new().await;
    world
        .execute("SELECT outbox.inbox_receive('c', 's', n::text, '{}') FROM generate_series(1, 400) n")
        .await;
    let mut sessions = Vec::new();
    for _ in 0..8 {
        let session = world.session().await;
        sessions.push(tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let claimed = claim(&session, 7, "1 minute").await;
                assert!(claimed.len() <= 7);
                if claimed.is_empty() {
                    return mine;
                }
                for message in claimed.values() {
                    session.batch_execute(&done(*message)).await.expect("done");
                }
                mine.extend(claimed.into_keys());
            }
        }));
    }
    let mut all = Vec::new();
    for session in sessions {
        all.extend(session.await.expect("ran"));
    }
    assert_eq!(all.len(), 400);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 400, "nothing was claimed twice");
}

#[tokio::test]
async fn a_claim_under_way_is_passed_over_not_waited_for() {
    let world = World::new().await;
    receive(&world, "m1", "").await;
    receive(&world, "m2", "").await;
    world.execute("BEGIN").await;
    assert_eq!(claim(&world.db, 1, "1 minute").await.len(), 1);
    let second = world.session().await;
    assert_eq!(names(&claim(&second, 10, "1 minute").await), ["m2"]);
    world.execute("ROLLBACK").await;
    assert_eq!(
        names(&claim(&second, 10, "1 minute").await),
        ["m1"],
        "a claim rolled back is none"
    );
}

#[tokio::test]
async fn a_worker_whose_lease_was_taken_is_refused_and_changes_nothing() {
    let world = world_with_effects().await;
    receive(&world, "m1", "").await;
    let zombie = world.session().await;
    let old = claim(&zombie, 1, "1 ms").await["m1"];
    world.until(DUE).await;
    let new = claim(&world.db, 1, "1 minute").await["m1"];
    assert_eq!(new, (old.0, old.1 + 1));
    zombie
        .batch_execute("BEGIN; INSERT INTO effect VALUES ('of the zombie')")
        .await
        .expect("its work");
    assert_eq!(refusal(&zombie, &done(old)).await, "P4010");
    zombie.batch_execute("ROLLBACK").await.expect("ended");
    assert_eq!(refusal(&zombie, &fail(old)).await, "P4011");
    world.execute(&done(new)).await;
    assert_eq!(refusal(&zombie, &done(old)).await, "P4010");
    assert_eq!(refusal(&zombie, &fail(old)).await, "P4011");
    assert_eq!(world.count(EFFECTS).await, 0);
    assert!(
        world
            .is_true("SELECT done_at IS NOT NULL AND last_error IS NULL FROM outbox.inbox_message")
            .await
    );
}

#[tokio::test]
async fn a_worker_that_did_not_hear_the_answer_may_say_done_again() {
    let world = World::new().await;
    receive(&world, "m1", "").await;
    let (id, token) = claim(&world.db, 1, "1 minute").await["m1"];
    let paid = format!("outbox.inbox_done({id}, {token}, 'paid')");
    assert!(world.is_true(&paid).await, "done now");
    let row = "SELECT m::text FROM outbox.inbox_message m";
    let before = world.text(row).await;
    assert!(!world.is_true(&paid).await, "done before");
    for other in [
        format!("SELECT outbox.inbox_done({id}, {token})"),
        format!("SELECT outbox.inbox_done({id}, {token}, 'refused')"),
        format!("SELECT outbox.inbox_done({id}, {}, 'paid')", token - 1),
        format!("SELECT outbox.inbox_done({id}, {}, 'paid')", token + 1),
    ] {
        assert_eq!(refusal(&world.db, &other).await, "P4010", "{other}");
    }
    assert_eq!(world.text(row).await, before);
}

#[tokio::test]
async fn a_worker_extends_its_lease_while_it_is_the_latest_and_never_shortens_it() {
    let world = World::new().await;
    receive(&world, "m1", "").await;
    let application = connect(&world.login("application", &["outbox_producer"]).await).await;
    let (id, token) = claim(&application, 1, "200 ms").await["m1"];
    let heartbeat = |lease: &str| format!("SELECT outbox.inbox_heartbeat({id}, {token}, '{lease}')");
    application.batch_execute(&heartbeat("1 hour")).await.expect("its own");
    let until = "SELECT next_attempt_at > clock_timestamp() + interval '59 minutes' FROM outbox.inbox_message";
    assert!(world.is_true(until).await);
    application.batch_execute(&heartbeat("1 s")).await.expect("its own");
    assert!(world.is_true(until).await, "never shorter");
    assert!(
        claim(&world.db, 1, "1 minute").await.is_empty(),
        "it is being worked on"
    );

    world
        .execute("UPDATE outbox.inbox_message SET next_attempt_at = clock_timestamp()")
        .await;
    assert_eq!(claim(&world.db, 1, "1 minute").await["m1"].1, token + 1);
    assert_eq!(refusal(&application, &heartbeat("1 hour")).await, "P4012", "taken over");
    world.execute(&done((id, token + 1))).await;
    assert_eq!(refusal(&application, &heartbeat("1 hour")).await, "P4012", "done");
}

#[tokio::test]
async fn a_claim_answers_in_the_order_of_priority_and_due_time() {
    let world = World::new().await;
    for (message, priority, due) in [
        ("third", 0, 1),
        ("second", 0, 2),
        ("fifth", -1, 9),
        ("first", 5, 0),
        ("fourth", 0, 0),
    ] {
        let rest = format!(", priority => {priority}, not_before => clock_timestamp() - interval '{due} hours'");
        receive(&world, message, &rest).await;
    }
    let order = "SELECT string_agg(message_id, ' ') FROM outbox.inbox_claim('c')";
    assert_eq!(world.text(order).await, "first second third fourth fifth");
}

#[tokio::test]
async fn a_message_taken_over_from_a_worker_that_died_is_counted() {
    let world = World::new().await;
    receive(&world, "m1", ", max_attempts => 2").await;
    receive(&world, "m2", "").await;
    let counted = "SELECT taken_over FROM outbox.consumer_counters";
    let first = claim(&world.db, 10, "1 ms").await;
    world.execute(&fail(first["m2"])).await;
    world.until(DUE).await;
    assert_eq!(world.count(counted).await, 0);
    assert_eq!(names(&claim(&world.db, 10, "1 ms").await), ["m1", "m2"]);
    assert_eq!(world.count(counted).await, 1, "what has failed is no takeover");
    world
        .until("SELECT count(*) = 2 FROM outbox.inbox_message WHERE next_attempt_at <= clock_timestamp()")
        .await;
    assert_eq!(names(&claim(&world.db, 10, "1 minute").await), ["m2"]);
    assert_eq!(
        world.count(counted).await,
        3,
        "what is poison now was taken over as well"
    );
}

#[tokio::test]
async fn a_lease_of_a_day_has_24_hours_whatever_the_calendar_says() {
    let world = World::new().await;
    receive(&world, "m1", "").await;
    // By the calendar this is less than nothing in a short month, and more than a day in a long one.
    world
        .execute("CREATE TABLE lease AS SELECT id, lease_until FROM outbox.inbox_claim('c', 1, '1 month -29 days')")
        .await;
    let exact = "SELECT lease_until - claimed_at = interval '24 hours' FROM lease JOIN outbox.inbox_message USING (id)";
    assert!(world.is_true(exact).await);
}

#[tokio::test]
async fn a_worker_that_meets_its_successor_in_the_act_waits_and_is_refused() {
    let world = World::new().await;
    receive(&world, "m1", "").await;
    let zombie = world.session().await;
    let old = claim(&zombie, 1, "1 ms").await["m1"];
    world.until(DUE).await;
    world.execute("BEGIN").await;
    assert_eq!(claim(&world.db, 1, "1 minute").await["m1"].1, old.1 + 1);
    let waiting = tokio::spawn(async move { refusal(&zombie, &done(old)).await });
    world.blocked(1).await;
    world.execute("COMMIT").await;
    assert_eq!(waiting.await.expect("ran"), "P4010");
}

#[tokio::test]
async fn a_late_worker_that_nobody_replaced_may_still_finish() {
    let world = World::new().await;
    receive(&world, "m1", "").await;
    let late = claim(&world.db, 1, "1 ms").await["m1"];
    world.until(DUE).await;
    world.execute("BEGIN").await;
    world.execute(&done(late)).await;
    let second = world.session().await;
    assert!(claim(&second, 1, "1 minute").await.is_empty(), "being finished");
    world.execute("COMMIT").await;
    assert!(claim(&second, 1, "1 minute").await.is_empty());
}

#[tokio::test]
async fn a_message_of_a_crashed_worker_is_claimed_again_when_its_lease_has_run_out() {
    let world = world_with_effects().await;
    receive(&world, "m1", "").await;
    let worker = world.session().await;
    let pid: i32 = worker
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .expect("a pid")
        .get(0);
    let old = claim(&worker, 1, "2 s").await["m1"];
    worker
        .batch_execute("BEGIN; INSERT INTO effect VALUES ('half done')")
        .await
        .expect("its work");
    world.execute(&format!("SELECT pg_terminate_backend({pid})")).await;
    assert!(
        claim(&world.db, 1, "1 minute").await.is_empty(),
        "the lease is not over"
    );
    world.until(DUE).await;
    let new = claim(&world.db, 1, "1 minute").await["m1"];
    assert_eq!(new.1, old.1 + 1);
    assert_eq!(world.count(EFFECTS).await, 0);
}

#[tokio::test]
async fn higher_priority_goes_first_and_a_message_waits_for_its_time() {
    let world = World::new().await;
    receive(&world, "low", ", priority => -1").await;
    receive(&world, "plain", "").await;
    receive(&world, "high", ", priority => 5").await;
    receive(
        &world,
        "later",
        ", priority => 9, not_before => clock_timestamp() + interval '1 hour'",
    )
    .await;
    for expected in ["high", "plain", "low"] {
        assert_eq!(names(&claim(&world.db, 1, "1 minute").await), [expected]);
    }
    assert!(claim(&world.db, 1, "1 minute").await.is_empty());
    world
        .execute("UPDATE outbox.inbox_message SET next_attempt_at = now() WHERE message_id = 'later'")
        .await;
    assert_eq!(names(&claim(&world.db, 1, "1 minute").await), ["later"]);
}

#[tokio::test]
async fn a_claim_does_not_pay_for_what_is_done() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, done_at, max_attempts, priority)
             SELECT 'c', 's', 'old' || n, '\\x01', now(), now(), 1, 0 FROM generate_series(1, 100000) n;
             SELECT outbox.inbox_receive('c', 's', 'new' || n, '{}', key => 'k' || n) FROM generate_series(1, 10) n",
        )
        .await;
    let blocks = cost(
        &world.db,
        "SELECT * FROM outbox.inbox_claim('c', 10)",
        "Shared Hit Blocks",
    )
    .await;
    assert!(
        blocks < 1000,
        "{blocks} blocks for ten messages: the table has some 2,000"
    );
    let claimed = "SELECT count(*) FROM outbox.inbox_message WHERE claimed_at IS NOT NULL";
    assert_eq!(world.count(claimed).await, 10);
}
