//! How the schema is applied, and verified at the start.

use std::process::Stdio;

use testkit::*;

#[tokio::test]
async fn migrations_started_together_do_not_collide() {
    let world = World::empty().await;
    let started: Vec<_> = (0..6)
        .map(|_| {
            outboxd()
                .args(["migrate", "--database-url", &world.database_url])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("starts")
        })
        .collect();
    let mut applied = 0;
    for process in started {
        let output = process.wait_with_output().expect("ends");
        assert!(output.status.success(), "{}", stderr_of(&output));
        applied += usize::from(String::from_utf8_lossy(&output.stdout).contains("Applied V1"));
    }
    assert_eq!(applied, 1, "the others find it up to date");
    assert_eq!(world.count("SELECT count(*) FROM outbox.lane").await, 65);
}

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// A database as an older release left it.
async fn at_version(version: i32) -> World {
    let world = World::empty().await;
    world.execute("CREATE SCHEMA outbox").await;
    let mut runner = embedded::migrations::runner().set_target(refinery::Target::Version(version));
    runner.set_migration_table_name("outbox.schema_history");
    let mut session = world.session().await;
    runner.run_async(&mut session).await.expect("an older version");
    world
}

#[tokio::test]
async fn a_table_in_use_is_migrated_with_everything_in_it() {
    let world = at_version(1).await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 200, 10).await;
    world
        .execute("UPDATE outbox.message SET dead_at = now(), attempts = 3 WHERE id = 7")
        .await;
    let output = world.outboxd("migrate", &[]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    let relay = world.relay().start_ready().await;
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    history.assert_exact();
    assert_eq!(history.flagged, 0, "nobody has sent any of it before");
    assert_eq!(relay.metric("outboxd_rows_published_total"), Some(199.0));
}

/// Rows as the fifth version leases them: one batch of a worker that lives, one of a worker that died, and rows that were given
/// back after they may have been sent, behind a parked topic whose rows the floor has passed, and with a retry time of their own.
const LEASED: &str = "
    UPDATE outbox.message SET claim_token = gen_random_uuid(), lease_until = now() + interval '3 s' WHERE id <= 10;
    UPDATE outbox.message SET claim_token = '00000000-0000-0000-0000-000000000001', lease_until = now() WHERE id BETWEEN 11 AND 20;
    UPDATE outbox.message SET claim_token = gen_random_uuid(), lease_until = now(), topic = 'parked' WHERE id = 21;
    UPDATE outbox.message SET claim_token = gen_random_uuid(), lease_until = now(), available_at = now() WHERE id = 22;
    INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at) VALUES (-1, 'parked', '', 20, '', 'infinity');";

#[tokio::test]
async fn rows_leased_by_an_older_version_are_claimed_and_flagged_by_the_next() {
    let world = at_version(5).await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 30, 0).await;
    world.execute(LEASED).await;
    let leased = "SELECT string_agg(id::text, ',' ORDER BY id) FROM outbox.message WHERE claim_token IS NOT NULL";
    let leased = world.text(leased).await;
    let output = world.outboxd("migrate", &[]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    let claimed = "SELECT string_agg(m::text, ',' ORDER BY m) FROM outbox.claim, unnest(ids) AS m";
    assert_eq!(world.text(claimed).await, leased);
    // What a replica of the older version still has in flight matches no row when it marks.
    let left = "SELECT count(*) FROM outbox.message WHERE claim_token IS NOT NULL OR lease_until IS NOT NULL";
    assert_eq!(world.count(left).await, 0);
    let live = "SELECT count(*) FROM outbox.claim WHERE lease_until > now()";
    assert_eq!(world.count(live).await, 10, "a lease lasts as long as it would have");

    let relay = world.relay().start_ready().await;
    world
        .until("SELECT count(*) = 29 FROM outbox.message WHERE published_at IS NOT NULL")
        .await;
    let history = world.history(&topic).await;
    assert_eq!(history.flagged, 21, "all but the one that is parked");
    history.assert_admitted_by(&[&relay]);
    assert_eq!(
        world.text(claimed).await,
        "21",
        "what is parked may still have been sent"
    );
}

/// One command in each state, as the fourth version keeps them.
const COMMANDS: &str = "
    SELECT outbox.idempotency_claim('pay', key, outbox.request_hash('1'))
    FROM unnest('{active,done,failed,over}'::text[]) key;
    SELECT outbox.idempotency_succeed('pay', 'done', 1, 'order', '7', 201, jsonb_build_object('long', repeat('x', 60000)));
    SELECT outbox.idempotency_fail('pay', 'failed', 1, true, 'timeout');
    SELECT outbox.idempotency_fail('pay', 'over', 1, false, 'refused');";

