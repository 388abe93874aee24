//! Bad input, and callers who may not.

use super::*;

/// Calls that must be refused with this SQLSTATE; `#` stands for a good hash.
const REFUSED: &[(&str, &str)] = &[
    ("claim(NULL, 'k', #)", "P4000"),
    ("claim('', 'k', #)", "P4000"),
    ("claim(' ', 'k', #)", "P4000"),
    ("claim(E'\\t', 'k', #)", "P4000"),
    ("claim(E'\\x0B', 'k', #)", "P4000"),
    ("claim(E'\\t', 'pay', 'k', #)", "P4000"),
    ("claim(repeat('s', 256), 'k', #)", "P4004"),
    ("claim('s', NULL, #)", "P4001"),
    ("claim('s', '', #)", "P4001"),
    ("claim('s', ' ', #)", "P4001"),
    ("claim('s', E' \\n', #)", "P4001"),
    ("claim('s', repeat('k', 300), #)", "P4004"),
    ("claim('s', repeat('ä', 128), #)", "P4004"),
    ("claim('s', 'k', NULL::bytea)", "P4003"),
    ("claim('s', 'k', ''::bytea)", "P4003"),
    ("claim('s', 'k', outbox.request_hash(NULL))", "P4003"),
    ("claim('s', 'k', '\\x00'::bytea)", "P4004"),
    ("claim('s', 'k', convert_to(repeat('x', 1000000), 'UTF8'))", "P4004"),
    ("claim('s', 'k', #, lock_for => NULL)", "P4004"),
    ("claim('s', 'k', #, lock_for => '0')", "P4004"),
    ("claim('s', 'k', #, lock_for => '-1 second')", "P4004"),
    ("claim('s', 'k', #, lock_for => '2 days')", "P4004"),
    ("claim('s', 'k', #, lock_for => '300000 years')", "P4004"),
    ("claim('s', 'k', #, lock_for => '-178000000 years')", "P4004"),
    ("claim('s', 'k', #, lock_for => '100000 years -36500000 days')", "P4004"),
    ("claim('s', 'k', #, lock_for => 'soon')", "22007"),
    ("claim('s', 'k', #, expires_in => NULL)", "P4004"),
    ("claim('s', 'k', #, expires_in => '1 second')", "P4004"),
    ("claim('s', 'k', #, expires_in => '11 years')", "P4004"),
    ("claim('s', 'k', #, expires_in => '178000000 years')", "P4004"),
    ("claim('s', 'k', #, claimed_by => repeat('x', 256))", "P4004"),
    ("claim(NULL, 'o', 'k', #)", "P4000"),
    ("claim('t', NULL, 'k', #)", "P4000"),
    ("claim('t', '', 'k', #)", "P4000"),
    ("claim('', 'o', 'k', #)", "P4000"),
    ("claim('a/b', 'o', 'k', #)", "P4004"),
    ("claim('t', 'o', NULL, #)", "P4001"),
    ("claim('t', 'o', 'k', NULL::bytea)", "P4003"),
    ("begin(NULL, 'k', #)", "P4000"),
    ("begin('s', NULL, #)", "P4001"),
    ("begin('s', 'k', NULL::bytea)", "P4003"),
    ("begin('s', 'k', #, lock_for => '-1 day')", "P4004"),
    ("begin('a/b', 'o', 'k', #)", "P4004"),
    ("scope('a/b', 'o')", "P4004"),
    ("scope('a', NULL)", "P4000"),
    ("succeed(NULL, 'k', 1)", "P4000"),
    ("succeed('s', NULL, 1)", "P4001"),
    ("succeed('s', repeat('k', 300), 1)", "P4004"),
    ("succeed('s', 'k', NULL)", "P4004"),
    ("succeed('s', 'k', 0)", "P4010"),
    ("succeed('s', 'k', 1, result_id => '7')", "P4004"),
    (
        "succeed('s', 'k', 1, response_body => to_jsonb(repeat('x', 1000000)))",
        "P4004",
    ),
    ("fail(NULL, 'k', 1, true, 'c')", "P4000"),
    ("fail('s', '', 1, true, 'c')", "P4001"),
    ("fail('s', 'k', NULL, true, 'c')", "P4004"),
    ("fail('s', 'k', 1, NULL, 'c')", "P4004"),
    ("fail('s', 'k', 1, true, NULL)", "P4004"),
    ("fail('s', 'k', 1, true, ' ')", "P4004"),
    ("fail('s', 'k', 1, true, repeat('c', 256))", "P4004"),
    ("heartbeat(NULL, 'k', 1)", "P4000"),
    ("heartbeat('s', NULL, 1)", "P4001"),
    ("heartbeat('s', 'k', NULL)", "P4004"),
    ("heartbeat('s', 'k', 1, NULL)", "P4004"),
    ("heartbeat('s', 'k', 1, '0')", "P4004"),
    ("heartbeat('s', 'k', 1, '25 hours')", "P4004"),
    ("heartbeat('s', 'k', 1, '178000000 years')", "P4004"),
    ("abandon(NULL, 'k', 1)", "P4000"),
    ("abandon('s', NULL, 1)", "P4001"),
    ("abandon('s', 'k', NULL)", "P4004"),
    ("abandon('s', 'k', 1)", "P4013"),
    ("end_orphaned(NULL)", "P4004"),
    ("end_orphaned('59 minutes')", "P4004"),
    ("end_orphaned('178000000 years')", "P4004"),
    ("end_orphaned('1 day', 0)", "P4004"),
    ("store(NULL, NULL)", "P4004"),
    ("store(NULL, ' ')", "P4004"),
    (
        "classify(NULL::outbox.idempotency_request, true, attempts_max => 0)",
        "P4004",
    ),
    ("classify(NULL::outbox.idempotency_request, true, at => NULL)", "P4004"),
    (
        "merge(NULL::outbox.idempotency_request, NULL, NULL::outbox.idempotency_request, 'b')",
        "P4004",
    ),
    (
        "merge(NULL::outbox.idempotency_request, 'a', NULL::outbox.idempotency_request, '')",
        "P4004",
    ),
];

