//! `outboxd pause` and `outboxd resume`: nothing of what is paused is sent, everything else is, and all of it arrives in order
//! afterwards.

mod cli;
mod crash;
mod deep;
mod effect;
mod holds;
mod stop;

use testkit::*;

/// Runs `outboxd pause` or `outboxd resume`; answers what it says.
fn told(world: &World, command: &str, args: &[&str]) -> serde_json::Value {
    let output = world.outboxd(command, &[args, &["--yes", "--json"]].concat());
    assert!(output.status.success(), "{command}: {}", stderr_of(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Pauses, and waits until that is in effect.
fn pause(world: &World, scope: &[&str]) -> serde_json::Value {
    let said = told(world, "pause", &[scope, &["--reason", "broken consumer"]].concat());
    assert_eq!(said["in_effect"], true, "{said}");
    said
}

/// Resumes, and waits until that is in effect.
fn resume(world: &World, scope: &[&str]) -> serde_json::Value {
    let said = told(world, "resume", scope);
    assert_eq!(
        (&said["in_effect"], &said["changed"]),
        (&true.into(), &1.into()),
        "{said}"
    );
    said
}

async fn published_of(world: &World, topic: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM outbox.message WHERE topic = '{topic}' AND published_at IS NOT NULL");
    world.count(&sql).await
}

/// Waits until so many more rows of the topic are published.
async fn flows(world: &World, topic: &str, rows: i64) {
    let goal = published_of(world, topic).await + rows;
    eventually(SOON, &format!("{rows} more rows of {topic}"), async || {
        (published_of(world, topic).await >= goal).then_some(())
    })
    .await;
}

/// Waits until so many rows of the topic are published in all.
async fn published(world: &World, topic: &str, rows: i64) {
    eventually(SOON, &format!("{rows} rows of {topic}"), async || {
        (published_of(world, topic).await == rows).then_some(())
    })
    .await;
}

/// Waits until the topic is held in every lane that has rows of it.
async fn held_everywhere(world: &World, topic: &str) {
    let condition = format!(
        "SELECT array_agg(DISTINCT coalesce(lane, -1::smallint)) = ARRAY(
             SELECT h.lane FROM outbox.hold h WHERE h.topic = '{topic}' AND h.unit = '' ORDER BY h.lane)
         FROM outbox.message WHERE topic = '{topic}' AND published_at IS NULL"
    );
    world.until(&condition).await;
}

/// Everything has arrived once and in order, no row was blamed, and nothing was left for the safety net.
async fn assert_nothing_happened(world: &World, topics: &[&str], relays: &[&Relay]) {
    world.drained(SOON).await;
    world.held(0).await;
    for topic in topics {
        world.history(topic).await.assert_exact();
    }
    world.assert_nobody_blamed().await;
    for relay in relays {
        assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
        relay.assert_alive();
    }
}
