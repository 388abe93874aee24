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
             SELECT outbox.inbox_fail(id, token, 'boom', false) FROM outbox.inbox_claim('c', 1);",
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
        "SELECT outbox.inbox_discard('c', 1)",
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
             SELECT * FROM outbox.consumer_counters;
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
    let poison =
        "SELECT concat_ws(' ', consumer, messages, held_behind, first_ids, latest_error) FROM outbox.inbox_poison";
    assert_eq!(world.text(poison).await, "c 1 0 {2} boom");
    let pending = "SELECT string_agg(concat_ws(' ', topic, pending, delayed), ', ') FROM outbox.message_pending";
    assert_eq!(world.text(pending).await, "orders 2 1");
}
