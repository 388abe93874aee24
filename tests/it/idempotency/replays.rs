//! What a claim answers, state by state, and what an answer costs.

use super::*;

/// Commands in each state there is, and the kind that a claim without `take_over` answers.
const STATES: [(&str, &str); 5] = [
    ("done", "replay"),
    ("held", "active"),
    ("left", "stale"),
    ("again", "retryable"),
    ("never", "final"),
];

async fn world_of_all_states() -> World {
    let world = world().await;
    order(&world.db, "done").await.expect("executed");
    claim(&world.db, "held", "").await;
    world.stale("left").await;
    for (key, retryable) in [("again", true), ("never", false)] {
        claim(&world.db, key, "").await;
        world
            .execute(&format!(
                "SELECT outbox.idempotency_fail('orders', '{key}', 1, {retryable}, 'no_stock', 'none left')"
            ))
            .await;
    }
    world
}

#[tokio::test]
async fn the_same_command_twice_in_a_row_has_one_effect_and_one_answer() {
    let world = world().await;
    let first = order(&world.db, "k").await.expect("executed");
    let second = order(&world.db, "k").await.expect("replayed");
    assert_eq!((first.as_str(), world.effects().await), ("201 {\"id\": 1}", 1));
    assert_eq!(first, second);
    let replay = claim(&world.db, "k", "").await;
    assert_eq!(
        (replay.kind.as_str(), replay.granted, replay.attempt),
        ("replay", false, None)
    );
    assert_eq!(replay.result.as_deref(), Some("effect 1"));
}

#[tokio::test]
async fn a_claim_answers_each_state_with_its_kind_and_grants_only_what_may_run() {
    let world = world_of_all_states().await;
    for (key, kind) in STATES {
        let answer = claim(&world.db, key, "").await;
        assert_eq!(answer.kind, kind);
        assert_eq!(answer.granted, kind == "retryable", "{answer:?}");
        assert_eq!(answer.attempt, (kind == "retryable").then_some(2), "{answer:?}");
        assert_eq!(answer.has_retry_after, kind == "active", "{answer:?}");
        let failed = ["retryable", "final"].contains(&kind);
        assert_eq!(answer.failure.is_some(), failed, "{answer:?}");
    }
    assert_eq!(claim(&world.db, "left", ", take_over => true").await.attempt, Some(2));
    for (key, kind) in [
        ("done", "replay"),
        ("held", "active"),
        ("never", "final"),
        ("left", "active"),
    ] {
        let answer = claim(&world.db, key, ", take_over => true").await;
        assert_eq!(
            (answer.kind.as_str(), answer.granted),
            (kind, false),
            "nothing to take over"
        );
    }
}

#[tokio::test]
async fn begin_answers_what_may_run_or_has_run_and_raises_the_rest() {
    let world = world_of_all_states().await;
    let begin = |key: &str| format!("SELECT * FROM outbox.idempotency_begin('orders', '{key}', {HASH})");
    for (key, code) in [("held", "P4029"), ("left", "P4029"), ("never", "P4030")] {
        assert_eq!(refusal(&world.db, &begin(key)).await, code, "{key}");
    }
    for (key, kind) in [("done", "replay"), ("again", "retryable"), ("fresh", "new")] {
        let arguments = format!("'orders', '{key}', {HASH}");
        let answer = call(&world.db, "idempotency_begin", &arguments)
            .await
            .expect("an answer");
        assert_eq!((answer.kind.as_str(), answer.granted), (kind, kind != "replay"));
    }
    let arguments = format!("'orders', 'left', {HASH}, take_over => true");
    let taken = call(&world.db, "idempotency_begin", &arguments).await.expect("granted");
    assert_eq!(taken.attempt, Some(2));
}

#[tokio::test]
async fn a_key_used_again_for_another_request_is_refused_in_every_state_and_changes_nothing() {
    let world = world_of_all_states().await;
    let before = world.requests().await;
    for (key, _) in STATES {
        for take_over in [false, true] {
            for function in ["claim", "begin"] {
                let sql = format!(
                    "SELECT outbox.idempotency_{function}('orders', '{key}', {OTHER_HASH}, take_over => {take_over})"
                );
                assert_eq!(refusal(&world.db, &sql).await, "P4002", "{sql}");
            }
        }
    }
    assert_eq!(world.requests().await, before);
    let counted = "SELECT conflicted FROM outbox.idempotency_counters";
    assert_eq!(world.count(counted).await, 20, "refused, and counted all the same");
}

