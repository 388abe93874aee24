//! `outboxd replay`: published messages are sent again, each copy says so, none is lost and none is sent twice.

mod archived;
mod fresh;
mod interrupted;
mod order;
mod refused;
mod selected;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;
use testkit::*;

/// Runs a replay to its end; returns what it says.
fn replay(world: &World, args: &[&str]) -> Value {
    json_of(&world.outboxd("replay", &[&["--yes", "--json"], args].concat()))
}

/// A replay that runs beside the test. What it says on stderr goes to a log in this directory.
fn start_replay(world: &World, args: &[&str], dir: &Path, failpoint: Option<&str>) -> Child {
    let armed = failpoint.map(|name| failpoint::armed(dir, name));
    world
        .command("replay")
        .args(["--yes", "--json"])
        .args(args)
        .env("OUTBOXD_FAILPOINTS", armed.unwrap_or_default())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(dir.join("log")).expect("a log file"))
        .spawn()
        .expect("outboxd starts")
}

fn finished(child: Child, dir: &Path) -> Value {
    let output = child.wait_with_output().expect("it ends");
    let said = std::fs::read_to_string(dir.join("log")).expect("a log");
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// As if published rows of both tables had been published so long ago: a replay waits for what was published less than a minute ago.
async fn publish_ago(world: &World, ago: &str) {
    for table in ["message", "history"] {
        let publish = format!("UPDATE outbox.{table} SET published_at = now() - {ago} WHERE published_at IS NOT NULL");
        world.execute(&publish).await;
    }
}

/// As if row n of each table had been published n hours ago.
async fn publish_hours_ago(world: &World) {
    publish_ago(world, "id * interval '1 hour'").await;
}

/// As if everything had been published an hour ago.
async fn publish_an_hour_ago(world: &World) {
    publish_ago(world, "interval '1 hour'").await;
}

/// A world with this many rows that were published an hour ago, over so many keys. The relay still runs.
async fn published_world(args: &[&str], rows: usize, keys: usize) -> (World, String, Relay) {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, rows, keys).await;
    let relay = world.relay().args(args).start_ready().await;
    world.drained(SOON).await;
    publish_an_hour_ago(&world).await;
    (world, topic, relay)
}

/// The copies of each message that `World::fill` wrote, by its number: whether each says that it may be a repeat, in the order of
/// offsets.
fn copies(records: &[Record]) -> BTreeMap<u64, Vec<bool>> {
    let mut copies: BTreeMap<u64, Vec<bool>> = BTreeMap::new();
    for record in records {
        if let Some(number) = record.json()["n"].as_u64() {
            copies.entry(number).or_default().push(is_flagged(record));
        }
    }
    copies
}

fn is_flagged(record: &Record) -> bool {
    record.header("possible-duplicate").is_some()
}

/// Each message is in the topic as often as `count` says. The first copy of each is not flagged, and every other one is.
fn assert_copies(records: &[Record], rows: u64, count: impl Fn(u64) -> usize) {
    let copies = copies(records);
    for number in 1..=rows {
        let mut expected = vec![true; count(number)];
        expected[0] = false;
        assert_eq!(copies.get(&number), Some(&expected), "message {number}");
    }
    assert_eq!(copies.len() as u64, rows);
}

/// The flagged copies of each key are in the order in which their rows were written. Copies of a row after its first one are left
/// out: a crash may repeat any row.
fn assert_repeats_ascend(records: &[Record]) -> usize {
    let (mut seen, mut last) = (std::collections::HashSet::new(), HashMap::new());
    for record in records.iter().filter(|record| is_flagged(record)) {
        let Some(number) = record.json()["n"].as_u64() else {
            continue;
        };
        if seen.insert(number) {
            let before = last.insert(record.key_text(), number).unwrap_or(0);
            assert!(before < number, "key {}: {number} after {before}", record.key_text());
        }
    }
    seen.len()
}
