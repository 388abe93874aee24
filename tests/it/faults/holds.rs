//! A held key: handed over, and cheap to scan past.

use std::time::Duration;

use outboxd::outbox::statement;
use testkit::*;

/// Refused rows are tried again twice a second, without end.
fn endless_retries(world: &World) -> RelayBuilder {
    world.relay().args(&[
        "--max-attempts",
        "1000",
        "--retry-backoff-min",
        "500ms",
        "--retry-backoff-max",
        "500ms",
    ])
}

#[tokio::test]
async fn rows_behind_a_hold_are_published_though_its_owner_died_right_after_releasing_it() {
    let fault = Fault::new(
        49,
        "releases a hold and dies before its floor is stored again",
        "the rows behind it are published, in order",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[("max.message.bytes", "5000")]).await;
    let mut owner = endless_retries(&world)
        .failpoint("after_hold_release")
        .start_ready()
        .await;
    let mut rows = vec![(Some("k"), noise(20_000))];
    rows.extend((0..50u8).map(|n| (Some("k"), vec![n])));
    let ids = world.insert(&topic, &rows).await;
    world.held(1).await;
    world.floor_passes(ids[50]).await;

    alter_topic(&world.kafka, &topic, "max.message.bytes", "1048588").await;
    owner.at_failpoint("after_hold_release").await;
    world.held(0).await;
    owner.kill();
    let over = fault.over();
    assert_eq!(world.pending().await, 50, "only the head went out");
    // A poll from the floor of another lane might find them as well, for as long as that one is lower.
    let lowered = format!(
        "SELECT floor < {0} FROM outbox.lane WHERE lane = (SELECT lane FROM outbox.message WHERE id = {0})",
        ids[1]
    );
    assert!(
        world.is_true(&lowered).await,
        "its lane's floor went back with the release"
    );

    let successor = world.relay().start_ready().await;
    let recovered = over.until_drained(&world).await;
    let history = world.history(&topic).await;
    history.assert_duplicates_at_most(1);
    // Found from the stored floor, not by the safety net.
    history.assert_counted_by(&[&successor]);
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn a_floor_on_its_way_when_a_hold_is_released_is_not_stored_any_more() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[("max.message.bytes", "5000")]).await;
    // Who is stopped there does not renew: the lease must outlast it.
    let builder = endless_retries(&world).args(&["--lease", "40s"]);
    let builder = builder.failpoint("before_store_floors").failpoint("after_hold_release");
    let mut owner = builder.start_ready().await;
    let mut rows = vec![(Some("k"), noise(20_000))];
    rows.extend((0..50u8).map(|n| (Some("k"), vec![n])));
    world.insert(&topic, &rows).await;
    world.held(1).await;
    owner.at_failpoint("before_store_floors").await;

    alter_topic(&world.kafka, &topic, "max.message.bytes", "1048588").await;
    owner.at_failpoint("after_hold_release").await;
    world
        .execute("CREATE TABLE before_store AS SELECT lease_until FROM outbox.worker")
        .await;
    owner.continue_from("before_store_floors");
    // The lease task does one thing after the other: when it renews again, it has stored what it was about to.
    world
        .until("EXISTS (SELECT FROM outbox.worker w, before_store b WHERE w.lease_until > b.lease_until)")
        .await;
    owner.kill();
    assert_eq!(world.pending().await, 50, "only the head went out");

    let successor = world.relay().start_ready().await;
    world.drained(Duration::from_secs(90)).await;
    world.history(&topic).await.assert_sound();
    assert_eq!(
        successor.metric("outboxd_rescan_found_rows_total"),
        Some(0.0),
        "found from the stored floor, not by the safety net"
    );
}

