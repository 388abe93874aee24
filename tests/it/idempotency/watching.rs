//! What an operator sees of commands.

use super::*;

/// However many commands have failed, a sample looks at its share of them.
#[tokio::test]
async fn a_sample_of_commands_reads_no_more_than_its_share() {
    let world = World::new().await;
    world
        .execute(
            "SELECT outbox.idempotency_claim('pay', n::text, outbox.request_hash('1')),
                    outbox.idempotency_fail('pay', n::text, 1, true, 'timeout')
             FROM generate_series(1, 20000) n",
        )
        .await;
    world.execute("VACUUM ANALYZE outbox.idempotency_request").await;
    let sample = include_str!("../../../src/outbox/sample_commands.sql")
        .replace("$1", "100")
        .replace("$2", "20");
    let blocks = cost(&world.db, &sample, "Shared Hit Blocks").await;
    assert!(blocks < 300, "{blocks} blocks for 100 commands");
}

#[tokio::test]
async fn commands_are_counted_by_operation_and_state_and_replays_by_the_database() {
    let world = World::new().await;
    let relay = world.relay().start_ready().await;
    let claim = |operation: &str, key: &str, request: &str| {
        format!("SELECT outbox.idempotency_claim('acme', '{operation}', '{key}', outbox.request_hash('{request}'))")
    };
    world.execute(&claim("pay", "one", "1")).await;
    world
        .execute("SELECT outbox.idempotency_succeed('acme/pay', 'one', 1)")
        .await;
    world.execute(&claim("ship", "two", "1")).await;
    world
        .execute("SELECT outbox.idempotency_fail('acme/ship', 'two', 1, true, 'timeout')")
        .await;
    // What came before the first sample is not counted, so there is something new before each.
    eventually(
        3 * SOON,
        "replays, conflicts and the command to be counted",
        async || {
            world.execute(&claim("pay", "one", "1")).await;
            let conflict = world.db.batch_execute(&claim("pay", "one", "2")).await;
            assert_eq!(
                conflict.expect_err("refused").code().map(|code| code.code()),
                Some("P4002")
            );
            let counted = ["outboxd_command_replays_total", "outboxd_command_conflicts_total"];
            let all = counted.iter().all(|name| relay.metric(name) > Some(0.0));
            let failed = "outboxd_commands{operation=\"ship\",state=\"retryable\"} 1";
            (all && relay.get("/metrics")?.contains(failed)).then_some(())
        },
    )
    .await;
}
