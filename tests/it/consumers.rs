//! Consumers: one effect per message, however often and by however many it is consumed; the inbox and its workers.

mod arguments;
mod end_to_end;
mod failure;
mod inbox;
mod key_order;
mod processed;
mod roles;

use std::collections::BTreeMap;

use testkit::*;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// The SQLSTATE a statement is refused with. The server must explain itself, and give nothing away.
async fn refusal(client: &Client, sql: &str) -> String {
    let error = refusal_of(client, sql).await;
    let code = error.code().code().to_owned();
    if code.starts_with("P4") {
        assert!(error.detail().is_some() && error.hint().is_some(), "{sql}: {error:?}");
        assert!(error.message().len() < 200, "no raw input in {error:?}");
    }
    code
}

fn consume(id: &str, payload: &str) -> String {
    format!("outbox.consume_once('billing', 'orders', '{id}', sha256('{payload}'))")
}

async fn world_with_effects() -> World {
    let world = World::new().await;
    world.execute("CREATE TABLE effect (id text)").await;
    world
}

const EFFECTS: &str = "SELECT count(*) FROM effect";

/// What a claim answered: message id → (id, token).
type Claimed = BTreeMap<String, (i64, i32)>;

async fn claim(client: &Client, most: i32, lease: &str) -> Claimed {
    let sql = format!("SELECT message_id, id, token FROM outbox.inbox_claim('c', {most}, '{lease}', 'a worker')");
    let rows = client.query(&sql, &[]).await.expect("claimed");
    rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect()
}

/// One message of that name, in the inbox of consumer `c`.
async fn receive(world: &World, message: &str, rest: &str) {
    let stored = format!("outbox.inbox_receive('c', 's', '{message}', '{{}}'{rest})");
    assert!(world.is_true(&stored).await, "{stored}");
}

fn names(claimed: &Claimed) -> Vec<&str> {
    claimed.keys().map(String::as_str).collect()
}

fn done((id, token): (i64, i32)) -> String {
    format!("SELECT outbox.inbox_done({id}, {token})")
}

fn fail((id, token): (i64, i32)) -> String {
    format!("SELECT outbox.inbox_fail({id}, {token}, 'boom', backoff_min => '0', backoff_max => '0')")
}

const DUE: &str = "SELECT count(*) > 0 FROM outbox.inbox_message
                   WHERE done_at IS NULL AND poison_at IS NULL AND next_attempt_at <= clock_timestamp()";
