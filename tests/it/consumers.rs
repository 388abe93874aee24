//! Consumers: one effect per message, however often and by however many it is consumed; the inbox and its workers.

use std::collections::BTreeMap;
use std::process::Command;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::support::*;

/// The SQLSTATE a statement is refused with. The server must explain itself, and give nothing away.
async fn refusal(client: &Client, sql: &str) -> String {
    let error = client.batch_execute(sql).await.expect_err(sql);
    let error = error.as_db_error().expect("from the server");
    let code = error.code().code().to_owned();
    if code.starts_with("P4") {
        assert!(error.detail().is_some() && error.hint().is_some(), "{sql}: {error:?}");
        assert!(error.message().len() < 200, "no raw input in {error:?}");
    }
    code
}

fn consume(id: &str, payload: &str) -> String {
    format!("outbox.consume_once('billing', 'orders', '{id}', sha256('{payload}'))")
}

/// Consumes, and counts the effect in the table `effect`.
async fn consume_with_effect(client: &Client, id: &str, payload: &str) -> Result<bool, tokio_postgres::Error> {
    let statement = format!(
        "WITH gate AS MATERIALIZED (SELECT {} AS first)
         INSERT INTO effect SELECT '{id}' FROM gate WHERE first RETURNING 1",
        consume(id, payload)
    );
    Ok(client.query_opt(&statement, &[]).await?.is_some())
}

async fn world_with_effects() -> World {
    let world = World::new().await;
    world.execute("CREATE TABLE effect (id text)").await;
    world
}

const EFFECTS: &str = "SELECT count(*) FROM effect";
const MARKERS: &str = "SELECT count(*) FROM outbox.processed_message";
const BLOCKED: &str =
    "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";

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
        // Dead rows of the catalogue, left by the migration, are pruned by whoever reads them: that is not the call's writing.
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
    world.until(BLOCKED).await;
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
    assert!(consume_with_effect(&world.db, "m1", "1").await.expect("mended"));
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
    world.until(BLOCKED).await;
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

/// What a claim answered: message id → (id, token).
type Claimed = BTreeMap<String, (i64, i32)>;

async fn claim(client: &Client, most: i32, lease: &str) -> Claimed {
    let sql = format!("SELECT message_id, id, token FROM outbox.inbox_claim('c', {most}, '{lease}', 'a worker')");
    let rows = client.query(&sql, &[]).await.expect("claimed");
    rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect()
}

/// One message of that name, in the inbox of consumer `c`.
async fn receive(world: &World, message: &str, rest: &str) {
    let stored = format!("outbox.inbox_receive('c', 's', '{message}', '{{}}'{rest})");
    assert!(world.is_true(&stored).await, "{stored}");
}

fn names(claimed: &Claimed) -> Vec<&str> {
    claimed.keys().map(String::as_str).collect()
}

fn done((id, token): (i64, i32)) -> String {
    format!("SELECT outbox.inbox_done({id}, {token})")
}

fn fail((id, token): (i64, i32)) -> String {
    format!("SELECT outbox.inbox_fail({id}, {token}, 'boom', backoff_min => '0', backoff_max => '0')")
}

const DUE: &str = "SELECT count(*) > 0 FROM outbox.inbox_message
                   WHERE done_at IS NULL AND poison_at IS NULL AND next_attempt_at <= clock_timestamp()";

#[tokio::test]
async fn what_is_received_is_what_is_claimed() {
    let world = World::new().await;
    let received =
        "outbox.inbox_receive('c', 's', 'm', '{\"n\": 1}', key => 'k', event_type => 'E', headers => '{\"h\": \"v\"}')";
    assert!(world.is_true(received).await);
    assert!(!world.is_true(received).await, "known");
    let claimed = "SELECT (source, message_id, key, event_type, headers, payload, payload_bytes, token, attempt)
                        IS NOT DISTINCT FROM
                          ('s', 'm', 'k', 'E', '{\"h\": \"v\"}'::jsonb, '{\"n\": 1}'::jsonb, NULL::bytea, 1, 1)
                   AND lease_until BETWEEN clock_timestamp() + interval '50 s' AND clock_timestamp() + interval '1 min'
                   FROM outbox.inbox_claim('c')";
    assert!(world.is_true(claimed).await);
    assert!(!world.is_true(received).await, "known while it is worked on");
}

