//! What an operator sees of commands.

use outboxd::outbox::statement;

use super::*;

/// However many commands have failed, a sample reads its share of them.
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
    let sample = statement::text("sample_commands")
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

/// A command whose lock ran out two hours ago, and a marker that retention will take: when it is gone, maintenance has been round.
async fn world_with_an_orphan() -> World {
    let world = world().await;
    world.stale("orphan").await;
    world
        .execute(
            "UPDATE outbox.idempotency_request SET locked_until = locked_until - interval '2 hours';
             INSERT INTO outbox.processed_message (consumer, source, message_id, payload_hash, processed_at)
             VALUES ('c', 's', 'old', '\\x01', now() - interval '60 days')",
        )
        .await;
    world
}

const PURGED: &str = "NOT EXISTS (SELECT FROM outbox.processed_message)";

#[tokio::test]
async fn maintenance_ends_orphaned_commands_where_it_is_told_to_and_counts_each() {
    let world = world_with_an_orphan().await;
    let relay = world
        .relay_as(&world.login("relay", &["outbox_relay"]).await)
        .args(&["--end-orphaned-commands-after", "1h"])
        .start_ready()
        .await;
    world.until(PURGED).await;
    world
        .until("SELECT failure_code = 'orphaned' FROM outbox.idempotency_request")
        .await;
    eventually(SOON, "the command to be counted", async || {
        (relay.metric("outboxd_commands_orphaned_total") == Some(1.0)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn maintenance_leaves_orphaned_commands_alone_by_default() {
    let world = world_with_an_orphan().await;
    let relay = world.relay().start_ready().await;
    world.until(PURGED).await;
    assert_eq!(world.status("orphan").await, "processing");
    assert_eq!(relay.metric("outboxd_commands_orphaned_total"), Some(0.0));
}

#[tokio::test]
async fn takeovers_and_expired_commands_are_counted() {
    let world = world().await;
    let relay = world.relay().start_ready().await;
    claim(&world.db, "expired", "").await;
    world
        .execute(
            "SELECT outbox.idempotency_fail('orders', 'expired', 1, true, 'timeout');
             UPDATE outbox.idempotency_request SET created_at = now() - interval '2 days', expires_at = now() - interval '1 day'",
        )
        .await;
    world.stale("taken").await;
    // What came before the first sample is not counted, so there is something new before each.
    eventually(3 * SOON, "the takeovers to be counted", async || {
        let taken = claim(&world.db, "taken", ", take_over => true, lock_for => '1 millisecond'").await;
        assert_eq!(taken.kind, "stale");
        let expired = "outboxd_commands{operation=\"orders\",state=\"expired\"} 1";
        let counted = relay.metric("outboxd_command_takeovers_total") > Some(0.0);
        (counted && relay.get("/metrics")?.contains(expired)).then_some(())
    })
    .await;
}
