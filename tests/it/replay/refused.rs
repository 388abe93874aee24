//! Replayed rows that Kafka refuses, or that an operator keeps back.

use super::*;

/// Retries soon, and often enough for any test.
const PATIENT: [&str; 6] = [
    "--max-attempts",
    "1000",
    "--retry-backoff-min",
    "50ms",
    "--retry-backoff-max",
    "200ms",
];

/// Five rows of the key 'k' that were published an hour ago, the second of them too large for the topic as it is now; and one of
/// another key.
async fn world_that_refuses_a_repeat(args: &[&str]) -> (World, String, Relay) {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    world
        .execute(&format!(
            "INSERT INTO outbox.message (topic, key, payload)
             SELECT '{topic}', CASE WHEN n = 6 THEN 'other' ELSE 'k' END,
                    jsonb_build_object('n', n, 'large', CASE WHEN n = 2 THEN encode({TOO_LARGE}, 'hex') END)
             FROM generate_series(1, 6) n"
        ))
        .await;
    let relay = world.relay().args(args).start_ready().await;
    world.drained(SOON).await;
    publish_an_hour_ago(&world).await;
    let (setting, value) = SMALL;
    alter_topic(&world.kafka, &topic, setting, value).await;
    (world, topic, relay)
}

#[tokio::test]
async fn a_repeat_that_is_refused_keeps_back_the_repeats_of_its_key_and_no_others() {
    let (world, topic, relay) = world_that_refuses_a_repeat(&PATIENT).await;
    let said = replay(&world, &["--topic", &topic]);
    assert_eq!(said["changed"], 6);
    world.held(1).await;
    world
        .until("SELECT attempts > 1 FROM outbox.message WHERE id = 2")
        .await;
    for done in [1, 6] {
        world.published(done).await;
    }
    assert_eq!(
        world.ids_where("published_at IS NULL").await,
        [2, 3, 4, 5],
        "they wait behind it"
    );
    assert_eq!(world.ids_where("available_at IS NOT NULL").await, [2, 3, 4, 5]);
    world
        .execute(&format!("SELECT outbox.enqueue('{topic}', 'k', '{{\"fresh\": true}}')"))
        .await;
    alter_topic(&world.kafka, &topic, "max.message.bytes", "1000000").await;
    world.drained(SOON).await;
    world.held(0).await;
    let records = world.records(&topic).await;
    assert_copies(&records, 6, |_| 2);
    assert_eq!(assert_repeats_ascend(&records), 6);
    world.history(&topic).await.assert_sound();
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
}

/// It was published once and is a dead letter now. Sent again, it still says that it may be a repeat.
#[tokio::test]
async fn a_repeat_that_dies_is_a_dead_letter_and_is_redriven_as_a_repeat() {
    let (world, topic, _relay) = world_that_refuses_a_repeat(&["--max-attempts", "1"]).await;
    replay(&world, &["--topic", &topic]);
    world.drained(SOON).await;
    assert_eq!(world.ids_where("dead_at IS NOT NULL").await, [2]);
    alter_topic(&world.kafka, &topic, "max.message.bytes", "1000000").await;
    let redriven = json_of(&world.outboxd("dead redrive", &["--id", "2", "--yes", "--json"]));
    world.published(2).await;
    let recorded = format!(
        "SELECT replayed_by = {} AND requeued_by IS NULL FROM outbox.message WHERE id = 2",
        redriven["operation"]
    );
    assert!(world.is_true(&recorded).await, "its first copy was no redrive");
    assert_copies(&world.records(&topic).await, 6, |_| 2);
    let history = world.history(&topic).await;
    history.assert_sound();
    assert_eq!((history.duplicates, history.unflagged_duplicates), (6, 0));
}

#[tokio::test]
async fn a_replay_of_what_is_paused_waits_for_the_resume() {
    let (world, topic, relay) = published_world(&[], 50, 5).await;
    world.floor_passes(50).await;
    let pause = world.outboxd("pause", &["--topic", &topic, "--yes", "--reason", "not yet"]);
    assert!(pause.status.success(), "{}", stderr_of(&pause));
    assert_eq!(replay(&world, &["--id", "1-50"])["changed"], 50);
    let waits = format!(
        "SELECT count(*) = 5 FROM outbox.message m
         WHERE m.id <= 5 AND EXISTS (SELECT FROM outbox.hold h WHERE h.lane = m.lane AND h.topic = '{topic}')"
    );
    world.until(&waits).await;
    assert_eq!(world.records(&topic).await.len(), 50, "nothing is sent");
    let resume = world.outboxd("resume", &["--topic", &topic, "--yes"]);
    assert!(resume.status.success(), "{}", stderr_of(&resume));
    world.drained(SOON).await;
    world.held(0).await;
    let records = world.records(&topic).await;
    assert_eq!((records.len(), assert_repeats_ascend(&records)), (100, 50));
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
}

/// Its rows lie below every floor and every resume floor.
#[tokio::test]
async fn a_replay_into_a_topic_that_is_missing_arrives_once_it_is_there() {
    let (world, topic, relay) = published_world(&[], 50, 5).await;
    world.floor_passes(50).await;
    delete_topic(&world.kafka, &topic).await;
    assert_eq!(replay(&world, &["--topic", &topic])["changed"], 50);
    // Keeps Kafka answering, so that the silence of the deleted topic is its own.
    let healthy = world.topic("healthy", 1, &[]).await;
    eventually(SOON, "the topic to be parked", async || {
        world.fill(&healthy, 1, 1).await;
        // As a whole, or each partition that it had.
        let parked = "SELECT count(*) FROM outbox.hold WHERE unit !~ '^k:'";
        (world.count(parked).await > 0).then_some(())
    })
    .await;
    create_topic(&world.kafka, &topic, 4, &[]).await;
    world.drained(SOON * 2).await;
    world.held(0).await;
    let records = world.records(&topic).await;
    assert_eq!((records.len(), assert_repeats_ascend(&records)), (50, 50));
    world.assert_nobody_blamed().await;
    assert_eq!(relay.metric("outboxd_rescan_found_rows_total"), Some(0.0));
}

/// The repeats are the first copies that are left, and follow newer rows of their keys.
#[tokio::test]
async fn a_topic_that_was_made_anew_is_filled_by_a_replay_and_verifies() {
    let (world, topic, relay) = published_world(&[], 50, 5).await;
    delete_topic(&world.kafka, &topic).await;
    create_topic(&world.kafka, &topic, 4, &[]).await;
    world.fill(&topic, 10, 5).await;
    world.drained(SOON * 2).await;
    assert_eq!(replay(&world, &["--id", "1-50"])["changed"], 50);
    world.drained(SOON).await;
    let history = world.history(&topic).await;
    history.assert_sound();
    assert_eq!((history.duplicates, history.flagged), (0, 50));
    assert_eq!(relay.metric("outboxd_possible_duplicates_total"), Some(50.0));
    let lost = "UPDATE outbox.message SET replayed_by = 1, published_at = now() WHERE id = 51";
    world.execute(lost).await;
    let history = world.history(&topic).await;
    assert_eq!(
        history.findings.missing.first[0].what,
        "replayed, but only the earlier copy is in the topic"
    );
}