#[tokio::test]
async fn sessions_that_claim_at_once_get_different_messages_and_every_one_of_them() {
    let world = World::new().await;
    world
        .execute("SELECT outbox.inbox_receive('c', 's', n::text, '{}') FROM generate_series(1, 400) n")
        .await;
    let mut sessions = Vec::new();
    for _ in 0..8 {
        let session = world.session().await;
        sessions.push(tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let claimed = claim(&session, 7, "1 minute").await;
                assert!(claimed.len() <= 7);
                if claimed.is_empty() {
                    return mine;
                }
                for message in claimed.values() {
                    session.batch_execute(&done(*message)).await.expect("done");
                }
                mine.extend(claimed.into_keys());
            }
        }));
    }
    let mut all = Vec::new();
    for session in sessions {
        all.extend(session.await.expect("ran"));
    }
    assert_eq!(all.len(), 400);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 400, "nothing was claimed twice");
}

#[tokio::test]
async fn a_claim_under_way_is_passed_over_not_waited_for() {
    let world = World::new().await;
    receive(&world, "m1", "").await;
    receive(&world, "m2", "").await;
    world.execute("BEGIN").await;
    assert_eq!(claim(&world.db, 1, "1 minute").await.len(), 1);
    let second = world.session().await;
    assert_eq!(names(&claim(&second, 10, "1 minute").await), ["m2"]);
    world.execute("ROLLBACK").await;
    assert_eq!(
        names(&claim(&second, 10, "1 minute").await),
        ["m1"],
        "a claim rolled back is none"
    );
}

#[tokio::test]
async fn a_worker_whose_lease_was_taken_is_refused_and_changes_nothing() {
    let world = world_with_effects().await;
    receive(&world, "m1", "").await;
    let zombie = world.session().await;
    let old = claim(&zombie, 1, "1 ms").await["m1"];
    world.until(DUE).await;
    let new = claim(&world.db, 1, "1 minute").await["m1"];
    assert_eq!(new, (old.0, old.1 + 1));
    zombie
        .batch_execute("BEGIN; INSERT INTO effect VALUES ('of the zombie')")
        .await
        .expect("its work");
    assert_eq!(refusal(&zombie, &done(old)).await, "P4010");
    zombie.batch_execute("ROLLBACK").await.expect("ended");
    assert_eq!(refusal(&zombie, &fail(old)).await, "P4011");
    world.execute(&done(new)).await;
    assert_eq!(refusal(&world.db, &done(new)).await, "P4010", "once");
    assert_eq!(refusal(&zombie, &done(old)).await, "P4010");
    assert_eq!(refusal(&zombie, &fail(old)).await, "P4011");
    assert_eq!(world.count(EFFECTS).await, 0);
    assert!(
        world
            .is_true("SELECT done_at IS NOT NULL AND last_error IS NULL FROM outbox.inbox_message")
            .await
    );
}

#[tokio::test]
async fn a_worker_that_meets_its_successor_in_the_act_waits_and_is_refused() {
    let world = World::new().await;
    receive(&world, "m1", "").await;
    let zombie = world.session().await;
    let old = claim(&zombie, 1, "1 ms").await["m1"];
    world.until(DUE).await;
    world.execute("BEGIN").await;
    assert_eq!(claim(&world.db, 1, "1 minute").await["m1"].1, old.1 + 1);
    let waiting = tokio::spawn(async move { refusal(&zombie, &done(old)).await });
    world.until(BLOCKED).await;
    world.execute("COMMIT").await;
    assert_eq!(waiting.await.expect("ran"), "P4010");
}

#[tokio::test]
async fn of_two_messages_of_a_key_stored_at_once_one_is_at_work_at_a_time() {
    let world = World::new().await;
    let slow = world.session().await;
    slow.batch_execute("BEGIN; SELECT outbox.inbox_receive('c', 's', 'low', '{}', key => 'k')")
        .await
        .expect("stored");
    receive(&world, "high", ", key => 'k'").await;
    let high = claim(&world.db, 10, "1 minute").await["high"];
    slow.batch_execute("COMMIT").await.expect("stored");
    assert!(
        claim(&world.db, 10, "1 minute").await.is_empty(),
        "the other is at work"
    );
    world.execute(&done(high)).await;
    assert_eq!(names(&claim(&world.db, 10, "1 minute").await), ["low"]);
}

