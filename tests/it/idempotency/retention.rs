//! What becomes of old records, and of claims that nobody ended.

use super::*;

/// Every record is older by more than it is kept.
const LONG_AGO: &str = "UPDATE outbox.idempotency_request SET created_at = created_at - interval '9 days',
    claimed_at = claimed_at - interval '9 days', completed_at = completed_at - interval '9 days',
    expires_at = expires_at - interval '9 days'";

#[tokio::test]
async fn an_expired_record_is_answered_until_it_is_purged_and_then_the_business_rule_holds() {
    let world = world().await;
    world.execute("CREATE UNIQUE INDEX effect_key ON effect (key)").await;
    let stored = order(&world.db, "k").await.expect("executed");
    world.execute(LONG_AGO).await;
    assert!(
        world
            .is_true("SELECT expires_at < now() FROM outbox.idempotency_request")
            .await
    );
    assert_eq!(order(&world.db, "k").await.expect("replayed"), stored);
    assert_eq!(claim(&world.db, "k", ", take_over => true").await.kind, "replay");

    assert_eq!(world.count("SELECT outbox.purge_idempotency()").await, 1);
    let again = order(&world.db, "k").await.expect_err("the key's order is there");
    assert_eq!(state(&again), "23505");
    assert_eq!((world.effects().await, world.requests().await.as_str()), (1, ""));
}

#[tokio::test]
async fn an_answer_that_comes_after_its_time_is_kept_as_long_as_one_in_time() {
    let world = world().await;
    claim(&world.db, "k", "").await;
    world
        .execute("SELECT outbox.idempotency_fail('orders', 'k', 1, true, 'timeout')")
        .await;
    world.execute(LONG_AGO).await;
    assert_eq!(claim(&world.db, "k", "").await.attempt, Some(2));
    world
        .execute("UPDATE outbox.idempotency_request SET claimed_at = claimed_at - interval '9 days', expires_at = expires_at - interval '9 days'")
        .await;
    world
        .execute("SELECT outbox.idempotency_succeed('orders', 'k', 2)")
        .await;
    let kept = "SELECT expires_at > now() + interval '6 days' FROM outbox.idempotency_request";
    assert!(
        world.is_true(kept).await,
        "a client that lost the answer can ask for it"
    );
    assert_eq!(world.count("SELECT outbox.purge_idempotency()").await, 0);
}

#[tokio::test]
async fn an_answer_is_not_purged_within_an_hour_however_soon_it_expires() {
    let world = world().await;
    claim(
        &world.db,
        "k",
        ", lock_for => '1 millisecond', expires_in => '1 millisecond'",
    )
    .await;
    world
        .execute("SELECT outbox.idempotency_succeed('orders', 'k', 1)")
        .await;
    world
        .until("SELECT expires_at < now() FROM outbox.idempotency_request")
        .await;
    assert_eq!(
        world.count("SELECT outbox.purge_idempotency()").await,
        0,
        "who held attempt 1 may still be there"
    );
}

/// The verdict on every claim whose effect the application has looked up: `effect` is its SQL expression.
async fn verdicts(world: &World, effect: &str, at: &str) -> String {
    world
        .text(&format!(
            "SELECT coalesce(string_agg(r.key || ' ' || verdict, ', ' ORDER BY r.key), '') FROM outbox.idempotency_request r,
                    LATERAL outbox.idempotency_classify(r, {effect}, attempts_max => 3, at => {at}) verdict
             WHERE verdict IS NOT NULL"
        ))
        .await
}

#[tokio::test]
async fn stale_claims_are_sorted_by_what_the_application_finds() {
    let world = world().await;
    for key in ["lost", "made"] {
        world.stale(key).await;
    }
    world.execute("INSERT INTO effect (key) VALUES ('made')").await;
    world.stale("tried").await;
    for _ in 0..2 {
        claim(&world.db, "tried", ", take_over => true, lock_for => '1 millisecond'").await;
        world.until("SELECT count(*) = 3 FROM outbox.idempotency_stale").await;
    }
    claim(&world.db, "active", "").await;
    claim(&world.db, "done", "").await;
    world
        .execute("SELECT outbox.idempotency_succeed('orders', 'done', 1)")
        .await;

    let looked_up = "EXISTS (SELECT FROM effect e WHERE e.key = r.key)";
    let now = "clock_timestamp()";
    assert_eq!(
        verdicts(&world, looked_up, now).await,
        "lost safe_to_retry, made already_succeeded, tried needs_a_person"
    );
    let nobody_knows = verdicts(&world, "NULL", now).await;
    assert_eq!(
        nobody_knows,
        "lost needs_a_person, made needs_a_person, tried needs_a_person"
    );
    let in_a_month = verdicts(&world, looked_up, "clock_timestamp() + interval '30 days'").await;
    assert_eq!(
        in_a_month,
        "active abandoned, lost abandoned, made already_succeeded, tried abandoned"
    );
    assert_eq!(
        verdicts(&world, looked_up, "'-infinity'").await,
        "",
        "none was stale then"
    );
}

