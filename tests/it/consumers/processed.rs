//! One effect per message, however often and by however many it is consumed.

use super::*;

/// Consumes, and counts the effect in the table `effect`.
async fn consume_with_effect(client: &Client, id: &str, payload: &str) -> Result<bool, tokio_postgres::Error> {
    let statement = format!(
        "WITH gate AS MATERIALIZED (SELECT {} AS first)
         INSERT INTO effect SELECT '{id}' FROM gate WHERE first RETURNING 1",
        consume(id, payload)
    );
    Ok(client.query_opt(&statement, &[]).await?.is_some())
}

const MARKERS: &str = "SELECT count(*) FROM outbox.processed_message";

#[tokio::test]
async fn a_message_delivered_again_has_its_effect_once() {
    let world = world_with_effects().await;
    assert!(consume_with_effect(&world.db, "m1", "1").await.expect("consumed"));
    for _ in 0..3 {
        assert!(!consume_with_effect(&world.db, "m1", "1").await.expect("a duplicate"));
    }
    // Another consumer and another source have their own view of it.
    for other in [
        "outbox.consume_once('audit', 'orders', 'm1', '\\x01')",
        "outbox.consume_once('billing', 'refunds', 'm1', '\\x01')",
    ] {
        assert!(world.is_true(other).await, "{other}");
    }
    assert_eq!(world.count(EFFECTS).await, 1);
    assert_eq!(
        world
            .count("SELECT duplicates_suppressed FROM outbox.consumer_counters")
            .await,
        3
    );
}

#[tokio::test]
async fn the_marker_remembers_what_became_of_the_message() {
    let world = World::new().await;
    world
        .execute("SELECT outbox.consume_once('c', 's', 'm', '\\x0102', 'paid', 'payment', '42')")
        .await;
    let stored = "SELECT (payload_hash, outcome, result_type, result_id) = ('\\x0102'::bytea, 'paid', 'payment', '42')
                  AND processed_at BETWEEN now() - interval '1 minute' AND now() FROM outbox.processed_message";
    assert!(world.is_true(stored).await);
}

async fn wal_records(client: &Client, sql: &str) -> i64 {
    cost(client, sql, "WAL Records").await
}

#[tokio::test]
async fn a_duplicate_writes_nothing() {
    let world = World::new().await;
    let receive = "outbox.inbox_receive('c', 's', 'm', '{\"n\": 1}')";
    for call in [consume("m1", "1"), receive.to_owned()] {
        let call = format!("SELECT {call}");
        assert!(
            wal_records(&world.db, &call).await > 0,
            "the first time it writes: {call}"
        );
        // Dead rows of the catalogue, left by the migration, are pruned by their next reader: that is not the call's writing.
        world.execute("VACUUM").await;
        world.execute("BEGIN").await;
        for _ in 0..100 {
            assert_eq!(wal_records(&world.db, &call).await, 0, "{call}");
        }
        let untouched = "pg_current_xact_id_if_assigned() IS NULL";
        assert!(world.is_true(untouched).await, "no transaction id for {call}");
        world.execute("ROLLBACK").await;
    }
    // Counted all the same, although rolled back.
    assert_eq!(
        world
            .count("SELECT duplicates_suppressed FROM outbox.consumer_counters")
            .await,
        200
    );
}

/// Two sessions consume one message at once, and the first ends like this; answers what the second was told.
async fn the_second_of_two(world: &World, end: &str) -> bool {
    let second = world.session().await;
    world.execute("BEGIN").await;
    assert!(consume_with_effect(&world.db, "m1", "1").await.expect("consumed"));
    let waiting = tokio::spawn(async move { consume_with_effect(&second, "m1", "1").await });
    world.blocked(1).await;
    world.execute(end).await;
    waiting.await.expect("ran").expect("answered")
}

#[tokio::test]
async fn of_two_consumers_at_once_the_second_waits_and_has_no_effect() {
    let world = world_with_effects().await;
    assert!(!the_second_of_two(&world, "COMMIT").await);
    assert_eq!((world.count(EFFECTS).await, world.count(MARKERS).await), (1, 1));
}

#[tokio::test]
async fn of_two_consumers_at_once_the_second_acts_if_the_first_rolls_back() {
    let world = world_with_effects().await;
    assert!(the_second_of_two(&world, "ROLLBACK").await);
    assert_eq!((world.count(EFFECTS).await, world.count(MARKERS).await), (1, 1));
}