#[tokio::test]
async fn bad_input_is_refused_with_the_documented_state_and_nothing_is_written() {
    let world = world().await;
    for (call, code) in REFUSED {
        let sql = format!("SELECT outbox.idempotency_{}", call.replace('#', HASH));
        let error = world.db.query(&sql, &[]).await.expect_err(&sql);
        assert_eq!(state(&error), *code, "{sql}: {error}");
        let error = error.as_db_error().expect("from the server");
        if code.starts_with("P4") {
            assert!(error.detail().is_some() && error.hint().is_some(), "{error:?}");
        }
    }
    assert_eq!(world.requests().await, "");
}

#[tokio::test]
async fn what_is_just_within_the_limits_is_accepted() {
    let world = world().await;
    let longest = "repeat('s', 255), repeat('k', 255)";
    let claim = format!(
        "{longest}, decode(repeat('00', 64), 'hex'), lock_for => '1 day', expires_in => '10 years', claimed_by => repeat('x', 255)"
    );
    assert!(
        call(&world.db, "idempotency_claim", &claim)
            .await
            .expect("granted")
            .granted
    );
    world
        .execute(&format!(
            "SELECT outbox.idempotency_succeed({longest}, 1, 't', repeat('i', 1000), -1, to_jsonb(repeat('x', 65534)))"
        ))
        .await;
    call(
        &world.db,
        "idempotency_claim",
        "'s', 'k', decode(repeat('00', 16), 'hex')",
    )
    .await
    .expect("granted");
    world
        .execute("SELECT outbox.idempotency_fail('s', 'k', 1, true, repeat('c', 255), repeat('m', 1000000))")
        .await;
    let cut = "SELECT length(failure_message)::bigint FROM outbox.idempotency_request WHERE key = 'k'";
    assert_eq!(world.count(cut).await, 1000, "a long message is cut");
    assert!(
        world
            .is_true("octet_length(outbox.request_hash(to_jsonb(repeat('x', 1000000)))) = 32")
            .await
    );
}

#[tokio::test]
async fn a_message_tells_neither_the_key_nor_the_request() {
    let world = world().await;
    let secret = "card-4111-1111";
    claim(&world.db, secret, "").await;
    for sql in [
        format!("SELECT outbox.idempotency_claim('orders', '{secret}', {OTHER_HASH})"),
        format!("SELECT outbox.idempotency_begin('orders', '{secret}', {HASH})"),
        format!("SELECT outbox.idempotency_succeed('orders', '{secret}', 9)"),
        format!("SELECT outbox.idempotency_fail('orders', '{secret}', 9, true, 'c')"),
        format!("SELECT outbox.idempotency_heartbeat('orders', '{secret}', 9)"),
    ] {
        let error = world.db.query(&sql, &[]).await.expect_err(&sql);
        let error = error.as_db_error().expect("from the server");
        let told = format!(
            "{} {:?} {:?} {:?}",
            error.message(),
            error.detail(),
            error.hint(),
            error.where_()
        );
        assert!(!told.contains(secret), "{told}");
        let named = world.text(&format!("SELECT left(md5('{secret}'), 8)")).await;
        assert!(told.contains(&named), "{told} names the key by {named}");
    }
}

