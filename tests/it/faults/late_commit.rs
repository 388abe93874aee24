//! Ids are drawn in one order and committed in another: no floor may pass what can still come.

use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::SinkExt;
use testkit::*;

/// Sooner than the safety net, which would find a forgotten row half a minute later.
const COMES: Duration = Duration::from_secs(10);

/// Longer than floors go without being stored.
const FLOORS_STORED: Duration = Duration::from_secs(12);

struct Late {
    world: World,
    topic: String,
    relay: Relay,
}

impl Late {
    async fn new() -> Self {
        Late::in_world(World::new().await).await
    }

    async fn in_world(world: World) -> Self {
        let topic = world.topic("orders", 4, &[]).await;
        let relay = world.relay().start_ready().await;
        Late { world, topic, relay }
    }

    /// Thousands of rows, with and without a key, are written and published, a batch after another: a relay that
    /// remembers the highest id it has seen is past everything drawn before.
    async fn others_move_on(&self) {
        for _ in 0..8 {
            self.world.fill(&self.topic, 600, 200).await;
            self.world.fill(&self.topic, 200, 0).await;
            self.world.drained(SOON).await;
        }
    }

    /// The late rows have committed just now.
    async fn arrives(&self, rows: i64) -> History {
        self.world.drained(COMES).await;
        let history = self.world.history(&self.topic).await;
        history.assert_exact();
        history.assert_counted_by(&[&self.relay]);
        let all = "SELECT count(*) FROM outbox.message WHERE headers ? 'late'";
        assert_eq!(self.world.count(all).await, rows);
        history
    }

    async fn status_names_to_an_operator(&self, gid: &str) {
        let status = self.world.status_to_an_operator().await;
        let named = &status["open_writer"];
        assert_eq!(named["gid"], gid, "{named}");
        assert!(
            named["age_seconds"].is_number(),
            "since when, everybody may see: {named}"
        );
    }

    /// The lowest and the highest of all lanes, rows without one included.
    async fn stored_floors(&self) -> (i64, i64) {
        let floors = "SELECT min(floor), max(floor) FROM outbox.lane";
        let row = self.world.db.query_one(floors, &[]).await.expect(floors);
        (row.get(0), row.get(1))
    }

    fn insert(&self) -> String {
        format!(
            "INSERT INTO outbox.message (topic, key, payload, headers)
             SELECT '{}', CASE WHEN n < 5 THEN 'late' || n END, '1', '{{\"late\": \"yes\"}}'
             FROM generate_series(0, 9) n",
            self.topic
        )
    }
}

#[tokio::test]
async fn a_low_id_that_commits_after_higher_ones_is_published() {
    let fault = Fault::new(26, "a low id commits after a high id", "published, not skipped");
    let late = Late::new().await;
    let writer = late.world.session().await;
    writer
        .batch_execute(&format!("BEGIN; {}", late.insert()))
        .await
        .expect("inserted");
    late.others_move_on().await;
    writer.batch_execute("COMMIT").await.expect("committed");
    let recovered = fault.over().until_drained(&late.world).await;
    recovered.record(late.arrives(10).await.duplicates);
}

#[tokio::test]
async fn a_copy_that_stalls_on_drawn_ids_is_published_when_it_ends() {
    let fault = Fault::new(
        44,
        "a COPY sits on drawn ids while others commit past it",
        "no floor passes them",
    );
    let late = Late::new().await;
    // Floors have something to be stored below the drawn ids.
    while late.stored_floors().await.0 == 0 {
        late.others_move_on().await;
    }
    let first = late.world.count("SELECT max(id) + 1 FROM outbox.message").await;
    let writer = late.world.session().await;
    let copy = "COPY outbox.message (topic, key, payload, headers) FROM STDIN";
    let mut sink = Box::pin(writer.copy_in::<_, Bytes>(copy).await.expect("COPY begins"));
    let line = |n: i32| {
        let key = if n % 2 == 0 {
            format!("copied{n}")
        } else {
            "\\N".to_owned()
        };
        Bytes::from(format!("{}\t{key}\t1\t{{\"late\": \"yes\"}}\n", late.topic))
    };
    for n in 0..10 {
        sink.send(line(n)).await.expect("sent");
    }
    sink.flush().await.expect("sent");
    let drawn = "SELECT last_value FROM outbox.message_id_seq";
    eventually(SOON, "ids to be drawn", async || {
        (late.world.count(drawn).await == first + 9).then_some(())
    })
    .await;
    let stalled = Instant::now();
    while stalled.elapsed() < FLOORS_STORED {
        late.others_move_on().await;
    }
    let (_, highest) = late.stored_floors().await;
    assert!(highest < first, "floor {highest} has passed row {first}");
    for n in 10..20 {
        sink.send(line(n)).await.expect("sent");
    }
    assert_eq!(sink.as_mut().finish().await.expect("COPY ends"), 20);
    let recovered = fault.over().until_drained(&late.world).await;
    recovered.record(late.arrives(20).await.duplicates);
}

