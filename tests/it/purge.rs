//! Retention, by hand and in the background: what goes, what never goes, and who never waits for it.

use testkit::*;

/// Rows of every kind and every state, all of them old but for those called young. Each name says what should become of it.
const EVERY_STATE: &str = "
    INSERT INTO outbox.message (topic, key, payload, created_at, published_at, dead_at, available_at)
    VALUES ('t', 'goes published', '1', now() - interval '60 d', now() - interval '60 d', NULL, NULL),
           ('t', 'stays pending', '1', now() - interval '60 d', NULL, NULL, NULL),
           ('t', 'stays dead', '1', now() - interval '60 d', NULL, now() - interval '60 d', NULL),
           ('t', 'stays delayed', '1', now() - interval '60 d', NULL, NULL, now() - interval '59 d'),
           ('t', 'stays young', '1', now() - interval '60 d', now(), NULL, NULL);
    INSERT INTO outbox.processed_message (consumer, source, message_id, payload_hash, processed_at)
    VALUES ('c', 's', 'goes processed', '\\x01', now() - interval '60 d'), ('c', 's', 'stays young', '\\x01', now());
    INSERT INTO outbox.inbox_message (consumer, source, message_id, payload_hash, received_at, next_attempt_at, max_attempts, priority,
                                      done_at, poison_at, claimed_at, token, attempts)
    SELECT 'c', 's', name, '\\x01', now() - interval '60 d', now() - interval '60 d', 3, 0, done, poison, claimed, token, token
    FROM (VALUES ('goes done', now() - interval '60 d', NULL::timestamptz, NULL::timestamptz, 1),
                 ('stays young', now(), NULL, NULL, 1),
                 ('stays unfinished', NULL, NULL, NULL, 0),
                 ('stays claimed', NULL, NULL, now() - interval '60 d', 1),
                 ('stays poison', NULL, now() - interval '60 d', NULL, 3)) AS m (name, done, poison, claimed, token);
    INSERT INTO outbox.idempotency_request (scope, key, request_hash, status, claimed_by, attempt_count, created_at, updated_at,
                                            claimed_at, expires_at, locked_until, completed_at, failure_code)
    SELECT 's', name, sha256('1'), status, 'w', 1, now() - interval '60 d', now() - interval '60 d', now() - interval '60 d', expires,
           CASE status WHEN 'processing' THEN now() - interval '59 d' END,
           CASE WHEN status IN ('succeeded', 'failed_final') THEN now() - interval '60 d' END,
           CASE WHEN status LIKE 'failed%' THEN 'E' END
    FROM (VALUES ('goes succeeded', 'succeeded', now() - interval '1 d'), ('goes final', 'failed_final', now() - interval '1 d'),
                 ('stays unexpired', 'succeeded', now() + interval '1 d'),
                 ('stays stale', 'processing', now() - interval '1 d'),
                 ('stays retryable', 'failed_retryable', now() - interval '1 d')) AS r (name, status, expires);";

const NAMES: &str = "SELECT string_agg(name, ', ' ORDER BY name) FROM (
        SELECT 'message ' || key FROM outbox.message UNION ALL SELECT 'processed ' || message_id FROM outbox.processed_message
        UNION ALL SELECT 'inbox ' || message_id FROM outbox.inbox_message
        UNION ALL SELECT 'command ' || key FROM outbox.idempotency_request) AS n (name)";

const WHAT_STAYS: &str = "command stays retryable, command stays stale, command stays unexpired, \
                          inbox stays claimed, inbox stays poison, inbox stays unfinished, inbox stays young, \
                          message stays dead, message stays delayed, message stays pending, message stays young, \
                          processed stays young";

#[tokio::test]
async fn purge_takes_what_is_finished_and_old_and_nothing_else() {
    let world = World::new().await;
    world.execute(EVERY_STATE).await;
    let said = stdout_of(&world.outboxd("purge", &[]));
    assert!(
        said.starts_with("Removed rows: 1 of message, 1 of processed_message, 1 of inbox_message, 2 of idempotency_request; days of history: 0"),
        "{said}"
    );
    assert_eq!(world.text(NAMES).await, WHAT_STAYS);
    let again = json_of(&world.outboxd("purge", &["--json"]));
    for table in ["message", "processed_message", "inbox_message", "idempotency_request"] {
        assert_eq!(again["rows"][table], 0, "{again}");
    }
}