#[tokio::test]
async fn commands_of_every_state_outlive_the_rewriting_of_their_table() {
    let world = at_version(4).await;
    world.execute(COMMANDS).await;
    let all = "SELECT string_agg(r::text, E'\\n' ORDER BY key) FROM outbox.idempotency_request r";
    let privileges = "SELECT string_agg(concat_ws(' ', grantee, table_name, column_name, privilege_type), ', '
                             ORDER BY grantee, table_name, column_name, privilege_type)
                      FROM information_schema.column_privileges
                      WHERE table_schema = 'outbox' AND grantee LIKE 'outbox%'
                        AND table_name IN ('idempotency_request', 'idempotency_stale', 'idempotency_retried')";
    let before = (world.text(all).await, world.text(privileges).await);
    let output = world.outboxd("migrate", &[]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    assert_eq!((world.text(all).await, world.text(privileges).await), before);

    let kind = |key: &str| format!("SELECT (outbox.idempotency_claim('pay', '{key}', outbox.request_hash('1'))).kind");
    for (key, expected) in [
        ("active", "active"),
        ("done", "replay"),
        ("failed", "retryable"),
        ("over", "final"),
        ("another", "new"),
    ] {
        assert_eq!(world.text(&kind(key)).await, expected, "{key}");
    }
    world
        .execute(
            "SELECT outbox.idempotency_succeed('pay', 'active', 1), outbox.idempotency_succeed('pay', 'failed', 2)",
        )
        .await;
    assert_eq!(world.text(&kind("failed")).await, "replay");
}

#[tokio::test]
async fn a_migration_that_cannot_lock_a_table_gives_up_and_says_so() {
    let world = at_version(1).await;
    let mut session = world.session().await;
    // Were it waited for without end, it would be got in the end.
    session
        .batch_execute("SET idle_in_transaction_session_timeout = '20s'")
        .await
        .expect("a setting");
    let backup = session.transaction().await.expect("a transaction");
    backup
        .execute("SELECT count(*) FROM outbox.lane", &[])
        .await
        .expect("a lock");
    let output = world.outboxd("migrate", &[]);
    assert_eq!(output.status.code(), Some(69), "{}", stderr_of(&output));
    assert!(stderr_of(&output).contains("Run it again"), "{}", stderr_of(&output));
    assert_eq!(
        world
            .count("SELECT max(version)::bigint FROM outbox.schema_history")
            .await,
        1
    );
    backup.rollback().await.expect("it ends");
    assert!(world.outboxd("migrate", &[]).status.success(), "later it goes through");
}

/// `outboxd run` must end by itself with the code, and say the words.
async fn refuses_to_run(world: &World, args: &[&str], words: &str) {
    let mut relay = world.relay().args(args).start();
    let status = relay.wait(SOON);
    assert_eq!(status.code(), Some(78), "{}", relay.log());
    assert!(relay.logged(words), "{}", relay.log());
}

#[tokio::test]
async fn run_refuses_a_missing_schema_and_names_the_command_that_makes_it() {
    let world = World::empty().await;
    refuses_to_run(&world, &[], "Run `outboxd migrate` first").await;
}

/// A test of a binary on a schema that is newer, and allows it or not, is among the faults: two versions side by side.
#[tokio::test]
async fn what_the_newest_migration_says_of_older_binaries_is_what_is_recorded() {
    let world = World::new().await;
    let runner = embedded::migrations::runner();
    let newest = runner
        .get_migrations()
        .iter()
        .max_by_key(|migration| migration.version());
    let sql = newest.and_then(refinery::Migration::sql).expect("migrations");
    let said = sql.lines().next().and_then(|line| line.rsplit_once(": "));
    let (_, said) = said.expect("its first line says which binaries may run on it");
    let recorded = "SELECT string_agg(oldest_schema::text, ',') FROM outbox.compatibility";
    assert_eq!(world.text(recorded).await, said);
}

#[tokio::test]
async fn run_refuses_a_sequence_that_hands_out_ids_in_blocks() {
    let world = World::new().await;
    world.execute("ALTER SEQUENCE outbox.message_id_seq CACHE 10").await;
    refuses_to_run(&world, &[], "CACHE 10").await;
}

#[tokio::test]
async fn run_with_migrate_makes_the_schema_and_runs() {
    let world = World::empty().await;
    let topic = world.topic("orders", 1, &[]).await;
    let _relay = world.relay().args(&["--migrate"]).start_ready().await;
    world
        .execute(&format!("SELECT outbox.enqueue('{topic}', 'k', '1')"))
        .await;
    world.drained(SOON).await;
}

#[tokio::test]
async fn another_schema_name_works_from_migrate_to_status() {
    let world = World::empty().await;
    let topic = world.topic("small", 1, &[SMALL]).await;
    let migrated = world.outboxd("migrate", &["--schema", "other"]);
    assert!(migrated.status.success(), "{}", stderr_of(&migrated));
    world
        .execute(&format!(
            "SELECT other.enqueue('{topic}', 'k', '1');
             SELECT other.enqueue('{topic}', NULL, '2');
             SELECT other.enqueue('{topic}', 'bad', payload_bytes => {TOO_LARGE});"
        ))
        .await;
    let mut relay = world
        .relay()
        .args(&[
            "--schema",
            "other",
            "--on-published",
            "archive",
            "--max-attempts",
            "1",
            "--on-dead",
            "hold",
        ])
        .start_ready()
        .await;
    world.until("SELECT count(*) = 2 FROM other.history").await;
    world.until("SELECT count(*) = 1 FROM other.hold").await;
    let status = world.outboxd("status", &["--schema", "other"]);
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(text.contains("Dead      1"), "{text}{}", stderr_of(&status));
    assert!(
        text.contains("SELECT other.redrive(") && text.contains("SELECT other.release_hold("),
        "{text}"
    );
    assert!(!text.contains("outbox."), "{text}");
    relay.stop();
    assert!(world.is_true("SELECT to_regnamespace('outbox') IS NULL").await);
    assert_eq!(read_until(&world.kafka, &topic, 2, SOON).await.len(), 2);
}
