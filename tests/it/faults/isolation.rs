//! One topic fails for long; the others keep their rate.

use std::time::{Duration, SystemTime};

use testkit::*;
use tokio::time::sleep;

const ROUNDS: usize = 3;
const CALM: Duration = Duration::from_secs(3);
/// Long enough to find out what is wrong, which takes batch deadlines, and to continue for long after that.
const FAILING: Duration = Duration::from_secs(12);

/// How the healthy topic fared during a phase.
#[derive(Debug)]
struct Throughput {
    /// Rows published for each row committed: what is left of the rate.
    rate: f64,
    latency_ms: f64,
}

async fn measure(world: &World, topic: &str, phase: Duration) -> Throughput {
    let clock = "SELECT clock_timestamp()";
    let began: SystemTime = world.db.query_one(clock, &[]).await.expect("a clock").get(0);
    sleep(phase).await;
    let sql = "SELECT count(*) FILTER (WHERE published_at >= $2)::float8 / count(*) FILTER (WHERE created_at >= $2),
                      percentile_cont(0.5) WITHIN GROUP (
                          ORDER BY extract(epoch FROM coalesce(published_at, clock_timestamp()) - created_at) * 1000)
                      FILTER (WHERE created_at >= $2)
               FROM outbox.message WHERE topic = $1";
    let row = world.db.query_one(sql, &[&topic, &began]).await.expect("a throughput");
    Throughput {
        rate: row.get(0),
        latency_ms: row.get(1),
    }
}

fn median(phases: &[Throughput], of: impl Fn(&Throughput) -> f64) -> f64 {
    let mut values: Vec<f64> = phases.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// With and without the failure alternately, so that a busy machine disturbs both alike: rows written by `inflow` go to a topic that
/// `set_failing` breaks and repairs, while a healthy one is under a steady load.
async fn assert_rate_kept(world: &World, healthy: &str, failing: &str, inflow: &str, set_failing: impl AsyncFn(bool)) {
    let load = BackgroundWrites::start(world, healthy);
    let (mut calm, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        calm.push(measure(world, healthy, CALM).await);
        set_failing(true).await;
        let inflow = BackgroundWrites::writing(world, failing, inflow);
        beside.push(measure(world, healthy, FAILING).await);
        inflow.stop();
        set_failing(false).await;
    }
    load.stop();
    let of = |phases: &[Throughput]| {
        (
            median(phases, |phase| phase.rate),
            median(phases, |phase| phase.latency_ms),
        )
    };
    let ((rate, latency), (rate_beside, latency_beside)) = (of(&calm), of(&beside));
    println!("calm {calm:.2?}, beside the failing topic {beside:.2?}");
    assert!(
        rate_beside >= 0.9 * rate.min(1.0),
        "the rate fell from {rate:.2} to {rate_beside:.2}"
    );
    assert!(
        latency_beside < latency * 5.0 + 100.0,
        "the median latency rose from {latency:.0} ms to {latency_beside:.0} ms"
    );
}

/// A world with a healthy topic that is known, and the name of one that will be failing.
async fn beside(settings: &[(&str, &str)]) -> (World, String, String, Relay) {
    let world = World::new().await;
    let (healthy, failing) = (
        world.topic("healthy", 4, &[]).await,
        world.topic("failing", 4, settings).await,
    );
    let relay = world
        .relay()
        .args(&["--max-attempts", "2", "--retry-backoff-min", "500ms"])
        .start_ready()
        .await;
    world.fill(&healthy, 100, 50).await;
    world.drained(SOON).await;
    (world, healthy, failing, relay)
}

/// Four rows a step, as [`BackgroundWrites`] writes them, are many for a topic that takes none: one is enough.
const ONE_A_STEP: &str = "INSERT INTO outbox.message (topic, key, payload)
    VALUES ($1, CASE WHEN $2::bigint % 4 > 0 THEN 'k' || $2::bigint % 100 END, '{}')";

#[tokio::test]
async fn a_silent_topic_does_not_slow_the_others() {
    let fault = Fault::new(
        54,
        "one topic falls silent (deleted under its writers), or is fed rows it refuses, for long; others are healthy",
        "healthy topics keep 90 % of their rate",
    );
    let (world, healthy, failing, relay) = beside(&[]).await;
    assert_rate_kept(&world, &healthy, &failing, ONE_A_STEP, async |sick| {
        if sick {
            delete_topic(&world.kafka, &failing).await;
        } else {
            create_topic(&world.kafka, &failing, 4, &[]).await;
        }
    })
    .await;
    let recovered = fault.over().until_drained(&world).await;
    world.assert_nobody_blamed().await;
    world.held(0).await;
    let history = world.history(&healthy).await;
    history.assert_counted_by(&[&relay]);
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn a_poisoned_topic_does_not_slow_the_others() {
    let (world, healthy, failing, relay) = beside(&[SMALL]).await;
    // Each of its own key: none waits behind another.
    let poison = format!(
        "INSERT INTO outbox.message (topic, key, payload_bytes)
         SELECT $1, 'k' || $2::bigint, {TOO_LARGE} WHERE $2::bigint % 5 = 0"
    );
    assert_rate_kept(&world, &healthy, &failing, &poison, async |_| {}).await;
    world.drained(SOON).await;
    world.held(0).await;
    world.history(&healthy).await.assert_counted_by(&[&relay]);
    assert!(
        relay.metric("outboxd_rows_dead_total") > Some(100.0),
        "there was poison"
    );
    let rebuilds = relay.metric("outboxd_producer_rebuilds_total");
    // Some fall before the limit is known, some to a busy machine; without quarantine they are hundreds.
    assert!(rebuilds < Some(20.0), "{rebuilds:?} producers fell to it");
}

#[tokio::test]
async fn a_missing_topic_does_not_slow_the_others() {
    let (world, healthy, _, _relay) = beside(&[]).await;
    let missing = format!("{}.missing", world.name);
    assert_rate_kept(&world, &healthy, &missing, ONE_A_STEP, async |_| {}).await;
    world.assert_nobody_blamed().await;
    let flowed = format!("NOT EXISTS (SELECT FROM outbox.message WHERE topic = '{healthy}' AND published_at IS NULL)");
    world.until(&flowed).await;
    world.history(&healthy).await.assert_exact();
}
