//! The database URL leads to a read-only node.

use testkit::*;

#[tokio::test]
async fn a_read_only_node_is_refused_at_start_and_waited_out_later() {
    let fault = Fault::new(
        20,
        "connected to a read-only node",
        "refused at start with advice; waited out later, without spinning",
    );
    let postgres = OwnPostgres::start();
    let mut world = World::on(&postgres.url, &Stack::get().kafka).await;
    let topic = world.topic("orders", 4, &[]).await;
    let relay = world.relay().start_ready().await;
    world.fill(&topic, 500, 50).await;
    world.drained(SOON).await;

    postgres.restart_as_standby();
    world.db = world.session().await;
    let mut refused = world.relay().start();
    assert_eq!(refused.wait(SOON).code(), Some(78), "{}", refused.log());
    assert!(refused.logged("read-only standby"), "{}", refused.log());
    assert!(refused.logged("target_session_attrs=read-write"), "{}", refused.log());
    let (cpu, said) = (relay.cpu(), relay.log().lines().count());
    tokio::time::sleep(2 * LEASE).await;
    relay.assert_alive();
    let (cpu, said) = (relay.cpu() - cpu, relay.log().lines().count() - said);
    assert!(cpu < LEASE / 4, "it waits: {cpu:?} of processor time");
    assert!(said < 100, "and says so, but not {said} times");

    world.execute("SELECT pg_promote()").await;
    let over = fault.over();
    world.fill(&topic, 500, 50).await;
    let recovered = over.until_drained(&world).await;
    let history = world.assert_promises_kept(&topic, &[&relay]).await;
    recovered.record(history.duplicates);
}
