//! Labels: whatever applications do, there is a bound to the series of a scrape.

use futures_util::future::join_all;

use super::*;

const TOPICS: usize = 60;
const CONSUMERS: usize = 40;
const OPERATIONS: usize = 25;

/// One row for each of many topics.
async fn many_topics(world: &World) {
    let names: Vec<String> = (0..TOPICS).map(|n| format!("t{n}")).collect();
    for names in names.chunks(6) {
        let topics = join_all(names.iter().map(|name| world.topic(name, 1, &[]))).await;
        for topic in topics {
            world.fill(&topic, 1, 1).await;
        }
    }
}

/// Of each of many consumers a duplicate, a message that is done, and one that is poison; of many operations a failed command.
async fn many_consumers_and_operations(world: &World) {
    world
        .execute(&format!(
            "SELECT outbox.inbox_receive('c' || n, 's', 'm' || m, '{{}}') FROM generate_series(1, {CONSUMERS}) n, generate_series(1, 2) m;
             SELECT outbox.inbox_receive('c' || n, 's', 'm1', '{{}}') FROM generate_series(1, {CONSUMERS}) n;
             SELECT outbox.inbox_done(m.id, m.token) FROM generate_series(1, {CONSUMERS}) n, LATERAL outbox.inbox_claim('c' || n, 1) m;
             SELECT outbox.inbox_fail(m.id, m.token, 'boom', retryable => false)
             FROM generate_series(1, {CONSUMERS}) n, LATERAL outbox.inbox_claim('c' || n, 1) m;
             SELECT outbox.idempotency_claim('acme', 'op-' || n, 'k', outbox.request_hash('1')) FROM generate_series(1, {OPERATIONS}) n;
             SELECT outbox.idempotency_fail('acme/op-' || n, 'k', 1, true, 'timeout') FROM generate_series(1, {OPERATIONS}) n;"
        ))
        .await;
}

/// How many series of a metric a scrape shows, those of its buckets included.
fn count(scrape: &str, name: &str) -> usize {
    let is_series = |rest: &str| {
        let rest = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| rest.strip_prefix(suffix))
            .unwrap_or(rest);
        rest.starts_with([' ', '{'])
    };
    scrape
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(is_series))
        .count()
}

#[tokio::test]
async fn labels_are_bounded_whatever_applications_do() {
    let world = World::new().await;
    let relay = world.relay().start_ready().await;
    // What came before the first sample is not counted.
    samples(&relay).await;
    many_topics(&world).await;
    many_consumers_and_operations(&world).await;
    world.drained(SOON).await;
    let scrape = eventually(5 * SOON, "the consumers to be sampled", async || {
        let scrape = relay.get("/metrics")?;
        (Relay::metric_in(&scrape, "outboxd_inbox_seconds_count") == Some(2.0 * CONSUMERS as f64)).then_some(scrape)
    })
    .await;
    for (name, bound) in outboxd::metrics::bounds() {
        let count = count(&scrape, name);
        assert!(
            (1..=bound).contains(&count),
            "{count} series of {name}, not 1 to {bound}, in\n{scrape}"
        );
    }

    let published = Relay::series_in(&scrape, "outboxd_rows_published_total");
    assert_eq!(
        (published.len(), published["{topic=\"other\"}"]),
        (51, TOPICS as f64 - 50.0)
    );
    assert_eq!(published.values().sum::<f64>(), TOPICS as f64);
    for name in [
        "outboxd_rows_retried_total",
        "outboxd_backlog_rows",
        "outboxd_dead_rows",
    ] {
        assert!(Relay::series_in(&scrape, name).len() <= 51, "{name} in\n{scrape}");
    }
    assert_eq!(Relay::series_in(&scrape, "outboxd_end_to_end_seconds_count").len(), 51);

    let duplicates = Relay::series_in(&scrape, "outboxd_consumer_duplicates_total");
    assert_eq!(
        (duplicates.len(), duplicates["{consumer=\"other\"}"]),
        (33, CONSUMERS as f64 - 32.0)
    );
    let finished = Relay::series_in(&scrape, "outboxd_inbox_seconds_count");
    for outcome in ["done", "poison"] {
        let of_outcome = finished
            .iter()
            .filter(|(labels, _)| labels.contains(&format!("outcome=\"{outcome}\"")));
        assert_eq!(of_outcome.clone().count(), 33, "{finished:?}");
        assert_eq!(
            of_outcome.map(|(_, count)| count).sum::<f64>(),
            CONSUMERS as f64,
            "{finished:?}"
        );
    }

    let failed = "outboxd_command_seconds_count{outcome=\"failed_retryable\"}";
    assert_eq!(Relay::metric_in(&scrape, failed), Some(OPERATIONS as f64));
    let commands = Relay::series_in(&scrape, "outboxd_commands");
    assert_eq!(commands.values().sum::<f64>(), OPERATIONS as f64);
    assert!(commands.len() <= 21, "{commands:?}");
}
