//! What a row costs, counted: counts do not vary, so a change that makes the hot path more expensive shows here first.

use testkit::*;

const ROWS: usize = 20_000;
/// Enough that the rows of one page are marked by and by, as in any backlog that matters.
const BACKLOG: usize = 60_000;

/// Of Rust and of the Kafka client together, for a row of ours. A little above what is measured.
const ALLOCATIONS_A_ROW_MAX: f64 = 10.5;

#[tokio::test]
async fn a_row_costs_few_allocations() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let allocations = Allocations::start();
    let counted = |relay: RelayBuilder, (name, value): (&str, String)| relay.env(name, &value);
    let relay = allocations.environment().into_iter().fold(world.relay(), counted);
    let _relay = relay.start_ready().await;
    world.fill(&topic, 2_000, 100).await;
    world.drained(SOON).await;
    let warm = allocations.so_far();
    assert!(warm > 0, "they are counted");
    world.fill(&topic, ROWS, 100).await;
    world.drained(SOON).await;
    let per_row = (allocations.so_far() - warm) as f64 / ROWS as f64;
    println!("{per_row:.1} allocations a row");
    assert!(per_row <= ALLOCATIONS_A_ROW_MAX, "{per_row:.1} allocations a row");
}

fn backlog(topic: &str, key: &str) -> String {
    format!(
        "INSERT INTO outbox.message (topic, key, payload)
         SELECT '{topic}', {key}, jsonb_build_object('n', i, 'fill', repeat('x', 160)) FROM generate_series(1, {BACKLOG}) i"
    )
}

/// Bytes of WAL that a relay writes for each row of a backlog of rows of about 200 bytes.
async fn wal_per_row(on_published: &str, key: &str) -> f64 {
    // Of its own: others write, too. Full-page images depend on when the last checkpoint was, and autovacuum on the time.
    let server = OwnPostgres::start();
    let db = connect(&server.url).await;
    for sql in [
        "ALTER SYSTEM SET full_page_writes = off",
        "ALTER SYSTEM SET autovacuum = off",
        "SELECT pg_reload_conf()",
    ] {
        db.batch_execute(sql).await.expect(sql);
    }
    let world = World::on(&server.url, &Stack::get().kafka).await;
    let topic = world.topic("orders", 4, &[]).await;
    world.until("SELECT current_setting('full_page_writes') = 'off'").await;
    world.execute(&backlog(&topic, key)).await;
    world.execute("VACUUM ANALYZE outbox.message").await;
    let written = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    let before = world.count(written).await;
    let _relay = world
        .relay()
        .args(&["--on-published", on_published])
        .start_ready()
        .await;
    world.drained(SOON).await;
    (world.count(written).await - before) as f64 / BACKLOG as f64
}

#[tokio::test]
async fn a_row_costs_few_bytes_of_wal_whatever_becomes_of_it() {
    // The bounds are a little above what is measured.
    let (keyed, unordered) = ("'key-' || i % 1000", "NULL");
    for (on_published, key, most) in [
        ("delete", keyed, 70.0),
        ("keep", keyed, 140.0),
        ("archive", keyed, 450.0),
        ("delete", unordered, 80.0),
        ("keep", unordered, 140.0),
    ] {
        let bytes = wal_per_row(on_published, key).await;
        let said = format!("{on_published}, key {key}: {bytes:.0} bytes of WAL a row");
        println!("{said}");
        assert!(bytes <= most, "{said}, {most} allowed");
    }
}

/// A mark that finds no room on its row's page writes to every index. What it replaces cannot be pruned as long as anybody's snapshot is older.
#[tokio::test]
async fn marks_stay_on_their_page_though_a_transaction_is_left_open() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let forgotten = world.session().await;
    forgotten
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM outbox.message")
        .await
        .expect("a snapshot");
    world.execute(&backlog(&topic, "'key-' || i % 1000")).await;
    let mut relay = world.relay().start_ready().await;
    world.drained(SOON).await;
    relay.stop();
    let of = "FROM pg_stat_user_tables WHERE relid = 'outbox.message'::regclass";
    world.until(&format!("SELECT n_tup_upd >= {BACKLOG} {of}")).await;
    let moved = world.count(&format!("SELECT n_tup_upd - n_tup_hot_upd {of}")).await;
    assert!(
        moved < BACKLOG as i64 / 20,
        "{moved} of {BACKLOG} marks found no room on their page"
    );
}

/// A new table has no statistics for minutes, and a session keeps the plan it made then.
#[tokio::test]
async fn marks_search_for_each_row_once_though_the_table_has_no_statistics() {
    for on_published in ["keep", "archive", "delete"] {
        let world = World::new().await;
        let topic = world.topic("orders", 1, &[]).await;
        world
            .execute("ALTER TABLE outbox.message SET (autovacuum_enabled = off)")
            .await;
        let args = ["--on-published", on_published];
        let mut relay = world.relay().args(&args).start_ready().await;
        // While it is all but empty, a session decides how it will search for rows from then on.
        for rows in [vec![1; 10], vec![500]].concat() {
            world.fill(&topic, rows, 500).await;
            world.drained(SOON).await;
        }
        relay.stop();
        world.relays_sessions_end().await;
        let scans = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelid = 'outbox.message_lane'::regclass";
        let scans = world.count(scans).await;
        // A claim is one for each lane, a mark none.
        assert!(scans < 1_000, "{on_published}: {scans} searches by lane for 500 rows");
    }
}