#[tokio::test]
async fn a_refused_end_of_an_attempt_names_the_argument_that_is_wrong() {
    let world = world().await;
    for (call, message) in [
        ("succeed('s', 'k', 1, result_id => '7')", "result_type is missing"),
        (
            "succeed('s', 'k', 1, response_body => to_jsonb(repeat('x', 65535)))",
            "response_body is too long",
        ),
        ("fail('s', 'k', 1, NULL, 'c')", "retryable is missing"),
        ("fail('s', 'k', 1, true, E' \\t')", "failure_code is missing"),
        ("fail('s', 'k', 1, true, repeat('c', 256))", "failure_code is too long"),
    ] {
        let error = refusal_of(&world.db, &format!("SELECT outbox.idempotency_{call}")).await;
        assert_eq!((error.code().code(), error.message()), ("P4004", message), "{call}");
    }
}

/// A session in a time zone whose clock changes at the coming midnight (UTC), forward or back: by the calendar the next day has 23 or 25
/// hours. Rules of such a zone name days of the year, counted from zero.
async fn session_before_the_clock_changes(world: &World, forward: bool) -> Client {
    let session = world.session().await;
    let day = "SELECT extract(doy FROM (now() + make_interval(days => $1)) AT TIME ZONE 'UTC')::integer - 1";
    let tomorrow: i32 = session.query_one(day, &[&1]).await.expect("a day").get(0);
    let later: i32 = session.query_one(day, &[&100]).await.expect("a day").get(0);
    // Summer time is from the first day to the second.
    let (from, to) = if forward { (tomorrow, later) } else { (later, tomorrow) };
    run(&session, &format!("SET timezone = 'WIN0SUM,{from}/0,{to}/1'"))
        .await
        .expect("a time zone");
    let hours = "SELECT extract(epoch FROM now() + interval '1 day' - now())::integer / 3600";
    let hours: i32 = session.query_one(hours, &[]).await.expect("a number").get(0);
    assert_eq!(hours, if forward { 23 } else { 25 }, "the clock changes");
    session
}

#[tokio::test]
async fn a_day_has_24_hours_also_when_the_clock_changes() {
    let world = world().await;
    for forward in [true, false] {
        let session = session_before_the_clock_changes(&world, forward).await;
        let key = format!("k{forward}");
        let granted = claim(&session, &key, ", lock_for => '24 hours', expires_in => '1 day'").await;
        assert!(granted.granted, "{granted:?}");
        let locked = format!(
            "SELECT locked_until - claimed_at = interval '24 hours' AND expires_at = locked_until
             FROM outbox.idempotency_request WHERE key = '{key}'"
        );
        assert!(world.is_true(&locked).await, "forward: {forward}");
        for more in [
            "lock_for => '24 hours 1 second'",
            "lock_for => '1 day', expires_in => '23 hours 59 minutes'",
        ] {
            let refused = try_claim(&session, "other", &format!(", {more}")).await;
            assert_eq!(state(&refused.expect_err(more)), "P4004", "{more}, forward: {forward}");
        }
        let heartbeat = format!("SELECT outbox.idempotency_heartbeat('orders', '{key}', 1, '1 day')");
        run(&session, &heartbeat).await.expect("extended");
        let extended = format!(
            "SELECT locked_until - heartbeat_at = interval '24 hours' FROM outbox.idempotency_request WHERE key = '{key}'"
        );
        assert!(world.is_true(&extended).await, "forward: {forward}");
    }
}

