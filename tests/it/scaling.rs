//! Processes come and go: lanes follow them, evenly and one owner at a time.

use std::collections::HashMap;
use std::time::Duration;

use testkit::*;

/// A poll and a hand-over, on a slow machine. A lease that had to run out would cost more: it is renewed so
/// often that four fifths are left whenever its owner goes.
const HANDED_OVER: Duration = Duration::from_secs(4);

async fn owns(world: &World, wanted: &[std::ops::RangeInclusive<i64>]) {
    let what = format!("lanes to be shared as {wanted:?}");
    eventually(SOON, &what, async || {
        let owned = world.lanes_per_worker().await;
        let as_wanted = owned.len() == wanted.len()
            && owned.iter().sum::<i64>() == 64
            && owned.iter().zip(wanted).all(|(lanes, range)| range.contains(lanes));
        as_wanted.then_some(())
    })
    .await;
}

/// The longest time between the writing of a row and the sending of its record.
async fn longest_wait(world: &World, topic: &str) -> Duration {
    let sql = "SELECT message_id::text, (extract(epoch FROM created_at) * 1000)::bigint FROM outbox.message";
    let rows = world.db.query(sql, &[]).await.expect(sql);
    let written: HashMap<String, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let waits = world.records(topic).await.into_iter().map(|record| {
        let sent = record.timestamp_ms.expect("every record has one");
        sent - written[&record.message_id()]
    });
    Duration::from_millis(waits.max().unwrap_or(0).try_into().unwrap_or(0))
}

#[tokio::test]
async fn lanes_are_shared_evenly_as_processes_come_and_go_and_nothing_is_repeated() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let writes = BackgroundWrites::start(&world, &topic);
    let _first = world.relay().start_ready().await;
    owns(&world, &[64..=64]).await;
    assert_eq!(world.takes().await, 64);

    let mut joined: Vec<_> = (0..3).map(|_| world.relay().start()).collect();
    owns(&world, &[15..=17, 15..=17, 15..=17, 15..=17]).await;
    let moved = world.takes().await - 64;
    println!("{moved} lanes moved to the three that joined");
    assert!(
        moved <= 32 + 22 + 16,
        "at worst they came one by one: {moved} lanes moved"
    );

    for relay in &joined {
        relay.signal("TERM");
    }
    for relay in &mut joined {
        assert!(relay.wait(SOON).success());
    }
    owns(&world, &[64..=64]).await;
    let moved = world.takes().await - 64 - moved;
    println!("{moved} lanes moved when they left");
    assert!(
        moved <= 16 + 22 + 32,
        "at worst they left one by one: {moved} lanes moved"
    );

    writes.stop();
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    history.assert_exact();
    assert_eq!(history.flagged, 0, "every stop was clean");
}

#[tokio::test]
async fn a_rolling_restart_under_load_repeats_nothing_and_keeps_no_row_waiting() {
    let fault = Fault::new(
        48,
        "rolling update of every replica under load",
        "no duplicate; no row waits longer than a poll and a hand-over",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(world.relay().start_ready().await);
    }
    owns(&world, &[21..=21, 21..=21, 22..=22]).await;
    let before = world.takes().await;
    let writes = BackgroundWrites::start(&world, &topic);
    for replica in &mut replicas {
        // As a deployment does: one more first, then one less.
        let next = world.relay().start_ready().await;
        owns(&world, &[16..=16, 16..=16, 16..=16, 16..=16]).await;
        std::mem::replace(replica, next).stop();
        owns(&world, &[21..=21, 21..=21, 22..=22]).await;
    }
    writes.stop();
    let recovered = fault.over().until_drained(&world).await;
    let moved = world.takes().await - before;
    let waited = longest_wait(&world, &topic).await;
    println!("{moved} lanes changed hands; no row waited longer than {waited:?}");
    assert!(
        moved <= 3 * (16 + 16),
        "the joiner's share and the leaver's: {moved} lanes moved"
    );
    assert!(waited < HANDED_OVER, "a row waited {waited:?}");
    let history = world.history(&topic).await;
    history.assert_exact();
    assert_eq!(history.flagged, 0, "every stop was clean");
    history.assert_counted_by(&replicas.iter().collect::<Vec<_>>());
    recovered.record(history.duplicates);
}

