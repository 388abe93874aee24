//! The relays reach PostgreSQL through a pooler in transaction mode.

use testkit::*;

#[tokio::test]
async fn relays_behind_a_transaction_pooler_survive_its_restart_and_a_death() {
    let fault = Fault::new(
        24,
        "PgBouncer in transaction mode",
        "the relay keeps all its promises behind it (`make test-pooler`)",
    );
    let world = World::pooled().await;
    let pooler = world.pooler.as_ref().expect("a pooler");
    let topic = world.topic("orders", 4, &[]).await;
    let survivor = world.relay().start_ready().await;
    let mut dying = world.relay().start_ready().await;
    let writes = BackgroundWrites::start(&world, &topic);
    world
        .until("SELECT count(*) > 2000 FROM outbox.message WHERE published_at IS NOT NULL")
        .await;
    dying.kill();
    pooler.stop();
    world
        .until("SELECT count(*) > 500 FROM outbox.message WHERE published_at IS NULL")
        .await;
    writes.stop();
    pooler.restart();
    let recovered = fault.over().until_drained(&world).await;
    let history = world.history(&topic).await;
    history.assert_duplicates_counted_by(&[&survivor]);
    recovered.record(history.duplicates);
}

/// Settings a pooled statement brings along must be as good as those of a session: a plan that scans the table, or a wait
/// for a lock without end, would only show in production.
#[tokio::test]
async fn a_statement_behind_a_pooler_does_not_wait_for_ever() {
    let world = World::pooled().await;
    let topic = world.topic("orders", 1, &[]).await;
    let relay = world.relay().start_ready().await;
    world
        .until("SELECT bool_and(owner IS NOT NULL) FROM outbox.lane WHERE lane >= 0")
        .await;
    let locker = world.session().await;
    locker
        .batch_execute("BEGIN; LOCK TABLE outbox.message IN ACCESS EXCLUSIVE MODE")
        .await
        .expect("locked");
    eventually(SOON, "a lock_timeout", async || relay.logged("55P03").then_some(())).await;
    locker.batch_execute("ROLLBACK").await.expect("unlocked");
    world.fill(&topic, 100, 10).await;
    world.drained(SOON).await;
    let status = world.outboxd("status", &["--json"]);
    assert!(status.status.success(), "{}", stderr_of(&status));
    world.history(&topic).await.assert_exact();
}
