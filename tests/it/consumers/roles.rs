//! Who may do what, and what operators see.

use super::*;

#[tokio::test]
async fn an_application_consumes_through_the_functions_only_and_an_operator_replays() {
    let world = World::new().await;
    let application = connect(&world.login("application", &["outbox_producer"]).await).await;
    application
        .batch_execute(
            "SELECT outbox.consume_once('c', 's', 'm', '\\x01'), outbox.consume_once('c', 's', 'm', '\\x01');
             SELECT outbox.inbox_receive('c', 's', n::text, '{}') FROM generate_series(1, 2) n;
             SELECT outbox.inbox_done(id, token) FROM outbox.inbox_claim('c', 1);
             SELECT outbox.inbox_heartbeat(id, token), outbox.inbox_fail(id, token, 'boom', false) FROM outbox.inbox_claim('c', 1);",
        )
        .await
        .expect("what a consumer is for");
    let stranger = connect(&world.login("stranger", &[]).await).await;
    for statement in [
        "SELECT FROM outbox.processed_message",
        "INSERT INTO outbox.processed_message (consumer, source, message_id, payload_hash) VALUES ('c', 's', 'x', '\\x01')",
        "DELETE FROM outbox.processed_message",
        "SELECT FROM outbox.inbox_message",
        "UPDATE outbox.inbox_message SET done_at = now()",
        "SELECT nextval('outbox.consumer_duplicates')",
        "SELECT outbox.inbox_replay('c')",
        "SELECT outbox.inbox_replay_done('c', 1)",
        "SELECT outbox.inbox_discard('c', 1)",
        "SELECT FROM outbox.consumer_slot",
        "SELECT FROM outbox.consumer_duplicate_counters",
        "SELECT nextval('outbox.consumer_duplicates_1')",
        "SELECT outbox.consumer_assign_slot('c')",
        "SELECT outbox.purge_processed('1 day')",
        "SELECT outbox.purge_inbox('1 day')",
        "SELECT outbox.purge_idempotency()",
        "SELECT outbox.refuse_argument('a', 'b')",
    ] {
        assert_eq!(refusal(&application, statement).await, "42501", "{statement}");
        assert_eq!(refusal(&stranger, statement).await, "42501", "{statement}");
    }
    assert_eq!(
        refusal(&stranger, &format!("SELECT {}", consume("x", "1"))).await,
        "42501"
    );
    let operator = connect(&world.login("operator", &["outbox_operator"]).await).await;
    operator
        .batch_execute(
            "SELECT * FROM outbox.inbox_backlog; SELECT * FROM outbox.inbox_poison; SELECT * FROM outbox.message_pending;
             SELECT * FROM outbox.consumer_counters; SELECT * FROM outbox.consumer_duplicate_counters;
             SELECT outbox.inbox_replay('c'), outbox.purge_processed('1 day'), outbox.purge_inbox('1 day')",
        )
        .await
        .expect("what an operator is for");
    for statement in [
        "UPDATE outbox.inbox_message SET done_at = now()",
        "DELETE FROM outbox.processed_message",
    ] {
        assert_eq!(refusal(&operator, statement).await, "42501", "{statement}");
    }
}

#[tokio::test]
async fn the_operators_views_count_what_waits() {
    let world = World::new().await;
    world
        .execute(
            "SELECT outbox.inbox_receive('c', 's', n::text, '{}') FROM generate_series(1, 4) n;
             SELECT outbox.inbox_receive('c', 's', 'later', '{}', not_before => now() + interval '1 hour');
             SELECT outbox.inbox_receive('d', 's', '1', '{}');
             SELECT outbox.inbox_done(id, token) FROM outbox.inbox_claim('c', 1);
             SELECT outbox.inbox_fail(id, token, 'boom', false) FROM outbox.inbox_claim('c', 1);
             SELECT outbox.inbox_claim('c', 1);
             SELECT outbox.enqueue('orders', 'k', '1'), outbox.enqueue('orders', 'k', '2', available_at => now() + interval '1 hour');
             SELECT outbox.enqueue('gone', 'k', '1'), outbox.enqueue('dead', 'k', '1');
             UPDATE outbox.message SET published_at = now() WHERE topic = 'gone';
             UPDATE outbox.message SET dead_at = now() WHERE topic = 'dead';",
        )
        .await;
    let backlog = "SELECT string_agg(concat_ws(' ', consumer, unfinished, due, waiting, behind, claimed, lease_ran_out), ', ' ORDER BY consumer)
                   FROM outbox.inbox_backlog";
    assert_eq!(world.text(backlog).await, "c 3 1 1 0 1 0, d 1 1 0 0 0 0");
    let poison = "SELECT concat_ws(' ', consumer, messages, blocked, first_ids, latest_error) FROM outbox.inbox_poison";
    assert_eq!(world.text(poison).await, "c 1 0 {2} boom");
    let pending = "SELECT string_agg(concat_ws(' ', topic, pending, delayed), ', ') FROM outbox.message_pending";
    assert_eq!(world.text(pending).await, "orders 2 1");
}

