//! The sampled backlog: what is counted, what is estimated, and what that costs.

use std::collections::BTreeMap;

use outboxd::outbox::{PLANNER_SETTINGS, statement};
use tokio_postgres::Client;

use super::*;

/// How many rows a worker reads before it estimates.
const BOUND: i64 = 10_000;

struct Sampled {
    pending: i64,
    estimated: bool,
    oldest_seconds: f64,
    /// Pending and dead rows by topic; the empty name is that of all others.
    topics: BTreeMap<String, (i64, i64)>,
    /// Of each of them, the age of the oldest row that nothing keeps back, in hours.
    unheld_hours: BTreeMap<String, f64>,
    oldest_pause_seconds: f64,
}

/// A session that plans as a worker's do.
async fn session(world: &World) -> Client {
    let session = world.session().await;
    for (name, value) in PLANNER_SETTINGS {
        session
            .batch_execute(&format!("SET {name} = {value}"))
            .await
            .expect("a setting");
    }
    session
}

/// A sample as a worker takes it, which has given labels to these topics.
async fn sample(world: &World, labelled: &[&str]) -> Sampled {
    let sql = statement::text("sample_backlog");
    let sample = session(world)
        .await
        .query_one(&sql, &[&BOUND, &labelled])
        .await
        .expect("a sample");
    let topics: serde_json::Value = serde_json::from_str(sample.get("topics")).expect("JSON");
    let topics = topics.as_array().expect("a list");
    let name = |topic: &serde_json::Value| topic["topic"].as_str().unwrap_or_default().to_owned();
    let counts = topics.iter().map(|topic| {
        let count = |name: &str| topic[name].as_i64().expect("a count");
        (name(topic), (count("pending"), count("dead")))
    });
    let unheld_hours = topics.iter().map(|topic| {
        let seconds = topic["oldest_unheld_seconds"].as_f64().expect("an age");
        (name(topic), (seconds / 3600.0).round())
    });
    Sampled {
        pending: sample.get("pending"),
        estimated: sample.get("estimated"),
        oldest_seconds: sample.get("oldest_seconds"),
        topics: counts.collect(),
        unheld_hours: unheld_hours.collect(),
        oldest_pause_seconds: sample.get("oldest_pause_seconds"),
    }
}

/// Commits rows, of which three fifths are of topic a and the others of topic b.
async fn fill(world: &World, rows: i64) {
    world
        .execute(&format!(
            "INSERT INTO outbox.message (topic, key, payload)
             SELECT CASE WHEN n % 5 < 3 THEN 'a' ELSE 'b' END, 'k' || n % 100, '1' FROM generate_series(1, {rows}) n"
        ))
        .await;
}

async fn pending_of(world: &World, topic: &str) -> i64 {
    let sql = "SELECT count(*) FROM outbox.message WHERE published_at IS NULL AND dead_at IS NULL AND topic = ";
    world.count(&format!("{sql}'{topic}'")).await
}

fn assert_about(what: &str, found: i64, real: i64) {
    assert!((found - real).abs() * 5 <= real, "{what}: {found} instead of {real}");
}

#[tokio::test]
async fn a_backlog_within_the_bound_is_counted() {
    let world = World::new().await;
    fill(&world, BOUND).await;
    world
        .execute("UPDATE outbox.message SET dead_at = now(), attempts = 3 WHERE id IN (1, 2, 5)")
        .await;
    let sampled = sample(&world, &[]).await;
    assert!(!sampled.estimated, "the last id was read");
    assert_eq!(sampled.pending, BOUND - 3);
    let (a, b) = (pending_of(&world, "a").await, pending_of(&world, "b").await);
    assert_eq!(
        sampled.topics,
        BTreeMap::from([("a".to_owned(), (a, 3)), ("b".to_owned(), (b, 0))])
    );
}

#[tokio::test]
async fn a_backlog_beyond_the_bound_is_estimated_and_said_to_be() {
    let world = World::new().await;
    fill(&world, 50_000).await;
    let sampled = sample(&world, &[]).await;
    assert!(sampled.estimated);
    assert_about("nothing is published", sampled.pending, 50_000);
    // Some lanes are ahead, and most of what one topic had is published.
    world
        .execute(
            "UPDATE outbox.message SET published_at = now()
             WHERE id > 5000 AND id < 45000 AND random() < CASE topic WHEN 'a' THEN 0.8 ELSE 0.3 END",
        )
        .await;
    let sampled = sample(&world, &[]).await;
    assert_about("in all", sampled.pending, world.pending().await);
    for topic in ["a", "b"] {
        assert_about(topic, sampled.topics[topic].0, pending_of(&world, topic).await);
    }
}

