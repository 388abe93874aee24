//! The integration tests: real `outboxd` processes against a real PostgreSQL and a real Kafka. One module a topic.

mod consumers;
mod cost;
mod deploy;
mod doctor;
mod examples;
mod faults;
mod idempotency;
mod monitoring;
mod observability;
mod operators;
mod order;
mod partitions;
mod pause;
mod polling;
mod purge;
mod replay;
mod row_lifecycle;
mod scaling;
mod schema;
mod secrets;
mod security;
mod settings;
mod ui;
mod unordered_rows;
mod verify;
mod walk;
mod wire_format;

/// The test kit finds the binary by itself: it must be the one that cargo has built for this run.
#[test]
fn the_binary_under_test_is_the_one_that_cargo_has_built() {
    let built = std::fs::canonicalize(env!("CARGO_BIN_EXE_outboxd"));
    assert_eq!(testkit::binary(), built.expect("cargo has built it"));
}
