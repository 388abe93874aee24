//! The outbox in the database: its schema, privileges and settings.

use testkit::*;

use super::{assert_contains, examine, world_and_relay};

#[tokio::test]
async fn a_missing_schema_and_an_old_one_are_to_be_migrated() {
    let world = World::empty().await;
    let missing = examine(&world.database_url, &[]);
    let (found, fix) = missing.only_problem("db.schema");
    assert_contains(&found, &["the outbox schema is missing"]);
    assert_contains(&fix, &["outboxd migrate"]);
    assert_eq!(missing.verdict("db.trigger"), "skipped");
    examine(&world.database_url, &["--migrate"]).only_advice("db.schema");

    let (world, url) = world_and_relay().await;
    world
        .execute("DELETE FROM outbox.schema_history WHERE version = (SELECT max(version) FROM outbox.schema_history)")
        .await;
    let (found, _) = examine(&url, &[]).only_problem("db.schema");
    assert_contains(&found, &["is at version"]);
}

#[tokio::test]
async fn what_a_login_lacks_is_named_with_the_role_that_has_it() {
    let world = World::new().await;
    let nobody = examine(&world.login("nobody", &[]).await, &[]);
    let (found, fix) = nobody.only_problem("db.grants");
    assert_contains(&found, &["42501"]);
    assert_contains(&fix, &[&format!("GRANT outbox_relay TO {}_nobody", world.name)]);
    let operator = examine(&world.login("reader", &["outbox_operator"]).await, &[]);
    let (found, _) = operator.only_problem("db.grants");
    assert_contains(&found, &["UPDATE on outbox.lane"]);
    assert_eq!(operator.verdict("db.sequence"), "ok", "what it may read is checked");
}

#[tokio::test]
async fn row_security_that_hides_messages_is_found() {
    let (world, url) = world_and_relay().await;
    world
        .execute("ALTER TABLE outbox.message ENABLE ROW LEVEL SECURITY")
        .await;
    let (found, fix) = examine(&url, &[]).only_problem("db.row_security");
    assert_contains(&found, &["outbox.message"]);
    world.execute(&fix).await;
    assert_eq!(examine(&url, &[]).code, 0);
}

#[tokio::test]
async fn a_trigger_that_does_not_fire_is_found_and_the_fix_repairs_it() {
    let (world, url) = world_and_relay().await;
    for broken in [
        "ALTER TABLE outbox.message DISABLE TRIGGER zz_message_before_insert",
        "DROP TRIGGER zz_message_before_insert ON outbox.message",
        "DROP TRIGGER message_refuse_update ON outbox.message",
    ] {
        world.execute(broken).await;
        let (_, fix) = examine(&url, &[]).only_problem("db.trigger");
        world.execute(&fix).await;
        assert_eq!(examine(&url, &[]).verdict("db.trigger"), "ok", "after {fix}");
    }
    let refused = refusal_of(&world.db, "UPDATE outbox.message SET topic = 't'").await;
    assert_contains(refused.message(), &["never change"]);
    world
        .execute("ALTER TABLE outbox.message ENABLE TRIGGER message_refuse_update")
        .await;
    let (_, fix) = examine(&url, &[]).only_advice("db.trigger");
    assert_contains(&fix, &["ENABLE ALWAYS TRIGGER message_refuse_update"]);
}

#[tokio::test]
async fn a_sequence_that_draws_ids_in_blocks_is_found() {
    let (world, url) = world_and_relay().await;
    world.execute("ALTER SEQUENCE outbox.message_id_seq CACHE 10").await;
    let (found, fix) = examine(&url, &[]).only_problem("db.sequence");
    assert_contains(&found, &["CACHE 10"]);
    world.execute(&fix).await;
    assert_eq!(examine(&url, &[]).verdict("db.sequence"), "ok");
}

#[tokio::test]
async fn a_server_that_does_not_tell_its_timeline_is_worth_a_word() {
    let (world, url) = world_and_relay().await;
    world
        .execute("ALTER FUNCTION pg_catalog.pg_walfile_name(pg_lsn) RENAME TO refused")
        .await;
    let (found, _) = examine(&url, &[]).only_advice("db.timeline");
    assert_contains(&found, &["timeline"]);
}

#[tokio::test]
async fn logins_that_commit_asynchronously_are_named() {
    let (world, url) = world_and_relay().await;
    world.login("shop", &["outbox_producer"]).await;
    let off = |login: &str| format!("ALTER ROLE {}_{login} SET synchronous_commit = off", world.name);
    world.execute(&off("shop")).await;
    let (found, fix) = examine(&url, &[]).only_advice("db.synchronous_commit");
    assert_contains(&found, &[&format!("{}_shop", world.name)]);
    assert_contains(&fix, &["RESET synchronous_commit"]);
    world.execute(&off("relay")).await;
    let (found, _) = examine(&url, &[]).only_advice("db.synchronous_commit");
    assert_contains(&found, &["sessions of this login"]);
}

#[tokio::test]
async fn days_of_the_history_are_looked_for_where_rows_are_archived() {
    let (world, url) = world_and_relay().await;
    let archive = ["--on-published", "archive"];
    assert_eq!(examine(&url, &[]).verdict("db.history_days"), "skipped");
    assert_eq!(
        examine(&url, &archive).verdict("db.history_days"),
        "ok",
        "no relay has run yet"
    );
    world.insert_worker("relay-1", "0.1.0", 3600).await;
    let (found, _) = examine(&url, &archive).only_advice("db.history_days");
    assert_contains(&found, &["no partition for today"]);
    world.execute("SELECT outbox.history_prepare()").await;
    assert_eq!(examine(&url, &archive).verdict("db.history_days"), "ok");
    world
        .execute(
            "INSERT INTO outbox.history (id, created_at, published_at, message_id, attempts, topic)
             VALUES (1, now(), '2020-01-01', gen_random_uuid(), 0, 't')",
        )
        .await;
    let (found, _) = examine(&url, &archive).only_advice("db.history_days");
    assert_contains(&found, &["outbox.history_default has 8.0 KiB"]);
}
