//! What an operator does by commands: dead letters, holds, the audit of it.

mod audit;
mod correction;
mod dead;
mod documented;
mod hold;
mod interrupted;
mod order;
mod terminal;

use std::process::Output;

use serde_json::Value;
use testkit::*;

/// The object that a command with --json prints.
fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr_of(output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn stdout_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// So many dead letters over so many keys, which died by hand. Their payloads count them: {"n": 1} and so on.
async fn fill_with_dead_letters(world: &World, topic: &str, rows: usize, keys: usize) {
    world.fill(topic, rows, keys).await;
    let refused = format!(
        "UPDATE outbox.message SET dead_at = now(), attempts = 5, last_error = 'refused' WHERE topic = '{topic}' AND published_at IS NULL"
    );
    world.execute(&refused).await;
}

/// The ids of rows of which this is true.
async fn ids_where(world: &World, condition: &str) -> Vec<i64> {
    let sql = format!("SELECT id FROM outbox.message WHERE {condition} ORDER BY id");
    let rows = world.db.query(&sql, &[]).await.expect(&sql);
    rows.iter().map(|row| row.get(0)).collect()
}