const DUPLICATES: &str =
    "SELECT string_agg(coalesce(consumer, 'others') || ' ' || duplicates_suppressed, ', ' ORDER BY consumer)
                          FROM outbox.consumer_duplicate_counters";

#[tokio::test]
async fn duplicates_are_counted_by_consumer() {
    let world = World::new().await;
    for (consumer, duplicates) in [("audit", 1), ("billing", 3)] {
        world
            .execute(&format!(
                "SELECT outbox.consume_once('{consumer}', 's', 'm', '\\x01') FROM generate_series(0, {duplicates})"
            ))
            .await;
    }
    world
        .execute("SELECT outbox.inbox_receive('shipping', 's', 'm', '{}') FROM generate_series(0, 2)")
        .await;
    let operator = connect(&world.login("operator", &["outbox_operator"]).await).await;
    let counted = operator.query_one(DUPLICATES, &[]).await.expect("granted");
    assert_eq!(counted.get::<_, &str>(0), "audit 1, billing 3, shipping 2, others 0");
    let all = "SELECT duplicates_suppressed FROM outbox.consumer_counters";
    assert_eq!(world.count(all).await, 6);
}

#[tokio::test]
async fn beyond_32_consumers_duplicates_are_counted_together() {
    let world = World::new().await;
    world
        .execute("SELECT outbox.consume_once('c' || n, 's', 'm', '\\x01') FROM generate_series(1, 40) n, generate_series(1, 2)")
        .await;
    let counted = "SELECT concat_ws(' ', count(consumer), sum(duplicates_suppressed) FILTER (WHERE consumer IS NULL), sum(duplicates_suppressed))
                   FROM outbox.consumer_duplicate_counters";
    assert_eq!(world.text(counted).await, "32 8 40");
}

#[tokio::test]
async fn the_first_messages_of_two_consumers_do_not_wait_for_each_others_counters() {
    let world = World::new().await;
    let other = world.session().await;
    other.batch_execute("SET lock_timeout = '1ms'").await.expect("set");
    world
        .execute("BEGIN; SELECT outbox.consume_once('a', 's', 'm1', '\\x01')")
        .await;
    other
        .batch_execute(
            "BEGIN; SELECT outbox.consume_once('b', 's', 'm2', '\\x01'); SELECT outbox.consume_once('a', 's', 'm3', '\\x01')",
        )
        .await
        .expect("nobody waits");
    world
        .execute("SELECT outbox.consume_once('b', 's', 'm4', '\\x01'); ROLLBACK")
        .await;
    other.batch_execute("COMMIT").await.expect("committed");
    // Neither got a sequence: the first rolled back, the second was too early. The next messages do.
    world
        .execute(
            "SELECT outbox.consume_once(c, 's', 'm5', '\\x01') FROM unnest('{a,b}'::text[]) c, generate_series(1, 2)",
        )
        .await;
    assert_eq!(world.text(DUPLICATES).await, "a 1, b 1, others 0");
}

#[tokio::test]
async fn duplicates_and_takeovers_of_consumers_are_metrics() {
    let world = World::new().await;
    let relay = world.relay().start_ready().await;
    world.execute(&format!("SELECT {}", consume("m1", "1"))).await;
    receive(&world, "m1", ", max_attempts => 1000").await;
    // What came before the first sample is not counted, so there is something new before each.
    eventually(3 * SOON, "duplicates and takeovers to be counted", async || {
        world.execute(&format!("SELECT {}", consume("m1", "1"))).await;
        claim(&world.db, 1, "1 ms").await;
        let scrape = relay.get("/metrics")?;
        let billing = Relay::metric_in(&scrape, "outboxd_consumer_duplicates_total{consumer=\"billing\"}");
        let counted = Relay::metric_in(&scrape, "outboxd_inbox_takeovers_total") > Some(0.0);
        (counted && billing > Some(0.0)).then_some(())
    })
    .await;
}