#[tokio::test]
async fn a_late_worker_that_nobody_replaced_may_still_finish() {
    let world = World::new().await;
    receive(&world, "m1", "").await;
    let late = claim(&world.db, 1, "1 ms").await["m1"];
    world.until(DUE).await;
    world.execute("BEGIN").await;
    world.execute(&done(late)).await;
    let second = world.session().await;
    assert!(claim(&second, 1, "1 minute").await.is_empty(), "being finished");
    world.execute("COMMIT").await;
    assert!(claim(&second, 1, "1 minute").await.is_empty());
}

#[tokio::test]
async fn a_message_of_a_crashed_worker_is_claimed_again_when_its_lease_has_run_out() {
    let world = world_with_effects().await;
    receive(&world, "m1", "").await;
    let worker = world.session().await;
    let pid: i32 = worker
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .expect("a pid")
        .get(0);
    let old = claim(&worker, 1, "2 s").await["m1"];
    worker
        .batch_execute("BEGIN; INSERT INTO effect VALUES ('half done')")
        .await
        .expect("its work");
    world.execute(&format!("SELECT pg_terminate_backend({pid})")).await;
    assert!(
        claim(&world.db, 1, "1 minute").await.is_empty(),
        "the lease is not over"
    );
    world.until(DUE).await;
    let new = claim(&world.db, 1, "1 minute").await["m1"];
    assert_eq!(new.1, old.1 + 1);
    assert_eq!(world.count(EFFECTS).await, 0);
}

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
async fn messages_of_a_key_are_worked_off_one_after_the_other_and_others_pass() {
    let world = World::new().await;
    for (message, key) in [("1", "a"), ("2", "a"), ("3", "b"), ("4", "a"), ("5", "b")] {
        receive(&world, message, &format!(", key => '{key}', max_attempts => 2")).await;
    }
    receive(&world, "6", "").await;
    let first = claim(&world.db, 10, "1 minute").await;
    assert_eq!(names(&first), ["1", "3", "6"], "the head of each key");
    assert!(claim(&world.db, 10, "1 minute").await.is_empty(), "2, 4 and 5 wait");
    world.execute(&done(first["3"])).await;
    assert_eq!(names(&claim(&world.db, 10, "1 minute").await), ["5"]);
    world.execute(&fail(first["1"])).await;
    let again = claim(&world.db, 10, "1 minute").await;
    assert_eq!(names(&again), ["1"], "nothing overtakes a failed message of its key");
    world.execute(&fail(again["1"])).await;
    assert!(claim(&world.db, 10, "1 minute").await.is_empty(), "nor poison");
    let held = "SELECT held_behind = 2 FROM outbox.inbox_poison WHERE consumer = 'c'";
    assert!(world.is_true(held).await);
    let (id, _) = first["1"];
    assert!(world.is_true(&format!("outbox.inbox_discard('c', {id})")).await);
    let next = claim(&world.db, 10, "1 minute").await;
    assert_eq!(names(&next), ["2"]);
    world.execute(&done(next["2"])).await;
    assert_eq!(names(&claim(&world.db, 10, "1 minute").await), ["4"]);
}

#[tokio::test]
async fn a_message_stored_while_its_head_is_being_finished_is_not_forgotten() {
    let world = World::new().await;
    receive(&world, "1", ", key => 'k'").await;
    let worker = world.session().await;
    let head = claim(&worker, 1, "1 minute").await["1"];
    worker
        .batch_execute(&format!("BEGIN; {}", done(head)))
        .await
        .expect("finishing");
    receive(&world, "2", ", key => 'k'").await;
    assert!(
        claim(&world.db, 1, "1 minute").await.is_empty(),
        "its head is unfinished still"
    );
    worker.batch_execute("COMMIT").await.expect("finished");
    assert_eq!(names(&claim(&world.db, 1, "1 minute").await), ["2"]);
}

