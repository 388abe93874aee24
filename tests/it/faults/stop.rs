//! A worker is asked to leave while there is plenty to do.

use std::time::{Duration, Instant};

use crate::support::*;

#[tokio::test]
async fn sigterm_under_load_gives_everything_back_and_a_successor_goes_on_at_once() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let mut leaving = world.relay().args(&["--batch-rows", "100"]).start_ready().await;
    world.fill(&topic, 20_000, 100).await;
    world.fill(&topic, 5_000, 0).await;
    eventually(SOON, "it to be busy", async || {
        leaving.metric("outboxd_rows_marked_total").filter(|rows| *rows > 500.0)
    })
    .await;

    let asked = Instant::now();
    leaving.stop();
    println!("left within {:?}", asked.elapsed());
    assert!(asked.elapsed() < Duration::from_secs(25), "the grace period");
    assert!(world.pending().await > 0, "it was stopped in the middle");
    let owned = "SELECT count(*) FROM outbox.lane WHERE owner IS NOT NULL";
    assert_eq!(world.count(owned).await, 0);
    let leased = "SELECT count(*) FROM outbox.message WHERE claim_token IS NOT NULL";
    assert_eq!(world.count(leased).await, 0);
    let live = "SELECT count(*) FROM outbox.worker WHERE stopped_at IS NULL";
    assert_eq!(world.count(live).await, 0);

    let _successor = world.relay().start_ready().await;
    world.drained(SOON * 2).await;
    let first_mark = "SELECT extract(epoch FROM min(m.published_at) - w.started_at)::float8
                      FROM outbox.message m, outbox.worker w
                      WHERE w.stopped_at IS NULL AND m.published_at > w.started_at GROUP BY w.started_at";
    let waited: f64 = world.db.query_one(first_mark, &[]).await.expect(first_mark).get(0);
    println!("the successor's first mark came after {waited} s");
    assert!(
        waited < LEASE.as_secs_f64() / 2.0,
        "no lease had to run out: {waited} s"
    );
    let history = world.history(&topic).await;
    history.assert_exact();
    assert_eq!(history.flagged, 0, "nothing was in doubt");
}