#[tokio::test]
async fn under_serializable_the_second_is_told_to_retry_and_the_retry_is_a_duplicate() {
    let world = world_with_effects().await;
    let second = world.session().await;
    second
        .batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM effect")
        .await
        .expect("a snapshot");
    assert!(consume_with_effect(&world.db, "m1", "1").await.expect("consumed"));
    let refused = consume_with_effect(&second, "m1", "1").await.expect_err("too old");
    assert_eq!(refused.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
    second.batch_execute("ROLLBACK").await.expect("ended");
    assert!(!consume_with_effect(&second, "m1", "1").await.expect("retried"));
    assert_eq!(world.count(EFFECTS).await, 1);
}

#[tokio::test]
async fn an_effect_that_fails_takes_its_marker_along() {
    let world = World::new().await;
    world.execute("CREATE TABLE effect (id text CHECK (id <> 'm1'))").await;
    let failed = consume_with_effect(&world.db, "m1", "1").await.expect_err("refused");
    assert_eq!(failed.code(), Some(&SqlState::CHECK_VIOLATION));
    assert_eq!(world.count(MARKERS).await, 0);
    world
        .execute("ALTER TABLE effect DROP CONSTRAINT effect_id_check")
        .await;
    assert!(consume_with_effect(&world.db, "m1", "1").await.expect("fixed"));
}

#[tokio::test]
async fn an_id_that_comes_again_with_another_payload_is_refused_and_counted() {
    let world = world_with_effects().await;
    assert!(consume_with_effect(&world.db, "m1", "1").await.expect("consumed"));
    let other = format!("SELECT {}", consume("m1", "2"));
    assert_eq!(refusal(&world.db, &other).await, "P4050");
    world
        .execute("SELECT outbox.inbox_receive('c', 's', 'm', '{\"a\": 1, \"b\": 2}')")
        .await;
    let same = "outbox.inbox_receive('c', 's', 'm', '{\"b\":2,   \"a\":1}')";
    assert!(!world.is_true(same).await, "the same JSON in other words is the same");
    let other = "SELECT outbox.inbox_receive('c', 's', 'm', '{\"a\": 2}')";
    assert_eq!(refusal(&world.db, other).await, "P4050");
    // Whatever has become of it meanwhile.
    world
        .execute("SELECT outbox.inbox_done(id, token) FROM outbox.inbox_claim('c')")
        .await;
    assert_eq!(refusal(&world.db, other).await, "P4050");
    assert_eq!(world.count("SELECT conflicts FROM outbox.consumer_counters").await, 3);
    assert_eq!((world.count(EFFECTS).await, world.count(MARKERS).await), (1, 1));
}

#[tokio::test]
async fn the_loser_of_a_race_with_another_payload_is_refused() {
    let world = World::new().await;
    let second = world.session().await;
    world.execute(&format!("BEGIN; SELECT {}", consume("m1", "1"))).await;
    let other = format!("SELECT {}", consume("m1", "2"));
    let waiting = tokio::spawn(async move { refusal(&second, &other).await });
    world.blocked(1).await;
    world.execute("COMMIT").await;
    assert_eq!(waiting.await.expect("ran"), "P4050");
}

/// The events of a history applied through the gating CTE, several at once, in an order of its own.
async fn replay_history(world: &World, order: &str) {
    let mut sessions = Vec::new();
    for part in 0..4 {
        let session = world.session().await;
        let events = format!("SELECT n, account, delta FROM event WHERE n % 4 = {part} ORDER BY {order}");
        sessions.push(tokio::spawn(async move {
            for event in session.query(&events, &[]).await.expect("events") {
                let (n, account, delta): (i32, String, i64) = (event.get(0), event.get(1), event.get(2));
                let apply = format!(
                    "WITH gate AS MATERIALIZED (SELECT outbox.consume_once('balances', 'ledger', 'e{n}', '\\x01') AS first)
                     INSERT INTO balance AS b SELECT '{account}', {delta}, 1 FROM gate WHERE first
                     ON CONFLICT (account) DO UPDATE SET amount = b.amount + excluded.amount, events = b.events + 1"
                );
                session.batch_execute(&apply).await.expect("applied");
            }
        }));
    }
    for session in sessions {
        session.await.expect("ran");
    }
}

#[tokio::test]
async fn a_history_replayed_twice_gives_the_same_state_also_where_rows_do_not_exist_yet() {
    let world = World::new().await;
    world
        .execute(
            "CREATE TABLE balance (account text PRIMARY KEY, amount bigint, events bigint);
             CREATE TABLE event AS SELECT n, 'a' || n % 7 AS account, n::bigint AS delta FROM generate_series(1, 200) n",
        )
        .await;
    let state = "SELECT string_agg(b::text, ' ' ORDER BY account) FROM balance b";
    replay_history(&world, "n").await;
    let first = world.text(state).await;
    replay_history(&world, "n DESC").await;
    replay_history(&world, "random()").await;
    assert_eq!(world.text(state).await, first);
    let sums = "SELECT bool_and(b.amount = e.amount AND b.events = e.events) AND count(*) = 7
                FROM balance b FULL JOIN (SELECT account, sum(delta) AS amount, count(*) AS events FROM event GROUP BY 1) e
                USING (account)";
    assert!(world.is_true(sums).await, "{first}");
}