#[tokio::test]
async fn whoever_finishes_a_head_waits_for_a_message_being_stored_behind_it_and_wakes_it() {
    let world = World::new().await;
    receive(&world, "1", ", key => 'k'").await;
    let worker = world.session().await;
    let head = claim(&worker, 1, "1 minute").await["1"];
    world.execute("BEGIN").await;
    receive(&world, "2", ", key => 'k'").await;
    receive(&world, "3", ", key => 'k'").await;
    let finishing = tokio::spawn(async move { worker.batch_execute(&done(head)).await });
    world.until(BLOCKED).await;
    assert_eq!(
        world
            .count("SELECT count(*) FROM outbox.inbox_message WHERE behind")
            .await,
        2
    );
    world.execute("COMMIT").await;
    finishing.await.expect("ran").expect("finished");
    let next = claim(&world.db, 10, "1 minute").await;
    assert_eq!(names(&next), ["2"]);
    world.execute(&done(next["2"])).await;
    assert_eq!(names(&claim(&world.db, 10, "1 minute").await), ["3"]);
}

#[tokio::test]
async fn a_message_that_the_finisher_of_its_head_could_not_see_is_woken_by_a_later_claim() {
    let world = World::new().await;
    receive(&world, "1", ", key => 'k'").await;
    let worker = world.session().await;
    let head = claim(&worker, 1, "1 minute").await["1"];
    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM outbox.inbox_message";
    worker.batch_execute(snapshot).await.expect("a snapshot");
    receive(&world, "2", ", key => 'k'").await;
    worker
        .batch_execute(&format!("{}; COMMIT", done(head)))
        .await
        .expect("finished");
    assert!(
        world
            .is_true("SELECT behind FROM outbox.inbox_message WHERE message_id = '2'")
            .await
    );
    eventually(SOON, "the message to be claimed", async || {
        claim(&world.db, 1, "1 minute").await.contains_key("2").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_look_for_stranded_messages_is_bounded_and_the_next_one_goes_on_behind_it() {
    let world = World::new().await;
    // Of two consumers, each line with a message that nobody stands before and one that does stand behind it.
    world
        .execute(
            "INSERT INTO outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, max_attempts, priority, key, behind)
             SELECT 'c' || n % 2, 's', n || place, '\\x01', now(), 1, 0, 'k' || n, true
             FROM generate_series(1, 20) n, unnest('{a,b}'::text[]) place ORDER BY n, place",
        )
        .await;
    let woken = "SELECT count(*) FROM outbox.inbox_message WHERE NOT behind";
    for expected in [8, 16, 20, 20] {
        world.execute("SELECT outbox.inbox_wake_stranded(8)").await;
        assert_eq!(world.count(woken).await, expected);
    }
    let heads = "SELECT bool_and(message_id LIKE '%a' <> behind) FROM outbox.inbox_message";
    assert!(world.is_true(heads).await, "only who is first of its line");
}

#[tokio::test]
async fn a_look_for_stranded_messages_costs_the_same_however_many_lines_there_are() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, max_attempts, priority, key, behind)
             SELECT 'c', 's', n::text, '\\x01', now(), 1, 0, 'k' || n, true FROM generate_series(1, 20000) n;
             ANALYZE outbox.inbox_message",
        )
        .await;
    let blocks = cost(&world.db, "SELECT outbox.inbox_wake_stranded(100)", "Shared Hit Blocks").await;
    assert!(blocks < 5000, "{blocks} blocks for a hundred lines");
}

#[tokio::test]
async fn a_long_line_of_one_key_costs_the_others_nothing() {
    let world = World::new().await;
    receive(&world, "head", ", key => 'k'").await;
    world
        .execute(
            "INSERT INTO outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, max_attempts, priority, key, behind)
             SELECT 'c', 's', n::text, '\\x01', now(), 1, 0, 'k', true FROM generate_series(1, 50000) n",
        )
        .await;
    receive(&world, "other", ", key => 'o'").await;
    receive(&world, "last", ", key => 'k'").await;
    assert!(
        world
            .is_true("SELECT behind FROM outbox.inbox_message WHERE message_id = 'last'")
            .await
    );
    let claim_all = "SELECT * FROM outbox.inbox_claim('c', 10)";
    let blocks = cost(&world.db, claim_all, "Shared Hit Blocks").await;
    assert!(blocks < 1000, "{blocks} blocks for two messages");
    let claimed =
        "SELECT string_agg(message_id, ' ' ORDER BY message_id) FROM outbox.inbox_message WHERE claimed_at IS NOT NULL";
    assert_eq!(world.text(claimed).await, "head other");
    let head = world
        .count("SELECT id FROM outbox.inbox_message WHERE message_id = 'head'")
        .await;
    let blocks = cost(&world.db, &done((head, 1)), "Shared Hit Blocks").await;
    assert!(blocks < 1000, "{blocks} blocks to finish one message");
    let next = claim(&world.db, 10, "1 minute").await;
    assert_eq!(names(&next), ["1"]);
}

