//! Messages larger than the relay takes: found where they lie, never read.

use std::time::Duration;

use testkit::*;

use super::memory::peak_memory;

/// Time enough for a document of 1 GB to be rendered in vain on a busy machine.
const LONG_LEASE: [&str; 4] = ["--lease", "120s", "--batch-deadline", "5s"];
const RENDERED: Duration = Duration::from_secs(240);
const SMALL: [&str; 2] = ["--max-message-bytes", "64KiB"];

fn too_large() -> Vec<u8> {
    noise(70_000)
}

async fn dead(world: &World, id: i64) -> String {
    eventually(RENDERED, &format!("row {id} to be dead"), async || {
        let sql = "SELECT last_error FROM outbox.message WHERE id = $1 AND dead_at IS NOT NULL AND attempts = 1";
        let row = world.db.query_opt(sql, &[&id]).await.expect("rows are read")?;
        row.get(0)
    })
    .await
}

#[tokio::test]
async fn rows_of_80_megabytes_are_never_read_and_their_neighbours_flow() {
    const BUDGET: usize = 6 << 20;
    let fault = Fault::new(
        55,
        "rows of 80 MB, in bytes, in a document that compresses to 1 MB and in a text column; a document whose text exceeds 1 GB",
        "never read; dead letters that say why; memory within its bound; neighbours flow",
    )
    .with_lease(RENDERED);
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    world
        .execute("ALTER TABLE outbox.message ALTER payload_bytes SET STORAGE EXTERNAL")
        .await;
    let mut ids = Vec::new();
    for (columns, values) in [
        ("payload_bytes", "convert_to(repeat('x', 80000000), 'UTF8')"),
        ("payload", "to_jsonb(repeat('x', 80000000))"),
        ("payload, event_type", "'1', 'e'"),
        (
            "payload",
            "(SELECT jsonb_agg(1e131071::numeric) FROM generate_series(1, 8200))",
        ),
    ] {
        let sql = format!(
            "INSERT INTO outbox.message (topic, key, {columns}) SELECT '{topic}', 'large-{}', {values} RETURNING id",
            ids.len()
        );
        ids.push(world.count(&sql).await);
    }
    // From before there was a bound.
    let text = format!(
        "UPDATE outbox.message SET event_type = repeat('x', 80000000) WHERE id = {}",
        ids[2]
    );
    world.execute(&text).await;
    world.fill(&topic, 500, 50).await;
    world.fill(&topic, 100, 0).await;
    let relay = world.relay().args(&LONG_LEASE).start_ready().await;
    let idle = peak_memory(&relay);
    let said = [
        "80000007 bytes, and --max-message-bytes is 6291456",
        "80000009 bytes, and --max-message-bytes is 6291456",
        "bytes, and --max-message-bytes is 6291456",
        "PostgreSQL cannot read this message",
    ];
    for (id, said) in ids.iter().zip(said) {
        let reason = dead(&world, *id).await;
        assert!(reason.contains(said), "{reason}");
    }
    let recovered = fault.over().until_drained(&world).await;
    let grown = peak_memory(&relay) - idle;
    assert!(grown < 10 * BUDGET, "grew by {} MB", grown >> 20);
    assert_eq!(
        world
            .count("SELECT count(*) FROM outbox.message WHERE dead_at IS NOT NULL")
            .await,
        4
    );
    assert_eq!(world.records(&topic).await.len(), 600);
    let history = world.history(&topic).await;
    history.assert_exact();
    recovered.record(0);
}

#[tokio::test]
async fn a_message_too_large_steps_aside_and_its_key_continues() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let rows = [
        (Some("k"), b"1".to_vec()),
        (Some("k"), too_large()),
        (Some("k"), too_large()),
        (Some("k"), b"2".to_vec()),
        (None, too_large()),
        (None, b"3".to_vec()),
    ];
    let ids = world.insert(&topic, &rows).await;
    let _relay = world.relay().args(&SMALL).start_ready().await;
    world.drained(SOON).await;
    for place in [1, 2, 4] {
        let reason = dead(&world, ids[place]).await;
        assert!(reason.contains("70000") || reason.contains("70001"), "{reason}");
        assert!(reason.contains("raise that and redrive"), "{reason}");
    }
    let history = world.history(&topic).await;
    history.assert_exact();
    assert_eq!(
        (history.findings.counts.published, history.findings.counts.dead),
        (3, 3)
    );
}

