//! Servers that refuse some functions, as managed ones do.

use testkit::*;

const REFUSED: &str = "pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.pg_walfile_name(pg_lsn)";

/// What is said of it, by `migrate` and by `run`.
const SAID: &str = "does not say which timeline it is on";

/// From nothing to a row in Kafka, with these logins.
async fn works(world: &World, owner: &str, relay: &str) {
    let topic = world.topic("orders", 1, &[]).await;
    let migrated = outboxd().args(["migrate", "--database-url", owner]).output();
    let migrated = migrated.expect("outboxd runs");
    assert!(migrated.status.success(), "{}", stderr_of(&migrated));
    assert!(stderr_of(&migrated).contains(SAID), "{}", stderr_of(&migrated));
    let again = outboxd().args(["migrate", "--database-url", owner]).output();
    assert!(again.expect("outboxd runs").status.success(), "up to date");

    world.fill(&topic, 20, 5).await;
    let relay = world.relay_as(relay).start_ready().await;
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    history.assert_exact();
    assert_eq!(history.flagged, 0, "nobody has sent any of it before");
    assert!(relay.logged(SAID), "{}", relay.log());
    let lineage = "SELECT count(DISTINCT lineage) = 1 AND bool_and(lineage ~ '^unknown [0-9.]+$') FROM outbox.lane";
    assert!(
        world.is_true(lineage).await,
        "each life of the server is one of its own"
    );
}

#[tokio::test]
async fn a_server_whose_functions_raise_is_migrated_and_used_and_what_is_lost_is_said() {
    let world = World::empty().await;
    world
        .execute(
            "ALTER FUNCTION pg_catalog.pg_current_wal_insert_lsn() RENAME TO refused;
             CREATE FUNCTION pg_catalog.pg_current_wal_insert_lsn() RETURNS pg_lsn LANGUAGE plpgsql AS $$
             BEGIN RAISE feature_not_supported USING MESSAGE = 'pg_current_wal_insert_lsn is not supported'; END $$",
        )
        .await;
    works(&world, &world.database_url.clone(), &world.database_url.clone()).await;
}

#[tokio::test]
async fn a_server_that_grants_nobody_these_functions_is_migrated_and_used() {
    // Roles are the whole server's: a database that has the schema has made them, and the owner here may not.
    let _roles = World::new().await;
    let world = World::empty().await;
    world
        .execute(&format!("REVOKE EXECUTE ON FUNCTION {REFUSED} FROM PUBLIC"))
        .await;
    let owner = world.login("owner", &[]).await;
    world
        .execute(&format!(
            "GRANT CREATE ON DATABASE {name} TO {name}_owner",
            name = world.name
        ))
        .await;
    let relay = world.login("relay", &["outbox_relay"]).await;
    works(&world, &owner, &relay).await;
}
