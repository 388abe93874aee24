//! The history: its days are made before they are needed, and dropped without keeping anybody waiting.

use std::time::{Duration, Instant};

use testkit::*;

/// What a session that queues behind a backup would take much longer than.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Two days of long ago, with a row each.
const OLD_DAYS: &str = "
    CREATE TABLE outbox.history_20240101 PARTITION OF outbox.history FOR VALUES FROM ('2024-01-01Z') TO ('2024-01-02Z');
    CREATE TABLE outbox.history_20240102 PARTITION OF outbox.history FOR VALUES FROM ('2024-01-02Z') TO ('2024-01-03Z');
    INSERT INTO outbox.history (id, created_at, published_at, message_id, attempts, topic)
    SELECT n, now(), '2023-12-31Z'::timestamptz + n * interval '1 day', gen_random_uuid(), 0, 't' FROM generate_series(1, 2) n;";

const EXPIRE: &str = "SELECT dropped || ' dropped, ' || locked || ' locked' FROM outbox.history_expire('1 day')";

const ARCHIVED: &str = "INSERT INTO outbox.history (id, created_at, published_at, message_id, attempts, topic)
                        VALUES (1, now(), now(), gen_random_uuid(), 0, 't')";

#[tokio::test]
async fn days_that_a_backup_reads_are_left_and_nobody_waits_behind_it() {
    let world = World::new().await;
    world.execute(OLD_DAYS).await;
    world.execute("SELECT outbox.history_prepare()").await;
    let backup = world.session().await;
    // As pg_dump does.
    backup
        .batch_execute("BEGIN; LOCK TABLE outbox.history, outbox.history_20240101 IN ACCESS SHARE MODE")
        .await
        .expect("read");
    // Were the backup waited for, this would end it.
    world.execute("SET statement_timeout = '20s'").await;
    let began = Instant::now();
    let (expired, ()) = tokio::join!(world.text(EXPIRE), async {
        let relay = world.session().await;
        for _ in 0..20 {
            relay.batch_execute(ARCHIVED).await.expect("a row is archived");
        }
    });
    assert_eq!(expired, "0 dropped, 2 locked");
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    let purged = world.outboxd("purge", &[]);
    let said = String::from_utf8_lossy(&purged.stdout).into_owned();
    assert!(
        said.contains("days of history: 0, 2 left because somebody reads the history"),
        "{said}"
    );
    backup.batch_execute("COMMIT").await.expect("over");
    assert_eq!(world.text(EXPIRE).await, "2 dropped, 0 locked");
    assert_eq!(world.text(EXPIRE).await, "0 dropped, 0 locked");
}

#[tokio::test]
async fn a_day_that_somebody_reads_alone_keeps_no_other_from_being_dropped() {
    let world = World::new().await;
    world.execute(OLD_DAYS).await;
    let reader = world.session().await;
    reader
        .batch_execute("BEGIN; SELECT FROM outbox.history_20240101")
        .await
        .expect("read");
    assert_eq!(world.text(EXPIRE).await, "1 dropped, 1 locked");
    assert_eq!(world.count("SELECT count(*) FROM outbox.history").await, 1);
}

#[tokio::test]
async fn a_day_is_not_made_behind_a_backup_and_nobody_waits_for_it() {
    let world = World::new().await;
    let backup = world.session().await;
    backup
        .batch_execute("BEGIN; LOCK TABLE outbox.history IN ACCESS SHARE MODE")
        .await
        .expect("read");
    let began = Instant::now();
    let made = world.count("SELECT outbox.history_prepare()::bigint").await;
    assert_eq!(made, 0);
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    backup.batch_execute("COMMIT").await.expect("over");
    assert_eq!(world.count("SELECT outbox.history_prepare()::bigint").await, 4);
}

/// Rows of the default partition, and of all days.
async fn archived(world: &World) -> (i64, i64) {
    let default = world.count("SELECT count(*) FROM outbox.history_default").await;
    (default, world.count("SELECT count(*) FROM outbox.history").await)
}

#[tokio::test]
async fn rows_that_wait_when_archive_mode_first_starts_go_to_their_day() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    world.fill(&topic, 200, 10).await;
    let _relay = world.relay().args(&["--on-published", "archive"]).start_ready().await;
    world.drained(SOON).await;
    assert_eq!(archived(&world).await, (0, 200));
}

#[tokio::test]
async fn days_that_passed_while_the_relay_had_no_database_are_made_before_it_publishes_again() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let _relay = world.relay().args(&["--on-published", "archive"]).start_ready().await;
    world.until("SELECT count(*) = 1 FROM outbox.worker").await;
    // As if more days had passed than were made ahead: its term has ended, and its days are none of those that are there.
    world
        .execute(
            "DO $$ DECLARE part text; BEGIN
                 FOR part IN SELECT relname FROM pg_class WHERE relname ~ '^history_[0-9]{8}$' AND relkind = 'r'
                 LOOP EXECUTE 'DROP TABLE outbox.' || part; END LOOP;
                 UPDATE outbox.worker SET stopped_at = now();
             END $$",
        )
        .await;
    world.fill(&topic, 200, 10).await;
    world.drained(SOON).await;
    assert_eq!(archived(&world).await, (0, 200));
}