#[tokio::test]
async fn the_newest_rows_are_counted_however_many_are_published() {
    let world = World::new().await;
    fill(&world, 50_000).await;
    world
        .execute("UPDATE outbox.message SET published_at = now() WHERE id <= 48000")
        .await;
    let sampled = sample(&world, &[]).await;
    assert!(sampled.estimated);
    assert_eq!(sampled.pending, 2_000);
}

#[tokio::test]
async fn what_a_parked_topic_keeps_back_is_estimated_as_well() {
    let world = World::new().await;
    fill(&world, 40_000).await;
    world
        .execute(
            "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
             SELECT lane, 'a', '', 0, 'unknown topic', now() FROM outbox.lane WHERE lane >= 0;
             UPDATE outbox.message SET published_at = now() WHERE topic = 'b';
             UPDATE outbox.lane SET floor = 40000;",
        )
        .await;
    let sampled = sample(&world, &[]).await;
    assert!(sampled.estimated);
    assert_about("parked", sampled.topics["a"].0, 24_000);
    assert!(!sampled.topics.contains_key("b"), "{:?}", sampled.topics);
}

#[tokio::test]
async fn a_row_whose_delay_is_over_is_pending_since_then() {
    let world = World::new().await;
    fill(&world, 3).await;
    world
        .execute(
            "UPDATE outbox.message SET created_at = now() - interval '2 days', available_at = now() - interval '1 hour' WHERE id = 1;
             UPDATE outbox.message SET available_at = now() + interval '1 day' WHERE id = 2;
             UPDATE outbox.lane SET floor = 3;",
        )
        .await;
    let sampled = sample(&world, &[]).await;
    assert_eq!(
        (sampled.pending, sampled.estimated),
        (1, false),
        "the third lies below the floors"
    );
    assert!(
        (3600.0..4000.0).contains(&sampled.oldest_seconds),
        "{}",
        sampled.oldest_seconds
    );
}

#[tokio::test]
async fn the_oldest_row_that_is_not_held_is_kept_back_by_nothing() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO outbox.message (topic, key, partition, payload) VALUES
                 ('keys', 'held', NULL, '1'), ('keys', 'free', NULL, '2'), ('keys', 'held', NULL, '3'), ('keys', NULL, 3, '4'),
                 ('parked', 'k', NULL, '5'), ('parked', NULL, NULL, '6'), ('lame', 'k', NULL, '7');
             UPDATE outbox.message SET created_at = now() - interval '9 hours';
             UPDATE outbox.message SET created_at = now() - interval '3 hours' WHERE id = 2;
             -- Its delay is over, and it is held all the same.
             UPDATE outbox.message SET available_at = now() - interval '5 hours' WHERE id = 3;
             INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
             SELECT coalesce(m.lane, -1), m.topic, u.unit, 0, 'refused', 'infinity'
             FROM (VALUES (1, 'k:held'), (4, 'p:3'), (5, ''), (6, ''), (7, 's:0/4')) u (id, unit) JOIN outbox.message m USING (id);",
        )
        .await;
    let unheld = |hours: [f64; 3]| {
        let topics = ["keys", "lame", "parked"].map(str::to_owned);
        topics.into_iter().zip(hours).collect::<BTreeMap<_, _>>()
    };
    let sampled = sample(&world, &[]).await;
    assert_eq!(sampled.unheld_hours, unheld([3.0, 0.0, 0.0]));
    assert!(sampled.oldest_seconds > 8.0 * 3600.0, "{}", sampled.oldest_seconds);
    assert_eq!(sampled.oldest_pause_seconds, 0.0);

    world.execute("DELETE FROM outbox.hold").await;
    assert_eq!(sample(&world, &[]).await.unheld_hours, unheld([9.0, 9.0, 9.0]));

    world
        .execute("INSERT INTO outbox.pause (at, reason) VALUES (now() - interval '1 hour', 'maintenance')")
        .await;
    let sampled = sample(&world, &[]).await;
    assert_eq!(sampled.unheld_hours, unheld([0.0, 0.0, 0.0]));
    assert!(
        (3600.0..4000.0).contains(&sampled.oldest_pause_seconds),
        "{}",
        sampled.oldest_pause_seconds
    );
}

