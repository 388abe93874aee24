//! Kafka: the way to it, and the topics in use.

use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::*;

use super::{Report, assert_contains, doctor, world_and_relay};

/// Examines a world by the login of its relay.
fn examine(world: &World, url: &str, args: &[&str]) -> Report {
    doctor(&[&["--database-url", url, "--kafka-brokers", &world.kafka], args].concat())
}

/// That check alone is a problem, and of this topic alone.
fn only_problem_of(report: &Report, id: &str, topic: &str) -> (String, String) {
    let said = report.only_problem(id);
    let of_check = report.all(id).into_iter().filter(|check| check["verdict"] == "problem");
    let topics: Vec<&Value> = of_check.map(|check| &check["topic"]).collect();
    assert_eq!(topics, [topic]);
    said
}

#[tokio::test]
async fn brokers_that_are_not_there_are_waited_for_ten_seconds_at_most() {
    let (_world, url) = world_and_relay().await;
    let began = Instant::now();
    let report = doctor(&["--database-url", &url, "--kafka-brokers", "127.0.0.1:1"]);
    let (found, _) = report.only_problem("kafka.connect");
    assert_contains(&found, &["127.0.0.1:1", "refused"]);
    assert_eq!(report.verdict("kafka.topic.exists"), "skipped");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[tokio::test]
async fn who_speaks_tls_to_a_broker_that_does_not_is_told() {
    let (world, url) = world_and_relay().await;
    let report = examine(&world, &url, &["--kafka-property", "security.protocol=ssl"]);
    let (found, fix) = report.only_problem("kafka.tls");
    assert_contains(&found, &["SSL"]);
    assert_contains(&fix, &["ssl.ca.location"]);
    assert_eq!(report.verdict("kafka.connect"), "skipped");
}

#[tokio::test]
async fn who_logs_in_where_nobody_may_is_told() {
    let (world, url) = world_and_relay().await;
    let report = examine(
        &world,
        &url,
        &[
            "--kafka-property",
            "security.protocol=sasl_plaintext",
            "--kafka-property",
            "sasl.mechanism=PLAIN",
            "--kafka-property",
            "sasl.username=u",
            "--kafka-property",
            "sasl.password=hunter2",
        ],
    );
    let (found, _) = report.only_problem("kafka.auth");
    assert_contains(&found, &["SASL PLAIN"]);
    assert!(!report.json.to_string().contains("hunter2"));
}

#[tokio::test]
async fn a_topic_that_rows_name_and_that_is_not_there_is_found_and_not_created() {
    let kafka = OwnKafka::creating_topics();
    let world = World::on(&Stack::get().database_url, &kafka.address).await;
    let url = world.login("relay", &["outbox_relay"]).await;
    let there = world.topic("there", 1, &[]).await;
    let missing = format!("{}.missing", world.name);
    world.fill(&there, 1, 1).await;
    world.fill(&missing, 3, 1).await;
    for _ in 0..2 {
        let report = examine(&world, &url, &["--topic", &there]);
        let (found, fix) = only_problem_of(&report, "kafka.topic.exists", &missing);
        assert_contains(&found, &["3 pending for it"]);
        assert_contains(&fix, &["--create", &format!("--topic {missing}")]);
        assert_contains(&report.stderr, &[&missing]);
    }
    let other = format!("{}.other", world.name);
    let report = examine(&world, &url, &["--topic", &other]);
    assert_eq!(report.all("kafka.topic.exists").len(), 3, "the named one, too");
}

#[tokio::test]
async fn a_topic_that_may_not_be_written_is_found_without_a_record() {
    let kafka = OwnKafka::guarded();
    let world = World::on(&Stack::get().database_url, &kafka.address).await;
    let url = world.login("relay", &["outbox_relay"]).await;
    let write_only = world.topic("write_only", 1, &[]).await;
    kafka.grant("User:ANONYMOUS", "Write", &write_only);
    world.fill(&write_only, 1, 1).await;
    let (_, fix) = examine(&world, &url, &[]).only_advice("kafka.topic.size");
    assert_contains(&fix, &["--operation DescribeConfigs", &write_only]);
    // One is not even shown to us, and the other may be read.
    for (name, principal, operation) in [("hidden", "User:somebody", "Write"), ("read_only", "User:*", "Read")] {
        let topic = world.topic(name, 1, &[]).await;
        kafka.grant(principal, operation, &topic);
        world.fill(&topic, 1, 1).await;
        let (found, fix) = only_problem_of(&examine(&world, &url, &[]), "kafka.topic.write", &topic);
        assert_contains(&found, &["User:ANONYMOUS may not write"]);
        assert_contains(&fix, &["kafka-acls.sh", "--operation Write", &topic]);
        world
            .execute(&format!("DELETE FROM outbox.message WHERE topic = '{topic}'"))
            .await;
    }
}

#[tokio::test]
async fn a_row_that_asks_for_a_partition_its_topic_does_not_have_is_found() {
    let (world, url) = world_and_relay().await;
    let topic = world.topic("orders", 2, &[]).await;
    world
        .execute(&format!(
            "INSERT INTO outbox.message (topic, partition, payload) VALUES ('{topic}', 1, '{{}}'), ('{topic}', 7, '{{}}')"
        ))
        .await;
    let (found, fix) = only_problem_of(&examine(&world, &url, &[]), "kafka.topic.partitions", &topic);
    assert_contains(&found, &["partition 7", "2 partitions"]);
    assert_contains(&fix, &["--partitions 8"]);
}

#[tokio::test]
async fn partitions_without_a_leader_or_enough_replicas_are_found() {
    let first = OwnKafka::start();
    let second = first.joined_by(2);
    let world = World::on(&Stack::get().database_url, &first.address).await;
    let url = world.login("relay", &["outbox_relay"]).await;
    let [led, replicated] = ["led", "replicated"].map(|name| format!("{}.{name}", world.name));
    create_topic_on(&world.kafka, &led, &[&[1], &[2]], &[]).await;
    let two = [("min.insync.replicas", "2")];
    create_topic_on(&world.kafka, &replicated, &[&[1, 2]], &two).await;
    world.fill(&replicated, 1, 1).await;
    let named = ["--topic", &led];
    eventually(SOON, "both topics to be led", async || {
        (examine(&world, &url, &named).code == 0).then_some(())
    })
    .await;
    let (_, fix) = examine(&world, &url, &[]).only_advice("kafka.topic.isr");
    assert_contains(&fix, &["min.insync.replicas=1"]);
    second.kill();
    let report = eventually(SOON, "the broker to be missed", async || {
        let report = examine(&world, &url, &named);
        (report.with("problem").len() == 2).then_some(report)
    })
    .await;
    assert_eq!(report.with("problem"), ["kafka.topic.partitions", "kafka.topic.isr"]);
    assert_contains(
        &report.said("kafka.topic.partitions").0,
        &["without a leader: 1 of 2 partitions"],
    );
    let of_replicated = report
        .all("kafka.topic.isr")
        .into_iter()
        .find(|check| check["topic"] == replicated.as_str());
    let found = of_replicated.and_then(|check| check["found"].as_str()).expect("a text");
    assert_contains(found, &["fewer than 2 replicas in sync (min.insync.replicas): 0"]);
}

#[tokio::test]
async fn a_row_that_is_larger_than_its_topic_takes_is_found() {
    let (world, url) = world_and_relay().await;
    let topic = world.topic("small", 1, &[SMALL]).await;
    world
        .insert(&topic, &[(Some("k"), noise(5000)), (Some("k"), noise(10))])
        .await;
    let (found, fix) = only_problem_of(&examine(&world, &url, &[]), "kafka.topic.size", &topic);
    assert_contains(&found, &["2.0 KiB", "4.9 KiB"]);
    assert_contains(&fix, &["kafka-configs.sh", "max.message.bytes="]);
    world.execute("UPDATE outbox.message SET published_at = now()").await;
    assert_eq!(examine(&world, &url, &[]).code, 0, "it is no longer pending");
}

#[tokio::test]
async fn a_topic_that_takes_only_the_time_of_its_broker_is_worth_a_word() {
    let (world, url) = world_and_relay().await;
    let topic = world
        .topic("strict", 1, &[("message.timestamp.after.max.ms", "1000")])
        .await;
    let report = examine(&world, &url, &["--topic", &topic]);
    let (found, _) = report.only_advice("kafka.topic.timestamps");
    assert_contains(&found, &["1000 ms"]);
}
