//! What a worker shows about itself: what runs, its connections, its Kafka client, and what it did by topic.

use std::time::{SystemTime, UNIX_EPOCH};

use super::*;

fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("after 1970").as_secs_f64()
}

#[tokio::test]
async fn a_worker_shows_what_runs_and_when_it_last_published() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let relay = world.relay().start_ready().await;
    let scrape = relay.get("/metrics").expect("a scrape");
    let version = format!(
        "outboxd_build_info{{version=\"{}\",revision=\"",
        env!("CARGO_PKG_VERSION")
    );
    assert!(scrape.contains(&version), "{scrape}");
    assert_eq!(
        Relay::metric_in(&scrape, "outboxd_last_publish_timestamp_seconds"),
        Some(0.0)
    );
    for name in [
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_open_fds",
    ] {
        assert!(Relay::metric_in(&scrape, name) > Some(0.0), "{name} in\n{scrape}");
    }
    let before = now();
    world.fill(&topic, 1, 1).await;
    world.drained(SOON).await;
    let published = relay
        .metric("outboxd_last_publish_timestamp_seconds")
        .expect("a scrape");
    assert!((before..=now()).contains(&published), "{published}");
}

#[tokio::test]
async fn a_worker_shows_how_its_connections_are_used() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let relay = world.relay().args(&["--tasks", "2"]).start_ready().await;
    world.fill(&topic, 100, 10).await;
    world.drained(SOON).await;
    let scrape = relay.get("/metrics").expect("a scrape");
    let states = Relay::series_in(&scrape, "outboxd_database_connections");
    let of = |state: &str| states[format!("{{state=\"{state}\"}}").as_str()];
    let max = Relay::metric_in(&scrape, "outboxd_database_connections_max").expect("a bound");
    assert!(max >= 2.0 + 3.0, "a connection for each task and a few more: {max}");
    assert!(
        of("used") + of("idle") >= 1.0 && of("used") + of("idle") <= max,
        "{states:?}"
    );
    // Whatever waits in the database keeps its connection.
    let mut blocker = world.session().await;
    let blocking = blocker.transaction().await.expect("a transaction");
    blocking
        .batch_execute("LOCK TABLE outbox.message")
        .await
        .expect("a lock");
    eventually(SOON, "a connection that waits for the lock", async || {
        let scrape = relay.get("/metrics")?;
        (Relay::series_in(&scrape, "outboxd_database_connections")["{state=\"used\"}"] >= 1.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_kafka_client_tells_how_long_brokers_take_and_what_is_queued() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let relay = world
        .relay()
        .args(&["--kafka-property", "statistics.interval.ms=200"])
        .start_ready()
        .await;
    world.fill(&topic, 500, 10).await;
    world.drained(SOON).await;
    eventually(SOON, "statistics of the round trips", async || {
        let scrape = relay.get("/metrics")?;
        let round_trip = Relay::series_in(&scrape, "outboxd_kafka_round_trip_seconds");
        let [middle, worst] =
            ["0.5", "0.99"].map(|quantile| round_trip[format!("{{quantile=\"{quantile}\"}}").as_str()]);
        let is_drained = Relay::metric_in(&scrape, "outboxd_kafka_queue_rows")? == 0.0;
        (0.0 < middle && middle <= worst && worst < 30.0 && is_drained).then_some(())
    })
    .await;
    assert_eq!(relay.metric("outboxd_kafka_errors_total"), Some(0.0));
}

#[tokio::test]
async fn errors_of_the_kafka_client_are_counted_by_reason() {
    let world = World::new().await;
    let relay = RelayBuilder::new(&world.database_url, "127.0.0.1:1")
        .start_ready()
        .await;
    world.fill("orders", 1, 1).await;
    eventually(SOON, "refused connections to be counted", async || {
        let scrape = relay.get("/metrics")?;
        let errors = Relay::series_in(&scrape, "outboxd_kafka_errors_total");
        assert_eq!(errors["{reason=\"tls\"}"] + errors["{reason=\"fatal\"}"], 0.0);
        (errors["{reason=\"connection\"}"] > 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_became_of_rows_is_counted_by_topic() {
    let world = World::new().await;
    let (orders, small) = (
        world.topic("orders", 1, &[]).await,
        world.topic("small", 1, &[SMALL]).await,
    );
    let relay = world
        .relay()
        .args(&[
            "--max-attempts",
            "2",
            "--retry-backoff-min",
            "10ms",
            "--retry-backoff-max",
            "10ms",
        ])
        .start_ready()
        .await;
    world.fill(&orders, 30, 5).await;
    world.fill(&orders, 10, 0).await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{small}', 'k', payload_bytes => {TOO_LARGE}); SELECT outbox.enqueue('{small}', 'k', '1')"
        ))
        .await;
    world.drained(SOON).await;
    let of = |scrape: &str, name: &str, topic: &str| Relay::metric_in(scrape, &format!("{name}{{topic=\"{topic}\"}}"));
    // A row is counted a moment after it is written.
    let scrape = eventually(
        SOON,
        "both rows of the small topic and a latency to be counted",
        async || {
            let scrape = relay.get("/metrics")?;
            let is_dead = of(&scrape, "outboxd_rows_dead_total", &small) == Some(1.0);
            let follows = of(&scrape, "outboxd_rows_published_total", &small) == Some(1.0);
            let has_latency = of(&scrape, "outboxd_end_to_end_seconds_count", &orders) >= Some(1.0);
            (is_dead && follows && has_latency).then_some(scrape)
        },
    )
    .await;
    assert_eq!(of(&scrape, "outboxd_rows_published_total", &orders), Some(40.0));
    assert_eq!(of(&scrape, "outboxd_rows_retried_total", &small), Some(1.0));
    assert_eq!(of(&scrape, "outboxd_rows_dead_total", &orders), Some(0.0));
    assert!(
        relay.logged(&format!("\"topic\":\"{small}\"")),
        "the dead letter's line names its topic"
    );
}

#[tokio::test]
async fn rows_that_have_waited_on_purpose_are_no_latency() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', 'k', '1', available_at => now());
             SELECT outbox.enqueue('{topic}', NULL, '2', available_at => now());
             UPDATE outbox.message SET created_at = now() - interval '1 day';
             SELECT outbox.enqueue('{topic}', 'k', '3');
             SELECT outbox.enqueue('{topic}', NULL, '4');"
        ))
        .await;
    let relay = world.relay().start_ready().await;
    world.drained(SOON).await;
    let of_topic = format!("{{topic=\"{topic}\"}}");
    let scrape = eventually(SOON, "both latencies to be counted", async || {
        let scrape = relay.get("/metrics")?;
        let count = Relay::metric_in(&scrape, &format!("outboxd_end_to_end_seconds_count{of_topic}"));
        (Relay::metric_in(&scrape, "outboxd_rows_marked_total") == Some(4.0) && count == Some(2.0)).then_some(scrape)
    })
    .await;
    let sum = Relay::metric_in(&scrape, &format!("outboxd_end_to_end_seconds_sum{of_topic}"));
    assert!(sum.is_some_and(|seconds| seconds < 3600.0), "{sum:?}");
}
