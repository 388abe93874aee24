//! Rows without a key: one claim names a batch of them, and nobody takes what it names.

use std::time::Duration;

use testkit::*;

#[tokio::test]
async fn many_claimers_at_once_take_each_row_once() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 8_000, 0).await;
    // Small batches by many hands: they meet all the time.
    let many = || world.relay().args(&["--tasks", "8", "--batch-rows", "25"]).start();
    let relays = [many(), many(), many(), many()];
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    history.assert_exact();
    assert_eq!(history.flagged, 0, "no lease ran out");
    for relay in &relays {
        assert_eq!(relay.metric("outboxd_rows_fenced_total"), Some(0.0));
    }
    world.until("SELECT count(*) = 0 FROM outbox.claim").await;
}

#[tokio::test]
async fn a_claim_left_behind_is_taken_over_bit_by_bit_and_each_row_of_it_is_flagged() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 50, 0).await;
    world.abandon_pending().await;
    world.fill(&topic, 50, 0).await;
    let relay = world.relay().args(&["--batch-rows", "7"]).start_ready().await;
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    history.assert_exact();
    assert_eq!(history.flagged, 50, "those that may have been sent, and no other");
    history.assert_counted_by(&[&relay]);
    world.until("SELECT count(*) = 0 FROM outbox.claim").await;
}

#[tokio::test]
async fn a_late_mark_under_way_keeps_no_claim_waiting() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 30, 0).await;
    world.abandon_pending().await;
    let late_mark = world.session().await;
    let begun = late_mark.batch_execute("BEGIN; DELETE FROM outbox.claim").await;
    begun.expect("as a mark begins");
    world.fill(&topic, 100, 0).await;
    let relay = world.relay().start_ready().await;
    let others = "SELECT count(*) FROM outbox.message WHERE published_at IS NOT NULL";
    world.until(&format!("({others}) >= 100")).await;
    assert_eq!(world.count(others).await, 100, "what the mark is about is left to it");
    late_mark.batch_execute("ROLLBACK").await.expect("it fails");
    world.drained(SOON).await;
    assert_eq!(world.history(&topic).await.flagged, 30);
    assert_eq!(
        relay.metric("outboxd_database_errors_total"),
        Some(0.0),
        "no claim waited"
    );
}

#[tokio::test]
async fn a_claim_whose_rows_are_gone_is_deleted() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    world.fill(&topic, 3, 0).await;
    world.abandon_pending().await;
    // By an operator: one discarded, one given up, one that is known to have arrived.
    world
        .execute(
            "DELETE FROM outbox.message WHERE id = 1;
             UPDATE outbox.message SET dead_at = now() WHERE id = 2;
             UPDATE outbox.message SET published_at = now() WHERE id = 3;",
        )
        .await;
    let _relay = world.relay().start_ready().await;
    world.until("SELECT count(*) = 0 FROM outbox.claim").await;
}

/// It reads so slowly that its claim is under way for as long as the test lasts.
#[tokio::test]
async fn a_worker_that_does_not_read_its_rows_keeps_nobody_from_theirs() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let rows: Vec<_> = (0..30).map(|_| (None, noise(700_000))).collect();
    let proxy = Proxy::to_postgres(&world.database_url);
    let _slow = world.relay_through(&proxy).args(&["--tasks", "1"]).start_ready().await;
    proxy.to_client(Link {
        bytes_per_second: Some(20_000),
        ..Link::default()
    });
    world.insert(&topic, &rows).await;
    world.until("SELECT count(*) = 1 FROM outbox.claim").await;
    world.fill(&topic, 100, 0).await;
    let other = world.relay().start_ready().await;
    world
        .until("SELECT count(*) = 100 FROM outbox.message WHERE published_at IS NOT NULL AND id > 30")
        .await;
    assert_eq!(
        other.metric("outboxd_database_errors_total"),
        Some(0.0),
        "nobody waited"
    );
}