/// A prepared transaction outlives its session, and keeps the database from being dropped.
struct Prepared<'a>(&'a World);

impl Prepared<'_> {
    fn gid(&self) -> String {
        format!("forgotten in {}", self.0.name)
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        let rollback = format!("ROLLBACK PREPARED '{}'", self.gid());
        let _ = Command::new("psql")
            .args([&self.0.database_url, "-qc", &rollback])
            .output();
    }
}

#[tokio::test]
async fn a_prepared_transaction_that_outlives_a_crash_is_published_when_it_commits() {
    let fault = Fault::new(
        51,
        "a prepared transaction across a restart",
        "published once it commits",
    );
    let postgres = OwnPostgres::start();
    let mut late = Late::in_world(World::on(&postgres.url, &Stack::get().kafka).await).await;
    late.world
        .execute(&format!("BEGIN; {}; PREPARE TRANSACTION 'late'", late.insert()))
        .await;
    late.others_move_on().await;
    postgres.crash();
    postgres.restart();
    late.world.db = late.world.session().await;
    late.others_move_on().await;
    late.status_names_to_an_operator("late").await;
    late.world.execute("COMMIT PREPARED 'late'").await;
    let recovered = fault.over().until_drained(&late.world).await;
    late.arrives(10).await;
    recovered.record(0);
}

#[tokio::test]
async fn a_prepared_transaction_is_named_and_published_when_it_commits() {
    let late = Late::new().await;
    let prepared = Prepared(&late.world);
    let gid = prepared.gid();
    let writer = late.world.session().await;
    writer
        .batch_execute(&format!("BEGIN; {}", late.insert()))
        .await
        .expect("inserted");
    // Seen as a session's first, then as nobody's.
    late.others_move_on().await;
    writer
        .batch_execute(&format!("PREPARE TRANSACTION '{gid}'"))
        .await
        .expect("prepared");
    drop(writer);
    late.others_move_on().await;
    late.status_names_to_an_operator(&gid).await;
    eventually(SOON, "it to be named", async || late.relay.logged(&gid).then_some(())).await;
    late.world.execute(&format!("COMMIT PREPARED '{gid}'")).await;
    late.arrives(10).await;
}

/// It holds a lock on the table and an id, and no snapshot shows it: it has written nothing yet.
#[tokio::test]
async fn a_row_whose_id_was_drawn_before_its_payload_was_computed_is_published() {
    let late = Late::new().await;
    while late.stored_floors().await.0 == 0 {
        late.others_move_on().await;
    }
    let gate = late.world.session().await;
    gate.batch_execute("SELECT pg_advisory_lock(7)").await.expect("a lock");
    let insert = format!(
        "INSERT INTO outbox.message (topic, key, payload, headers)
         VALUES ('{}', 'slow', to_jsonb(pg_advisory_lock(7) IS NULL), '{{\"late\": \"yes\"}}')",
        late.topic
    );
    let drawn = "SELECT last_value FROM outbox.message_id_seq";
    let waiting = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'";
    let trying = Instant::now();
    let (id, writing) = loop {
        // Who draws the last id that the WAL knows gets a transaction id with it: not this one.
        while late.world.count("SELECT log_cnt FROM outbox.message_id_seq").await < 2 {
            late.world.execute("SELECT nextval('outbox.message_id_seq')").await;
        }
        let id = late.world.count(drawn).await + 1;
        let (writer, insert) = (late.world.session().await, insert.clone());
        let writing = tokio::spawn(async move { writer.batch_execute(&insert).await });
        eventually(SOON, "its id to be drawn, and it to wait", async || {
            let waits = late.world.count(&format!("SELECT count(*) {waiting}")).await == 1;
            (waits && late.world.count(drawn).await == id).then_some(())
        })
        .await;
        if late
            .world
            .is_true(&format!("SELECT backend_xid IS NULL {waiting}"))
            .await
        {
            break (id, writing);
        }
        // So does who draws the first one after a checkpoint, which has just come in between.
        assert!(trying.elapsed() < SOON, "it has no transaction id");
        late.world
            .execute(&format!("SELECT pg_cancel_backend(pid) {waiting}"))
            .await;
        writing.await.expect("no panic").expect_err("cancelled");
    };
    let stalled = Instant::now();
    while stalled.elapsed() < FLOORS_STORED {
        late.others_move_on().await;
    }
    let (_, highest) = late.stored_floors().await;
    assert!(highest < id, "floor {highest} has passed row {id}");
    gate.batch_execute("SELECT pg_advisory_unlock(7)")
        .await
        .expect("unlocked");
    writing.await.expect("no panic").expect("written");
    late.arrives(1).await;
}