#[tokio::test]
async fn with_on_dead_hold_the_key_of_a_message_too_large_waits_for_an_operator() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let rows = [
        (Some("k"), b"1".to_vec()),
        (Some("k"), too_large()),
        (Some("k"), b"2".to_vec()),
    ];
    let ids = world.insert(&topic, &rows).await;
    let relay = world
        .relay()
        .args(&SMALL)
        .args(&["--on-dead", "hold"])
        .start_ready()
        .await;
    dead(&world, ids[1]).await;
    world.published(ids[0]).await;
    world
        .until("SELECT retry_at = 'infinity' FROM outbox.hold WHERE unit = 'k:k'")
        .await;
    world.insert(&topic, &[(Some("other"), b"3".to_vec())]).await;
    eventually(SOON, "all but the held row", async || {
        (world.pending().await == 1).then_some(())
    })
    .await;
    drop(relay);
    // Redriven by a relay that takes it.
    world
        .execute(&format!(
            "UPDATE outbox.message SET dead_at = NULL, available_at = now() WHERE id = {}; UPDATE outbox.hold SET retry_at = now()",
            ids[1]
        ))
        .await;
    let _relay = world.relay().start_ready().await;
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    history.assert_sound();
    assert_eq!(history.findings.counts.published, 4);
}

/// Its topic is missing, so that a hold is there before anybody finds out what its head is.
#[tokio::test]
async fn a_message_too_large_is_found_at_the_head_of_a_hold() {
    let world = World::new().await;
    let topic = format!("{}-late", world.topic("orders", 1, &[]).await);
    let rows = [(Some("k"), b"1".to_vec()), (None, b"2".to_vec())];
    world.insert(&topic, &rows).await;
    let _relay = world.relay().args(&SMALL).start_ready().await;
    world.held(2).await;
    // Grown while they were held.
    world
        .execute("UPDATE outbox.message SET payload_bytes = convert_to(repeat('x', 70000), 'UTF8')")
        .await;
    let behind = world
        .insert(&topic, &[(Some("k"), b"3".to_vec()), (None, b"4".to_vec())])
        .await;
    create_topic(&world.kafka, &topic, 1, &[]).await;
    world.drained(SOON).await;
    world
        .until("SELECT count(*) = 2 FROM outbox.message WHERE dead_at IS NOT NULL")
        .await;
    for id in behind {
        world.published(id).await;
    }
    assert_eq!(world.records(&topic).await.len(), 2);
}

/// The bytes of the second row are not where its row says.
#[tokio::test]
async fn a_damaged_row_fails_alone() {
    let world = World::new().await;
    let topic = world.topic("orders", 2, &[]).await;
    let ids = world
        .insert(&topic, &[(Some("a"), b"1".to_vec()), (Some("b"), noise(50_000))])
        .await;
    let chunks = world
        .text("SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'outbox.message'::regclass")
        .await;
    // The server lets nobody touch what it keeps outside of rows: not as long as it knows it as such.
    let known_as = |kind| format!("UPDATE pg_class SET relkind = '{kind}' WHERE oid = '{chunks}'::regclass");
    for sql in [
        "SET allow_system_table_mods = on",
        &known_as('r'),
        &format!("DELETE FROM {chunks}"),
        &known_as('t'),
        "VACUUM outbox.message",
    ] {
        world.execute(sql).await;
    }
    let _relay = world.relay().start_ready().await;
    world.published(ids[0]).await;
    let reason = dead(&world, ids[1]).await;
    assert!(
        reason.contains("PostgreSQL cannot read this message: missing chunk"),
        "{reason}"
    );
}