/// While the vacuum horizon is pinned, whatever a claim left behind is there for good.
#[tokio::test]
async fn claims_do_not_scan_all_that_have_ended() {
    const ROUNDS: usize = 80;
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let _relay = world.relay().start_ready().await;
    let forgotten = world.session().await;
    forgotten
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM outbox.claim LIMIT 1")
        .await
        .expect("a snapshot");
    let entries_read = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'claim'";
    let mut reads = Vec::new();
    for _ in 0..ROUNDS {
        let before = world.count(entries_read).await;
        for _ in 0..5 {
            world.fill(&topic, 5, 0).await;
            world.drained(SOON).await;
        }
        reads.push(world.count(entries_read).await - before);
    }
    println!("entries read per round: {reads:?}");
    // Statistics arrive once a second or so, in lumps. Each sum has several.
    let early: i64 = reads[10..30].iter().sum();
    let late: i64 = reads[ROUNDS - 20..].iter().sum();
    assert!(early > 0 && late < 2 * early, "claims read more and more: {reads:?}");
}

const BACKLOG: usize = 120_000;

/// Index entries read for each row of a backlog that was there before, while it is drained by a relay; and what came of it.
async fn scanned_in_a_standing_backlog(world: &World, relay: RelayBuilder) -> (f64, History) {
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, BACKLOG, 0).await;
    world.execute("VACUUM ANALYZE outbox.message").await;
    let mut relay = relay.start();
    world.drained(SOON).await;
    relay.stop();
    world.relays_sessions_end().await;
    let entries_read = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'message'";
    let a_row = world.count(entries_read).await as f64 / BACKLOG as f64;
    println!("{a_row:.1} index entries read for each row");
    assert!(a_row > 1.0, "they are counted");
    (a_row, world.history(&topic).await)
}

/// Nobody writes, so nothing but the claims themselves says that the floor should follow.
#[tokio::test]
async fn claims_do_not_scan_what_is_published_of_a_standing_backlog() {
    let world = World::new().await;
    let (a_row, history) = scanned_in_a_standing_backlog(&world, world.relay()).await;
    assert!(a_row < 30.0, "{a_row:.1} index entries read for each row");
    history.assert_exact();
}

/// An answer that took long was asked of a busy server, which is left alone for a while; not for the whole of a backlog. In small batches,
/// each of which scans all that is above the floor, so that it takes longer than that while.
#[tokio::test]
async fn the_floor_follows_a_standing_backlog_also_after_a_slow_answer_who_writes() {
    let world = World::new().await;
    let proxy = Proxy::to_postgres(&world.database_url);
    proxy.spoil_answer("pg_locks", Answer::Late(Duration::from_millis(500)));
    let relay = world
        .relay_through(&proxy)
        .args(&["--tasks", "1", "--batch-rows", "500"]);
    let (a_row, history) = scanned_in_a_standing_backlog(&world, relay).await;
    assert!(a_row < 30.0, "{a_row:.1} index entries read for each row");
    // Some came again, and said so, on a machine that was kept from its processors.
    history.assert_duplicates_at_most(BACKLOG);
}

/// As where another worker has released a parked topic: rows below a floor that this one has in mind come free.
#[tokio::test]
async fn what_another_worker_has_lowered_is_known_at_the_next_renewal() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let relay = world.relay().start_ready().await;
    world.fill(&topic, 2, 0).await;
    world.drained(SOON).await;
    world.unordered_floor_passes(&topic, 2).await;
    world
        .execute("UPDATE outbox.message SET published_at = NULL WHERE id = 1")
        .await;
    world
        .execute("UPDATE outbox.lane SET floor = 0, epoch = epoch + 1 WHERE lane = -1")
        .await;
    // It is renewed six times in a lease. Everything of the rows without a key is read anew, too, but only once a minute.
    world.drained(LEASE).await;
    assert_eq!(
        relay.metric("outboxd_rescan_found_rows_total"),
        Some(0.0),
        "not by the safety net"
    );
}
