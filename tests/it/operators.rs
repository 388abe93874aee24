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

/// So many dead letters over so many keys, which died by hand. Their payloads count them: {"n": 1} and so on.
async fn fill_with_dead_letters(world: &World, topic: &str, rows: usize, keys: usize) {
    world.fill(topic, rows, keys).await;
    let refused = format!(
        "UPDATE outbox.message SET dead_at = now(), attempts = 5, last_error = 'refused' WHERE topic = '{topic}' AND published_at IS NULL"
    );
    world.execute(&refused).await;
}