#[tokio::test]
async fn the_head_of_a_hold_that_a_dead_owner_had_sent_says_that_it_may_be_a_repeat() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[("max.message.bytes", "5000")]).await;
    let mut first = endless_retries(&world).start_ready().await;
    let ids = world.insert(&topic, &[(Some("k"), noise(20_000))]).await;
    world.held(1).await;
    first.stop();
    alter_topic(&world.kafka, &topic, "max.message.bytes", "1048588").await;

    let mut owner = endless_retries(&world).failpoint("after_head_sent").start_ready().await;
    owner.at_failpoint("after_head_sent").await;
    assert_eq!(world.records(&topic).await.len(), 1, "the head is out");
    owner.kill();

    let _successor = endless_retries(&world).start_ready().await;
    world.published(ids[0]).await;
    let history = world.history(&topic).await;
    history.assert_sound();
    assert_eq!((history.duplicates, history.unflagged_duplicates), (1, 0));
}

/// A head is sent beside the batches of its lane. A successor that had the lane meanwhile would send it, too, and the copy that comes last
/// might be the one that knows of no other.
#[tokio::test]
async fn a_lane_whose_head_is_out_is_not_handed_over() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[("max.message.bytes", "5000")]).await;
    let mut first = endless_retries(&world).start_ready().await;
    let ids = world.insert(&topic, &[(Some("k"), noise(20_000))]).await;
    world.held(1).await;
    first.stop();
    let owner = endless_retries(&world).args(&["--shutdown-grace", "1s"]);
    alter_topic(&world.kafka, &topic, "max.message.bytes", "1048588").await;
    let mut owner = owner.failpoint("after_head_sent").start_ready().await;
    owner.at_failpoint("after_head_sent").await;
    owner.signal("TERM");
    owner.wait(SOON);
    let owned = "SELECT count(*) FROM outbox.lane WHERE owner IS NOT NULL";
    assert_eq!(world.count(owned).await, 1, "the others are free");
    let _successor = endless_retries(&world).start_ready().await;
    world.published(ids[0]).await;
    let history = world.history(&topic).await;
    assert_eq!((history.duplicates, history.unflagged_duplicates), (1, 0));
}

/// Index entries and rows of the outbox read so far, by sessions that have ended.
async fn rows_read_in_the_end(world: &World) -> i64 {
    world.relays_sessions_end().await;
    world.rows_read().await
}

#[tokio::test]
async fn a_claim_does_not_scan_the_rows_of_a_held_key() {
    const BEHIND: i64 = 100_000;
    const OTHERS: usize = 100;
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[("max.message.bytes", "5000")]).await;
    let mut relay = endless_retries(&world).start_ready().await;
    world.insert(&topic, &[(Some("k"), noise(20_000))]).await;
    world.held(1).await;
    world
        .execute(&format!(
            "INSERT INTO outbox.message (topic, key, payload)
             SELECT '{topic}', 'k', to_jsonb(n) FROM generate_series(1, {BEHIND}) n"
        ))
        .await;
    world.floor_passes(BEHIND + 1).await;
    relay.stop();

    let before = rows_read_in_the_end(&world).await;
    let mut relay = endless_retries(&world).start_ready().await;
    for other in world.keys_of_same_lane("k", OTHERS as i64).await {
        let ids = world.insert(&topic, &[(Some(other.as_str()), b"x".to_vec())]).await;
        world.published(ids[0]).await;
    }
    relay.stop();
    let read = rows_read_in_the_end(&world).await - before;
    assert!(
        read < 2_000 * OTHERS as i64,
        "{read} rows read to publish {OTHERS}: the held ones are scanned"
    );

    let relay = endless_retries(&world).start_ready().await;
    alter_topic(&world.kafka, &topic, "max.message.bytes", "1048588").await;
    world.drained(Duration::from_secs(120)).await;
    let history = world.history(&topic).await;
    history.assert_exact();
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
}

