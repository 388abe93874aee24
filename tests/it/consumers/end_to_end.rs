//! From a topic through the inbox and the outbox to another topic.

use std::process::Command;

use super::*;

/// Loads the worked example; its own messages, which no topic waits for, are dropped.
async fn load_example(world: &World) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/sql/inbound_to_outbound.sql");
    let loaded = Command::new("psql")
        .args([&world.database_url, "-q", "-v", "ON_ERROR_STOP=1", "-f", file])
        .output()
        .expect("psql runs");
    assert!(loaded.status.success(), "{}", stderr_of(&loaded));
    world
        .execute("DELETE FROM outbox.message; DELETE FROM inbound_to_outbound.shipment")
        .await;
}

/// Hands every record of the topic to the inbox, as a consumer does that has lost its offset.
async fn receive_topic(world: &World, topic: &str) -> usize {
    let mut stored = 0;
    for record in world.records(topic).await {
        let value: serde_json::Value = serde_json::from_slice(&record.payload.expect("a value")).expect("JSON");
        let id = format!("{}/{}", record.partition, record.offset);
        let order = value["order"].as_str().expect("an order").to_owned();
        let row = world
            .db
            .query_one(
                "SELECT inbound_to_outbound.receive($1, $2, $3, $4::text::jsonb)",
                &[&topic, &id, &order, &value.to_string()],
            )
            .await
            .expect("received");
        stored += usize::from(row.get::<_, bool>(0));
    }
    stored
}

#[tokio::test]
async fn a_record_delivered_twice_passes_inbox_effect_and_outbox_and_leaves_once() {
    let world = World::new().await;
    load_example(&world).await;
    let (inbound, outbound) = (
        world.topic("orders", 2, &[]).await,
        world.topic("shipments", 2, &[]).await,
    );
    for n in 0..20 {
        let value = format!("{{\"order\": \"{}\", \"article\": \"bolt\", \"pieces\": {n}}}", n % 4);
        let record = Record {
            partition: n % 2,
            payload: Some(value.into_bytes()),
            ..Record::default()
        };
        plant(&world.kafka, &inbound, &record).await;
    }
    let mut relay = world.relay().start_ready().await;
    assert_eq!(receive_topic(&world, &inbound).await, 20);
    assert_eq!(receive_topic(&world, &inbound).await, 0, "the whole topic again");
    let unfinished = "SELECT count(*) = 0 FROM outbox.inbox_message WHERE done_at IS NULL";
    while !world.is_true(unfinished).await {
        world
            .execute(&format!("CALL inbound_to_outbound.work('{outbound}')"))
            .await;
    }
    world.drained(SOON).await;
    let mut pieces: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for record in read_until(&world.kafka, &outbound, 20, SOON).await {
        let shipped: serde_json::Value = serde_json::from_slice(&record.payload.expect("a value")).expect("JSON");
        let order = shipped["order_id"].as_str().expect("an order").to_owned();
        pieces
            .entry(order)
            .or_default()
            .push(shipped["pieces"].as_i64().expect("a number"));
    }
    let expected: BTreeMap<String, Vec<i64>> = (0..4)
        .map(|order| (order.to_string(), (0..5).map(|n| n * 4 + order).collect()))
        .collect();
    assert_eq!(pieces, expected, "once, and in order per order");
    relay.stop();
}
