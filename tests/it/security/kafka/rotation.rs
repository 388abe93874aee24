//! Passwords, certificates and CAs that change while the relay runs.

use std::fs;

use testkit::*;

use super::{INSECURE, lines, warned};

const CHANGED: &str = "the settings of Kafka have changed";

#[tokio::test]
async fn a_changed_password_needs_no_restart_and_every_repeat_is_flagged() {
    let secure = SecureKafka::get();
    let world = secure.world().await;
    let topic = world.topic("orders", 2, &[]).await;
    secure.set_password("rotated", "first-s3cret");
    secure.allow_write("User:rotated", &topic);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("kafka.properties").display().to_string();
    let access = secure.by_password("SCRAM-SHA-512", "rotated", "first-s3cret");
    let relay = access.clone().in_file(&file).relay(&world).start_ready().await;
    let writes = BackgroundWrites::start(&world, &topic);
    world
        .until("SELECT count(*) > 500 FROM outbox.message WHERE published_at IS NOT NULL")
        .await;

    // The broker asks for it again and again.
    secure.set_password("rotated", "second-s3cret");
    warned(&relay, "the login of rotated by SCRAM-SHA-512 failed").await;
    fs::write(&file, "acks=1\n").expect("a file");
    warned(&relay, "acks is not yours to set").await;
    fs::write(&file, access.with("sasl.password", "second-s3cret").text()).expect("a file");
    eventually(SOON, "the new password", async || relay.logged(CHANGED).then_some(())).await;
    let newest = world.count("SELECT max(id) FROM outbox.message").await;
    world.published(newest).await;
    writes.stop();
    world.drained(SOON).await;
    world.history(&topic).await.assert_counted_by(&[&relay]);
    world.assert_nobody_blamed().await;
    assert_eq!(lines(&relay, "WARN", INSECURE), 1, "{}", relay.log());
    assert_eq!(lines(&relay, "INFO", CHANGED), 1, "{}", relay.log());
    assert!(!relay.logged("s3cret"), "{}", relay.log());
    relay.assert_alive();
}

/// What was refused is used once its files are replaced.
async fn is_read_again(access: &Access, replace: impl FnOnce()) {
    let world = SecureKafka::get().world().await;
    let topic = world.topic("orders", 2, &[]).await;
    let relay = access.relay(&world).start_ready().await;
    world.fill(&topic, 100, 5).await;
    world.fill(&topic, 20, 0).await;
    warned(&relay, INSECURE).await;
    assert_eq!(world.pending().await, 120);
    replace();
    world.drained(SOON).await;
    world.history(&topic).await.assert_exact();
    world.assert_nobody_blamed().await;
    assert!(relay.logged(CHANGED), "{}", relay.log());
    relay.assert_alive();
}

#[tokio::test]
async fn a_replaced_client_certificate_needs_no_restart() {
    let secure = SecureKafka::get();
    let (ca, common_name) = (Ca::Other, "relay");
    let issued = |ca| {
        let leaf = Leaf {
            ca,
            common_name,
            ..Leaf::default()
        };
        secure.issue("replaced", leaf);
    };
    issued(ca);
    let access = secure
        .by_certificate()
        .with("ssl.certificate.location", &secure.file("replaced.pem"))
        .with("ssl.key.location", &secure.file("replaced.key"));
    is_read_again(&access, || issued(Ca::Trusted)).await;
}

#[tokio::test]
async fn a_replaced_ca_needs_no_restart() {
    let secure = SecureKafka::get();
    secure.copy("other-ca.pem", "replaced-ca.pem");
    let access = secure
        .by_password("PLAIN", "relay", "plain-s3cret")
        .with("ssl.ca.location", &secure.file("replaced-ca.pem"));
    is_read_again(&access, || secure.copy("ca.pem", "replaced-ca.pem")).await;
}