#[tokio::test]
async fn an_operator_may_purge_and_so_may_the_role_of_the_relay() {
    for role in ["outbox_operator", "outbox_relay"] {
        let world = World::new().await;
        world.execute(EVERY_STATE).await;
        let url = world.login("purger", &[role]).await;
        let output = outboxd().args(["purge", "--database-url", &url]).output();
        stdout_of(&output.expect("outboxd runs"));
        assert_eq!(world.text(NAMES).await, WHAT_STAYS, "{role}");
    }
}

#[tokio::test]
async fn a_dry_run_counts_what_would_go_and_removes_nothing() {
    let world = World::new().await;
    world.execute(EVERY_STATE).await;
    world
        .execute("CREATE TABLE outbox.history_20200101 PARTITION OF outbox.history FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')")
        .await;
    let before = world.text(NAMES).await;
    let counted = json_of(&world.outboxd("purge", &["--dry-run", "--json"]));
    assert_eq!(counted["dry_run"], true);
    assert_eq!(counted["history_days"], 1);
    assert_eq!(counted["rows"]["message"], 1);
    let said = stdout_of(&world.outboxd("purge", &["--dry-run"]));
    assert!(said.starts_with("Would remove rows: 1 of message"), "{said}");
    assert_eq!(world.text(NAMES).await, before);
    let removed = json_of(&world.outboxd("purge", &["--json"]));
    assert_eq!(
        (&removed["rows"], &removed["history_days"]),
        (&counted["rows"], &counted["history_days"])
    );
    assert!(
        world
            .is_true("SELECT to_regclass('outbox.history_20200101') IS NULL")
            .await
    );
}

#[tokio::test]
async fn a_retention_below_an_hour_is_refused_and_each_kind_has_its_own() {
    let world = World::new().await;
    world.execute(EVERY_STATE).await;
    let refused = world.outboxd(
        "purge",
        &[
            "--retention",
            "5m",
            "--processed-retention",
            "soon",
            "--inbox-retention",
            "0s",
        ],
    );
    assert_eq!(refused.status.code(), Some(64));
    for flag in ["--retention must", "--processed-retention", "--inbox-retention must"] {
        assert!(stderr_of(&refused).contains(flag), "{}", stderr_of(&refused));
    }
    let only_inbox = [
        "--retention",
        "90days",
        "--processed-retention",
        "90days",
        "--inbox-retention",
        "1h",
        "--json",
    ];
    let removed = json_of(&world.outboxd("purge", &only_inbox));
    assert_eq!(
        removed["rows"].to_string(),
        r#"{"idempotency_request":2,"inbox_message":1,"message":0,"processed_message":0}"#
    );
}

#[tokio::test]
async fn purge_continues_in_small_steps_until_nothing_is_left() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO outbox.message (topic, key, payload, created_at, published_at)
             SELECT 't', 'k', '1', now() - interval '60 d', now() - interval '60 d' FROM generate_series(1, 95);
             INSERT INTO outbox.processed_message (consumer, source, message_id, payload_hash, processed_at)
             SELECT 'c', 's', n::text, '\\x01', now() - interval '60 d' FROM generate_series(1, 100) n;
             INSERT INTO outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, max_attempts, priority, done_at)
             SELECT 'c', 's', n::text, '\\x01', now(), 1, 0, now() - interval '60 d' FROM generate_series(1, 105) n",
        )
        .await;
    let removed = json_of(&world.outboxd("purge", &["--purge-batch-rows", "10", "--json"]));
    assert_eq!(
        removed["rows"].to_string(),
        r#"{"idempotency_request":0,"inbox_message":105,"message":95,"processed_message":100}"#
    );
}

