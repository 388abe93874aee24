//! Every example runs as a reader would run it: pasted into psql, and pasted again.

use std::path::PathBuf;
use std::process::Command;

use crate::support::*;

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