#[tokio::test]
async fn tenants_with_the_same_key_do_not_meet() {
    let world = world().await;
    for tenant in ["acme", "globex"] {
        let arguments = format!("'{tenant}', 'orders', 'k', {HASH}");
        let answer = call(&world.db, "idempotency_claim", &arguments)
            .await
            .expect("an answer");
        assert_eq!(answer.kind, "new");
        let again = call(&world.db, "idempotency_begin", &arguments).await;
        assert_eq!(state(&again.expect_err("held")), "P4029");
    }
    let scopes = "SELECT string_agg(scope, ' ' ORDER BY scope) FROM outbox.idempotency_request";
    assert_eq!(world.text(scopes).await, "acme/orders globex/orders");
    world
        .execute("SELECT outbox.idempotency_succeed(outbox.idempotency_scope('acme', 'orders'), 'k', 1)")
        .await;
}

#[tokio::test]
async fn a_hash_ignores_the_order_of_keys_and_whitespace_and_takes_numbers_as_they_are_written() {
    let world = world().await;
    for (one, other, same) in [
        ("{\"a\": 1, \"b\": [1, 2]}", "{ \"b\":[1,2],\n\"a\":1 }", true),
        ("{\"a\": 2}", "{\"a\": 1, \"a\": 2}", true),
        ("100", "1e2", true),
        ("\"\\u00e9\"", "\"é\"", true),
        ("1", "1.0", false),
        ("[1, 2]", "[2, 1]", false),
        ("{\"a\": null}", "{}", false),
        ("1", "\"1\"", false),
    ] {
        let equal = format!("outbox.request_hash('{one}') = outbox.request_hash('{other}')");
        assert_eq!(world.is_true(&equal).await, same, "{one} and {other}");
    }
    let known = "SELECT encode(outbox.request_hash('{}'), 'hex')";
    let sha256_of_braces = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
    assert_eq!(world.text(known).await, sha256_of_braces, "a client can make the same");
}

/// The WAL records that the statement itself wrote, whatever else the server does.
async fn wal_of(world: &World, statement: &str) -> i64 {
    cost(&world.db, statement, "WAL Records").await
}

#[tokio::test]
async fn a_replay_writes_nothing_locks_no_row_and_draws_no_transaction_id() {
    let world = world().await;
    let replay = format!("SELECT * FROM outbox.idempotency_claim('orders', 'k', {HASH})");
    assert!(wal_of(&world, &replay).await > 0, "the first one writes");
    world
        .execute("SELECT outbox.idempotency_succeed('orders', 'k', 1)")
        .await;
    let versions = "SELECT ctid::text || xmin || ' ' || xmax FROM outbox.idempotency_request";
    let before = world.text(versions).await;

    // The first read of a table may tidy up a page of the catalog; no later one writes.
    assert_eq!(claim(&world.db, "k", "").await.kind, "replay");
    let replays = format!(
        "SELECT c.* FROM generate_series(1, 500) g,
         LATERAL outbox.idempotency_claim('orders', left('k' || g, 1), {HASH}) c"
    );
    for statement in [&replay, &replays] {
        assert_eq!(wal_of(&world, statement).await, 0, "no WAL");
    }
    world.execute("BEGIN").await;
    assert_eq!(claim(&world.db, "k", "").await.kind, "replay");
    assert!(world.is_true("pg_current_xact_id_if_assigned() IS NULL").await);
    let row_locks = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'
                     AND relation = 'outbox.idempotency_request'::regclass AND mode <> 'AccessShareLock'";
    assert_eq!(world.count(row_locks).await, 0);
    world.execute("COMMIT").await;
    assert_eq!(world.text(versions).await, before);
    let counted = "SELECT replayed FROM outbox.idempotency_counters";
    assert_eq!(world.count(counted).await, 503, "and yet each was counted");
}

#[tokio::test]
async fn five_hundred_replays_at_once_get_the_same_answer_and_wait_for_nobody() {
    let world = world().await;
    let stored = order(&world.db, "k").await.expect("executed");
    // Another session that wanted the row would wait for this one.
    world
        .execute("BEGIN; SELECT FROM outbox.idempotency_request WHERE key = 'k' FOR UPDATE")
        .await;
    let mut retries = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let session = world.session().await;
        run(&session, "SET lock_timeout = '1ms'").await.expect("set");
        retries.spawn(async move {
            let replays = (0..25).map(|_| claim(&session, "k", ""));
            futures_util::future::join_all(replays).await
        });
    }
    let answers: Vec<Answer> = retries.join_all().await.into_iter().flatten().collect();
    world.execute("COMMIT").await;
    assert_eq!(answers.len(), 500);
    assert!(answers.iter().all(|answer| answer.response.as_ref() == Some(&stored)));
    assert_eq!(world.effects().await, 1);
}

