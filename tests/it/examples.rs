//! Every example runs as a reader would run it: pasted into psql, and pasted again.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use testkit::*;

/// The folder of the examples.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/sql")
}

/// Each file here has a test below.
const EXAMPLES: &[&str] = &[
    "advisory_lock",
    "balance_projection",
    "batch_import",
    "compare_and_set",
    "create_order_once",
    "external_call",
    "inbound_to_outbound",
    "ledger_transaction",
    "one_active_timer",
    "posting_ledger",
    "version_gated_update",
    "webhook_consumer",
];

fn psql(world: &World, name: &str) {
    let output = Command::new("psql")
        .args([&world.database_url, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f"])
        .arg(folder().join(name).with_extension("sql"))
        .output()
        .expect("psql runs");
    assert!(output.status.success(), "{name}: {}", stderr_of(&output));
}

/// A fresh world; the example checks itself, the first time and where it finds its own traces.
async fn runs_twice(name: &str) {
    let world = World::new().await;
    psql(&world, name);
    psql(&world, name);
    let own_schema = format!("to_regnamespace('{name}') IS NOT NULL");
    assert!(world.is_true(&own_schema).await, "it leaves something to look at");
}

#[tokio::test]
async fn advisory_lock() {
    runs_twice("advisory_lock").await;
}

#[tokio::test]
async fn batch_import() {
    runs_twice("batch_import").await;
}

#[tokio::test]
async fn compare_and_set() {
    runs_twice("compare_and_set").await;
}

#[tokio::test]
async fn create_order_once() {
    runs_twice("create_order_once").await;
}

#[tokio::test]
async fn external_call() {
    runs_twice("external_call").await;
}

#[tokio::test]
async fn one_active_timer() {
    runs_twice("one_active_timer").await;
}

#[tokio::test]
async fn balance_projection() {
    runs_twice("balance_projection").await;
}

#[tokio::test]
async fn inbound_to_outbound() {
    runs_twice("inbound_to_outbound").await;
}

#[tokio::test]
async fn ledger_transaction() {
    runs_twice("ledger_transaction").await;
}

#[tokio::test]
async fn posting_ledger() {
    runs_twice("posting_ledger").await;
}

#[tokio::test]
async fn version_gated_update() {
    runs_twice("version_gated_update").await;
}

#[tokio::test]
async fn webhook_consumer() {
    runs_twice("webhook_consumer").await;
}

/// What the examples leave in the tables of the outbox, each row under a name of its own.
const TRACES: &str = "SELECT 'message ' || id FROM outbox.message
    UNION ALL SELECT 'command ' || scope || ' ' || key FROM outbox.idempotency_request
    UNION ALL SELECT 'marker ' || consumer || ' ' || message_id FROM outbox.processed_message
    UNION ALL SELECT 'inbox ' || id FROM outbox.inbox_message";

async fn traces(world: &World) -> BTreeSet<String> {
    let rows = world.db.query(TRACES, &[]).await.expect(TRACES);
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn no_example_removes_what_another_has_left() {
    let world = World::new().await;
    for name in EXAMPLES {
        let before = traces(&world).await;
        psql(&world, name);
        let after = traces(&world).await;
        let removed: Vec<&String> = before.difference(&after).collect();
        assert!(removed.is_empty(), "{name} removed {removed:?}");
    }
}

#[tokio::test]
async fn a_cart_that_two_clients_order_under_two_keys_is_one_order() {
    let world = World::new().await;
    psql(&world, "create_order_once");
    world.execute("BEGIN").await;
    let first = world
        .count("SELECT create_order_once.place('k1', 'ada', 'cart-9', 700)")
        .await;
    let second = world.session().await;
    let waiting = tokio::spawn(async move {
        let place = "SELECT create_order_once.place('k2', 'ada', 'cart-9', 700)";
        second.query_one(place, &[]).await.expect("answered").get::<_, i64>(0)
    });
    world.blocked(1).await;
    world.execute("COMMIT").await;
    assert_eq!(waiting.await.expect("ran"), first, "the order that is there");
    let orders = "SELECT count(*) FROM create_order_once.orders WHERE cart = 'cart-9'";
    let messages = "SELECT count(*) FROM outbox.message WHERE payload->>'cart' = 'cart-9'";
    assert_eq!((world.count(orders).await, world.count(messages).await), (1, 1));
}

#[tokio::test]
async fn two_bookings_of_the_same_accounts_crosswise_do_not_wait_for_each_other() {
    let world = World::new().await;
    psql(&world, "ledger_transaction");
    let other = world.session().await;
    let book = |id: &str, first: &str, second: &str| {
        format!(
            "SET lock_timeout = '1ms'; BEGIN; SELECT ledger_transaction.book('{id}',
                 '[{{\"account\": \"{first}\", \"amount\": 1}}, {{\"account\": \"{second}\", \"amount\": -1}}]')"
        )
    };
    world.execute(&book("x1", "cash", "sales")).await;
    let crosswise = other.batch_execute(&book("x2", "sales", "cash")).await;
    crosswise.expect("nobody has to wait");
    world.execute("COMMIT").await;
    other.batch_execute("COMMIT").await.expect("committed");
    let entries = "SELECT count(*) FROM ledger_transaction.entry WHERE transaction_id IN ('x1', 'x2')";
    assert_eq!(world.count(entries).await, 4);
}

#[tokio::test]
async fn a_repeat_of_the_newest_version_writes_nothing() {
    let world = World::new().await;
    psql(&world, "version_gated_update");
    let newest = "SELECT version_gated_update.apply('c1', 6, '{\"deleted\": true}')";
    // Once before: the first read of a table may tidy up a page of it.
    assert_eq!(world.text(newest).await, "ignored");
    assert_eq!(cost(&world.db, newest, "WAL Records").await, 0);
}

#[test]
fn every_example_has_a_test_and_says_what_happens_in_seven_failures() {
    let files = std::fs::read_dir(folder()).expect("a folder");
    let mut found: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    found.sort();
    let names: Vec<&str> = found.iter().filter_map(|path| path.file_stem()?.to_str()).collect();
    assert_eq!(names, EXAMPLES);
    for path in &found {
        let text = std::fs::read_to_string(path).expect("text");
        let header = text.lines().take_while(|line| line.starts_with("--"));
        let rows = header.filter(|line| line.matches(" | ").count() == 2).count();
        assert_eq!(rows, 1 + 7, "a heading and seven failures in {}", path.display());
    }
}
