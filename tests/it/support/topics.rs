//! Topics changed under a running relay.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;

fn admin(kafka: &str) -> (AdminClient<DefaultClientContext>, AdminOptions) {
    let admin = ClientConfig::new().set("bootstrap.servers", kafka).create();
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(20)));
    (admin.expect("an admin client"), options)
}

/// Sets one setting of a topic; the others go back to their defaults.
pub async fn alter_topic(kafka: &str, topic: &str, name: &str, value: &str) {
    let (admin, options) = admin(kafka);
    let change = AlterConfig::new(ResourceSpecifier::Topic(topic)).set(name, value);
    let altered = admin.alter_configs([&change], &options).await.expect("Kafka answers");
    assert!(altered.iter().all(Result::is_ok), "{altered:?}");
}

pub async fn delete_topic(kafka: &str, topic: &str) {
    let (admin, options) = admin(kafka);
    let deleted = admin.delete_topics(&[topic], &options).await.expect("Kafka answers");
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
}
