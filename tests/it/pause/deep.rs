//! A paused topic with a deep backlog costs the others little.

use std::time::Duration;

use super::*;

const BEHIND: i64 = 100_000;
const OTHERS: i64 = 200;

#[tokio::test]
async fn the_backlog_of_a_paused_topic_is_not_scanned_and_drains_once_it_is_resumed() {
    let world = World::new().await;
    let paused = world.topic("paused", 4, &[]).await;
    let other = world.topic("other", 4, &[]).await;
    let mut relay = world.relay().start_ready().await;
    pause(&world, &["--topic", &paused]);
    world.fill(&paused, BEHIND as usize / 2, 1_000).await;
    world.fill(&paused, BEHIND as usize / 2, 0).await;
    held_everywhere(&world, &paused).await;
    world.unordered_floor_passes(&other, BEHIND).await;
    world
        .until(&format!("SELECT min(floor) >= {BEHIND} FROM outbox.lane"))
        .await;
    relay.stop();
    world.relays_sessions_end().await;

    let before = world.rows_read().await;
    let mut relay = world.relay().start_ready().await;
    for n in 0..OTHERS {
        let key = format!("k{}", n % 50);
        let key = (n % 2 == 0).then_some(key.as_str());
        let ids = world.insert(&other, &[(key, b"x".to_vec())]).await;
        world.published(ids[0]).await;
    }
    relay.stop();
    world.relays_sessions_end().await;
    let read = world.rows_read().await - before;
    assert!(
        read < 2_000 * OTHERS,
        "{read} rows read to publish {OTHERS}: those of the paused topic are scanned"
    );
    assert_eq!(world.records(&paused).await.len(), 0);

    let relay = world.relay().start_ready().await;
    resume(&world, &["--topic", &paused]);
    world.drained(Duration::from_secs(120)).await;
    assert_nothing_happened(&world, &[&paused, &other], &[&relay]).await;
}