#[tokio::test]
async fn a_purge_neither_waits_for_a_writer_nor_takes_the_row_it_holds() {
    let world = World::new().await;
    world.execute(EVERY_STATE).await;
    let writer = world.session().await;
    writer
        .batch_execute(
            "BEGIN; SELECT FROM outbox.message FOR UPDATE; SELECT FROM outbox.processed_message FOR UPDATE;
             SELECT FROM outbox.inbox_message FOR UPDATE; SELECT FROM outbox.idempotency_request FOR UPDATE",
        )
        .await
        .expect("held");
    // The command would end with an error if it waited: lock_timeout is seconds.
    let removed = json_of(&world.outboxd("purge", &["--json"]));
    assert_eq!(
        removed["rows"].to_string(),
        r#"{"idempotency_request":0,"inbox_message":0,"message":0,"processed_message":0}"#
    );
    writer.batch_execute("COMMIT").await.expect("released");
    world.outboxd("purge", &[]);
    assert_eq!(world.text(NAMES).await, WHAT_STAYS);
}

#[tokio::test]
async fn a_writer_does_not_wait_for_a_purge_under_way_on_other_rows() {
    let world = World::new().await;
    world.execute(EVERY_STATE).await;
    let sweeper = world.session().await;
    sweeper
        .batch_execute("BEGIN; SELECT outbox.purge_processed('1 day'), outbox.purge_inbox('1 day')")
        .await
        .expect("a purge in progress");
    world
        .execute(
            "SET lock_timeout = '1ms';
             SELECT outbox.consume_once('c', 's', 'new', '\\x01'), outbox.consume_once('c', 's', 'stays young', '\\x01');
             SELECT outbox.inbox_receive('c', 's', 'new', '{}'), outbox.inbox_replay('c');
             SELECT outbox.inbox_done(id, token) FROM outbox.inbox_claim('c', 10)",
        )
        .await;
    sweeper.batch_execute("COMMIT").await.expect("over");
    let unfinished = "SELECT count(*) FROM outbox.inbox_message WHERE done_at IS NULL";
    assert_eq!(world.count(unfinished).await, 0, "all were claimed and done meanwhile");
}

#[tokio::test]
async fn a_message_whose_marker_is_being_purged_is_known_until_it_is_gone_and_then_has_its_effect_again() {
    let world = World::new().await;
    world.execute(EVERY_STATE).await;
    let old = "outbox.consume_once('c', 's', 'goes processed', '\\x01')";
    world.execute("BEGIN; SELECT outbox.purge_processed('1 day')").await;
    let late = world.session().await;
    let seen: bool = late
        .query_one(&format!("SELECT {old}"), &[])
        .await
        .expect("answered")
        .get(0);
    assert!(!seen, "until the purge commits the message is known");
    world.execute("COMMIT").await;
    assert!(world.is_true(old).await, "forgotten, as documented");
}

#[tokio::test]
async fn the_daemon_purges_in_the_background_and_counts_by_table() {
    let world = World::new().await;
    world.execute(EVERY_STATE).await;
    world
        .execute("DELETE FROM outbox.message WHERE key LIKE 'stays %'")
        .await;
    let url = world.login("relay", &["outbox_relay"]).await;
    let relay = world.relay_as(&url).start_ready().await;
    for (table, rows) in [
        ("message", 1),
        ("processed_message", 1),
        ("inbox_message", 1),
        ("idempotency_request", 2),
    ] {
        let name = format!("outboxd_rows_purged_total{{table=\"{table}\"}} {rows}");
        eventually(SOON, &name, async || {
            relay.get("/metrics").filter(|scrape| scrape.contains(&name)).map(drop)
        })
        .await;
    }
    eventually(SOON, "the inbox to be sampled", async || {
        (relay.metric("outboxd_inbox_unfinished_rows") == Some(2.0)).then_some(())
    })
    .await;
    assert_eq!(relay.metric("outboxd_inbox_poison_rows"), Some(1.0));
    assert_eq!(
        world.text(NAMES).await,
        "command stays retryable, command stays stale, command stays unexpired, \
         inbox stays claimed, inbox stays poison, inbox stays unfinished, inbox stays young, processed stays young"
    );
    assert!(!relay.logged("42501"), "nothing was denied:\n{}", relay.log());
}

