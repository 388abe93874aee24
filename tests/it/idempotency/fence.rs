//! The attempt number is the fence: who was followed changes nothing any more.

use super::*;

fn endings(attempt: i32) -> [(String, &'static str); 4] {
    let call =
        |function: &str, more: &str| format!("SELECT outbox.idempotency_{function}('orders', 'k', {attempt}{more})");
    [
        (call("succeed", ", 'effect', '666'"), "P4010"),
        (call("fail", ", true, 'zombie'"), "P4011"),
        (call("fail", ", false, 'zombie'"), "P4011"),
        (call("heartbeat", ""), "P4012"),
    ]
}

/// Whatever attempt one tries is refused, and changes nothing.
async fn attempt_one_is_fenced(world: &World) {
    let before = world.requests().await;
    for (ending, code) in endings(1) {
        assert_eq!(refusal(&world.db, &ending).await, code, "{ending}");
    }
    assert_eq!(world.requests().await, before);
}

#[tokio::test]
async fn a_zombie_whose_claim_was_taken_over_changes_nothing_in_any_state_of_its_successor() {
    let world = world().await;
    world.stale("k").await;
    assert_eq!(claim(&world.db, "k", ", take_over => true").await.attempt, Some(2));
    attempt_one_is_fenced(&world).await;
    world
        .execute("SELECT outbox.idempotency_fail('orders', 'k', 2, true, 'timeout')")
        .await;
    attempt_one_is_fenced(&world).await;
    assert_eq!(claim(&world.db, "k", "").await.attempt, Some(3));
    world
        .execute("SELECT outbox.idempotency_succeed('orders', 'k', 3, 'effect', '3')")
        .await;
    attempt_one_is_fenced(&world).await;
    assert_eq!(claim(&world.db, "k", "").await.result.as_deref(), Some("effect 3"));
}

#[tokio::test]
async fn a_zombie_that_ends_while_it_is_being_taken_over_waits_and_is_refused() {
    let world = world().await;
    world.stale("k").await;
    let zombie = world.session().await;
    world.execute("BEGIN").await;
    assert_eq!(claim(&world.db, "k", ", take_over => true").await.attempt, Some(2));
    let ending = tokio::spawn(async move { refusal(&zombie, &endings(1)[0].0).await });
    world.blocked(1).await;
    world.execute("COMMIT").await;
    assert_eq!(ending.await.expect("ran"), "P4010");
    assert_eq!(world.status("k").await, "processing");
}

#[tokio::test]
async fn an_attempt_that_was_never_granted_or_never_claimed_is_refused() {
    let world = world().await;
    for (ending, code) in endings(1) {
        assert_eq!(refusal(&world.db, &ending).await, code, "no such claim");
    }
    claim(&world.db, "k", "").await;
    for (ending, code) in endings(2) {
        assert_eq!(refusal(&world.db, &ending).await, code, "not yet granted");
    }
    assert_eq!(world.status("k").await, "processing");
}

#[tokio::test]
async fn a_late_end_counts_as_long_as_nobody_has_taken_over() {
    let world = world().await;
    world.stale("k").await;
    world
        .execute("SELECT outbox.idempotency_succeed('orders', 'k', 1, 'effect', '7')")
        .await;
    let answer = claim(&world.db, "k", ", take_over => true").await;
    assert_eq!(
        (answer.kind.as_str(), answer.result.as_deref()),
        ("replay", Some("effect 7"))
    );
}

#[tokio::test]
async fn an_attempt_may_repeat_its_own_end_and_nothing_else() {
    let world = world().await;
    let ended_before = |sql: &str| format!("SELECT NOT outbox.idempotency_{sql}");
    claim(&world.db, "k", "").await;
    world
        .execute("SELECT outbox.idempotency_fail('orders', 'k', 1, true, 'timeout', 'slow')")
        .await;
    assert!(
        world
            .is_true(&ended_before("fail('orders', 'k', 1, true, 'timeout', 'slow')"))
            .await
    );
    for other in [
        "true, 'timeout', 'slower'",
        "false, 'timeout', 'slow'",
        "true, 'other', 'slow'",
    ] {
        let sql = format!("SELECT outbox.idempotency_fail('orders', 'k', 1, {other})");
        assert_eq!(refusal(&world.db, &sql).await, "P4011", "{other}");
    }
    assert_eq!(refusal(&world.db, &endings(1)[0].0).await, "P4010", "it has failed");
    claim(&world.db, "k", "").await;
    world
        .execute("SELECT outbox.idempotency_succeed('orders', 'k', 2, 'effect', '7', 201, '{}')")
        .await;
    let before = world.requests().await;
    assert!(
        world
            .is_true(&ended_before("succeed('orders', 'k', 2, 'effect', '7', 201, '{}')"))
            .await
    );
    for other in [
        "'effect', '8', 201, '{}'",
        "'effect', '7', 200, '{}'",
        "'effect', '7', 201, '[]'",
        "'effect', '7'",
    ] {
        let sql = format!("SELECT outbox.idempotency_succeed('orders', 'k', 2, {other})");
        assert_eq!(refusal(&world.db, &sql).await, "P4010", "{other}");
    }
    assert_eq!(refusal(&world.db, &endings(2)[2].0).await, "P4011", "it has succeeded");
    assert_eq!(refusal(&world.db, &endings(2)[3].0).await, "P4012", "no lock is left");
    assert_eq!(world.requests().await, before);
}

#[tokio::test]
async fn a_heartbeat_extends_the_lock_and_never_shortens_it() {
    let world = world().await;
    world.stale("k").await;
    world
        .execute("SELECT outbox.idempotency_heartbeat('orders', 'k', 1, '1 hour')")
        .await;
    assert_eq!(claim(&world.db, "k", ", take_over => true").await.kind, "active");
    let until =
        "outbox.idempotency_heartbeat('orders', 'k', 1, '1 second') > clock_timestamp() + interval '59 minutes'";
    assert!(world.is_true(until).await);
    assert!(
        world
            .is_true("SELECT heartbeat_at > claimed_at FROM outbox.idempotency_request")
            .await
    );
}

/// Work that leaves the database: the claim is committed first. A crash then leaves a stale claim, and a retry does not run.
#[tokio::test]
async fn a_crash_behind_a_committed_claim_leaves_a_stale_one_that_no_retry_runs_blindly() {
    let world = world().await;
    world.stale("k").await;
    for _ in 0..3 {
        let answer = claim(&world.db, "k", "").await;
        assert_eq!((answer.kind.as_str(), answer.granted), ("stale", false));
    }
    assert_eq!(world.count("SELECT granted FROM outbox.idempotency_counters").await, 1);
}