/// Commands that nobody will end: failed and to be retried, and stale, both expired; and beside them one that may be retried, one stale
/// and one under way, not expired.
async fn world_of_abandoned_commands() -> World {
    let world = world().await;
    for key in ["failed", "fresh"] {
        claim(&world.db, key, "").await;
        let fail = format!("SELECT outbox.idempotency_fail('orders', '{key}', 1, true, 'timeout', 'slow')");
        world.execute(&fail).await;
    }
    world.stale("left").await;
    world.stale("late").await;
    claim(&world.db, "held", "").await;
    world
        .execute(&format!("{LONG_AGO} WHERE key IN ('failed', 'left')"))
        .await;
    world
}

const EXPIRED: &str =
    "SELECT coalesce(string_agg(key || ' ' || status || coalesce(' ' || failure_code, ''), ', ' ORDER BY key), '')
                       FROM outbox.idempotency_expired WHERE expired_for > interval '1 day'";

#[tokio::test]
async fn commands_that_nobody_retries_any_more_are_shown_and_classified() {
    let world = world_of_abandoned_commands().await;
    let operator = connect(&world.login("operator", &["outbox_operator"]).await).await;
    let shown = operator.query_one(EXPIRED, &[]).await.expect("granted");
    assert_eq!(
        shown.get::<_, &str>(0),
        "failed failed_retryable timeout, left processing"
    );
    let looked_up = "EXISTS (SELECT FROM effect e WHERE e.key = r.key)";
    assert_eq!(
        verdicts(&world, looked_up, "clock_timestamp()").await,
        "failed abandoned, late safe_to_retry, left abandoned"
    );
    world.execute("INSERT INTO effect (key) VALUES ('failed')").await;
    assert_eq!(
        verdicts(&world, looked_up, "clock_timestamp()").await,
        "failed already_succeeded, late safe_to_retry, left abandoned"
    );
}

#[tokio::test]
async fn an_abandoned_command_is_final_and_purged_in_time() {
    let world = world_of_abandoned_commands().await;
    let operator = connect(&world.login("operator", &["outbox_operator"]).await).await;
    let abandon = "SELECT count(*) FILTER (WHERE outbox.idempotency_abandon(scope, key, attempt_count)) FROM outbox.idempotency_expired";
    let abandoned = operator.query_one(abandon, &[]).await.expect("granted");
    assert_eq!(abandoned.get::<_, i64>(0), 2);
    assert_eq!(world.text(EXPIRED).await, "");
    let answer = claim(&world.db, "failed", "").await;
    assert_eq!(
        (answer.kind.as_str(), answer.failure.as_deref()),
        ("final", Some("abandoned timeout: slow"))
    );
    let again = "outbox.idempotency_abandon('orders', 'left', 1)";
    assert!(!world.is_true(again).await, "an operator may repeat it");
    assert_eq!(
        refusal(&world.db, "SELECT outbox.idempotency_succeed('orders', 'left', 1)").await,
        "P4010",
        "a worker that was only slow"
    );
    assert_eq!(
        world.count("SELECT outbox.purge_idempotency()").await,
        0,
        "not within the hour"
    );
    world
        .execute("UPDATE outbox.idempotency_request SET completed_at = completed_at - interval '2 hours' WHERE completed_at IS NOT NULL")
        .await;
    assert_eq!(world.count("SELECT outbox.purge_idempotency()").await, 2);
}