/// Each purge, with fifty thousand rows that it must leave, and ten that it takes.
const MUCH_STAYS: &[(&str, &str, &str)] = &[
    (
        "outbox.purge_processed('1 day')",
        "INSERT INTO outbox.processed_message (consumer, source, message_id, payload_hash, processed_at)
         SELECT 'c', 's', 'stays' || n, '\\x01', now() FROM generate_series(1, 50000) n",
        "INSERT INTO outbox.processed_message (consumer, source, message_id, payload_hash, processed_at)
         SELECT 'c', 's', 'goes' || n, '\\x01', now() - interval '60 d' FROM generate_series(1, 10) n",
    ),
    (
        "outbox.purge_inbox('1 day')",
        "INSERT INTO outbox.inbox_message (consumer, source, message_id, payload_hash, received_at, next_attempt_at, max_attempts, priority)
         SELECT 'c', 's', 'stays' || n, '\\x01', now() - interval '60 d', now() - interval '60 d', 1, 0 FROM generate_series(1, 50000) n",
        "INSERT INTO outbox.inbox_message (consumer, source, message_id, payload_hash, next_attempt_at, max_attempts, priority, done_at)
         SELECT 'c', 's', 'goes' || n, '\\x01', now(), 1, 0, now() - interval '60 d' FROM generate_series(1, 10) n",
    ),
    (
        "outbox.purge_idempotency()",
        "INSERT INTO outbox.idempotency_request (scope, key, request_hash, status, claimed_by, attempt_count, created_at, updated_at,
                                                 claimed_at, expires_at, locked_until)
         SELECT 's', 'stays' || n, sha256('1'), 'processing', 'w', 1, now() - interval '60 d', now() - interval '60 d',
                now() - interval '60 d', now() - interval '59 d', now() - interval '59 d' FROM generate_series(1, 50000) n",
        "INSERT INTO outbox.idempotency_request (scope, key, request_hash, status, claimed_by, attempt_count, created_at, updated_at,
                                                 claimed_at, expires_at, completed_at)
         SELECT 's', 'goes' || n, sha256('1'), 'succeeded', 'w', 1, now() - interval '60 d', now() - interval '60 d',
                now() - interval '60 d', now() - interval '1 d', now() - interval '60 d' FROM generate_series(1, 10) n",
    ),
];

#[tokio::test]
async fn a_purge_reads_what_it_takes_and_not_what_stays() {
    let world = World::new().await;
    for (purge, stays, goes) in MUCH_STAYS {
        world.execute(stays).await;
        world.execute("VACUUM ANALYZE").await;
        let purge = format!("SELECT {purge}");
        assert_eq!(world.count(&purge).await, 0, "and the plan is made");
        world.execute(goes).await;
        let blocks = cost(&world.db, &purge, "Shared Hit Blocks").await;
        assert!(blocks < 300, "{purge}: {blocks} blocks for ten rows");
        assert_eq!(world.count(&purge).await, 0, "those are gone");
    }
}

#[tokio::test]
async fn a_command_that_ended_within_the_hour_stays_though_it_is_expired() {
    let world = World::new().await;
    world.execute(EVERY_STATE).await;
    world
        .execute("UPDATE outbox.idempotency_request SET completed_at = now() - interval '50 minutes' WHERE key = 'goes succeeded'")
        .await;
    world.outboxd("purge", &[]);
    assert_eq!(
        world.text(NAMES).await,
        WHAT_STAYS.replacen("command stays", "command goes succeeded, command stays", 1)
    );
}

#[tokio::test]
async fn a_purge_that_fails_does_not_stop_the_others() {
    let world = World::new().await;
    world.execute(EVERY_STATE).await;
    world
        .execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'kept for the auditor'; END $$;
             CREATE TRIGGER kept BEFORE DELETE ON outbox.processed_message FOR EACH ROW EXECUTE FUNCTION refuse();
             DELETE FROM outbox.message",
        )
        .await;
    let relay = world.relay().start_ready().await;
    let gone = "SELECT count(*) = 0 FROM (SELECT message_id FROM outbox.inbox_message UNION ALL SELECT key FROM outbox.idempotency_request) n (name)
                WHERE name LIKE 'goes %'";
    world.until(gone).await;
    eventually(SOON, "the failure to be logged", async || {
        relay.logged("kept for the auditor").then_some(())
    })
    .await;
    let kept = "SELECT count(*) FROM outbox.processed_message WHERE message_id = 'goes processed'";
    assert_eq!(world.count(kept).await, 1);
}