#[tokio::test]
async fn workers_at_once_keep_the_order_of_every_key() {
    let world = World::new().await;
    world
        .execute(
            "CREATE TABLE log (at bigint GENERATED ALWAYS AS IDENTITY, key text, n integer);
             SELECT outbox.inbox_receive('c', 's', n::text, to_jsonb(n), key => 'k' || n % 5) FROM generate_series(1, 200) n",
        )
        .await;
    let mut sessions = Vec::new();
    for _ in 0..8 {
        let session = world.session().await;
        sessions.push(tokio::spawn(async move {
            let unfinished = "SELECT count(*) FROM outbox.inbox_message WHERE done_at IS NULL";
            while session.query_one(unfinished, &[]).await.expect("a count").get::<_, i64>(0) > 0 {
                for message in claim(&session, 3, "1 minute").await.values() {
                    let work = format!(
                        "BEGIN; INSERT INTO log (key, n) SELECT key, payload::integer FROM outbox.inbox_message WHERE id = {};
                         {}; COMMIT",
                        message.0,
                        done(*message)
                    );
                    session.batch_execute(&work).await.expect("worked");
                }
            }
        }));
    }
    for session in sessions {
        session.await.expect("ran");
    }
    let in_order = "SELECT count(*) = 200 AND bool_and(n > before) FROM (
                        SELECT n, lag(n, 1, 0) OVER (PARTITION BY key ORDER BY at) AS before FROM log) l";
    assert!(world.is_true(in_order).await);
}

#[tokio::test]
async fn higher_priority_goes_first_and_a_message_waits_for_its_time() {
    let world = World::new().await;
    receive(&world, "low", ", priority => -1").await;
    receive(&world, "plain", "").await;
    receive(&world, "high", ", priority => 5").await;
    receive(
        &world,
        "later",
        ", priority => 9, not_before => clock_timestamp() + interval '1 hour'",
    )
    .await;
    for expected in ["high", "plain", "low"] {
        assert_eq!(names(&claim(&world.db, 1, "1 minute").await), [expected]);
    }
    assert!(claim(&world.db, 1, "1 minute").await.is_empty());
    world
        .execute("UPDATE outbox.inbox_message SET next_attempt_at = now() WHERE message_id = 'later'")
        .await;
    assert_eq!(names(&claim(&world.db, 1, "1 minute").await), ["later"]);
}

#[tokio::test]
async fn a_claim_does_not_pay_for_what_is_done() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, done_at, max_attempts, priority)
             SELECT 'c', 's', 'old' || n, '\\x01', now(), now(), 1, 0 FROM generate_series(1, 100000) n;
             SELECT outbox.inbox_receive('c', 's', 'new' || n, '{}', key => 'k' || n) FROM generate_series(1, 10) n",
        )
        .await;
    let blocks = cost(
        &world.db,
        "SELECT * FROM outbox.inbox_claim('c', 10)",
        "Shared Hit Blocks",
    )
    .await;
    assert!(
        blocks < 1000,
        "{blocks} blocks for ten messages: the table has some 2,000"
    );
    let claimed = "SELECT count(*) FROM outbox.inbox_message WHERE claimed_at IS NOT NULL";
    assert_eq!(world.count(claimed).await, 10);
}

