//! Retention meets rows that are old and not done.

use testkit::*;

#[tokio::test]
async fn retention_removes_old_published_rows_and_never_a_pending_or_dead_one() {
    let fault = Fault::new(41, "retention meets an unpublished row", "never removed");
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let missing = format!("{}.missing", world.name);
    world
        .execute(&format!(
            "INSERT INTO outbox.message (topic, key, payload, created_at, published_at, dead_at)
             VALUES ('{topic}', 'purged', '1', now() - interval '3 h', now() - interval '2 h', NULL),
                    ('{missing}', 'pending', '2', now() - interval '3 h', NULL, NULL),
                    ('{missing}', NULL, '3', now() - interval '3 h', NULL, NULL),
                    ('{topic}', 'dead', '4', now() - interval '3 h', NULL, now() - interval '2 h'),
                    ('{topic}', 'just published', '5', now() - interval '3 h', now(), NULL),
                    ('{topic}', 'late', '6', now() - interval '3 h', NULL, NULL),
                    ('{topic}', 'purged', '7', now() - interval '3 h', now() - interval '2 h', NULL),
                    ('{topic}', 'young', '8', now(), now(), NULL)"
        ))
        .await;
    let relay = world.relay().args(&["--retention", "1h"]).start_ready().await;
    eventually(SOON, "two rows to be purged", async || {
        (relay.metric("outboxd_rows_purged_total") == Some(2.0)).then_some(())
    })
    .await;
    // The pass is over, however far it went.
    eventually(SOON, "the pass to end", async || {
        relay.logged("retention pass done").then_some(())
    })
    .await;
    world.held(2).await;
    let kept = world
        .db
        .query("SELECT payload::text FROM outbox.message ORDER BY id", &[])
        .await;
    let kept: Vec<String> = kept.expect("rows").iter().map(|row| row.get(0)).collect();
    assert_eq!(kept, ["2", "3", "4", "5", "6", "8"]);

    world.topic("missing", 1, &[]).await;
    let recovered = fault.over().until_drained(&world).await;
    let history = world.history(&missing).await;
    history.assert_exact();
    history.assert_counted_by(&[&relay]);
    assert_eq!(
        world.records(&missing).await.len(),
        2,
        "old, and published all the same"
    );
    assert_eq!(relay.metric("outboxd_rows_purged_total"), Some(2.0));
    recovered.record(history.duplicates);
}
