//! What keeps the server from removing old rows and old WAL, and floors from moving.

use testkit::*;

use super::{assert_contains, examine, world_and_relay};

/// Everything that is older than a moment is old.
const AT_ONCE: [&str; 2] = ["--max-transaction-age", "200ms"];

/// Waits until the session of this application has been in its state for long enough. It is not asked itself: the answer would keep
/// a snapshot.
async fn is_old(world: &World, application: &str) {
    let age = "clock_timestamp() - greatest(state_change, xact_start) > interval '300 ms'";
    world
        .until(&format!(
            "SELECT {age} FROM pg_stat_activity WHERE datname = current_database() AND application_name = '{application}'"
        ))
        .await;
}

#[tokio::test]
async fn autovacuum_that_is_switched_off_for_a_table_is_found_and_the_fix_repairs_it() {
    let (world, url) = world_and_relay().await;
    for (broken, table) in [
        (
            "ALTER TABLE outbox.lane SET (autovacuum_enabled = false)",
            "outbox.lane",
        ),
        (
            "ALTER TABLE outbox.message SET (toast.autovacuum_enabled = off)",
            "outbox.message",
        ),
    ] {
        world.execute(broken).await;
        let (found, fix) = examine(&url, &[]).only_problem("db.autovacuum");
        assert_contains(&found, &[table]);
        world.execute(&fix).await;
        assert_eq!(examine(&url, &[]).verdict("db.autovacuum"), "ok", "after {fix}");
    }
}

#[tokio::test]
async fn a_session_that_is_idle_in_a_transaction_is_named_to_who_may_see_it() {
    let (world, url) = world_and_relay().await;
    let forgotten = world.session().await;
    forgotten
        .batch_execute("SET application_name = 'billing'; BEGIN; SELECT 1")
        .await
        .expect("begun");
    is_old(&world, "billing").await;
    let (found, fix) = examine(&url, &AT_ONCE).only_advice("db.idle_in_transaction");
    assert_contains(&found, &["this login may not see"]);
    assert_contains(
        &fix,
        &["GRANT pg_read_all_stats TO", "idle_in_transaction_session_timeout"],
    );
    world
        .execute(&format!("GRANT pg_read_all_stats TO {}_relay", world.name))
        .await;
    let (found, fix) = examine(&url, &AT_ONCE).only_problem("db.idle_in_transaction");
    assert_contains(&found, &["billing", "login postgres"]);
    assert_contains(&fix, &["SELECT pg_terminate_backend("]);
    assert_eq!(examine(&url, &[]).code, 0, "it is young");
    world
        .execute(&format!(
            "ALTER DATABASE {} SET idle_in_transaction_session_timeout = '1h'",
            world.name
        ))
        .await;
    assert_eq!(examine(&url, &[]).verdict("db.idle_in_transaction"), "ok");
}

#[tokio::test]
async fn a_writer_that_stays_open_is_named() {
    let world = World::new().await;
    let writer = world.session().await;
    writer
        .batch_execute("SET application_name = 'shop'; BEGIN; INSERT INTO outbox.message (topic, key, payload) VALUES ('t', 'k', '1')")
        .await
        .expect("written");
    is_old(&world, "shop").await;
    let report = examine(&world.database_url, &AT_ONCE);
    assert_eq!(report.with("problem"), ["db.idle_in_transaction", "db.open_writer"]);
    let (found, fix) = report.said("db.open_writer");
    assert_contains(&found, &["shop", "has written to the outbox"]);
    assert_contains(&fix, &["pg_terminate_backend("]);
}

#[tokio::test]
async fn an_old_snapshot_is_named() {
    let world = World::new().await;
    let report = world.session().await;
    let pid: i32 = report
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .expect("a pid")
        .get(0);
    let running = tokio::spawn(async move { report.batch_execute("SELECT pg_sleep(600)").await });
    world
        .until(&format!(
            "SELECT clock_timestamp() - xact_start > interval '300 ms' AND backend_xmin IS NOT NULL
             FROM pg_stat_activity WHERE pid = {pid}"
        ))
        .await;
    let (found, fix) = examine(&world.database_url, &AT_ONCE).only_problem("db.old_snapshot");
    assert_contains(&found, &[&format!("pid {pid}")]);
    assert_contains(&fix, &[&format!("pg_terminate_backend({pid})")]);
    assert_eq!(
        examine(&world.database_url, &[]).verdict("db.old_snapshot"),
        "ok",
        "it is young"
    );
    running.abort();
}

#[tokio::test]
async fn a_transaction_that_was_left_prepared_is_named() {
    let world = World::new().await;
    let gid = format!("{}'s", world.name);
    let quoted = gid.replace('\'', "''");
    let session = world.session().await;
    session
        .batch_execute(&format!("BEGIN; SELECT 1; PREPARE TRANSACTION '{quoted}'"))
        .await
        .expect("prepared");
    world
        .until(&format!(
            "SELECT clock_timestamp() - prepared > interval '300 ms' FROM pg_prepared_xacts WHERE gid = '{quoted}'"
        ))
        .await;
    let judged = examine(&world.database_url, &AT_ONCE);
    let young = examine(&world.database_url, &[]);
    world.execute(&format!("ROLLBACK PREPARED '{quoted}'")).await;
    let (found, fix) = judged.only_problem("db.prepared_transactions");
    assert_contains(&found, &[&gid, "postgres"]);
    assert_contains(&fix, &[&format!("ROLLBACK PREPARED '{quoted}'")]);
    assert_eq!(young.verdict("db.prepared_transactions"), "ok");
}

#[tokio::test]
async fn a_slot_that_nobody_reads_is_named() {
    let postgres = OwnPostgres::start();
    let world = World::on(&postgres.url, &Stack::get().kafka).await;
    assert_eq!(examine(&world.database_url, &[]).verdict("db.slots"), "ok");
    world
        .execute("SELECT pg_create_physical_replication_slot('forgotten', true)")
        .await;
    let (found, fix) = examine(&world.database_url, &[]).only_advice("db.slots");
    assert_contains(&found, &["forgotten", "nobody reads"]);
    world.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'").await;
    world.execute("SELECT pg_reload_conf()").await;
    eventually(SOON, "the slot to be lost", async || {
        world
            .execute("SELECT pg_switch_wal(); CREATE TABLE IF NOT EXISTS filler ()")
            .await;
        world.execute("DROP TABLE filler").await;
        world.execute("CHECKPOINT").await;
        let lost = "SELECT wal_status = 'lost' FROM pg_replication_slots";
        world.is_true(lost).await.then_some(())
    })
    .await;
    let (found, _) = examine(&world.database_url, &[]).only_advice("db.slots");
    assert_contains(&found, &["whose WAL is gone"]);
    let (_, command) = fix.split_once("SELECT").expect("a command");
    world.execute(&format!("SELECT{command}")).await;
    assert_eq!(examine(&world.database_url, &[]).verdict("db.slots"), "ok");
}
