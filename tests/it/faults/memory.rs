//! Rows that weigh much.

use std::time::Duration;

use testkit::*;

/// Room for eight of the rows below, and time to send them.
const FEW_BYTES: [&str; 6] = [
    "--max-in-flight-bytes",
    "8MiB",
    "--batch-deadline",
    "5s",
    "--lease",
    "15s",
];

/// The most memory the process ever had, in bytes.
pub fn peak_memory(relay: &Relay) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", relay.pid())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    let kilobytes = line.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    kilobytes.map(|kb: usize| kb * 1024).expect("a number")
}

#[tokio::test]
async fn memory_is_bounded_by_the_byte_budget_whatever_the_rows_weigh() {
    const ROWS: usize = 500;
    const SIZE: usize = 1_000_000;
    const BUDGET: usize = 8 << 20;
    let fault = Fault::new(
        42,
        "a thousand rows of 1 MB at once, half of them without a key, for a budget of 8 MiB",
        "memory grows by less than ten times the byte budget, however many there are; light rows flow afterwards",
    );
    let world = World::new().await;
    let keyed = world.topic("keyed", 2, &[("max.message.bytes", "4000000")]).await;
    // Near the topic's limit, so that each goes alone.
    let unordered = world.topic("unordered", 2, &[]).await;
    world
        .execute(
            "CREATE TABLE block (place int, bytes bytea); ALTER TABLE block ALTER bytes SET STORAGE EXTERNAL;
                  ALTER TABLE outbox.message ALTER payload_bytes SET STORAGE EXTERNAL",
        )
        .await;
    for n in 0..4 {
        world
            .db
            .execute("INSERT INTO block VALUES ($1, $2)", &[&n, &noise(SIZE)])
            .await
            .expect("a block");
    }
    let relay = world.relay().args(&FEW_BYTES).start_ready().await;
    let idle = peak_memory(&relay);
    let sql = "INSERT INTO outbox.message (topic, key, payload_bytes)
               SELECT $1, CASE WHEN $2 THEN 'key-' || n % 8 END, bytes
               FROM generate_series(1, $3::int) n JOIN block ON place = n % 4 ORDER BY n";
    for (topic, has_key) in [(&keyed, true), (&unordered, false)] {
        world
            .db
            .execute(sql, &[topic, &has_key, &(ROWS as i32)])
            .await
            .expect("large rows");
    }
    world.drained(Duration::from_secs(180)).await;
    let light = world.topic("light", 2, &[]).await;
    world.fill(&light, 1_000, 50).await;
    let recovered = fault.over().until_drained(&world).await;
    let grown = peak_memory(&relay) - idle;
    // A row in flight is here up to five times: read from PostgreSQL, as a row, in the client's queue, compressed,
    // in a request. Twice that, because what the allocator frees it does not always give back.
    assert!(grown < 10 * BUDGET, "grew by {} MB", grown >> 20);

    for topic in [&keyed, &unordered] {
        let history = world.history(topic).await;
        history.assert_exact();
        assert_eq!(history.findings.counts.published, ROWS as u64);
    }
    world.history(&light).await.assert_exact();
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
    recovered.record(0);
}

/// With the byte budget users get who set none. The bench measures the release; this build is a little larger.
#[tokio::test]
async fn rows_of_ten_kilobytes_are_drained_in_little_memory() {
    const ROWS: i32 = 20_000;
    let world = World::new().await;
    let topic = world.topic("orders", 8, &[]).await;
    world
        .execute("ALTER TABLE outbox.message ALTER payload_bytes SET STORAGE EXTERNAL")
        .await;
    let sql = "INSERT INTO outbox.message (topic, key, payload_bytes)
               SELECT $1, 'key-' || n % 1000, substr($2::bytea, n * 40 + 1, 10000) FROM generate_series(1, $3::int) n";
    world
        .db
        .execute(sql, &[&topic, &noise(1_000_000), &ROWS])
        .await
        .expect("rows");
    let relay = world.relay().start_ready().await;
    world.drained(Duration::from_secs(60)).await;
    let peak = peak_memory(&relay) >> 20;
    assert!(peak < 52, "it had {peak} MiB");
}

/// A delayed row has a low id by the time it is due. Where the byte budget leaves it behind, nobody else must wait for it.
#[tokio::test]
async fn a_heavy_row_that_was_delayed_does_not_hold_up_its_lane() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[("max.message.bytes", "4000000")]).await;
    let delayed = world.insert(&topic, &[(Some("k"), noise(1_000_000))]).await[0];
    world
        .execute(&format!(
            "UPDATE outbox.message SET available_at = now() WHERE id = {delayed}"
        ))
        .await;
    for _ in 0..30 {
        world.insert(&topic, &[(Some("k"), noise(1_000_000))]).await;
    }
    let _relay = world
        .relay()
        .args(&["--max-in-flight-bytes", "8MiB"])
        .start_ready()
        .await;
    world.drained(SOON).await;
    assert_eq!(world.records(&topic).await.len(), 31);
}

#[tokio::test]
async fn a_light_row_does_not_wait_behind_a_lane_full_of_heavy_ones() {
    const HEAVY: i64 = 60;
    let world = World::new().await;
    let topic = world.topic("orders", 2, &[("max.message.bytes", "4000000")]).await;
    let key_of_lane = async |lane: i64| -> String {
        let sql = r#"SELECT 'key-' || n FROM generate_series(1, 10000) n
                     WHERE hashtextextended(('key-' || n) COLLATE "C", 0) & 63 = $1 LIMIT 1"#;
        world.db.query_one(sql, &[&lane]).await.expect("a key").get(0)
    };
    // The heavy lane comes first wherever lanes are counted.
    let (heavy, light) = (key_of_lane(0).await, key_of_lane(1).await);
    for _ in 0..HEAVY {
        world.insert(&topic, &[(Some(&heavy), noise(1_000_000))]).await;
    }
    let id = world.insert(&topic, &[(Some(&light), b"light".to_vec())]).await[0];
    let _relay = world.relay().args(&FEW_BYTES).start_ready().await;
    world.drained(SOON).await;
    let earlier = format!(
        "SELECT count(*) FROM outbox.message heavy JOIN outbox.message light ON light.id = {id}
         WHERE heavy.published_at < light.published_at"
    );
    let earlier = world.count(&earlier).await;
    assert!(earlier < HEAVY / 3, "{earlier} of {HEAVY} heavy rows went first");
}