/// A topic that refuses every key has thousands of holds in a lane, and each of its rows is looked up among them.
#[tokio::test]
async fn a_row_of_a_held_topic_does_not_cost_a_scan_of_its_holds() {
    const HELD: i64 = 3_000;
    const OTHERS: i64 = 300;
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let lane = "(hashtextextended('k' COLLATE \"C\", 0) & 63)::smallint";
    world
        .execute(&format!(
            "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
             SELECT {lane}, '{topic}', 'k:held-' || n, 0, 'refused', 'infinity' FROM generate_series(1, {HELD}) n"
        ))
        .await;
    let others = world.keys_of_same_lane("k", OTHERS).await;
    let rows: Vec<_> = others.iter().map(|key| (Some(key.as_str()), b"x".to_vec())).collect();
    world.insert(&topic, &rows).await;
    let mut relay = endless_retries(&world).start_ready().await;
    world.drained(SOON).await;
    // By polls, too.
    for key in &others[..200] {
        let ids = world.insert(&topic, &[(Some(key.as_str()), b"y".to_vec())]).await;
        world.published(ids[0]).await;
    }
    relay.stop();
    world.relays_sessions_end().await;
    let read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relid = 'outbox.hold'::regclass";
    let read = world.count(read).await;
    // Reading them all a few times a second, to try them again, is no scan.
    assert!(
        read < 100 * HELD,
        "{read} holds read to publish {OTHERS} rows of other keys"
    );
}

/// The head of each key, and a row behind it.
async fn hold_each(world: &World, topic: &str, keys: &[String], head_bytes: impl Fn(usize) -> usize) {
    let held = world.holds().await;
    let heads = keys.iter().enumerate();
    let heads: Vec<_> = heads
        .map(|(place, key)| (Some(key.as_str()), noise(head_bytes(place))))
        .collect();
    world.insert(topic, &heads).await;
    world.held(held + keys.len() as i64).await;
    let behind: Vec<_> = keys.iter().map(|key| (Some(key.as_str()), b"x".to_vec())).collect();
    let behind = world.insert(topic, &behind).await;
    world.floor_passes(behind[keys.len() - 1]).await;
}

/// After each release the lane scans again all that was published since the hold was taken.
#[tokio::test]
async fn keys_of_a_lane_that_are_due_together_are_released_together() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[("max.message.bytes", "5000")]).await;
    let mut relay = endless_retries(&world).start_ready().await;
    let keys = world.keys_of_same_lane("k", 40).await;
    // In two halves, so that they were held at different floors; every other head stays refused.
    let bytes = |place: usize| if place.is_multiple_of(2) { 20_000 } else { 60_000 };
    hold_each(&world, &topic, &keys[..20], bytes).await;
    hold_each(&world, &topic, &keys[20..], bytes).await;
    relay.stop();

    alter_topic(&world.kafka, &topic, "max.message.bytes", "30000").await;
    world
        .execute("UPDATE outbox.hold SET retry_at = clock_timestamp(), failures = 1")
        .await;
    let epoch = "SELECT max(epoch) FROM outbox.lane WHERE lane = (SELECT max(lane) FROM outbox.hold)";
    let epoch_before = world.count(epoch).await;
    let relay = endless_retries(&world).start_ready().await;
    world.held(20).await;
    // One is the taking of the lane; a slow machine may make several of one.
    let releases = world.count(epoch).await - epoch_before - 1;
    assert!((1..=10).contains(&releases), "{releases} releases of 20 keys of a lane");
    world.until("SELECT min(failures) > 1 FROM outbox.hold").await;
    let waiting = "SELECT count(*) FROM outbox.message WHERE published_at IS NULL";
    world.until(&format!("({waiting}) = 40")).await;
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
    alter_topic(&world.kafka, &topic, "max.message.bytes", "1048588").await;
    world.drained(SOON).await;
    world.history(&topic).await.assert_exact();
}

#[tokio::test]
async fn a_topic_that_stays_parked_inherits_what_a_key_kept_back_and_one_that_goes_with_it_is_gone() {
    let world = World::new().await;
    let unhold = |topics: &[&str], units: &[&str]| {
        let array = |names: &[&str]| format!("ARRAY['{}']", names.join("','"));
        let unhold = statement::text("delete_holds");
        unhold
            .replace("$1", "3")
            .replace("$2", &array(topics))
            .replace("$3", &array(units))
            .replace("$4", "10")
    };
    world
        .execute(
            "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
             SELECT 3, topic, unit, 50, 'sick', 'infinity'
             FROM (VALUES ('a', ''), ('a', 'k:1'), ('a', 'k:2'), ('b', ''), ('b', 'k:1'), ('c', '')) AS held (topic, unit)",
        )
        .await;
    world.execute(&unhold(&["a", "b", "b"], &["k:1", "k:1", ""])).await;
    let left =
        "SELECT string_agg(topic || ' ' || unit || ' ' || resume_floor, ', ' ORDER BY topic, unit) FROM outbox.hold";
    assert_eq!(world.text(left).await, "a  10, a k:2 50, c  50");
}

