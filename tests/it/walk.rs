//! The way of a new user through all that an operator does, by commands alone: tests/it/walk/walk.sh, on servers with TLS and logins.

use std::fs;
use std::process::Command;

use testkit::*;

#[tokio::test]
async fn a_new_user_connects_securely_corrects_pauses_replays_and_verifies() {
    let (postgres, kafka) = (SecurePostgres::start().await, SecureKafka::get());
    let world = postgres.empty_world(kafka.plain()).await;
    let topic = world.topic("orders", 2, &[SMALL]).await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let properties = folder.path().join("kafka.properties");
    let access = kafka.by_password("SCRAM-SHA-512", "relay", "scram-s3cret");
    fs::write(&properties, access.text()).expect("a file");
    let server = world.database_url.split_once('@').expect("a login in the URL").1;
    let output = Command::new("bash")
        .arg(repository().join("tests/it/walk/walk.sh"))
        .env("OUTBOXD", binary())
        .env("SERVER", server)
        .env("DATABASE_CA", postgres.certificates.path("ca.pem"))
        .env("OUTBOXD_KAFKA_BROKERS", &access.brokers)
        .env("OUTBOXD_KAFKA_PROPERTIES_FILE", &properties)
        .env("TOPIC", &topic)
        .env("FOLDER", folder.path())
        .output()
        .expect("bash runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", stderr_of(&output));
}
