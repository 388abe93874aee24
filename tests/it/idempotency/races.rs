//! Commands at the same time, and commands that are cut off in the middle.

use std::future::Future;

use super::*;

/// Runs it while another session has begun it; answers what it got once that one has committed or rolled back.
async fn behind<T: Send + 'static>(world: &World, later: impl Future<Output = T> + Send + 'static, end: &str) -> T {
    let waiting = tokio::spawn(later);
    world.blocked(1).await;
    world.execute(end).await;
    waiting.await.expect("ran")
}

#[tokio::test]
async fn of_twenty_sessions_at_once_one_executes_and_nineteen_get_its_answer() {
    let world = world().await;
    world.execute("BEGIN").await;
    assert_eq!(claim(&world.db, "k", "").await.attempt, Some(1));
    let mut others = tokio::task::JoinSet::new();
    for _ in 0..19 {
        let session = world.session().await;
        others.spawn(async move { order(&session, "k").await.expect("an answer") });
    }
    world.blocked(19).await;
    effect(&world.db, "k").await.expect("written");
    let first = succeed(&world.db, "k", 1).await.expect("succeeded");
    world.execute("COMMIT").await;
    let answers = others.join_all().await;
    assert_eq!(answers, vec![first; 19]);
    assert_eq!(world.effects().await, 1);
    assert_eq!(
        world.count("SELECT replayed FROM outbox.idempotency_counters").await,
        19
    );
}

#[tokio::test]
async fn twenty_sessions_racing_freely_have_one_effect_a_key() {
    let world = world().await;
    let mut sessions = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let session = world.session().await;
        sessions.spawn(async move {
            let mut answers = Vec::new();
            for key in 0..10 {
                answers.push(order(&session, &key.to_string()).await.expect("an answer"));
            }
            answers
        });
    }
    let answers = sessions.join_all().await;
    assert!(answers.iter().all(|other| *other == answers[0]), "{answers:?}");
    assert_eq!(world.effects().await, 10);
}

#[tokio::test]
async fn who_waits_for_a_first_attempt_that_is_rolled_back_executes_instead() {
    let world = world().await;
    world.execute("BEGIN").await;
    claim(&world.db, "k", "").await;
    let session = world.session().await;
    let second = behind(&world, async move { order(&session, "k").await }, "ROLLBACK").await;
    assert_eq!(second.expect("executed"), "201 {\"id\": 1}");
    assert_eq!(world.effects().await, 1);
}

#[tokio::test]
async fn who_waits_for_a_first_attempt_no_longer_than_its_lock_timeout_is_told_so() {
    let world = world().await;
    world.execute("BEGIN").await;
    claim(&world.db, "k", "").await;
    let session = world.session().await;
    run(&session, "SET lock_timeout = '50ms'").await.expect("set");
    let waited = order(&session, "k").await.expect_err("not granted");
    assert_eq!(state(&waited), "55P03", "lock_not_available");
    world.execute("COMMIT").await;
    assert_eq!(claim(&session, "k", "").await.kind, "active");
}

/// One session is granted the next attempt and has not committed when another asks; that one must get nothing.
async fn only_one_is_granted(world: &World, more: &'static str) {
    world.execute("BEGIN").await;
    assert_eq!(claim(&world.db, "k", more).await.attempt, Some(2));
    let session = world.session().await;
    let second = behind(world, async move { claim(&session, "k", more).await }, "COMMIT").await;
    assert_eq!((second.kind.as_str(), second.granted), ("active", false));
    let attempts = "SELECT attempt_count::bigint FROM outbox.idempotency_request";
    assert_eq!(world.count(attempts).await, 2);
}

#[tokio::test]
async fn of_two_retries_after_a_failure_one_is_granted() {
    let world = world().await;
    claim(&world.db, "k", "").await;
    world
        .execute("SELECT outbox.idempotency_fail('orders', 'k', 1, true, 'timeout')")
        .await;
    only_one_is_granted(&world, "").await;
}