#[tokio::test]
async fn a_topic_with_thousands_of_holds_that_are_due_does_not_keep_others_from_being_read() {
    let world = World::new().await;
    world
        .execute(
            "WITH worker AS (
                 INSERT INTO outbox.worker (id, name, version, lease_until, incarnation)
                 VALUES (gen_random_uuid(), 'a', '1', 'infinity', now()) RETURNING id
             )
             UPDATE outbox.lane SET owner = worker.id FROM worker WHERE lane >= 0",
        )
        .await;
    world
        .execute(
            "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
             SELECT n % 64, 'sick', 'k:' || n, 0, 'refused', now() - interval '1 hour' FROM generate_series(1, 2000) n
             UNION ALL SELECT 1, 'well', 'k:due', 0, 'refused', now() - interval '1 second'
             UNION ALL SELECT 1, 'well', 'k:next', 0, 'refused', now() + interval '1 hour'",
        )
        .await;
    let holds = statement::text("due_keys")
        .replace("$1", "(SELECT id FROM outbox.worker)")
        .replace("$2", "(SELECT incarnation FROM outbox.server)")
        .replace("$4", "'{}'")
        .replace("$5", "'{}'")
        .replace("$6", "'{}'");
    let read = |most: i64| {
        let holds = holds.replace("$3", &most.to_string());
        format!("SELECT string_agg(DISTINCT topic || ' ' || (wait <= 0), ', ') FROM ({holds}) AS read")
    };
    assert_eq!(world.text(&read(1024)).await, "sick true, well true");
    assert_eq!(world.text(&read(5000)).await, "sick true, well false, well true");
    let soonest = holds.replace("$3", "2");
    let last = format!("SELECT unit FROM ({soonest}) AS read OFFSET 1");
    assert_eq!(
        world.text(&last).await,
        "k:due",
        "the second of the sick topic comes later"
    );
}

#[tokio::test]
async fn a_scan_longer_than_the_statement_timeout_resumes_where_it_stopped() {
    const ROWS: i64 = 600_000;
    let fault = Fault::new(
        64,
        "a scan longer than the statement timeout: a topic is held from the start, and released behind 600,000 published rows of its lane",
        "resumes where it stopped",
    );
    let world = World::new().await;
    let healthy = world.topic("healthy", 1, &[]).await;
    let missing = format!("{}.missing", world.name);
    let mut relay = world.relay().start_ready().await;
    world.insert(&missing, &[(Some("k"), b"first".to_vec())]).await;
    world.held(1).await;
    relay.stop();
    // As if they had been published meanwhile.
    let insert = format!(
        "INSERT INTO outbox.message (topic, key, payload) SELECT '{healthy}', 'k', '1' FROM generate_series(1, {ROWS})"
    );
    let publish = format!("UPDATE outbox.message SET published_at = clock_timestamp() WHERE topic = '{healthy}'");
    let pass = "UPDATE outbox.lane SET floor = (SELECT max(id) FROM outbox.message)";
    for sql in [&insert, &publish, "VACUUM ANALYZE outbox.message", pass] {
        world.execute(sql).await;
    }
    let last = world.insert(&missing, &[(Some("k"), b"last".to_vec())]).await[0];
    let short_timeout = format!("{}?options=-c%20statement_timeout%3D100ms", world.database_url);
    // Straight to the server: PgBouncer refuses a session that brings `options`.
    let relay = RelayBuilder::new(&short_timeout, &world.kafka).start_ready().await;
    world.held(1).await;
    assert_eq!(world.topic("missing", 1, &[]).await, missing);
    let over = fault.over();
    world.published(last).await;
    let recovered = over.recovered();
    world.history(&missing).await.assert_exact();
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
    recovered.record(0);
}
