//! PostgreSQL's disk is full.

use crate::support::*;

/// Commits rows until PostgreSQL cannot write them any more.
async fn fill_until_refused(world: &World, topic: &str) -> String {
    let insert = format!(
        "INSERT INTO outbox.message (topic, key, payload)
         SELECT '{topic}', 'k' || n % 50, jsonb_build_object('noise', repeat(md5(random()::text), 20))
         FROM generate_series(1, 500) n"
    );
    for _ in 0..1000 {
        if let Err(error) = world.db.batch_execute(&insert).await {
            return format!("{error:?}");
        }
    }
    panic!("the disk does not fill up");
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
    disk.fill();
    println!("refused: {}", fill_until_refused(&world, &topic).await);
    let cpu = relay.cpu();
    tokio::time::sleep(LEASE).await;
    relay.assert_alive();
    let cpu = relay.cpu() - cpu;
    assert!(cpu < LEASE / 4, "it backs off: {cpu:?} of processor time");
    disk.free();
    // Out of space for its log, PostgreSQL gives up and has to be started by hand.
    postgres.restart();
    let over = fault.over();
    world.db = eventually(SOON, "PostgreSQL to recover", async || world.try_session().await).await;
    let recovered = over.until_drained(&world).await;
    let history = world.assert_promises_kept(&topic, &[&relay]).await;
    recovered.record(history.repeats);
}