/// Calls that are wrong, and the documented SQLSTATE of each.
const BAD_CALLS: &[(&str, &str)] = &[
    ("outbox.consume_once(NULL, 's', 'm', '\\x01')", "P4000"),
    ("outbox.consume_once('', 's', 'm', '\\x01')", "P4000"),
    ("outbox.consume_once('c', NULL, 'm', '\\x01')", "P4000"),
    ("outbox.consume_once('c', '', 'm', '\\x01')", "P4000"),
    ("outbox.consume_once('c', 's', NULL, '\\x01')", "P4001"),
    ("outbox.consume_once('c', 's', '', '\\x01')", "P4001"),
    ("outbox.consume_once('  ', 's', 'm', '\\x01')", "P4000"),
    ("outbox.consume_once('c', E' \\t', 'm', '\\x01')", "P4000"),
    ("outbox.consume_once('c', 's', E'\\r\\n', '\\x01')", "P4001"),
    ("outbox.inbox_receive(' ', 's', 'm')", "P4000"),
    ("outbox.inbox_receive('c', E'\\n', 'm')", "P4000"),
    ("outbox.inbox_receive('c', 's', E' \\t')", "P4001"),
    ("outbox.inbox_claim(' ')", "P4000"),
    ("outbox.inbox_replay(E'\\t')", "P4000"),
    ("outbox.inbox_discard(' ', 1)", "P4000"),
    ("outbox.consume_once('c', 's', 'm', NULL)", "P4003"),
    ("outbox.consume_once('c', 's', 'm', '')", "P4003"),
    ("outbox.consume_once(repeat('x', 300), 's', 'm', '\\x01')", "P4004"),
    ("outbox.consume_once('c', repeat('x', 300), 'm', '\\x01')", "P4004"),
    ("outbox.consume_once('c', 's', repeat('x', 300), '\\x01')", "P4004"),
    (
        "outbox.consume_once('c', 's', 'm', convert_to(repeat('x', 1048577), 'UTF8'))",
        "P4004",
    ),
    (
        "outbox.consume_once('c', 's', 'm', '\\x01', outcome => repeat('x', 256))",
        "P4004",
    ),
    (
        "outbox.consume_once('c', 's', 'm', '\\x01', result_type => repeat('x', 256))",
        "P4004",
    ),
    (
        "outbox.consume_once('c', 's', 'm', '\\x01', result_id => repeat('x', 256))",
        "P4004",
    ),
    ("outbox.inbox_receive(NULL, 's', 'm', '{}')", "P4000"),
    ("outbox.inbox_receive('', 's', 'm', '{}')", "P4000"),
    ("outbox.inbox_receive('c', NULL, 'm', '{}')", "P4000"),
    ("outbox.inbox_receive('c', '', 'm', '{}')", "P4000"),
    ("outbox.inbox_receive('c', 's', NULL, '{}')", "P4001"),
    ("outbox.inbox_receive('c', 's', '', '{}')", "P4001"),
    ("outbox.inbox_receive('c', 's', repeat('x', 300), '{}')", "P4004"),
    (
        "outbox.inbox_receive('c', 's', 'm', to_jsonb(repeat('x', 1048576)))",
        "P4004",
    ),
    (
        "outbox.inbox_receive('c', 's', 'm', payload_bytes => convert_to(repeat('x', 1048577), 'UTF8'))",
        "P4004",
    ),
    (
        "outbox.inbox_receive('c', 's', 'm', '{}', payload_bytes => '\\x01')",
        "P4004",
    ),
    ("outbox.inbox_receive('c', 's', 'm', '{}', payload_hash => '')", "P4004"),
    (
        "outbox.inbox_receive('c', 's', 'm', '{}', payload_hash => convert_to(repeat('x', 65), 'UTF8'))",
        "P4004",
    ),
    (
        "outbox.inbox_receive('c', 's', 'm', '{}', key => repeat('x', 1025))",
        "P4004",
    ),
    (
        "outbox.inbox_receive('c', 's', 'm', '{}', event_type => repeat('x', 256))",
        "P4004",
    ),
    ("outbox.inbox_receive('c', 's', 'm', '{}', headers => '[]')", "P4004"),
    (
        "outbox.inbox_receive('c', 's', 'm', '{}', headers => jsonb_build_object('h', repeat('x', 65536)))",
        "P4004",
    ),
    ("outbox.inbox_receive('c', 's', 'm', '{}', priority => NULL)", "P4004"),
    ("outbox.inbox_receive('c', 's', 'm', '{}', priority => 40000)", "P4004"),
    (
        "outbox.inbox_receive('c', 's', 'm', '{}', max_attempts => NULL)",
        "P4004",
    ),
    ("outbox.inbox_receive('c', 's', 'm', '{}', max_attempts => 0)", "P4004"),
    (
        "outbox.inbox_receive('c', 's', 'm', '{}', not_before => 'infinity')",
        "P4004",
    ),
    ("outbox.inbox_claim(NULL)", "P4000"),
    ("outbox.inbox_claim('')", "P4000"),
    ("outbox.inbox_claim(repeat('x', 300))", "P4004"),
    ("outbox.inbox_claim('c', NULL)", "P4004"),
    ("outbox.inbox_claim('c', 0)", "P4004"),
    ("outbox.inbox_claim('c', 10001)", "P4004"),
    ("outbox.inbox_claim('c', 1, NULL)", "P4004"),
    ("outbox.inbox_claim('c', 1, '0')", "P4004"),
    ("outbox.inbox_claim('c', 1, '-1 second')", "P4004"),
    ("outbox.inbox_claim('c', 1, '2 days')", "P4004"),
    ("outbox.inbox_claim('c', 1, 'soon')", "22007"),
    ("outbox.inbox_claim('c', 1, '1 s', repeat('x', 300))", "P4004"),
    ("outbox.inbox_done(NULL, 1)", "P4010"),
    ("outbox.inbox_done(1, NULL)", "P4010"),
    ("outbox.inbox_done(99, 1)", "P4010"),
    ("outbox.inbox_done(1, 1, repeat('x', 256))", "P4004"),
    ("outbox.inbox_fail(NULL, 1)", "P4011"),
    ("outbox.inbox_fail(1, NULL)", "P4011"),
    ("outbox.inbox_fail(99, 1)", "P4011"),
    ("outbox.inbox_fail(1, 1, retryable => NULL)", "P4004"),
    ("outbox.inbox_fail(1, 1, backoff_min => NULL)", "P4004"),
    ("outbox.inbox_fail(1, 1, backoff_min => '-1 s')", "P4004"),
    (
        "outbox.inbox_fail(1, 1, backoff_min => '1 hour', backoff_max => '1 min')",
        "P4004",
    ),
    ("outbox.inbox_fail(1, 1, backoff_max => '31 days')", "P4004"),
    ("outbox.inbox_fail(1, 1, backoff_max => NULL)", "P4004"),
    ("outbox.inbox_replay(NULL)", "P4000"),
    ("outbox.inbox_replay('')", "P4000"),
    ("outbox.inbox_replay('c', most => 0)", "P4004"),
    ("outbox.inbox_replay('c', most => NULL)", "P4004"),
    ("outbox.inbox_discard(NULL, 1)", "P4000"),
    ("outbox.inbox_discard('c', 1, repeat('x', 201))", "P4004"),
    ("outbox.purge_processed(NULL)", "P4004"),
    ("outbox.purge_processed('59 minutes')", "P4004"),
    ("outbox.purge_processed('-1 day')", "P4004"),
    ("outbox.purge_processed('1 day', 0)", "P4004"),
    ("outbox.purge_processed('1 day', NULL)", "P4004"),
    ("outbox.purge_idempotency(NULL)", "P4004"),
    ("outbox.purge_idempotency(0)", "P4004"),
    ("outbox.purge_inbox(NULL)", "P4004"),
    ("outbox.purge_inbox('59 minutes')", "P4004"),
    ("outbox.purge_inbox('1 day', 100001)", "P4004"),
];