#[tokio::test]
async fn a_command_that_somebody_may_still_end_is_not_abandoned() {
    let world = world_of_abandoned_commands().await;
    order(&world.db, "done").await.expect("executed");
    world.execute(&format!("{LONG_AGO} WHERE key = 'done'")).await;
    let before = world.requests().await;
    for (call, why) in [
        ("'fresh', 1", "It has not expired."),
        ("'late', 1", "It has not expired."),
        ("'held', 1", "It is being executed."),
        ("'done', 1", "It is succeeded."),
        ("'failed', 2", "Its last attempt is 1, not 2."),
        ("'none', 1", "There is no such command."),
    ] {
        let error = refusal_of(
            &world.db,
            &format!("SELECT outbox.idempotency_abandon('orders', {call})"),
        )
        .await;
        assert_eq!(error.code().code(), "P4013", "{call}");
        let detail = error.detail().expect("a detail");
        assert!(detail.ends_with(why), "{call}: {detail}");
    }
    assert_eq!(world.requests().await, before);
}

#[tokio::test]
async fn orphaned_commands_are_failed_for_good_and_nothing_else_is() {
    let world = world_of_abandoned_commands().await;
    world
        .execute(
            "UPDATE outbox.idempotency_request SET locked_until = locked_until - interval '2 hours' WHERE key IN ('left', 'late');
             UPDATE outbox.idempotency_request SET locked_until = locked_until - interval '1 minute' WHERE key = 'held'",
        )
        .await;
    // Somebody is ending this one.
    let slow = world.session().await;
    run(&slow, "BEGIN; SELECT outbox.idempotency_succeed('orders', 'late', 1)")
        .await
        .expect("ended");
    assert_eq!(world.count("SELECT outbox.idempotency_end_orphaned('1 hour')").await, 1);
    run(&slow, "COMMIT").await.expect("committed");
    assert_eq!(world.count("SELECT outbox.idempotency_end_orphaned('1 hour')").await, 0);
    let states = "SELECT string_agg(key || ' ' || status, ', ' ORDER BY key) FROM outbox.idempotency_request";
    assert_eq!(
        world.text(states).await,
        "failed failed_retryable, fresh failed_retryable, held processing, late succeeded, left failed_final"
    );
    let answer = claim(&world.db, "left", ", take_over => true").await;
    assert_eq!(
        (answer.kind.as_str(), answer.granted),
        ("final", false),
        "never run again by itself"
    );
    let failure = answer.failure.expect("a failure");
    assert!(
        failure.starts_with("orphaned nobody ended attempt 1, whose lock ran out at 20"),
        "{failure}"
    );
    let kept = "SELECT expires_at > now() + interval '6 days' FROM outbox.idempotency_request WHERE key = 'left'";
    assert!(world.is_true(kept).await, "a client that comes back is told");
}

#[tokio::test]
async fn the_operators_views_show_what_is_stale_what_is_tried_often_and_what_was_suppressed() {
    let world = world().await;
    world.stale("left").await;
    for attempt in 1..=3 {
        assert_eq!(claim(&world.db, "often", "").await.attempt, Some(attempt));
        let fail = format!("SELECT outbox.idempotency_fail('orders', 'often', {attempt}, true, 'timeout', 'slow')");
        world.execute(&fail).await;
    }
    order(&world.db, "done").await.expect("executed");
    order(&world.db, "done").await.expect("replayed");
    world.stale("taken").await;
    claim(&world.db, "taken", ", take_over => true").await;
    world
        .execute("SELECT outbox.idempotency_succeed('orders', 'taken', 2)")
        .await;
    let operator = connect(&world.login("operator", &["outbox_operator"]).await).await;
    for (sql, seen) in [
        (
            "SELECT string_agg(key || ' ' || attempt_count, ', ') FROM outbox.idempotency_stale",
            "left 1",
        ),
        (
            "SELECT string_agg(key || ' ' || attempt_count || ' ' || failure_code, ', ') FROM outbox.idempotency_retried",
            "often 3 timeout",
        ),
        (
            "SELECT concat_ws(' ', granted, replayed, conflicted, taken_over) FROM outbox.idempotency_counters",
            "7 1 0 1",
        ),
        (
            "SELECT concat_ws(' ', scope, commands, succeeded, failed_final, unfinished, tried_again, attempts_beyond_the_first, attempts_max)
             FROM outbox.idempotency_by_scope",
            "orders 4 2 0 2 2 3 3",
        ),
    ] {
        let row = operator.query_one(sql, &[]).await.expect(sql);
        assert_eq!(row.get::<_, String>(0), seen, "{sql}");
    }
}
