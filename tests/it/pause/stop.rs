//! What is paused stops and what is not continues; afterwards all of it arrives in order.

use super::*;

/// Two relays under a load of keyed and of unordered rows, to a topic that will be paused and to another one.
struct Load {
    world: World,
    paused: String,
    other: String,
    relays: [Relay; 2],
    writers: Vec<BackgroundWrites>,
}

impl Load {
    async fn start() -> Self {
        let world = World::new().await;
        let paused = world.topic("paused", 4, &[]).await;
        let other = world.topic("other", 4, &[]).await;
        let relays = [world.relay().start_ready().await, world.relay().start_ready().await];
        let writers = [&paused, &other].map(|topic| BackgroundWrites::start(&world, topic));
        flows(&world, &paused, 200).await;
        flows(&world, &other, 200).await;
        Load {
            world,
            paused,
            other,
            relays,
            writers: Vec::from(writers),
        }
    }

    /// The load ends, and everything arrives.
    async fn end(self) {
        self.writers.into_iter().for_each(BackgroundWrites::stop);
        let [one, other] = &self.relays;
        assert_nothing_happened(&self.world, &[&self.paused, &self.other], &[one, other]).await;
    }
}

#[tokio::test]
async fn a_topic_stops_under_load_and_continues_in_order() {
    let load = Load::start().await;
    let (world, topic) = (&load.world, load.paused.as_str());
    let said = pause(world, &["--topic", topic]);
    assert_eq!(said["workers"], 2, "{said}");
    let sent = world.records(topic).await.len();
    assert_eq!(
        published_of(world, topic).await,
        sent as i64,
        "all that was sent is marked"
    );
    flows(world, &load.other, 400).await;
    assert_eq!(
        world.records(topic).await.len(),
        sent,
        "nothing is sent while it is paused"
    );
    let keys_held = "SELECT count(*) FROM outbox.hold WHERE unit <> ''";
    assert_eq!(world.count(keys_held).await, 0, "the topic is held, not its keys");
    resume(world, &["--topic", topic]);
    flows(world, topic, 400).await;
    load.end().await;
}

#[tokio::test]
async fn a_key_stops_under_load_and_the_others_of_its_lane_continue() {
    let load = Load::start().await;
    let (world, topic) = (&load.world, load.paused.as_str());
    let neighbour = &world.keys_of_same_lane("k7", 1).await[0];
    pause(world, &["--topic", topic, "--key", "k7"]);
    let sent = async || {
        let records = world.records(topic).await;
        records.iter().filter(|record| record.key_text() == "k7").count()
    };
    let before = sent().await;
    assert!(before > 0, "some were sent before");
    let last = world.insert(topic, &[(Some(neighbour.as_str()), b"{}".to_vec())]).await;
    world.published(last[0]).await;
    flows(world, topic, 400).await;
    assert_eq!(sent().await, before);
    let held = "SELECT count(*) = 1 AND bool_and(unit = 'k:k7') FROM outbox.hold";
    assert!(world.is_true(held).await, "of the paused key alone");
    resume(world, &["--topic", topic, "--key", "k7"]);
    load.end().await;
}

#[tokio::test]
async fn everything_stops_under_load_and_continues_in_order() {
    let load = Load::start().await;
    let world = &load.world;
    pause(world, &["--all"]);
    let published = async || published_of(world, &load.paused).await + published_of(world, &load.other).await;
    let sent = async || world.records(&load.paused).await.len() + world.records(&load.other).await.len();
    let claimed = || {
        load.relays
            .each_ref()
            .map(|relay| relay.metric("outboxd_rows_claimed_total"))
    };
    let before = (sent().await, claimed());
    assert_eq!(published().await, before.0 as i64);
    // Leases are renewed, and rows come in.
    world.lease_is_renewed_twice().await;
    world
        .until("SELECT count(*) > 400 FROM outbox.message WHERE published_at IS NULL")
        .await;
    assert_eq!(
        (sent().await, claimed()),
        before,
        "nothing is claimed or sent while everything is paused"
    );
    assert_eq!(world.holds().await, 0, "and nothing is held");
    for relay in &load.relays {
        assert_eq!(relay.metric("outboxd_leases_lost_total"), Some(0.0));
        relay.assert_alive();
    }
    resume(world, &["--all"]);
    load.end().await;
}

#[tokio::test]
async fn a_delayed_row_of_a_paused_key_waits_and_is_sent_afterwards() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let relay = world.relay().start_ready().await;
    pause(&world, &["--topic", &topic, "--key", "k"]);
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', 'k', '1', available_at => now() + interval '1 second');
             SELECT outbox.enqueue('{topic}', 'k', '2');
             SELECT outbox.enqueue('{topic}', 'other', '3', available_at => now() + interval '1 second');"
        ))
        .await;
    world.published(3).await;
    world.held(1).await;
    assert_eq!(world.records(&topic).await.len(), 1);
    resume(&world, &["--topic", &topic, "--key", "k"]);
    world.drained(SOON).await;
    assert_eq!(world.records(&topic).await.len(), 3);
    world.held(0).await;
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
}

#[tokio::test]
async fn a_key_stays_paused_when_its_topic_is_resumed_and_the_other_way_round() {
    let world = World::new().await;
    let topic = world.topic("orders", 2, &[]).await;
    let relay = world.relay().start_ready().await;
    let key = ["--topic", topic.as_str(), "--key", "k1"];
    pause(&world, &key[..2]);
    pause(&world, &key);
    world.fill(&topic, 60, 3).await;
    world.fill(&topic, 20, 0).await;
    let said = resume(&world, &key[..2]);
    assert_eq!(said["still_paused"][0]["key"], "k1", "{said}");
    published(&world, &topic, 60).await;
    world.held(1).await;
    pause(&world, &key[..2]);
    world.fill(&topic, 30, 3).await;
    let said = resume(&world, &key);
    assert_eq!(said["still_paused"][0]["topic"], topic.as_str(), "{said}");
    let healthy = world.topic("healthy", 1, &[]).await;
    world.fill(&healthy, 10, 5).await;
    published(&world, &healthy, 10).await;
    assert_eq!(published_of(&world, &topic).await, 60, "the key waits for its topic");
    resume(&world, &key[..2]);
    assert_nothing_happened(&world, &[&topic, &healthy], &[&relay]).await;
}
