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
    assert!(world.is_true(kept).await, "whoever lost the answer can ask for it");
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
            "SELECT concat_ws(' ', granted, replayed, conflicted) FROM outbox.idempotency_suppression",
            "5 1 0",
        ),
        (
            "SELECT concat_ws(' ', scope, commands, succeeded, failed_final, unfinished, tried_again, attempts_beyond_the_first, most_attempts)
             FROM outbox.idempotency_by_scope",
            "orders 3 1 0 2 1 2 3",
        ),
    ] {
        let row = operator.query_one(sql, &[]).await.expect(sql);
        assert_eq!(row.get::<_, String>(0), seen, "{sql}");
    }
}