#[tokio::test]
async fn every_function_refuses_bad_input_with_the_documented_code_and_writes_nothing() {
    let world = World::new().await;
    receive(&world, "there", "").await;
    let claimed = claim(&world.db, 1, "1 minute").await["there"];
    assert_eq!(claimed, (1, 1), "the calls above name it");
    let state =
        "SELECT string_agg(m::text, '') || (SELECT count(*) FROM outbox.processed_message) FROM outbox.inbox_message m";
    let before = world.text(state).await;
    for (call, code) in BAD_CALLS {
        assert_eq!(refusal(&world.db, &format!("SELECT {call}")).await, *code, "{call}");
        assert_eq!(world.text(state).await, before, "{call} wrote");
    }
}

#[tokio::test]
async fn what_is_just_within_the_limits_of_the_inbox_is_accepted() {
    let world = World::new().await;
    for call in [
        "outbox.consume_once(repeat('c', 255), repeat('s', 255), repeat('m', 255), convert_to(repeat('x', 64), 'UTF8'))",
        "outbox.inbox_receive(repeat('c', 255), repeat('s', 255), repeat('m', 255), key => repeat('k', 1024))",
        "outbox.inbox_receive('c', 's', 'text', to_jsonb(repeat('x', 1048574)), priority => -32768, max_attempts => 1000)",
        "outbox.inbox_receive('c', 's', 'bytes', payload_bytes => convert_to(repeat('x', 1048576), 'UTF8'), headers => '{}')",
    ] {
        assert!(world.is_true(call).await, "{call}");
    }
    let (id, token) = claim(&world.db, 1, "1 day").await["bytes"];
    let long = format!(
        "outbox.inbox_fail({id}, {token}, repeat('long ', 100000), backoff_min => '30 days', backoff_max => '30 days') IS NOT NULL"
    );
    assert!(world.is_true(&long).await);
    assert_eq!(
        world
            .count("SELECT length(last_error)::bigint FROM outbox.inbox_message WHERE last_error IS NOT NULL")
            .await,
        2000,
        "an error of any length is cut, not refused"
    );
}

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