#[tokio::test]
async fn a_topic_with_a_label_is_named_and_so_are_the_fifty_largest_others() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO outbox.message (topic, key, payload)
             SELECT 'topic-' || n, 'k', '1' FROM generate_series(1, 60) n, generate_series(1, n)",
        )
        .await;
    let sampled = sample(&world, &["topic-1", "absent"]).await;
    assert_eq!(sampled.topics["topic-1"].0, 1);
    assert_eq!(sampled.topics["topic-60"].0, 60);
    assert_eq!(
        sampled.topics.len(),
        52,
        "those with a label, fifty others, and the rest"
    );
    let all: i64 = sampled.topics.values().map(|(pending, _)| pending).sum();
    assert_eq!(all, sampled.pending);
    assert_eq!(all, world.pending().await);
}

/// What the statement reads does not grow with the table, nor with what has died in it.
#[tokio::test]
async fn a_sample_reads_no_more_than_its_share() {
    let world = World::new().await;
    world
        .execute("ALTER TABLE outbox.message SET (autovacuum_enabled = off)")
        .await;
    let sql = statement::text("sample_backlog")
        .replace("$1", "1000")
        .replace("$2", "'{}'");
    let session = session(&world).await;
    fill(&world, 20_000).await;
    let few = cost(&session, &sql, "Shared Hit Blocks").await;
    fill(&world, 100_000).await;
    // The newest rows are gone, and nobody has cleaned up behind them.
    world.execute("DELETE FROM outbox.message WHERE id > 60000").await;
    let many = cost(&session, &sql, "Shared Hit Blocks").await;
    assert!(many < 2 * few, "{many} blocks instead of {few}");
}

#[tokio::test]
async fn a_worker_shows_the_backlog_by_topic_and_whether_it_is_estimated() {
    let world = World::new().await;
    fill(&world, 30_000).await;
    // No Kafka: nothing is published.
    let relay = RelayBuilder::new(&world.database_url, "127.0.0.1:1")
        .start_ready()
        .await;
    let scrape = eventually(SOON, "a sample", async || {
        let scrape = relay.get("/metrics")?;
        Relay::metric_in(&scrape, "outboxd_backlog_rows")
            .is_some()
            .then_some(scrape)
    })
    .await;
    assert_eq!(Relay::metric_in(&scrape, "outboxd_backlog_estimated"), Some(1.0));
    let backlog = Relay::series_in(&scrape, "outboxd_backlog_rows");
    let shown: Vec<&str> = backlog.keys().copied().collect();
    assert_eq!(shown, ["{topic=\"a\"}", "{topic=\"b\"}", "{topic=\"other\"}"]);
    assert_about("a", backlog["{topic=\"a\"}"] as i64, 18_000);
    assert_about("b", backlog["{topic=\"b\"}"] as i64, 12_000);
    let oldest = Relay::series_in(&scrape, "outboxd_oldest_pending_seconds");
    assert!(
        oldest["{topic=\"a\"}"] > 0.0 && oldest["{topic=\"other\"}"] == 0.0,
        "{oldest:?}"
    );
    world.execute("DELETE FROM outbox.message WHERE id > 10").await;
    eventually(SOON, "the next sample", async || {
        let scrape = relay.get("/metrics")?;
        let backlog = Relay::series_in(&scrape, "outboxd_backlog_rows");
        (backlog["{topic=\"a\"}"] == 6.0 && Relay::metric_in(&scrape, "outboxd_backlog_estimated") == Some(0.0))
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn in_an_outage_of_the_database_no_worker_shows_an_old_sample() {
    let world = World::new().await;
    let relay = world.relay().start_ready().await;
    let is_sampled = |expected: bool| {
        let relay = &relay;
        async move {
            eventually(SOON, &format!("a sample: {expected}"), async || {
                let scrape = relay.get("/metrics")?;
                let said = Relay::metric_in(&scrape, "outboxd_backlog_sampled")?;
                let shown = Relay::metric_in(&scrape, "outboxd_dead_tuples").is_some();
                (said == f64::from(u8::from(expected)) && shown == expected).then_some(())
            })
            .await;
        }
    };
    is_sampled(true).await;
    world.lock_out(true).await;
    is_sampled(false).await;
}
