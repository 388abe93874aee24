//! Bad input, and what is just good enough.

use super::*;

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
    ("outbox.inbox_replay(E'\\x0B')", "P4000"),
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
    ("outbox.inbox_claim('c', 1, '178000000 years')", "P4004"),
    ("outbox.inbox_claim('c', 1, 'soon')", "22007"),
    ("outbox.inbox_claim('c', 1, '1 s', repeat('x', 300))", "P4004"),
    ("outbox.inbox_done(NULL, 1)", "P4010"),
    ("outbox.inbox_done(1, NULL)", "P4010"),
    ("outbox.inbox_done(99, 1)", "P4010"),
    ("outbox.inbox_done(1, 1, repeat('x', 256))", "P4004"),
    ("outbox.inbox_heartbeat(NULL, 1)", "P4012"),
    ("outbox.inbox_heartbeat(1, NULL)", "P4012"),
    ("outbox.inbox_heartbeat(1, 2)", "P4012"),
    ("outbox.inbox_heartbeat(99, 1)", "P4012"),
    ("outbox.inbox_heartbeat(1, 1, NULL)", "P4004"),
    ("outbox.inbox_heartbeat(1, 1, '0')", "P4004"),
    ("outbox.inbox_heartbeat(1, 1, '25 hours')", "P4004"),
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
    ("outbox.inbox_replay('c', messages_max => 0)", "P4004"),
    ("outbox.inbox_replay('c', messages_max => NULL)", "P4004"),
    ("outbox.inbox_replay_done(NULL, 1)", "P4000"),
    ("outbox.inbox_replay_done(' ', 1)", "P4000"),
    ("outbox.inbox_discard(NULL, 1)", "P4000"),
    ("outbox.inbox_discard('c', 1, repeat('x', 201))", "P4004"),
    ("outbox.purge_processed(NULL)", "P4004"),
    ("outbox.purge_processed('59 minutes')", "P4004"),
    ("outbox.purge_processed('-1 day')", "P4004"),
    ("outbox.purge_processed('178000000 years')", "P4004"),
    ("outbox.purge_inbox('5000000 years')", "P4004"),
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
        "outbox.consume_once('v', 'v', 'v', '\\x01')",
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
