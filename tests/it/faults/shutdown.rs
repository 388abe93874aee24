//! A worker is asked to leave while there is plenty to do.

use std::time::{Duration, Instant};

use testkit::*;

/// What a process may take to end after its grace period: a last word to the database, and a slow machine.
const TO_EXIT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn sigterm_under_load_returns_everything_and_a_successor_continues_at_once() {
    let fault = Fault::new(
        11,
        "SIGTERM under load",
        "exits within the grace period, everything returned; no duplicate",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let mut leaving = world.relay().args(&["--batch-rows", "100"]).start_ready().await;
    world.fill(&topic, 12_000, 100).await;
    world.fill(&topic, 3_000, 0).await;
    eventually(SOON, "it to be busy", async || {
        leaving.metric("outboxd_rows_marked_total").filter(|rows| *rows > 500.0)
    })
    .await;

    let asked = Instant::now();
    leaving.stop();
    println!("left within {:?}", asked.elapsed());
    assert!(asked.elapsed() < Duration::from_secs(25), "the grace period");
    assert!(world.pending().await > 0, "it was stopped in the middle");
    assert_given_back(&world).await;

    let over = fault.over();
    let successor = world.relay().start_ready().await;
    let recovered = over.until_drained(&world).await;
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
    assert_eq!(history.flagged, 0, "nothing may have been sent twice");
    history.assert_counted_by(&[&successor]);
    recovered.record(history.duplicates);
}

/// SIGTERM finds rows in flight to a Kafka that has stopped answering.
struct Leaving {
    kafka: OwnKafka,
    world: World,
    topic: String,
}

impl Leaving {
    /// The worker has left, within its grace period.
    async fn without_kafka(stop_kafka: fn(&OwnKafka), grace: Duration) -> Self {
        let kafka = OwnKafka::start();
        let world = World::on(&Stack::get().database_url, &kafka.address).await;
        let topic = world.topic("orders", 4, &[]).await;
        let grace_flag = format!("{}ms", grace.as_millis());
        let relay = world.relay().args(&["--shutdown-grace", &grace_flag]);
        let mut relay = relay.start_ready().await;
        world.fill(&topic, 100, 50).await;
        world.drained(SOON).await;

        stop_kafka(&kafka);
        world.fill(&topic, 400, 50).await;
        // Of lanes, that is: those without one come later.
        eventually(SOON, "rows to be in flight", async || {
            relay.metric("outboxd_in_flight_rows").filter(|rows| *rows > 0.0)
        })
        .await;
        world.fill(&topic, 200, 0).await;
        relay.signal("TERM");
        let status = relay.wait(grace + TO_EXIT);
        assert_eq!(status.code(), Some(0), "stopped as asked");
        world.assert_nobody_blamed().await;
        Leaving { kafka, world, topic }
    }

    /// Kafka is back, and so is a worker.
    async fn recovers(&self, start_kafka: fn(&OwnKafka)) -> (Recovered, History) {
        let fault = Fault::new(
            12,
            "SIGTERM with Kafka down",
            "exits within the grace period, rows and lanes returned",
        );
        start_kafka(&self.kafka);
        let over = fault.over();
        let successor = self.world.relay().start_ready().await;
        let recovered = over.until_drained(&self.world).await;
        let history = self.world.history(&self.topic).await;
        // What the one that left had flagged is in no counter any more.
        history.assert_duplicates_at_most(600);
        assert_eq!(successor.metric("outboxd_rescan_found_rows_total"), Some(0.0));
        (recovered, history)
    }
}

#[tokio::test]
async fn sigterm_while_kafka_is_silent_returns_everything_within_the_grace_period() {
    let leaving = Leaving::without_kafka(OwnKafka::pause, Duration::from_secs(8)).await;
    assert_given_back(&leaving.world).await;
    let (recovered, history) = leaving.recovers(OwnKafka::resume).await;
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn sigterm_while_kafka_is_dead_returns_everything_within_the_grace_period() {
    let leaving = Leaving::without_kafka(OwnKafka::kill, Duration::from_secs(8)).await;
    assert_given_back(&leaving.world).await;
    leaving.recovers(OwnKafka::restart).await;
}

#[tokio::test]
async fn a_grace_period_too_short_for_the_batch_leaves_its_lanes_to_the_end_of_the_lease() {
    let leaving = Leaving::without_kafka(OwnKafka::pause, Duration::from_millis(200)).await;
    let held = "SELECT count(*) FROM outbox.lane l JOIN outbox.worker w ON w.id = l.owner WHERE w.stopped_at IS NULL";
    assert!(leaving.world.count(held).await > 0, "sends were in flight");
    leaving.recovers(OwnKafka::resume).await;
}

/// Nothing of a worker that left is anybody's any more.
async fn assert_given_back(world: &World) {
    let owned = "SELECT count(*) FROM outbox.lane WHERE owner IS NOT NULL";
    assert_eq!(world.count(owned).await, 0);
    let leased = "SELECT count(*) FROM outbox.claim WHERE lease_until > clock_timestamp()";
    assert_eq!(world.count(leased).await, 0);
    let live = "SELECT count(*) FROM outbox.worker WHERE stopped_at IS NULL";
    assert_eq!(world.count(live).await, 0);
}