#[tokio::test]
async fn counting_survives_a_refusal_and_costs_no_wal_and_no_transaction_id() {
    let world = world().await;
    let count = "SELECT nextval('outbox.idempotency_conflicted')";
    // Once before: the first read of a catalog may tidy a page of it up, and that is written down.
    world.execute(count).await;
    assert_eq!(wal_of(&world, count).await, 0);
    world.execute("BEGIN").await;
    world.execute(count).await;
    assert!(world.is_true("pg_current_xact_id_if_assigned() IS NULL").await);
    world.execute("ROLLBACK").await;
    assert_eq!(
        world.count("SELECT conflicted FROM outbox.idempotency_counters").await,
        3
    );
    assert_eq!(
        world
            .count("SELECT granted + replayed FROM outbox.idempotency_counters")
            .await,
        0
    );
}

#[tokio::test]
async fn a_read_only_transaction_is_told_what_need_not_be_written_or_counted() {
    let world = world_of_all_states().await;
    run(&world.db, "SET default_transaction_read_only = on")
        .await
        .expect("set");
    for (key, kind) in [("held", "active"), ("left", "stale"), ("never", "final")] {
        let answer = claim(&world.db, key, "").await;
        assert_eq!((answer.kind.as_str(), answer.granted), (kind, false));
    }
    for (key, more) in [
        ("done", ""),
        ("again", ""),
        ("fresh", ""),
        ("left", ", take_over => true"),
    ] {
        let refused = try_claim(&world.db, key, more).await.expect_err(key);
        assert_eq!(state(&refused), "25006", "{key}");
    }
}

/// What the documentation warns of.
#[tokio::test]
async fn an_answer_taken_apart_in_the_select_list_is_claimed_again_for_every_column() {
    let world = world().await;
    let apart = format!("SELECT (outbox.idempotency_claim('orders', 'apart', {HASH})).*");
    let row = world.db.query_one(&apart, &[]).await.expect("an answer");
    assert_eq!(
        (row.get::<_, &str>("kind"), row.get::<_, bool>("granted")),
        ("new", false)
    );
    let whole = format!("SELECT * FROM outbox.idempotency_claim('orders', 'whole', {HASH})");
    let row = world.db.query_one(&whole, &[]).await.expect("an answer");
    assert_eq!(
        (row.get::<_, &str>("kind"), row.get::<_, bool>("granted")),
        ("new", true)
    );
}

#[tokio::test]
async fn an_answer_goes_by_the_clock_and_not_by_the_time_the_transaction_began() {
    let world = world().await;
    let late = world.session().await;
    run(&late, "BEGIN; SELECT now()").await.expect("begun");
    world.stale("k").await;
    assert_eq!(claim(&late, "k", "").await.kind, "stale", "its lock ran out meanwhile");
    claim(&late, "mine", "").await;
    let fresh = "SELECT claimed_at > now() AND locked_until > now() + interval '30 seconds'
                 FROM outbox.idempotency_request WHERE key = 'mine'";
    let row = late.query_one(fresh, &[]).await.expect("a row");
    assert!(row.get::<_, bool>(0), "a lock counts from the claim");
}

/// A table as it is after a while: nearly everything in it has succeeded, and the planner knows.
async fn world_of_successes() -> World {
    let world = world().await;
    world
        .execute(&format!(
            "SELECT outbox.idempotency_claim('s', n::text, {HASH}), outbox.idempotency_succeed('s', n::text, 1)
             FROM generate_series(1, 5000) n"
        ))
        .await;
    world.execute("VACUUM ANALYZE outbox.idempotency_request").await;
    world
}

#[tokio::test]
async fn an_attempt_is_found_by_its_key_and_not_among_all_that_are_under_way() {
    let world = world_of_successes().await;
    for key in 0..20 {
        order(&world.db, &key.to_string()).await.expect("executed");
    }
    world.execute("SELECT pg_stat_force_next_flush()").await;
    let scans = |which: &str| {
        format!(
            "SELECT sum(idx_scan)::bigint FROM pg_stat_user_indexes
             WHERE relname = 'idempotency_request' AND indexrelname {which} 'idempotency_request_pkey'"
        )
    };
    world.until(&format!("({}) >= 5000", scans("="))).await;
    assert_eq!(world.count(&scans("<>")).await, 0);
}

/// The plan of a query, as text.
async fn plan_of(world: &World, query: &str) -> String {
    let rows = world.db.query(&format!("EXPLAIN {query}"), &[]).await.expect(query);
    rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect()
}

#[tokio::test]
async fn what_is_stale_or_often_tried_is_found_without_reading_what_succeeded() {
    let world = world_of_successes().await;
    for view in ["stale", "retried", "expired"] {
        let plan = plan_of(&world, &format!("SELECT * FROM outbox.idempotency_{view}")).await;
        assert!(!plan.contains("Seq Scan"), "{plan}");
    }
}
