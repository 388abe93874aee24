//! `outboxd status --check`.

use std::process::Output;

use testkit::*;

use super::assert_contains;

fn check(world: &World, args: &[&str]) -> Output {
    world.outboxd("status", &[&["--check"], args].concat())
}

fn assert_code(output: &Output, code: i32) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(code), "{stdout}{}", stderr_of(output));
    stdout
}

/// A world with a worker that is alive.
async fn world_with_worker() -> World {
    let world = World::new().await;
    world.insert_worker("relay-1", "0.1.0", 3600).await;
    world
}

const ALL: [&str; 8] = [
    "--max-oldest",
    "60s",
    "--max-pending",
    "0",
    "--max-dead",
    "0",
    "--max-held",
    "0",
];

#[tokio::test]
async fn limits_that_hold_are_not_mentioned() {
    let world = world_with_worker().await;
    let output = check(&world, &ALL);
    assert_eq!(
        (assert_code(&output, 0), stderr_of(&output)),
        (String::new(), String::new())
    );
}

#[tokio::test]
async fn each_limit_that_is_broken_has_a_line() {
    let world = world_with_worker().await;
    world
        .execute(
            "SELECT outbox.enqueue('t', 'k', '1'); SELECT outbox.enqueue('t', 'k', '2');
             UPDATE outbox.message SET created_at = now() - interval '2 hours' WHERE id = 1;
             UPDATE outbox.message SET dead_at = now() WHERE id = 2;
             INSERT INTO outbox.hold (lane, topic, unit, head_id, resume_floor, reason, retry_at)
             SELECT lane, topic, 'k:k', id, 0, 'refused', 'infinity' FROM outbox.message WHERE id = 1;",
        )
        .await;
    let output = check(&world, &ALL);
    let lines = assert_code(&output, 1);
    assert_eq!(lines.lines().count(), 4, "{lines}");
    assert_contains(
        &lines,
        &[
            "--max-oldest: the oldest pending row is 2h",
            "--max-pending: 1 pending, 0 allowed",
            "--max-dead: 1 dead, 0 allowed",
            "--max-held: 1 held, 0 allowed",
        ],
    );
    assert_contains(&stderr_of(&output), &["4 limit(s) broken"]);
    let lax = [
        "--max-oldest",
        "3h",
        "--max-pending",
        "1",
        "--max-dead",
        "1",
        "--max-held",
        "1",
    ];
    assert_eq!(assert_code(&check(&world, &lax), 0), "");
}

#[tokio::test]
async fn without_a_worker_the_check_fails_unless_none_is_needed() {
    let world = World::new().await;
    let lines = assert_code(&check(&world, &[]), 1);
    assert_contains(&lines, &["--min-workers: 0 alive, 1 needed"]);
    assert_code(&check(&world, &["--min-workers", "0"]), 0);
    let world = world_with_worker().await;
    assert_code(&check(&world, &[]), 0);
    assert_code(&check(&world, &["--min-workers", "2"]), 1);
}

#[tokio::test]
async fn a_pause_breaks_the_check_unless_it_is_allowed() {
    let world = world_with_worker().await;
    world.execute("UPDATE outbox.worker SET knows = 100").await;
    world.execute("SELECT outbox.pause(NULL, NULL, 'maintenance')").await;
    assert_contains(
        &assert_code(&check(&world, &[]), 1),
        &["--allow-paused: 1 paused by operators"],
    );
    assert_code(&check(&world, &["--allow-paused"]), 0);
}

#[tokio::test]
async fn the_verdict_is_there_for_programs() {
    let world = World::new().await;
    let output = check(&world, &["--max-dead", "0", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&assert_code(&output, 1)).expect("JSON");
    assert_eq!(json["verdict"], "broken", "{json:#}");
    let limits = json["limits"].as_array().expect("a list");
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let verdicts: Vec<_> = limits
        .iter()
        .map(|limit| format!("{} {}", text(&limit["limit"]), text(&limit["verdict"])))
        .collect();
    assert_eq!(
        verdicts,
        ["--max-dead holds", "--min-workers broken", "--allow-paused holds"]
    );
}

#[test]
fn a_database_that_cannot_be_asked_leaves_it_undecided() {
    let output = outboxd()
        .args([
            "status",
            "--check",
            "--database-url",
            "postgres://u:hunter2@127.0.0.1:1/db",
        ])
        .output()
        .expect("outboxd runs");
    assert_code(&output, 2);
    let said = stderr_of(&output);
    assert!(said.contains("undecided") && !said.contains("hunter2"), "{said}");
}

#[test]
fn limits_that_cannot_be_read_are_listed_all_at_once() {
    let output = outboxd()
        .args([
            "status",
            "--check",
            "--max-oldest",
            "soon",
            "--max-dead",
            "few",
            "--min-workers",
            "none",
        ])
        .output()
        .expect("outboxd runs");
    assert_code(&output, 64);
    assert_contains(
        &stderr_of(&output),
        &["--max-oldest", "--max-dead", "--min-workers", "--database-url"],
    );
    let output = outboxd()
        .args(["status", "--max-dead", "0"])
        .output()
        .expect("outboxd runs");
    assert_code(&output, 64);
    assert_contains(&stderr_of(&output), &["--check"]);
}