/// Each rule of a record, with changes of a good row that it must refuse.
const RULES: &[(&str, &[&str])] = &[
    (
        "idempotency_answer_is_of_a_success",
        &["result_type = 't'", "response_code = 1", "response_body = '1'"],
    ),
    ("idempotency_attempts_begin_at_one", &["attempt_count = 0"]),
    (
        "idempotency_body_is_at_most_64_kib",
        &[
            "status = 'succeeded', locked_until = NULL, completed_at = now(), response_body = to_jsonb(repeat('x', 65535))",
        ],
    ),
    (
        "idempotency_completed_is_terminal",
        &["completed_at = now()", "status = 'succeeded', locked_until = NULL"],
    ),
    ("idempotency_expires_after_it_was_made", &["expires_at = created_at"]),
    (
        "idempotency_failure_has_a_code",
        &[
            "status = 'failed_retryable', locked_until = NULL",
            "status = 'succeeded', locked_until = NULL, completed_at = now(), failure_code = 'c'",
        ],
    ),
    (
        "idempotency_hash_is_16_to_64_bytes",
        &[
            "request_hash = '\\x00'",
            "request_hash = decode(repeat('00', 65), 'hex')",
        ],
    ),
    (
        "idempotency_key_is_1_to_255_bytes",
        &["key = ''", "key = repeat('x', 256)"],
    ),
    (
        "idempotency_lock_is_for_processing",
        &["locked_until = NULL", "status = 'failed_retryable', failure_code = 'c'"],
    ),
    (
        "idempotency_result_id_needs_a_type",
        &["status = 'succeeded', locked_until = NULL, completed_at = now(), result_id = '7'"],
    ),
    (
        "idempotency_scope_is_1_to_255_bytes",
        &["scope = ''", "scope = repeat('x', 256)"],
    ),
    (
        "idempotency_status_is_known",
        &["status = 'done', locked_until = NULL, failure_code = 'c'"],
    ),
];

#[tokio::test]
async fn every_rule_of_a_record_refuses_what_no_function_would_write() {
    let world = world().await;
    claim(&world.db, "k", "").await;
    for (constraint, changes) in RULES {
        for change in *changes {
            let update = format!("UPDATE outbox.idempotency_request SET {change}");
            let error = refusal_of(&world.db, &update).await;
            assert_eq!(error.constraint(), Some(*constraint), "{update}: {error}");
        }
    }
    let replayed = "SET session_replication_role = replica; UPDATE outbox.idempotency_request SET attempt_count = 0";
    let refused = run(&world.session().await, replayed).await.expect_err("refused");
    assert_eq!(
        state(&refused),
        "23514",
        "a session that replays another server's log obeys, too"
    );
    let named = "SELECT string_agg(conname, ' ' ORDER BY conname) FROM pg_constraint
                 WHERE contype = 'c' AND connamespace = 'outbox'::regnamespace AND conname ~ '^idempotency_' AND contypid <> 0";
    let tried: Vec<&str> = RULES.iter().map(|(constraint, _)| *constraint).collect();
    assert_eq!(world.text(named).await, tried.join(" "), "every rule is tried here");
    let held = "SELECT string_agg(conname, ' ') FROM pg_constraint WHERE contype = 'c' AND conrelid = 'outbox.idempotency_request'::regclass";
    assert_eq!(
        world.text(held).await,
        "idempotency_record_is_of_a_lawful_state",
        "the rules of several columns are asked for"
    );
}

#[tokio::test]
async fn an_operator_names_the_scope_of_a_command_as_its_producer_does() {
    let world = world().await;
    let operator = connect(&world.login("operator", &["outbox_operator"]).await).await;
    let scope = "SELECT outbox.idempotency_scope('acme', 'pay')";
    let named = operator.query_one(scope, &[]).await.expect("granted");
    assert_eq!(named.get::<_, &str>(0), "acme/pay");
}