#[tokio::test]
async fn of_two_that_take_over_a_stale_claim_one_is_granted() {
    let world = world().await;
    world.stale("k").await;
    only_one_is_granted(&world, ", take_over => true").await;
}

#[tokio::test]
async fn a_stale_claim_whose_holder_shows_life_at_the_last_moment_is_not_taken_over() {
    let world = world().await;
    world.stale("k").await;
    world
        .execute("BEGIN; SELECT outbox.idempotency_heartbeat('orders', 'k', 1, '1 minute')")
        .await;
    let session = world.session().await;
    let taken = async move { claim(&session, "k", ", take_over => true").await };
    let answer = behind(&world, taken, "COMMIT").await;
    assert_eq!((answer.kind.as_str(), answer.granted), ("active", false));
}

#[tokio::test]
async fn after_an_error_behind_the_business_write_nothing_remains_and_the_retry_executes() {
    let world = world().await;
    world.execute("BEGIN").await;
    let attempt = claim(&world.db, "k", "").await.attempt.expect("granted");
    effect(&world.db, "k").await.expect("written");
    succeed(&world.db, "k", attempt).await.expect("succeeded");
    assert_eq!(refusal(&world.db, "SELECT 1 / 0").await, "22012");
    world.execute("ROLLBACK").await;
    assert_eq!((world.effects().await, world.requests().await.as_str()), (0, ""));
    order(&world.db, "k").await.expect("executed");
    assert_eq!(world.effects().await, 1);
}

#[tokio::test]
async fn a_failure_is_kept_without_its_effect_by_a_savepoint_behind_the_claim() {
    let world = world().await;
    world.execute("BEGIN").await;
    claim(&world.db, "k", "").await;
    world.execute("SAVEPOINT claimed").await;
    effect(&world.db, "k").await.expect("written");
    assert_eq!(refusal(&world.db, "SELECT 1 / 0").await, "22012");
    world
        .execute(
            "ROLLBACK TO claimed; SELECT outbox.idempotency_fail('orders', 'k', 1, false, 'bad_request', 'no'); COMMIT",
        )
        .await;
    let answer = claim(&world.db, "k", "").await;
    assert_eq!(
        (answer.kind.as_str(), answer.failure.as_deref()),
        ("final", Some("bad_request no"))
    );
    assert_eq!(world.effects().await, 0);
}

#[tokio::test]
async fn a_session_that_dies_before_its_commit_leaves_nothing() {
    let world = world().await;
    let doomed = world.session().await;
    run(&doomed, "BEGIN").await.expect("begun");
    let attempt = claim(&doomed, "k", "").await.attempt.expect("granted");
    effect(&doomed, "k").await.expect("written");
    succeed(&doomed, "k", attempt).await.expect("succeeded");
    let pid: i32 = doomed
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .expect("a pid")
        .get(0);
    world
        .execute(&format!("SELECT pg_terminate_backend({pid}, 10000)"))
        .await;
    assert_eq!((world.effects().await, world.requests().await.as_str()), (0, ""));
    order(&world.db, "k").await.expect("executed");
    assert_eq!(world.effects().await, 1);
}

#[tokio::test]
async fn who_hears_nothing_of_its_commit_gets_the_answer_by_a_retry() {
    let world = world().await;
    let proxy = Proxy::to_postgres(&world.database_url);
    let cut = connect(&proxy.url(&world.database_url)).await;
    run(&cut, "BEGIN").await.expect("begun");
    execute_or_replay(&cut, "k").await.expect("executed");
    // A round trip: nothing else is then under way when the commit is.
    run(&cut, "SELECT").await.expect("an answer");
    proxy.spoil_answer("COMMIT", testkit::Answer::Cut);
    assert!(run(&cut, "COMMIT").await.is_err(), "the answer is lost");
    proxy.spoiled().await;
    assert_eq!(world.effects().await, 1, "the commit is not");
    assert_eq!(order(&world.db, "k").await.expect("replayed"), "201 {\"id\": 1}");
    assert_eq!(world.effects().await, 1);
}

