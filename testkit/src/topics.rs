//! Topics: created, and changed under a running relay.

use std::time::Duration;

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication, TopicResult,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

fn admin(kafka: &str) -> (AdminClient<DefaultClientContext>, AdminOptions) {
    let admin = ClientConfig::new().set("bootstrap.servers", kafka).create();
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(20)));
    (admin.expect("an admin client"), options)
}

pub async fn create_topic(kafka: &str, name: &str, partitions: i32, settings: &[(&str, &str)]) {
    let (admin, options) = admin(kafka);
    let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    for (key, value) in settings {
        topic = topic.set(key, value);
    }
    let created = admin.create_topics([&topic], &options).await.expect("Kafka answers");
    assert!(created.iter().all(Result::is_ok), "{created:?}");
    // A busy broker may hear of it later than the controller that answered.
    let what = format!("topic {name} to have leaders");
    crate::eventually(crate::SOON, &what, async || {
        has_leaders(kafka, name).await.then_some(())
    })
    .await;
}

async fn has_leaders(kafka: &str, topic: &str) -> bool {
    let ((admin, _), topic) = (admin(kafka), topic.to_owned());
    let asked = tokio::task::spawn_blocking(move || {
        let metadata = admin
            .inner()
            .fetch_metadata(Some(&topic), Duration::from_secs(5))
            .ok()?;
        let topic = metadata.topics().first()?;
        let partitions = topic.partitions();
        Some(!partitions.is_empty() && partitions.iter().all(|partition| partition.leader() >= 0))
    });
    asked.await.expect("no panic") == Some(true)
}

/// A topic whose partitions are on these brokers, one list of replicas for each.
pub async fn create_topic_on(kafka: &str, name: &str, replicas: &[&[i32]], settings: &[(&str, &str)]) {
    let (admin, options) = admin(kafka);
    let mut topic = NewTopic::new(name, replicas.len() as i32, TopicReplication::Variable(replicas));
    for (key, value) in settings {
        topic = topic.set(key, value);
    }
    let created = admin.create_topics([&topic], &options).await.expect("Kafka answers");
    assert!(created.iter().all(Result::is_ok), "{created:?}");
}

/// Sets one setting of a topic; the others go back to their defaults.
pub async fn alter_topic(kafka: &str, topic: &str, name: &str, value: &str) {
    let (admin, options) = admin(kafka);
    let change = AlterConfig::new(ResourceSpecifier::Topic(topic)).set(name, value);
    let altered = admin.alter_configs([&change], &options).await.expect("Kafka answers");
    assert!(altered.iter().all(Result::is_ok), "{altered:?}");
}

/// Gives the topic more partitions; answers once Kafka says so.
pub async fn grow_topic(kafka: &str, topic: &str, partitions: usize) {
    let growth = NewPartitions::new(topic, partitions);
    let what = format!("topic {topic} to have {partitions} partitions");
    crate::eventually(crate::SOON, &what, async || {
        // Kafka names any broker as the controller, also one that was killed a moment ago: the next client is told of another.
        let (admin, options) = admin(kafka);
        let options = options.request_timeout(Some(Duration::from_secs(5)));
        let grown = admin.create_partitions([&growth], &options).await.ok()?;
        // Of a try whose answer was lost.
        let is_there = |result: &TopicResult| matches!(result, Ok(_) | Err((_, RDKafkaErrorCode::InvalidPartitions)));
        assert!(grown.iter().all(is_there), "{grown:?}");
        Some(())
    })
    .await;
}

pub async fn delete_topic(kafka: &str, topic: &str) {
    let (admin, options) = admin(kafka);
    let deleted = admin.delete_topics(&[topic], &options).await.expect("Kafka answers");
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
}

/// Removes what lies before this offset, as the topic's retention would.
pub async fn forget_records(kafka: &str, topic: &str, partition: i32, before: i64) {
    let (admin, options) = admin(kafka);
    let mut offsets = TopicPartitionList::new();
    offsets
        .add_partition_offset(topic, partition, Offset::Offset(before))
        .expect("valid");
    admin.delete_records(&offsets, &options).await.expect("Kafka answers");
}
