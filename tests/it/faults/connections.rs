//! Connections to PostgreSQL end, and answers with them.

use std::time::{Duration, Instant};

use testkit::*;

/// Ends the connections of every relay of this world.
const KILL: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE datname = current_database() AND application_name = 'outboxd'";

#[tokio::test]
async fn connections_killed_ten_times_a_second_make_no_crash_loop() {
    let fault = Fault::new(13, "connections are killed ten times a second", "no crash loop");
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let relays = [world.relay().start_ready().await, world.relay().start_ready().await];
    let writes = BackgroundWrites::start(&world, &topic);
    world
        .until("(SELECT count(*) > 500 FROM outbox.message WHERE published_at IS NOT NULL)")
        .await;
    let mut killed = 0;
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        killed += world.count(KILL).await;
        relays.iter().for_each(Relay::assert_alive);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let over = fault.over();
    assert!(killed > 50, "{killed} connections were killed");
    writes.stop();
    let recovered = over.until_drained(&world).await;
    let history = world.assert_promises_kept(&topic, &[&relays[0], &relays[1]]).await;
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn postgresql_away_for_long_is_asked_for_seldom_and_not_in_step() {
    let fault = Fault::new(
        17,
        "PostgreSQL is away for 20 s",
        "alive, no busy loop, jittered reconnects",
    );
    let postgres = OwnPostgres::start();
    let mut world = World::on(&postgres.url, &Stack::get().kafka).await;
    let topic = world.topic("orders", 4, &[]).await;
    let proxy = Proxy::to_postgres(&postgres.url);
    let relay = world.relay_through(&proxy).start_ready().await;
    let writes = BackgroundWrites::start(&world, &topic);
    world
        .until("(SELECT count(*) > 500 FROM outbox.message WHERE published_at IS NOT NULL)")
        .await;
    postgres.crash();
    let (crashed, cpu) = (Instant::now(), relay.cpu());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let (away, cpu) = (crashed.elapsed(), relay.cpu() - cpu);
    let asked: Vec<_> = proxy.accepted().into_iter().filter(|at| *at > crashed).collect();
    relay.assert_alive();
    postgres.restart();
    let over = fault.over();
    world.db = world.session().await;
    writes.stop();
    let recovered = over.until_drained(&world).await;
    println!("asked {} times, {cpu:?} of processor time in {away:?}", asked.len());
    assert!(
        asked.len() < 8 * away.as_secs() as usize,
        "asked {} times in {away:?}",
        asked.len()
    );
    assert!(cpu < away / 20, "{cpu:?} of processor time in {away:?}");
    assert_jittered(&asked);
    let history = world.assert_promises_kept(&topic, &[&relay]).await;
    recovered.record(history.duplicates);
}

/// Many relays must not come back in step: the pauses of one differ.
fn assert_jittered(asked: &[Instant]) {
    let mut pauses: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    pauses.sort();
    // The last ones: by then the lease is lost, and only registration is tried again.
    let (shortest, longest) = (pauses[pauses.len() / 4], pauses[pauses.len() * 3 / 4]);
    assert!(longest > shortest.mul_f64(1.2), "from {shortest:?} to {longest:?}");
}

/// Reads the rows of a claim that has just been committed.
const CLAIMED: &str = "SELECT unnest(c.maybe_sent)";

#[tokio::test]
async fn a_claim_whose_answer_is_lost_leaves_leases_that_expire() {
    let fault = Fault::new(15, "a claim commits, its answer is lost", "the orphan lease expires");
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let proxy = Proxy::to_postgres(&world.database_url);
    let relay = world.relay_through(&proxy).start_ready().await;
    // Past the first claim of all, which finds nothing.
    world.fill(&topic, 1, 0).await;
    world.drained(SOON).await;
    relay.signal("STOP");
    world.fill(&topic, 500, 0).await;
    proxy.spoil_answer(CLAIMED, Answer::Cut);
    relay.signal("CONT");
    proxy.spoiled().await;
    let over = fault.over();
    let orphan =
        "SELECT count(*) FROM outbox.claim c JOIN outbox.message m ON m.id = ANY (c.ids) WHERE m.published_at IS NULL";
    assert!(world.count(orphan).await > 0, "claimed, and nobody knows");
    let recovered = over.until_drained(&world).await;
    let history = world.assert_promises_kept(&topic, &[&relay]).await;
    assert_eq!(history.duplicates, 0, "it was never sent");
    recovered.record(history.duplicates);
}

#[tokio::test]
async fn lanes_taken_by_a_take_whose_answer_is_lost_come_back_into_use() {
    let fault = Fault::new(15, "a take commits, its answer is lost", "the lanes are taken again");
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world.fill(&topic, 500, 50).await;
    let proxy = Proxy::to_postgres(&world.database_url);
    proxy.spoil_answer("SET owner = $1", Answer::Cut);
    let relay = world.relay_through(&proxy).start();
    proxy.spoiled().await;
    fault.over().until_drained(&world).await;
    let history = world.assert_promises_kept(&topic, &[&relay]).await;
    assert_eq!(history.duplicates, 0, "nothing was sent under the take nobody knew of");
}

/// A mark commits and its answer is lost, with the connection or in silence.
async fn mark_answered_by_silence(answer: Answer, mark: &str, keys: usize) -> Recovered {
    let fault = Fault::new(
        16,
        "a mark commits, its answer is lost",
        "marking again is harmless: no duplicate",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let proxy = Proxy::to_postgres(&world.database_url);
    let relay = world.relay_through(&proxy).start_ready().await;
    proxy.spoil_answer(mark, answer);
    world.fill(&topic, 500, keys).await;
    proxy.spoiled().await;
    let over = fault.over();
    world.fill(&topic, 500, keys).await;
    let recovered = over.until_drained(&world).await;
    let history = world.assert_promises_kept(&topic, &[&relay]).await;
    assert_eq!(history.duplicates, 0, "what is marked is not sent again");
    recovered
}

const MARK_LANES: &str = "SET published_at = clock_timestamp(), available_at = NULL\nWHERE id = ANY ($5::bigint[])";

#[tokio::test]
async fn a_mark_whose_answer_is_lost_is_repeated_without_harm() {
    mark_answered_by_silence(Answer::Cut, MARK_LANES, 50).await.record(0);
}

#[tokio::test]
async fn a_mark_answered_by_silence_is_repeated_without_harm() {
    mark_answered_by_silence(Answer::Silenced, MARK_LANES, 50).await;
}

#[tokio::test]
async fn a_mark_of_unordered_rows_whose_answer_is_lost_is_repeated_without_harm() {
    mark_answered_by_silence(Answer::Cut, "SET published_at", 0).await;
}

/// A relay that has claimed unordered rows, which `insert` wrote, and was answered so late that what is left of the lease does
/// not cover a send. Everything is published in the end.
async fn claim_answered_too_late(insert: impl AsyncFnOnce(&World, &str)) -> (World, String, Relay) {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let proxy = Proxy::to_postgres(&world.database_url);
    let relay = world.relay_through(&proxy).start_ready().await;
    // Past the first claim of all, which finds nothing.
    world.fill(&topic, 1, 0).await;
    world.drained(SOON).await;
    // Stopped, or a poll that finds nothing would be the next.
    relay.signal("STOP");
    insert(&world, &topic).await;
    proxy.spoil_answer(CLAIMED, Answer::Late(LEASE / 2));
    relay.signal("CONT");
    proxy.spoiled().await;
    world.drained(SOON).await;
    (world, topic, relay)
}

#[tokio::test]
async fn rows_of_a_claim_answered_too_late_are_not_sent_under_it() {
    let (world, topic, relay) = claim_answered_too_late(async |world, topic| world.fill(topic, 20, 0).await).await;
    world.assert_promises_kept(&topic, &[&relay]).await;
    let history = world.history(&topic).await;
    assert_eq!(
        (history.duplicates, history.flagged),
        (0, 0),
        "returned unsent, then sent once"
    );
    assert_eq!(
        relay.metric("outboxd_rows_unacknowledged_total"),
        Some(20.0),
        "not sent at first"
    );
}

#[tokio::test]
async fn rows_taken_over_and_then_not_sent_stay_possible_duplicates() {
    let left_by_a_worker_that_died_with_them_under_way = async |world: &World, topic: &str| {
        world.execute("BEGIN").await;
        world.fill(topic, 20, 0).await;
        world.abandon_pending().await;
        world.execute("COMMIT").await;
    };
    let (world, topic, relay) = claim_answered_too_late(left_by_a_worker_that_died_with_them_under_way).await;
    assert_eq!(
        relay.metric("outboxd_rows_unacknowledged_total"),
        Some(20.0),
        "not sent at first"
    );
    assert_eq!(
        world.history(&topic).await.flagged,
        20,
        "what may have been sent outlasts the claim"
    );
}

#[tokio::test]
async fn a_refusal_written_twice_because_its_answer_was_lost_counts_once() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[SMALL]).await;
    let proxy = Proxy::to_postgres(&world.database_url);
    let late_retries = [
        "--tasks",
        "1",
        "--retry-backoff-min",
        "60s",
        "--retry-backoff-max",
        "60s",
    ];
    let relay = world.relay_through(&proxy).args(&late_retries).start_ready().await;
    // Claims of rows without a key end with a COMMIT, too, and find nothing: there are some while lanes are new.
    let mut last = (0.0, Instant::now());
    eventually(SOON, "an end of claims of rows without a key", async || {
        let claims = relay.metric("outboxd_claim_seconds_count{stream=\"unordered\"}")?;
        if claims != last.0 {
            last = (claims, Instant::now());
        }
        (claims > 0.0 && last.1.elapsed() > Duration::from_millis(500)).then_some(())
    })
    .await;
    proxy.spoil_answer("COMMIT", Answer::Cut);
    world
        .execute(&format!(
            "INSERT INTO outbox.message (topic, key, payload_bytes) VALUES ('{topic}', 'a', {TOO_LARGE})"
        ))
        .await;
    proxy.spoiled().await;
    assert_eq!(world.count("SELECT sum(attempts) FROM outbox.message").await, 1);
    // The lane goes on once the refusal is written again.
    let neighbour = &world.keys_of_same_lane("a", 1).await[0];
    let behind = world.insert(&topic, &[(Some(neighbour.as_str()), vec![1])]).await[0];
    world.published(behind).await;
    assert!(relay.logged("cannot write what became of a batch"));
    assert_eq!(world.count("SELECT sum(attempts) FROM outbox.message").await, 1);
    world.held(1).await;
}
