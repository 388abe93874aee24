//! How long commands and inbox messages take, as the database counts it.

use super::*;

const DURATIONS: &str =
    "SELECT coalesce(string_agg(concat_ws(' ', outcome, coalesce(at_most_seconds::text, 'more'), attempts), ', '
                                                    ORDER BY outcome, at_most_seconds), '')
                         FROM outbox.idempotency_durations WHERE attempts > 0";

/// A claim that was granted so long ago.
async fn claimed(world: &World, key: &str, ago: &str) {
    world
        .execute(&format!(
            "SELECT outbox.idempotency_claim('pay', '{key}', outbox.request_hash('1'));
             UPDATE outbox.idempotency_request SET claimed_at = claimed_at - interval '{ago}' WHERE key = '{key}';"
        ))
        .await;
}

#[tokio::test]
async fn attempts_are_counted_by_outcome_and_duration() {
    let world = World::new().await;
    assert_eq!(world.text(DURATIONS).await, "");
    for (key, ago, ended) in [
        ("a", "5 seconds", "succeed('pay', 'a', 1, 'order', '7')"),
        ("b", "100 seconds", "succeed('pay', 'b', 1)"),
        ("c", "5 seconds", "fail('pay', 'c', 1, true, 'timeout')"),
        ("d", "30 seconds", "fail('pay', 'd', 1, false, 'declined')"),
    ] {
        claimed(&world, key, ago).await;
        // The second call is a repeat, which is not counted.
        for is_new in [true, false] {
            assert_eq!(
                world.is_true(&format!("outbox.idempotency_{ended}")).await,
                is_new,
                "{ended}"
            );
        }
    }
    let counted = "failed_final 60 1, failed_retryable 10 1, succeeded 10 1, succeeded more 1";
    assert_eq!(world.text(DURATIONS).await, counted);
    let refused = world
        .db
        .batch_execute("SELECT outbox.idempotency_succeed('pay', 'd', 1)")
        .await;
    assert!(refused.is_err(), "it has failed for good");
    assert_eq!(world.text(DURATIONS).await, counted);
}

#[tokio::test]
async fn the_database_counts_by_the_bounds_that_are_shown() {
    let world = World::new().await;
    let sql = "SELECT DISTINCT at_most_seconds FROM outbox.idempotency_durations WHERE at_most_seconds IS NOT NULL ORDER BY 1";
    let bounds = world.db.query(sql, &[]).await.expect("bounds");
    let bounds: Vec<f64> = bounds.iter().map(|row| row.get(0)).collect();
    assert_eq!(bounds, outboxd::metrics::COMMAND_BUCKETS);
}

/// A producer's login can end attempts, though it may not count them by itself.
#[tokio::test]
async fn who_ends_an_attempt_needs_no_right_to_count_it() {
    let world = World::new().await;
    let producer = connect(&world.login("shop", &["outbox_producer"]).await).await;
    producer
        .batch_execute(
            "SELECT outbox.idempotency_claim('pay', 'k', outbox.request_hash('1'));
             SELECT outbox.idempotency_succeed('pay', 'k', 1);",
        )
        .await
        .expect("granted");
    let counting = "SELECT outbox.idempotency_count_duration(0, '1 second')";
    assert_eq!(refusal_of(&producer, counting).await.code().code(), "42501");
    let all = "SELECT sum(attempts)::bigint FROM outbox.idempotency_durations";
    assert_eq!(world.count(all).await, 1);
}

#[tokio::test]
async fn the_relay_sees_how_long_messages_took_and_nothing_of_what_they_say() {
    let world = World::new().await;
    world
        .execute(
            "SELECT outbox.inbox_receive('billing', 's', 'm' || n, '{}') FROM generate_series(1, 2) n;
             SELECT outbox.inbox_done(id, token, 'paid') FROM outbox.inbox_claim('billing', 1);
             SELECT outbox.inbox_fail(id, token, 'boom', retryable => false) FROM outbox.inbox_claim('billing', 1);
             SELECT outbox.inbox_discard('billing', id, 'no such order') FROM outbox.inbox_message WHERE poison_at IS NOT NULL;",
        )
        .await;
    let relay = connect(&world.login("relay", &["outbox_relay"]).await).await;
    let seen = "SELECT string_agg(concat_ws(' ', consumer, outcome, took >= '0'), ', ' ORDER BY outcome) FROM outbox.inbox_finished";
    let seen: String = relay.query_one(seen, &[]).await.expect("granted").get(0);
    assert_eq!(seen, "billing discarded t, billing done t");
    let hidden = "SELECT outcome FROM outbox.inbox_message";
    assert_eq!(refusal_of(&relay, hidden).await.code().code(), "42501");
}
