//! The sequence that ids are drawn from is changed while relays run.

use std::time::Duration;

use testkit::*;
use tokio_postgres::Client;

/// Sooner than the safety net, which would find a forgotten row half a minute later.
const COMES: Duration = Duration::from_secs(10);

async fn insert(session: &Client, topic: &str, key: &str) -> i64 {
    let insert = "INSERT INTO outbox.message (topic, key, payload) VALUES ($1, $2, '1') RETURNING id";
    let row = session.query_one(insert, &[&topic, &key]).await.expect("inserted");
    row.get(0)
}

/// Waits until the relay has seen what became of all ids up to this one: its gauge of the floor's age is 0 then, and floors are stored.
async fn floors_pass(world: &World, id: i64) {
    world
        .until(&format!("SELECT min(floor) >= {id} FROM outbox.lane WHERE lane >= 0"))
        .await;
}

/// Two sessions draw blocks of ids; one commits all of its own while the other goes on handing out lower ones.
#[tokio::test]
async fn ids_of_a_cache_are_published_though_higher_ones_were_before_and_floors_wait_for_the_repair() {
    let fault = Fault::new(
        60,
        "the id sequence is given a cache, or restarted, while relays run",
        "noticed, said, and nothing is lost",
    );
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let relay = world.relay().start_ready().await;
    world.fill(&topic, 500, 50).await;
    world.drained(SOON).await;
    let faulty = async |is_faulty: f64| {
        eventually(SOON, "the state of the sequence to be noticed", async || {
            (relay.metric("outboxd_sequence_misconfigured")? == is_faulty).then_some(())
        })
        .await;
    };
    faulty(0.0).await;
    world.execute("ALTER SEQUENCE outbox.message_id_seq CACHE 50").await;
    let (slow, quick) = (world.session().await, world.session().await);
    let first = insert(&slow, &topic, "slow").await;
    for _ in 0..49 {
        let id = insert(&quick, &topic, "quick").await;
        assert!(id > first + 49, "of another block");
    }
    world.fill(&topic, 500, 50).await;
    world.drained(SOON).await;
    faulty(1.0).await;
    assert!(relay.logged("CACHE 1"), "it is said how to repair it");
    // What would move a floor past the rest of the block has had its chance: a floor of the highest id would be stored by now.
    let stored = "SELECT (extract(epoch FROM max(lease_until)) * 1000)::bigint FROM outbox.worker";
    let goal = world.count(stored).await + 11_000;
    eventually(SOON, "floors to be stored", async || {
        world.fill(&topic, 10, 5).await;
        world.drained(SOON).await;
        (world.count(stored).await >= goal).then_some(())
    })
    .await;
    for n in 1..49 {
        assert_eq!(insert(&slow, &topic, "slow").await, first + n, "old ids");
    }
    world.drained(COMES).await;
    world.execute("ALTER SEQUENCE outbox.message_id_seq CACHE 1").await;
    let highest = world.count("SELECT last_value FROM outbox.message_id_seq").await;
    assert!(
        insert(&slow, &topic, "slow").await > highest,
        "no session has old ids after the repair"
    );
    faulty(0.0).await;
    world.fill(&topic, 500, 50).await;
    let recovered = fault.over().until_drained(&world).await;
    floors_pass(&world, highest).await;
    let history = world.history(&topic).await;
    history.assert_exact();
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
    recovered.record(history.duplicates);
}

/// ALTER SEQUENCE waits for every open transaction that has drawn an id, and cached ids are gone when it is done. So after
/// a repair floors may move at once.
#[tokio::test]
async fn cached_ids_do_not_outlive_a_repair_of_the_sequence() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    world.execute("ALTER SEQUENCE outbox.message_id_seq CACHE 50").await;
    let session = world.session().await;
    session.batch_execute("BEGIN").await.expect("begun");
    let id = insert(&session, &topic, "k").await;
    let repair = world.session().await;
    let alter = "SET lock_timeout = '500ms'; ALTER SEQUENCE outbox.message_id_seq CACHE 1";
    assert_eq!(refusal_of(&repair, alter).await.code().code(), "55P03", "it waits");
    assert_eq!(insert(&session, &topic, "k").await, id + 1);
    session.batch_execute("COMMIT").await.expect("committed");
    repair.batch_execute(alter).await.expect("repaired");
    let highest = world.count("SELECT last_value FROM outbox.message_id_seq").await;
    assert_eq!(insert(&session, &topic, "k").await, highest + 1);
}

/// Published rows are gone, so their ids are free to come again.
#[tokio::test]
async fn rows_are_published_whose_ids_come_again_after_the_sequence_was_restarted() {
    // Fewer rows after the restart than before it, then more, so that ids have passed the floors again before any poll.
    for again in [100, 2_000] {
        let world = World::new().await;
        let topic = world.topic("orders", 4, &[]).await;
        let relay = world.relay().args(&["--on-published", "delete"]).start_ready().await;
        world.fill(&topic, 500, 50).await;
        world.fill(&topic, 200, 0).await;
        world.drained(SOON).await;
        floors_pass(&world, 500).await;
        world
            .execute(&format!(
                "BEGIN; ALTER SEQUENCE outbox.message_id_seq RESTART WITH 1;
                 INSERT INTO outbox.message (topic, key, payload)
                 SELECT '{topic}', CASE WHEN n % 3 > 0 THEN 'again' || n % 50 END, '1' FROM generate_series(1, {again}) n;
                 COMMIT"
            ))
            .await;
        world.drained(COMES).await;
        assert!(relay.logged("the id sequence was restarted"), "it is said");
        world.fill(&topic, 100, 50).await;
        world.drained(SOON).await;
        let arrived = world.records(&topic).await.len();
        assert_eq!(arrived, 800 + again, "each once");
        assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
    }
}

/// The same while no relay runs: stored floors above every id drawn are not believed.
#[tokio::test]
async fn rows_are_published_whose_ids_came_again_while_no_relay_was_there() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let mut relay = world.relay().args(&["--on-published", "delete"]).start_ready().await;
    world.fill(&topic, 500, 50).await;
    world.fill(&topic, 200, 0).await;
    world.drained(SOON).await;
    floors_pass(&world, 500).await;
    relay.stop();
    world
        .execute("ALTER SEQUENCE outbox.message_id_seq RESTART WITH 1")
        .await;
    world.fill(&topic, 100, 50).await;
    world.fill(&topic, 100, 0).await;
    let relay = world.relay().args(&["--on-published", "delete"]).start_ready().await;
    world.drained(COMES).await;
    assert!(relay.logged("the id sequence was restarted"), "it is said");
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
}
