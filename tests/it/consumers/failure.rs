//! Failure in the inbox: the wait after it, poison, and the way back.

use super::*;

#[tokio::test]
async fn a_message_is_poison_after_its_last_attempt_and_replay_gives_it_all_its_attempts_again() {
    let world = World::new().await;
    receive(&world, "m1", ", max_attempts => 3").await;
    for round in 1..=2 {
        for attempt in 1..=3 {
            let claimed = claim(&world.db, 1, "1 minute").await["m1"];
            assert_eq!(claimed.1, (round - 1) * 3 + attempt, "the token never goes back");
            let again = format!("{} IS NOT NULL", fail(claimed).trim_start_matches("SELECT "));
            assert_eq!(world.is_true(&again).await, attempt < 3, "attempt {attempt}");
        }
        assert!(claim(&world.db, 1, "1 minute").await.is_empty(), "poison");
        assert_eq!(
            world
                .text("SELECT messages || ' ' || latest_error FROM outbox.inbox_poison WHERE consumer = 'c'")
                .await,
            "1 boom"
        );
        assert_eq!(world.count("SELECT outbox.inbox_replay('other')").await, 0);
        assert_eq!(world.count("SELECT outbox.inbox_replay('c')").await, 1);
        assert_eq!(
            world.count("SELECT outbox.inbox_replay('c')").await,
            0,
            "it is no poison now"
        );
    }
    let claimed = claim(&world.db, 1, "1 minute").await["m1"];
    world.execute(&done(claimed)).await;
    assert_eq!(
        world.count("SELECT outbox.inbox_replay('c')").await,
        0,
        "nor when it is done"
    );
}

#[tokio::test]
async fn a_message_that_kills_every_worker_becomes_poison_too() {
    let world = World::new().await;
    receive(&world, "m1", ", max_attempts => 2").await;
    let mut last = (0, 0);
    for _ in 0..2 {
        world.until(DUE).await;
        last = claim(&world.db, 1, "1 ms").await["m1"];
    }
    world.until(DUE).await;
    assert!(claim(&world.db, 1, "1 minute").await.is_empty());
    assert!(
        world
            .is_true("SELECT poison_at IS NOT NULL AND last_error LIKE '%lease%' FROM outbox.inbox_message")
            .await
    );
    assert_eq!(refusal(&world.db, &done(last)).await, "P4010");
    world.execute("SELECT outbox.inbox_replay('c')").await;
    assert_eq!(
        refusal(&world.db, &done(last)).await,
        "P4010",
        "a token of its former life"
    );
}

#[tokio::test]
async fn a_failure_for_good_is_poison_at_once_and_can_be_discarded() {
    let world = World::new().await;
    receive(&world, "m1", "").await;
    let (id, token) = claim(&world.db, 1, "1 minute").await["m1"];
    let discard = format!("outbox.inbox_discard('c', {id}, 'not ours')");
    assert!(!world.is_true(&discard).await, "it is not poison");
    let poisoned = format!("outbox.inbox_fail({id}, {token}, 'no such customer', retryable => false) IS NULL");
    assert!(world.is_true(&poisoned).await);
    assert!(world.is_true(&discard).await);
    assert!(
        world
            .is_true("SELECT done_at IS NOT NULL AND outcome = 'discarded: not ours' FROM outbox.inbox_message")
            .await
    );
}

#[tokio::test]
async fn the_wait_after_a_failure_doubles_up_to_a_limit_and_is_jittered() {
    let world = World::new().await;
    world
        .execute(
            "SELECT outbox.inbox_receive('c', 's', n::text, '{}', max_attempts => 1000) FROM generate_series(1, 20) n",
        )
        .await;
    for (attempts, seconds) in [(1, 1.0), (2, 2.0), (3, 4.0), (7, 60.0), (100, 60.0), (999, 60.0)] {
        let prepare = format!(
            "UPDATE outbox.inbox_message SET attempts = {attempts}, token = 1000, claimed_at = now(), poison_at = NULL"
        );
        world.execute(&prepare).await;
        let waits = world
            .db
            .query_one(
                "SELECT min(wait)::float8, max(wait)::float8, count(DISTINCT wait) FROM (
                    SELECT extract(epoch FROM outbox.inbox_fail(id, token, 'boom', backoff_max => '1 min') - clock_timestamp()) AS wait
                    FROM outbox.inbox_message) w",
                &[],
            )
            .await
            .expect("failed");
        let (least, most, different): (f64, f64, i64) = (waits.get(0), waits.get(1), waits.get(2));
        assert!(
            least >= seconds * 0.45 && most <= seconds,
            "{least} to {most} after {attempts}"
        );
        assert!(different > 10, "all in step after {attempts}");
    }
}

#[tokio::test]
async fn an_operator_replays_what_is_done_and_its_former_workers_stay_refused() {
    let world = World::new().await;
    receive(&world, "m1", ", max_attempts => 2").await;
    let old = claim(&world.db, 1, "1 minute").await["m1"];
    world.execute(&done(old)).await;
    let operator = connect(&world.login("operator", &["outbox_operator"]).await).await;
    let replay = format!("SELECT outbox.inbox_replay_done('c', {})", old.0);
    let replayed = async || {
        operator
            .query_one(&replay, &[])
            .await
            .expect("granted")
            .get::<_, bool>(0)
    };
    assert!(
        !world
            .is_true(&format!("outbox.inbox_replay_done('other', {})", old.0))
            .await
    );
    assert!(replayed().await);
    assert!(!replayed().await, "it is not done any more");
    assert_eq!(
        refusal(&world.db, &done(old)).await,
        "P4010",
        "a token of its former life"
    );
    let new = claim(&world.db, 1, "1 minute").await["m1"];
    assert_eq!(new, (old.0, old.1 + 1));
    assert!(!replayed().await, "it is being worked on");
    assert_eq!(refusal(&world.db, &done(old)).await, "P4010");
    assert!(
        world
            .is_true(&format!("{} IS NOT NULL", fail(new).trim_start_matches("SELECT ")))
            .await,
        "all its attempts"
    );
}

#[tokio::test]
async fn a_replayed_message_stands_before_the_later_ones_of_its_key() {
    let world = World::new().await;
    for message in ["m1", "m2", "m3"] {
        receive(&world, message, ", key => 'k'").await;
    }
    let first = claim(&world.db, 10, "1 minute").await["m1"];
    world.execute(&done(first)).await;
    let second = claim(&world.db, 10, "1 minute").await["m2"];
    assert!(
        world
            .is_true(&format!("outbox.inbox_replay_done('c', {})", first.0))
            .await
    );
    assert!(
        claim(&world.db, 10, "1 minute").await.is_empty(),
        "the second is at work"
    );
    world.execute(&done(second)).await;
    for expected in ["m1", "m3"] {
        let claimed = claim(&world.db, 10, "1 minute").await;
        assert_eq!(names(&claimed), [expected]);
        world.execute(&done(claimed[expected])).await;
    }
    assert!(claim(&world.db, 10, "1 minute").await.is_empty());
}
