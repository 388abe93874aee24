//! The life of a row.

use crate::support::*;

#[tokio::test]
async fn a_committed_row_arrives_and_a_rolled_back_one_does_not() {
    let world = World::new().await;
    let topic = world.topic("orders", 4, &[]).await;
    let _relay = world.relay().start_ready().await;
    world
        .execute(&format!(
            "BEGIN; SELECT outbox.enqueue('{topic}', 'gone', '{{\"n\": 0}}'); ROLLBACK;
             BEGIN; SELECT outbox.enqueue('{topic}', 'kept', '{{\"n\": 1}}'); COMMIT;"
        ))
        .await;
    world.drained(SOON).await;
    let records = read_until(&world.kafka, &topic, 1, SOON).await;
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].key_text(), "kept");
    assert_eq!(records[0].json()["n"], 1);
}
