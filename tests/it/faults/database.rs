//! PostgreSQL goes away.

use testkit::*;

#[tokio::test]
async fn a_crash_of_postgresql_under_load_is_survived_without_a_restart() {
    let fault = Fault::new(14, "PostgreSQL crashes, twice, under load", "recovers by itself");
    let postgres = OwnPostgres::start();
    let mut world = World::on(&postgres.url, &Stack::get().kafka).await;
    let topic = world.topic("orders", 4, &[]).await;
    let relays = [world.relay().start_ready().await, world.relay().start_ready().await];
    let writes = BackgroundWrites::start(&world, &topic);
    for _ in 1..=2 {
        let goal = relays.iter().filter_map(published).sum::<f64>() + 1000.0;
        eventually(SOON, "a thousand rows to flow", async || {
            (relays.iter().filter_map(published).sum::<f64>() > goal).then_some(())
        })
        .await;
        postgres.crash();
        postgres.restart();
        world.db = world.session().await;
    }
    let over = fault.over();
    let written = "SELECT count(*) FROM outbox.message";
    let goal = world.count(written).await + 1000;
    eventually(over.time_limit(), "the application to go on", async || {
        (world.count(written).await > goal).then_some(())
    })
    .await;
    writes.stop();
    let recovered = over.until_drained(&world).await;
    let history = world.assert_promises_kept(&topic, &[&relays[0], &relays[1]]).await;
    for relay in &relays {
        assert!(relay.metric("outboxd_leases_lost_total") >= Some(1.0), "it noticed");
    }
    recovered.record(history.duplicates);
}

/// One backend killed makes the server recover in place: its start time stays, but ids can come again.
#[tokio::test]
async fn a_backend_that_crashes_begins_another_life_of_the_server_and_a_new_term() {
    let postgres = OwnPostgres::start();
    let mut world = World::on(&postgres.url, &Stack::get().kafka).await;
    let topic = world.topic("orders", 4, &[]).await;
    let relay = world.relay().start_ready().await;
    world.fill(&topic, 1000, 100).await;
    world.drained(SOON).await;
    let started = "SELECT pg_postmaster_start_time()::text";
    let incarnation = "SELECT incarnation::text FROM outbox.server";
    let before = (world.text(started).await, world.text(incarnation).await);
    let victim = world.count("SELECT pg_backend_pid()::bigint").await;
    signal("KILL", victim);
    world.db = eventually(SOON, "another life of the server", async || {
        let (client, connection) = tokio_postgres::connect(&world.database_url, tokio_postgres::NoTls)
            .await
            .ok()?;
        tokio::spawn(connection);
        let now: String = client.query_one(incarnation, &[]).await.ok()?.get(0);
        (now != before.1).then_some(client)
    })
    .await;
    assert_eq!(world.text(started).await, before.0, "the postmaster lived on");
    eventually(SOON, "a new term", async || {
        (relay.metric("outboxd_leases_lost_total")? >= 1.0).then_some(())
    })
    .await;
    world.fill(&topic, 1000, 100).await;
    world.drained(SOON).await;
    world.history(&topic).await.assert_sound();
}

fn published(relay: &Relay) -> Option<f64> {
    relay.metric("outboxd_rows_published_total")
}