/// Loads the worked example; its own messages, which no topic waits for, are dropped.
async fn load_example(world: &World) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/sql/inbound_to_outbound.sql");
    let loaded = Command::new("psql")
        .args([&world.database_url, "-q", "-v", "ON_ERROR_STOP=1", "-f", file])
        .output()
        .expect("psql runs");
    assert!(loaded.status.success(), "{}", stderr_of(&loaded));
    world
        .execute("DELETE FROM outbox.message; DELETE FROM inbound_to_outbound.shipment")
        .await;
}

/// Hands every record of the topic to the inbox, as a consumer does that has lost its offset.
async fn receive_topic(world: &World, topic: &str) -> usize {
    let mut stored = 0;
    for record in world.records(topic).await {
        let value: serde_json::Value = serde_json::from_slice(&record.payload.expect("a value")).expect("JSON");
        let id = format!("{}/{}", record.partition, record.offset);
        let order = value["order"].as_str().expect("an order").to_owned();
        let row = world
            .db
            .query_one(
                "SELECT inbound_to_outbound.receive($1, $2, $3, $4::text::jsonb)",
                &[&topic, &id, &order, &value.to_string()],
            )
            .await
            .expect("received");
        stored += usize::from(row.get::<_, bool>(0));
    }
    stored
}

#[tokio::test]
async fn a_record_delivered_twice_passes_inbox_effect_and_outbox_and_leaves_once() {
    let world = World::new().await;
    load_example(&world).await;
    let (inbound, outbound) = (
        world.topic("orders", 2, &[]).await,
        world.topic("shipments", 2, &[]).await,
    );
    for n in 0..20 {
        let value = format!("{{\"order\": \"{}\", \"article\": \"bolt\", \"pieces\": {n}}}", n % 4);
        let record = Record {
            partition: n % 2,
            payload: Some(value.into_bytes()),
            ..Record::default()
        };
        plant(&world.kafka, &inbound, &record).await;
    }
    let mut relay = world.relay().start_ready().await;
    assert_eq!(receive_topic(&world, &inbound).await, 20);
    assert_eq!(receive_topic(&world, &inbound).await, 0, "the whole topic again");
    let unfinished = "SELECT count(*) = 0 FROM outbox.inbox_message WHERE done_at IS NULL";
    while !world.is_true(unfinished).await {
        world
            .execute(&format!("CALL inbound_to_outbound.work('{outbound}')"))
            .await;
    }
    world.drained(SOON).await;
    let mut pieces: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for record in read_until(&world.kafka, &outbound, 20, SOON).await {
        let shipped: serde_json::Value = serde_json::from_slice(&record.payload.expect("a value")).expect("JSON");
        let order = shipped["order_id"].as_str().expect("an order").to_owned();
        pieces
            .entry(order)
            .or_default()
            .push(shipped["pieces"].as_i64().expect("a number"));
    }
    let expected: BTreeMap<String, Vec<i64>> = (0..4)
        .map(|order| (order.to_string(), (0..5).map(|n| n * 4 + order).collect()))
        .collect();
    assert_eq!(pieces, expected, "once, and in order per order");
    relay.stop();
}
