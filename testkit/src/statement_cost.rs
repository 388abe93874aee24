//! What a statement costs, as the server counts it.

use tokio_postgres::{Client, SimpleQueryMessage};

/// One figure of what the statement cost its own backend.
pub async fn cost(client: &Client, sql: &str, figure: &str) -> i64 {
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT JSON) {sql}");
    // The simple protocol answers JSON as text.
    let answer = client.simple_query(&explain).await.expect(sql);
    let plan = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plan: serde_json::Value = serde_json::from_str(plan.expect("a plan")).expect("JSON");
    plan[0]["Plan"][figure].as_i64().expect("a number")
}
