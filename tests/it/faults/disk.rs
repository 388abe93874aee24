//! PostgreSQL's disk is full.

use testkit::*;

/// Does it again and again, until PostgreSQL has no space for it.
async fn until_refused(world: &World, sql: &str) {
    eventually(SOON, "the disk to be full", async || {
        world.db.batch_execute(sql).await.err()
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_costs_time_but_no_attempt_and_no_row() {
    let fault = Fault::new(21, "PostgreSQL's disk is full", "backs off, burns no attempt");
    let disk = SmallDisk::of_megabytes(200);
    let postgres = OwnPostgres::start_on(&disk);
    let mut world = World::on(&postgres.url, &Stack::get().kafka).await;
    let topic = world.topic("orders", 4, &[]).await;
    let relay = world.relay().start_ready().await;
    world.fill(&topic, 500, 50).await;
    world.drained(SOON).await;
    // It must not be done with the rows before the disk is full.
    relay.signal("STOP");
    world.fill(&topic, 2000, 50).await;
    disk.fill();
    until_refused(
        &world,
        "SELECT pg_logical_emit_message(false, 'noise', repeat('x', 1000000))",
    )
    .await;
    relay.signal("CONT");
    let cpu = relay.cpu();
    tokio::time::sleep(LEASE).await;
    relay.assert_alive();
    let cpu = relay.cpu() - cpu;
    assert!(cpu < LEASE / 4, "it backs off: {cpu:?} of processor time");
    assert!(
        relay.metric("outboxd_database_errors_total") > Some(0.0),
        "it met the full disk"
    );
    assert!(
        relay.metric("outboxd_database_errors_total") > Some(0.0),
        "it met the full disk"
    );
    disk.free();
    // Out of space for its log, PostgreSQL gives up and has to be started by hand.
    postgres.restart();
    let over = fault.over();
    world.db = eventually(SOON, "PostgreSQL to recover", async || world.try_session().await).await;
    let recovered = over.until_drained(&world).await;
    let history = world.assert_promises_kept(&topic, &[&relay]).await;
    recovered.record(history.duplicates);
}
