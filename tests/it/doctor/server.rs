//! The server, and the way to it.

use std::time::{Duration, Instant};

use testkit::*;

use super::{assert_contains, examine, world_and_relay};

#[test]
fn a_server_that_is_not_there_is_said_to_be_and_nothing_else_is_asked() {
    let report = examine("postgres://u:hunter2@127.0.0.1:1/db", &[]);
    let (found, fix) = report.only_problem("db.connect");
    assert_contains(&found, &["127.0.0.1:1", "refused"]);
    assert_contains(&fix, &["pg_isready -h 127.0.0.1 -p 1"]);
    assert_eq!(report.verdict("db.grants"), "skipped");
    assert_eq!(report.verdict("relay.workers"), "skipped");
    assert_eq!(report.verdict("relay.lease"), "ok");
    assert!(!report.json.to_string().contains("hunter2"));
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_a_matter_of_the_url() {
    let world = World::empty().await;
    let report = examine(&with_database(&world.database_url, "no_such_database"), &[]);
    let (found, fix) = report.only_problem("db.connect");
    assert_contains(&found, &["no_such_database"]);
    assert_contains(&fix, &["--database-url"]);
}

#[tokio::test]
async fn a_server_that_says_nothing_is_not_waited_for() {
    let world = World::new().await;
    let proxy = Proxy::to_postgres(&world.database_url);
    proxy.both_ways(Link::BLACK_HOLE);
    let began = Instant::now();
    let report = examine(&proxy.url(&world.database_url), &[]);
    report.only_problem("db.connect");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_login_whose_sessions_begin_read_only_cannot_relay_and_can_be_examined() {
    let (world, url) = world_and_relay().await;
    let login = format!("{}_relay", world.name);
    world
        .execute(&format!("ALTER ROLE {login} SET default_transaction_read_only = on"))
        .await;
    // Nothing else is unknown or a problem: so nothing that the doctor asks writes.
    let (found, fix) = examine(&url, &[]).only_problem("db.primary");
    assert_contains(&found, &["read-only"]);
    assert_contains(
        &fix,
        &[&format!("ALTER ROLE {login}"), "default_transaction_read_only = off"],
    );
}

#[tokio::test]
async fn a_standby_is_no_primary() {
    let postgres = OwnPostgres::start();
    let world = World::on(&postgres.url, &Stack::get().kafka).await;
    postgres.restart_as_standby();
    let (found, fix) = examine(&world.database_url, &[]).only_problem("db.primary");
    assert_contains(&found, &["standby"]);
    assert_contains(&fix, &["target_session_attrs=read-write"]);
}

#[tokio::test]
async fn a_pooler_is_to_be_declared_and_none_where_there_is_none() {
    let world = World::pooled().await;
    let pooler = world.pooler.as_ref().expect("a pooler");
    let through = pooler.through(&world.database_url);
    let undeclared = examine(&through, &[]);
    let (found, fix) = undeclared.only_problem("db.pooler");
    assert_contains(&found, &["transaction pooler"]);
    assert_contains(&fix, &["--database-pooler transaction"]);
    assert_eq!(undeclared.verdict("db.schema"), "ok", "the rest is checked through it");

    let pooled = ["--database-pooler", "transaction"];
    let declared = examine(&through, &pooled);
    assert_eq!(
        (declared.code, declared.verdict("db.pooler")),
        (0, "ok"),
        "{:#}",
        declared.json
    );
    assert_eq!(declared.verdict("db.connections"), "skipped");
    let (found, _) = examine(&world.database_url, &pooled).only_advice("db.pooler");
    assert_contains(&found, &["no two sessions share"]);
}

#[tokio::test]
async fn a_clock_is_compared_with_the_servers() {
    let (_world, url) = world_and_relay().await;
    let clock = Preload::build("clock.c");
    let examined_at = |offset: &str| {
        let output = outboxd()
            .args(["doctor", "--json", "--database-url", &url])
            .env("LD_PRELOAD", clock.library())
            .env("CLOCK_OFFSET", offset)
            .output()
            .expect("outboxd runs");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let checks = json["checks"].as_array().expect("a list").clone();
        let clock = checks
            .into_iter()
            .find(|check| check["id"] == "db.clock")
            .expect("a check");
        (output.status.code(), clock)
    };
    let (code, right) = examined_at("0");
    assert_eq!((code, &right["verdict"]), (Some(0), &"ok".into()), "{right:#}");
    let (code, early) = examined_at("5");
    assert_eq!((code, &early["verdict"]), (Some(0), &"advice".into()), "{early:#}");
    let (code, late) = examined_at("-90");
    assert_eq!((code, &late["verdict"]), (Some(1), &"problem".into()), "{late:#}");
    assert_contains(late["found"].as_str().expect("a text"), &["behind the server's"]);
}

#[tokio::test]
async fn a_login_with_too_few_connections_is_named() {
    let (world, url) = world_and_relay().await;
    let login = format!("{}_relay", world.name);
    world.execute(&format!("ALTER ROLE {login} CONNECTION LIMIT 6")).await;
    let (found, fix) = examine(&url, &[]).only_problem("db.connections");
    assert_contains(&found, &["connection limit of the login"]);
    assert_contains(&fix, &[&format!("ALTER ROLE {login} CONNECTION LIMIT")]);
}

#[tokio::test]
async fn a_superuser_and_an_owner_are_more_than_a_relay_needs() {
    let world = World::new().await;
    let (found, _) = examine(&world.database_url, &[]).only_advice("db.role");
    assert_contains(&found, &["superuser"]);
    let owner = world.login("owner", &["outbox_relay"]).await;
    world
        .execute(&format!("ALTER TABLE outbox.message OWNER TO {}_owner", world.name))
        .await;
    let (found, fix) = examine(&owner, &[]).only_advice("db.role");
    assert_contains(&found, &["owns the outbox"]);
    assert_contains(&fix, &["GRANT outbox_relay"]);
    world.execute("ALTER TABLE outbox.message OWNER TO postgres").await;
}