#[tokio::test]
async fn a_producer_works_through_the_functions_and_never_touches_the_table() {
    let world = world().await;
    let producer = connect(&world.login("producer", &["outbox_producer"]).await).await;
    let scope = producer
        .query_one("SELECT outbox.idempotency_scope('acme', 'pay')", &[])
        .await;
    assert_eq!(scope.expect("its own to write").get::<_, &str>(0), "acme/pay");
    assert!(claim(&producer, "k", "").await.granted);
    for sql in [
        "SELECT outbox.idempotency_heartbeat('orders', 'k', 1)",
        "SELECT outbox.idempotency_fail('orders', 'k', 1, true, 'c')",
        "SELECT outbox.idempotency_begin('orders', 'k', outbox.request_hash('{\"n\": 1}'))",
        "SELECT outbox.idempotency_succeed('orders', 'k', 2)",
    ] {
        run(&producer, sql).await.expect(sql);
    }
    let tenant = format!("'t', 'orders', 'k', {HASH}");
    call(&producer, "idempotency_begin", &tenant).await.expect("granted");
    for sql in [
        "SELECT key FROM outbox.idempotency_request",
        "UPDATE outbox.idempotency_request SET attempt_count = 9",
        "DELETE FROM outbox.idempotency_request",
        "SELECT FROM outbox.idempotency_stale",
        "SELECT nextval('outbox.idempotency_granted')",
        "SELECT outbox.idempotency_claim_unanswered('s', 'k', '', '1s', false, '', '1s')",
        "SELECT outbox.idempotency_abandon('orders', 'k', 1)",
        "SELECT outbox.idempotency_end_orphaned('1 day')",
        "SELECT outbox.idempotency_store(NULL, 'eu')",
        "SELECT outbox.idempotency_overwrite(NULL)",
        "SELECT FROM outbox.idempotency_expired",
        "SELECT outbox.idempotency_refuse('P4010', '', '', '', 1)",
    ] {
        assert_eq!(refusal(&producer, sql).await, "42501", "{sql}");
    }
    let stranger = connect(&world.login("stranger", &[]).await).await;
    let claimed = try_claim(&stranger, "k", "").await.expect_err("no role");
    assert_eq!(state(&claimed), "42501");
}

#[tokio::test]
async fn a_callers_search_path_deceives_no_function() {
    let world = world().await;
    order(&world.db, "k").await.expect("executed");
    world
        .execute(
            "CREATE SCHEMA evil;
             CREATE FUNCTION evil.lie(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT 1 / 0 = 1';
             CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.lie);
             CREATE FUNCTION evil.lie(bytea, bytea) RETURNS boolean LANGUAGE sql AS 'SELECT 1 / 0 = 1';
             CREATE OPERATOR evil.= (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = evil.lie);
             CREATE FUNCTION evil.lie(integer, integer) RETURNS boolean LANGUAGE sql AS 'SELECT 1 / 0 > 1';
             CREATE OPERATOR evil.= (LEFTARG = integer, RIGHTARG = integer, FUNCTION = evil.lie);
             CREATE FUNCTION evil.lie(timestamptz, interval) RETURNS timestamptz LANGUAGE sql AS 'SELECT now() + (1 / 0) * interval $$1s$$';
             CREATE OPERATOR evil.+ (LEFTARG = timestamptz, RIGHTARG = interval, FUNCTION = evil.lie);
             CREATE FUNCTION evil.octet_length(text) RETURNS integer LANGUAGE sql AS 'SELECT 1 / 0';
             CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT now() + (1 / 0) * interval $$1s$$';
             CREATE FUNCTION evil.nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT 1 / 0';
             GRANT USAGE ON SCHEMA evil TO public;",
        )
        .await;
    let producer = connect(&world.login("producer", &["outbox_producer"]).await).await;
    run(&producer, "SET search_path = evil, pg_catalog").await.expect("set");
    assert_eq!(claim(&producer, "k", "").await.kind, "replay");
    assert_eq!(claim(&producer, "k2", "").await.kind, "new");
    let succeed = "SELECT outbox.idempotency_succeed('orders', 'k2', 1, 'order', '7', 201, '{}')";
    for _ in 0..2 {
        run(&producer, succeed).await.expect("new, and then repeated");
    }
    assert_eq!(claim(&producer, "k2", "").await.kind, "replay");
}

#[tokio::test]
async fn commands_work_in_a_schema_of_another_name() {
    let world = World::empty().await;
    let migrated = world.outboxd("migrate", &["--schema", "other"]);
    assert!(migrated.status.success(), "{}", stderr_of(&migrated));
    let claim = "SELECT kind FROM other.idempotency_claim('t', 'orders', 'k', other.request_hash('1'))";
    assert_eq!(world.text(claim).await, "new");
    world
        .execute("SELECT other.idempotency_succeed('t/orders', 'k', 1)")
        .await;
    assert_eq!(world.text(claim).await, "replay");
    let refused = "SELECT other.idempotency_succeed('t/orders', 'k', 2)";
    assert_eq!(refusal(&world.db, refused).await, "P4010");
    let merged =
        "SELECT (m.request).status FROM other.idempotency_request r, other.idempotency_merge(r, 'a', r, 'b') m";
    assert_eq!(world.text(merged).await, "succeeded");
}