/// Replicas that are added, stopped and killed on a schedule, and what each had counted when last asked.
struct Fleet<'a> {
    world: &'a World,
    topic: &'a str,
    replicas: Vec<Relay>,
    counters: Counters,
    kills: usize,
}

impl Fleet<'_> {
    const TASKS: usize = 2;
    const BATCH_ROWS: usize = 200;
    /// Several times in a lease: one is killed while the lanes of the last are not yet taken over.
    const KILL_EVERY: Duration = Duration::from_millis(1500);

    async fn add(&mut self) {
        let (tasks, rows) = (Self::TASKS.to_string(), Self::BATCH_ROWS.to_string());
        let next = self.world.relay().args(&["--tasks", &tasks, "--batch-rows", &rows]);
        self.replicas.push(next.start_ready().await);
    }

    /// The oldest is killed in the midst of work, another takes its place.
    async fn kill_one(&mut self) {
        tokio::time::sleep(Self::KILL_EVERY).await;
        self.world.fill(self.topic, 1000, 0).await;
        let mut victim = self.replicas.remove(0);
        self.counters.scrape(&victim);
        victim.kill();
        self.kills += 1;
        self.add().await;
    }

    /// So many replicas, with a kill after each step.
    async fn scale_to(&mut self, count: usize) {
        while self.replicas.len() != count {
            if self.replicas.len() < count {
                self.add().await;
            } else {
                let mut leaving = self.replicas.remove(0);
                self.counters.scrape(&leaving);
                leaving.stop();
            }
            self.kill_one().await;
        }
    }

    fn in_flight_at_kills(&self) -> usize {
        self.kills * Self::TASKS * Self::BATCH_ROWS
    }
}

#[tokio::test]
async fn order_holds_while_replicas_are_added_stopped_and_killed() {
    let fault = Fault::new(
        39,
        "one to eight to two replicas, one killed every few seconds",
        "duplicates only of what the killed had in flight",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let writes = BackgroundWrites::start(&world, &topic);
    let mut fleet = Fleet {
        world: &world,
        topic: &topic,
        replicas: Vec::new(),
        counters: Counters::default(),
        kills: 0,
    };
    fleet.scale_to(8).await;
    fleet.scale_to(2).await;
    writes.stop();
    let recovered = fault.over().until_drained(&world).await;
    for replica in &fleet.replicas {
        fleet.counters.scrape(replica);
    }
    let history = world.history(&topic).await;
    let [_, counted, forgotten] = fleet.counters.sum();
    let in_flight = fleet.in_flight_at_kills();
    history.assert_duplicates_at_most(in_flight);
    // What a victim flagged after it was last asked is in no counter: at most what it had in flight.
    assert!(
        counted + in_flight as f64 >= history.flagged as f64,
        "{} flagged, {counted} counted",
        history.flagged
    );
    assert_eq!(forgotten, 0.0, "no row needed the safety net");
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn a_lane_is_not_handed_over_while_its_batch_is_out() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 500, 100).await;
    // With one task, its batch is out for every lane.
    let busy = world.relay().args(&["--tasks", "1"]).failpoint("after_publish").start();
    busy.at_failpoint("after_publish").await;
    let joiner = world.relay().start_ready().await;
    eventually(SOON, "both to know of each other", async || {
        let known = |relay: &Relay| relay.metric("outboxd_workers_live") == Some(2.0);
        (known(&busy) && known(&joiner)).then_some(())
    })
    .await;
    // A renewal later, the busy one has had its turn to give lanes up.
    let lease = "SELECT (extract(epoch FROM min(lease_until)) * 1000)::bigint FROM outbox.worker";
    let known_at = world.count(lease).await;
    eventually(SOON, "two renewals", async || {
        (world.count(lease).await > known_at + 1500).then_some(())
    })
    .await;
    assert_eq!(world.lanes_per_worker().await, [0, 64]);
    busy.continue_from("after_publish");
    owns(&world, &[32..=32, 32..=32]).await;
    world.drained(SOON).await;
    world.history(&topic).await.assert_exact();
}
