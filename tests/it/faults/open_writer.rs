//! A writer stays idle in its transaction after its INSERT. The floors cannot pass what it may still commit.

use std::time::{Duration, Instant};

use testkit::*;
use tokio_postgres::Client;

/// Sooner than the safety net, which would find a forgotten row half a minute later.
const COMES: Duration = Duration::from_secs(10);

/// A transaction that has written rows and stays open, under a name an operator would know.
async fn open_writer(world: &World, inserts: &str) -> Client {
    let writer = world.session().await;
    let begin = format!("SET application_name = 'forgetful'; BEGIN; {inserts}");
    writer.batch_execute(&begin).await.expect("inserted");
    writer
}

fn insert(topic: &str, key: &str) -> String {
    format!("INSERT INTO outbox.message (topic, key, payload) VALUES ('{topic}', {key}, '1');")
}

#[tokio::test]
async fn others_flow_at_a_steady_rate_past_a_writer_left_open_and_its_rows_follow_when_it_commits() {
    const ROUND: usize = 2_000;
    let fault = Fault::new(
        52,
        "a writer stays idle in its transaction after its INSERT",
        "others flow at a steady rate; its rows follow when it commits; status, log and a gauge name it",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let relay = world.relay().start_ready().await;
    let writer = open_writer(&world, &(insert(&topic, "'late'") + &insert(&topic, "NULL"))).await;
    let mut reads = Vec::new();
    for _ in 0..15 {
        let before = world.rows_read().await;
        for _ in 0..4 {
            world.fill(&topic, ROUND / 4, 50).await;
            world.fill(&topic, ROUND / 4, 0).await;
            world.drained(SOON).await;
        }
        reads.push(world.rows_read().await - before);
    }
    println!("rows read per round of {ROUND}: {reads:?}");
    eventually(SOON, "the open writer to be named by its pid", async || {
        (relay.metric("outboxd_open_writer_pid")? > 0.0).then_some(())
    })
    .await;
    assert!(relay.logged("forgetful"), "and in the log");
    let status = world.outboxd("status", &["--json"]);
    assert!(String::from_utf8_lossy(&status.stdout).contains("forgetful"));
    let status = world.status_to_an_operator().await;
    let named = &status["open_writer"];
    assert_eq!(
        named["application"], "forgetful",
        "also to who may not see when it began"
    );
    assert!(
        named["age_seconds"].is_null() && named["later_transactions"].as_i64() > Some(15),
        "{named}"
    );
    // Statistics arrive with a delay, in lumps: sums over several rounds do not care.
    let early: i64 = reads[2..6].iter().sum();
    let late: i64 = reads[11..].iter().sum();
    assert!(late < 2 * early, "claims read more and more: {reads:?}");

    writer.batch_execute("COMMIT").await.expect("committed");
    let recovered = fault.over().until_drained(&world).await;
    world.history(&topic).await.assert_exact();
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
    eventually(SOON, "nobody to be named any more", async || {
        (relay.metric("outboxd_open_writer_pid")? == 0.0).then_some(())
    })
    .await;
    recovered.record(0);
}

/// While one transaction stays open, others that last a second come and go: each is an open writer, too, before it ends.
#[tokio::test]
async fn rows_read_stay_bounded_beside_a_forgotten_writer_while_jobs_of_a_second_come_and_go() {
    const JOB: Duration = Duration::from_secs(1);
    const PUBLISHED: usize = 150_000;
    let fault = Fault::new(
        58,
        "one forgotten open writer, and another transaction of a second every few seconds",
        "rows read per claim stay bounded; the rows of each follow when it commits",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let relay = world.relay().start_ready().await;
    let writer = open_writer(&world, &(insert(&topic, "'late'") + &insert(&topic, "NULL"))).await;
    let mut reads = Vec::new();
    for round in 0..12 {
        if round == 6 {
            // From here on, a claim that scans again all that is published since the forgotten writer began reads much more.
            world.fill(&topic, PUBLISHED, 50).await;
            world.drained(SOON).await;
        }
        let before = world.rows_read().await;
        let job = world.session().await;
        let begin = format!("BEGIN; {}{}", insert(&topic, "'job'"), insert(&topic, "NULL"));
        job.batch_execute(&begin).await.expect("inserted");
        let began = Instant::now();
        while began.elapsed() < JOB {
            world.fill(&topic, 100, 50).await;
            world.fill(&topic, 100, 0).await;
            world.drained(SOON).await;
        }
        job.batch_execute("COMMIT").await.expect("committed");
        world.fill(&topic, 500, 50).await;
        world.drained(COMES).await;
        let rows = world.count("SELECT count(*) FROM outbox.message").await;
        reads.push((world.rows_read().await - before, rows));
    }
    println!("rows read per round, and rows there: {reads:?}");
    let growth = |rounds: &[(i64, i64)]| {
        let read: i64 = rounds.iter().map(|round| round.0).sum();
        read as f64 / (rounds[rounds.len() - 1].1 - rounds[0].1) as f64
    };
    // Statistics arrive with a delay, in lumps: sums over several rounds do not care.
    let (early, late) = (growth(&reads[1..6]), growth(&reads[7..]));
    assert!(
        late < 2.0 * early,
        "{late:.0} rows read for each new one after {early:.0}: {reads:?}"
    );

    writer.batch_execute("COMMIT").await.expect("committed");
    let recovered = fault.over().until_drained(&world).await;
    world.history(&topic).await.assert_exact();
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
    recovered.record(0);
}

/// The claim starts above the open writer's row; then that writer commits, and a newer row of its key does.
#[tokio::test]
async fn a_claim_that_began_above_a_row_just_committed_is_discarded_and_the_key_stays_in_order() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let relay = world
        .relay()
        .args(&["--tasks", "1"])
        .failpoint("before_soft_claim")
        .start_ready()
        .await;
    let writer = open_writer(&world, &insert(&topic, "'k'")).await;
    eventually(SOON, "a claim that starts above the floor", async || {
        world.execute(&insert(&topic, "'k'")).await;
        relay.is_at_failpoint("before_soft_claim").then_some(())
    })
    .await;
    writer.batch_execute("COMMIT").await.expect("committed");
    let newer = world.insert(&topic, &[(Some("k"), b"newer".to_vec())]).await[0];
    relay.continue_from("before_soft_claim");
    world.drained(COMES).await;
    let first = world
        .text("SELECT message_id::text FROM outbox.message ORDER BY id LIMIT 1")
        .await;
    let last = world
        .text(&format!(
            "SELECT message_id::text FROM outbox.message WHERE id = {newer}"
        ))
        .await;
    let arrived: Vec<String> = world.records(&topic).await.iter().map(Record::message_id).collect();
    let place = |id: &String| arrived.iter().position(|arrived| arrived == id);
    assert!(
        place(&first) < place(&last),
        "the newer row of the key overtook the older one"
    );
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
}