#[tokio::test]
async fn a_snapshot_from_before_the_answer_fails_to_serialize_and_the_retry_gets_it() {
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        let world = world().await;
        let early = world.session().await;
        run(
            &early,
            &format!("BEGIN ISOLATION LEVEL {isolation}; SELECT FROM effect"),
        )
        .await
        .expect("a snapshot");
        let stored = order(&world.db, "k").await.expect("executed");
        let blind = try_claim(&early, "k", "").await.expect_err("it cannot see the answer");
        assert_eq!(state(&blind), "40001", "{isolation}");
        run(&early, "ROLLBACK").await.expect("over");
        let retried = in_transaction(&early, isolation, &["k"]).await.expect("replayed");
        assert_eq!((retried, world.effects().await), (stored, 1));
    }
}

/// The documented retry: the whole transaction again after 40001 and 40P01, nothing else.
async fn with_retries(db: &Client, isolation: &str, keys: &[&str]) -> String {
    for _ in 0..50 {
        match in_transaction(db, isolation, keys).await {
            Ok(answer) => return answer,
            Err(error) => assert!(["40001", "40P01"].contains(&state(&error).as_str()), "{error}"),
        }
    }
    panic!("fifty times in vain");
}

#[tokio::test]
async fn under_serializable_the_documented_retry_ends_with_one_effect_a_key() {
    let world = world().await;
    let mut sessions = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let session = world.session().await;
        sessions.spawn(async move {
            let mut answers = Vec::new();
            for key in ["a", "b", "c", "d", "e"] {
                answers.push(with_retries(&session, "SERIALIZABLE", &[key]).await);
            }
            answers
        });
    }
    let answers = sessions.join_all().await;
    assert!(answers.iter().all(|other| *other == answers[0]), "{answers:?}");
    assert_eq!(world.effects().await, 5);
}

#[tokio::test]
async fn a_deadlock_of_two_commands_is_resolved_by_the_documented_retry() {
    let world = world().await;
    let (first, victim) = (world.session().await, world.session().await);
    // The first one waits in peace: it is the other that finds the deadlock.
    run(&first, "SET deadlock_timeout = '1min'; BEGIN")
        .await
        .expect("begun");
    run(&victim, "SET deadlock_timeout = '50ms'; BEGIN")
        .await
        .expect("begun");
    execute_or_replay(&first, "a").await.expect("executed");
    execute_or_replay(&victim, "b").await.expect("executed");
    let first = tokio::spawn(async move {
        let answer = execute_or_replay(&first, "b").await.expect("executed");
        run(&first, "COMMIT").await.expect("committed");
        answer
    });
    world.blocked(1).await;
    let dead = execute_or_replay(&victim, "a").await.expect_err("a deadlock");
    assert_eq!(state(&dead), "40P01");
    run(&victim, "ROLLBACK").await.expect("over");
    let answers = with_retries(&victim, "READ COMMITTED", &["b", "a"]).await;
    let of_first = first.await.expect("ran");
    assert!(answers.starts_with(&of_first), "{answers} begins with {of_first}");
    assert_eq!(world.effects().await, 2);
}

#[tokio::test]
async fn a_claim_does_not_wait_for_an_attempt_that_is_about_to_end() {
    let world = world().await;
    for (key, end) in [
        ("well", "succeed('orders', 'well', 1)"),
        ("badly", "fail('orders', 'badly', 1, false, 'c')"),
    ] {
        assert!(claim(&world.db, key, "").await.granted);
        let worker = world.session().await;
        run(&worker, &format!("BEGIN; SELECT outbox.idempotency_{end}"))
            .await
            .expect("ended");
        let other = world.session().await;
        run(&other, "SET lock_timeout = '1ms'").await.expect("set");
        assert_eq!(claim(&other, key, "").await.kind, "active");
        run(&worker, "COMMIT").await.expect("committed");
        assert_ne!(claim(&other, key, "").await.kind, "active");
    }
}
