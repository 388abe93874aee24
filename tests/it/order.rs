//! Many writers, many keys, processes killed again and again: the order of every key holds.

use std::collections::HashSet;
use std::time::Duration;

use testkit::*;
use tokio::task::JoinSet;
use tokio_postgres::Client;
use uuid::Uuid;

const SESSIONS: usize = 8;
const KEYS_PER_SESSION: usize = 25;
const ROWS: usize = 50_000;
const KILLS: usize = 5;
const TASKS: usize = 3;
const BATCH_ROWS: usize = 500;

/// What one session wrote.
#[derive(Default)]
struct Written {
    committed: usize,
    rolled_back: HashSet<String>,
}

/// Writes transactions of 1–10 rows to keys of its own, so that the order of each is defined; one in ten is rolled
/// back.
async fn write(db: Client, topic: String, session: usize) -> Written {
    let mut written = Written::default();
    let mut sequences = [0i64; KEYS_PER_SESSION];
    let mut ticks = tokio::time::interval(Duration::from_millis(15));
    while written.committed < ROWS / SESSIONS {
        ticks.tick().await;
        let mut rows = Vec::new();
        let mut next = sequences;
        for _ in 0..fastrand::usize(1..=10) {
            let key = fastrand::usize(..KEYS_PER_SESSION);
            next[key] += 1;
            rows.push((Uuid::new_v4(), format!("k{session}-{key}"), next[key]));
        }
        let commit = fastrand::u8(..10) > 0;
        transact(&db, &topic, &rows, commit).await;
        if commit {
            sequences = next;
            written.committed += rows.len();
        } else {
            written
                .rolled_back
                .extend(rows.into_iter().map(|(id, ..)| id.to_string()));
        }
    }
    written
}

async fn transact(db: &Client, topic: &str, rows: &[(Uuid, String, i64)], commit: bool) {
    let insert = "INSERT INTO outbox.message (topic, message_id, key, payload)
                  SELECT $1, id, key, jsonb_build_object('n', n)
                  FROM unnest($2::uuid[], $3::text[], $4::bigint[]) WITH ORDINALITY AS rows (id, key, n, place)
                  ORDER BY place";
    let ids: Vec<Uuid> = rows.iter().map(|row| row.0).collect();
    let keys: Vec<&str> = rows.iter().map(|row| row.1.as_str()).collect();
    let sequences: Vec<i64> = rows.iter().map(|row| row.2).collect();
    db.batch_execute("BEGIN").await.expect("begun");
    db.execute(insert, &[&topic, &ids, &keys, &sequences])
        .await
        .expect("inserted");
    let end = if commit { "COMMIT" } else { "ROLLBACK" };
    db.batch_execute(end).await.expect("ended");
}

fn start(world: &World) -> Relay {
    let (tasks, rows) = (TASKS.to_string(), BATCH_ROWS.to_string());
    world.relay().args(&["--tasks", &tasks, "--batch-rows", &rows]).start()
}

/// Kills a process and starts another whenever so many more rows have been published, until all are.
async fn kill_again_and_again(world: &World, writers: &mut JoinSet<Written>) -> (Vec<Written>, Counters) {
    let mut relays: Vec<Relay> = (0..4).map(|_| start(world)).collect();
    let (mut counters, mut written, mut kills) = (Counters::default(), Vec::new(), 0);
    let stopwatch = Stopwatch::start();
    loop {
        assert!(
            stopwatch.without_steal() < Duration::from_secs(150),
            "{} rows are pending",
            world.pending().await
        );
        relays.iter().for_each(|relay| counters.scrape(relay));
        let [marked, ..] = counters.sum();
        if kills < KILLS && marked > ((kills + 1) * ROWS / (KILLS + 1)) as f64 {
            let mut victim = relays.remove(0);
            counters.scrape(&victim);
            victim.kill();
            kills += 1;
            println!("kill {kills} at {marked} rows");
            relays.push(start(world));
        }
        while let Some(done) = writers.try_join_next() {
            written.push(done.expect("the writer did not panic"));
        }
        if written.len() == SESSIONS && kills == KILLS && world.pending().await == 0 {
            relays.iter().for_each(|relay| counters.scrape(relay));
            return (written, counters);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_stays_in_order_while_processes_are_killed() {
    let world = World::new().await;
    let topic = world.topic("orders", 8, &[]).await;
    let mut writers = JoinSet::new();
    for session in 0..SESSIONS {
        writers.spawn(write(world.session().await, topic.clone(), session));
    }
    let (written, counters) = kill_again_and_again(&world, &mut writers).await;
    let records = world.records(&topic).await;
    let committed: usize = written.iter().map(|w| w.committed).sum();
    let history = world.history(&topic).await;
    let awry = "SELECT count(*) FROM (SELECT (payload->>'n')::int - lag((payload->>'n')::int, 1, 0)
                OVER (PARTITION BY key ORDER BY id) AS step FROM outbox.message) steps WHERE step <> 1";
    assert_eq!(world.count(awry).await, 0, "ids follow the writers' own count");
    let [_, counted, forgotten] = counters.sum();
    let in_flight = KILLS * TASKS * BATCH_ROWS;
    println!(
        "{} rows, {} duplicates, {} flagged, {counted} counted",
        committed, history.duplicates, history.flagged
    );
    assert!(committed >= ROWS);
    assert_eq!(history.findings.counts.published, committed as u64);
    let rolled_back: HashSet<&String> = written.iter().flat_map(|w| &w.rolled_back).collect();
    assert!(rolled_back.len() > ROWS / 20, "enough was rolled back to tell");
    assert!(records.iter().all(|record| !rolled_back.contains(&record.message_id())));
    history.assert_sound();
    assert_eq!(history.unflagged_duplicates, 0);
    assert!(history.duplicates <= in_flight, "{} duplicates", history.duplicates);
    assert!(history.duplicates <= history.flagged);
    // What a victim flagged after it was last asked is in no counter: at most what it had in flight.
    assert!(
        counted + in_flight as f64 >= history.flagged as f64,
        "{counted} counted"
    );
    assert_eq!(forgotten, 0.0, "no row needed the safety net");
}
