//! What a producer reads back of its messages, and what it is told of a message that was there before.

use testkit::*;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

const IF_NEW: &str = "SELECT outbox.enqueue('t', 'k', '1', event_type => 'Placed', idempotency_scope => 'shop',
                                            idempotency_key => 'cart-7', if_new => true)";

async fn enqueue(client: &Client, sql: &str) -> Uuid {
    client.query_one(sql, &[]).await.expect(sql).get(0)
}

async fn producer_of(world: &World) -> Client {
    connect(&world.login("producer", &["outbox_producer"]).await).await
}

#[tokio::test]
async fn a_producer_reads_back_the_ids_of_what_it_inserted_and_no_other_column() {
    let world = World::new().await;
    let producer = producer_of(&world).await;
    let insert = "INSERT INTO outbox.message (topic, key, payload) VALUES ('t', 'k', '1') RETURNING id, message_id";
    let row = producer.query_one(insert, &[]).await.expect("as object mappers do");
    assert_eq!(row.get::<_, i64>("id"), 1);
    assert!(
        world
            .is_true(&format!(
                "SELECT message_id = '{}' FROM outbox.message",
                row.get::<_, Uuid>("message_id")
            ))
            .await
    );
    let columns = "SELECT string_agg(a.attname, ',' ORDER BY a.attnum) FROM pg_attribute a
                   WHERE a.attrelid = 'outbox.message'::regclass AND NOT a.attisdropped
                     AND has_column_privilege('outbox_producer', a.attrelid, a.attnum, 'SELECT')";
    assert_eq!(world.text(columns).await, "id,message_id");
    for statement in [
        "SELECT * FROM outbox.message",
        "SELECT message FROM outbox.message",
        "SELECT xmin FROM outbox.message",
        "SELECT id FROM outbox.message WHERE published_at IS NULL",
        "SELECT id FROM outbox.message ORDER BY created_at",
        "SELECT id FROM outbox.message FOR UPDATE",
        "INSERT INTO outbox.message (topic, key) VALUES ('t', 'k') RETURNING topic",
        "COPY outbox.message TO STDOUT",
    ] {
        let refused = refusal_of(&producer, statement).await;
        assert_eq!(refused.code(), &SqlState::INSUFFICIENT_PRIVILEGE, "{statement}");
    }
}

#[tokio::test]
async fn if_new_answers_with_the_message_that_was_there_before() {
    let world = World::new().await;
    let producer = producer_of(&world).await;
    let first = enqueue(&producer, IF_NEW).await;
    assert_eq!(enqueue(&producer, IF_NEW).await, first);
    let other = IF_NEW.replace("cart-7", "cart-8");
    assert_ne!(enqueue(&producer, &other).await, first);
    assert_eq!(world.pending().await, 2);
    let insert = "INSERT INTO outbox.message (topic, payload, event_type, idempotency_scope, idempotency_key)
                  VALUES ('t', '1', 'Placed', 'shop', 'cart-7') ON CONFLICT DO NOTHING RETURNING message_id";
    let rows = producer.query(insert, &[]).await.expect("the documented form");
    assert!(rows.is_empty(), "the same without a call says nothing");

    let without = refusal_of(&producer, &IF_NEW.replace("if_new => true", "if_new => false")).await;
    assert_eq!(without.constraint(), Some("message_idempotency"));
    let nothing_to_go_by = refusal_of(&producer, "SELECT outbox.enqueue('t', 'k', '1', if_new => true)").await;
    assert_eq!(nothing_to_go_by.code(), &SqlState::INVALID_PARAMETER_VALUE);
    let stolen = format!("message_id => '{first}', if_new => true");
    let stolen = refusal_of(
        &producer,
        &other.replace("cart-8", "cart-9").replace("if_new => true", &stolen),
    )
    .await;
    assert_eq!(
        stolen.constraint(),
        Some("message_message_id"),
        "another message has this id"
    );
}

#[tokio::test]
async fn calls_as_they_were_before_if_new_mean_the_same() {
    let world = World::new().await;
    let producer = producer_of(&world).await;
    let id = "11111111-1111-1111-1111-111111111111";
    let all =
        format!("SELECT outbox.enqueue('t', 'k', '1', NULL, '{{}}', 'E', 'a', '1', 1, 's', 'i', now(), 0, '{id}')");
    assert_eq!(enqueue(&producer, &all).await.to_string(), id);
    enqueue(&producer, "SELECT outbox.enqueue('t', 'k')").await;
    enqueue(&producer, "SELECT outbox.enqueue(topic => 't', payload => '1')").await;
    let prepared = producer
        .prepare("SELECT outbox.enqueue($1, $2, $3)")
        .await
        .expect("a statement");
    let types: Vec<_> = prepared
        .params()
        .iter()
        .map(|parameter| parameter.name().to_owned())
        .collect();
    assert_eq!(types, ["text", "text", "jsonb"]);
    assert_eq!(world.pending().await, 3);
}

/// Two at once: the first has inserted and not ended, the second waits for it.
async fn second_behind_the_first(isolation: &str, end: &str) -> (World, Uuid, Result<Uuid, tokio_postgres::Error>) {
    let world = World::new().await;
    let (first, second) = (producer_of(&world).await, world.session().await);
    first.batch_execute("BEGIN").await.expect("begun");
    let winner = enqueue(&first, IF_NEW).await;
    second
        .batch_execute(&format!(
            "BEGIN ISOLATION LEVEL {isolation}; SELECT count(*) FROM outbox.lane"
        ))
        .await
        .expect("begun");
    let loser = tokio::spawn(async move {
        let answer = second.query_one(IF_NEW, &[]).await.map(|row| row.get(0));
        let _ = second.batch_execute("COMMIT").await;
        answer
    });
    world.blocked(1).await;
    first.batch_execute(end).await.expect("ended");
    let answer = loser.await.expect("it did not panic");
    (world, winner, answer)
}

#[tokio::test]
async fn of_two_at_once_the_second_waits_and_is_told_the_first_ones_message() {
    let (world, winner, second) = second_behind_the_first("READ COMMITTED", "COMMIT").await;
    assert_eq!(second.expect("an answer"), winner);
    assert_eq!(world.pending().await, 1);
}

#[tokio::test]
async fn of_two_at_once_the_second_is_new_where_the_first_rolls_back() {
    let (world, winner, second) = second_behind_the_first("READ COMMITTED", "ROLLBACK").await;
    assert_ne!(second.expect("an answer"), winner);
    assert_eq!(world.pending().await, 1);
}

#[tokio::test]
async fn of_two_at_once_the_second_is_to_repeat_its_transaction_where_it_cannot_see_the_first() {
    let (world, _, second) = second_behind_the_first("REPEATABLE READ", "COMMIT").await;
    assert_eq!(
        second.expect_err("40001").code(),
        Some(&SqlState::T_R_SERIALIZATION_FAILURE)
    );
    assert_eq!(world.pending().await, 1);
}
