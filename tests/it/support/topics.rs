//! Topics: created, and changed under a running relay.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;

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
    let (admin, options) = admin(kafka);
    let growth = NewPartitions::new(topic, partitions);
    let grown = admin
        .create_partitions([&growth], &options)
        .await
        .expect("Kafka answers");
    assert!(grown.iter().all(Result::is_ok), "{grown:?}");
}

pub async fn delete_topic(kafka: &str, topic: &str) {
    let (admin, options) = admin(kafka);
    let deleted = admin.delete_topics(&[topic], &options).await.expect("Kafka answers");
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
}
