//! The relays: the settings of the one that is to run, and the workers that do.

use super::{assert_contains, examine, world_and_relay};

#[tokio::test]
async fn a_lease_that_a_batch_could_outlive_is_a_problem_of_its_own() {
    let (_world, url) = world_and_relay().await;
    let lease = |lease| examine(&url, &["--batch-deadline", "6s", "--lease", lease]);
    let (found, fix) = lease("8s").only_problem("relay.lease");
    assert_contains(&found, &["8s", "6s", "11.25s"]);
    assert_contains(&fix, &["--lease 12s"]);
    assert_eq!(lease("12s").verdict("relay.lease"), "ok");
    lease("10m").only_advice("relay.lease");
}

#[tokio::test]
async fn workers_that_died_are_told_from_those_that_never_ran() {
    let (world, url) = world_and_relay().await;
    assert_eq!(examine(&url, &[]).verdict("relay.workers"), "ok");
    world.fill("t", 3, 1).await;
    let (found, _) = examine(&url, &[]).only_advice("relay.workers");
    assert_contains(&found, &["no relay runs", "3 rows"]);
    world.insert_worker("relay-1", "0.1.0", -60).await;
    let (found, fix) = examine(&url, &[]).only_problem("relay.workers");
    assert_contains(&found, &["relay-1", "1m"]);
    assert_contains(&fix, &["outboxd run"]);
    world.insert_worker("relay-2", env!("CARGO_PKG_VERSION"), 3600).await;
    let (found, _) = examine(&url, &[]).only_advice("relay.workers");
    assert_contains(&found, &["64 lanes have no live owner"]);
}

#[tokio::test]
async fn workers_of_two_versions_are_a_rollout() {
    let (world, url) = world_and_relay().await;
    world.insert_worker("relay-1", env!("CARGO_PKG_VERSION"), 3600).await;
    assert_eq!(examine(&url, &[]).verdict("relay.versions"), "ok");
    world.insert_worker("relay-2", "0.0.9", 3600).await;
    let (found, _) = examine(&url, &[]).only_advice("relay.versions");
    assert_contains(&found, &["0.0.9", env!("CARGO_PKG_VERSION")]);
}

#[tokio::test]
async fn what_an_operator_has_paused_is_named() {
    let (world, url) = world_and_relay().await;
    world
        .execute("SELECT outbox.pause('orders', NULL, 'broken consumer')")
        .await;
    let (found, fix) = examine(&url, &[]).only_advice("relay.pauses");
    assert_contains(&found, &["topic orders (broken consumer; by postgres"]);
    assert_contains(&fix, &["outboxd resume --topic orders"]);
    world.execute("SELECT outbox.resume('orders', NULL, NULL)").await;
    assert_eq!(examine(&url, &[]).verdict("relay.pauses"), "ok");
}

#[tokio::test]
async fn the_login_of_the_page_is_an_operators() {
    let (world, url) = world_and_relay().await;
    let operator = world.login("operator", &["outbox_operator"]).await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path.display().to_string()
    };
    let token = file("token", "0123456789abcdef");
    let page = ["--ui-listen", "127.0.0.1:9091", "--ui-token-file", &token];
    assert_eq!(examine(&url, &page).verdict("ui.login"), "ok", "it changes nothing");
    let with_login = |url: &str, login: &str| {
        let login = file("url", login);
        examine(url, &[&page[..], &["--ui-database-url-file", &login]].concat())
    };
    assert_eq!(with_login(&url, &operator).verdict("ui.login"), "ok");
    let (found, fix) = with_login(&url, &url).only_problem("ui.login");
    assert_contains(&found, &["_relay", "lacks the role outbox_operator"]);
    assert_contains(&fix, &["GRANT outbox_operator TO "]);
    let nobody = url.replace("_relay@", "_nobody@");
    let (found, _) = with_login(&url, &nobody).only_problem("ui.login");
    assert_contains(&found, &["is refused", "28000"]);
}

#[tokio::test]
async fn a_bounded_part_of_a_large_outbox_is_read() {
    let (world, url) = world_and_relay().await;
    world.fill("t", 100_000, 10).await;
    // Sessions tell what they have read when they end, and these end first.
    world.until("SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'outboxd' AND datname = current_database()").await;
    let before = world.rows_read().await;
    let report = examine(&url, &[]);
    assert_contains(&report.said("relay.workers").0, &["20000 rows or more are pending"]);
    world.until("SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'outboxd' AND datname = current_database()").await;
    let read = world.rows_read().await - before;
    assert!(read <= 100_000, "{read} rows and index entries read");
}
