//! Tokens that end, are refused, or cannot be had.

use std::fs;
use std::time::Duration;

use testkit::*;

use super::{INSECURE, lines, warned};

const NO_TOKEN: &str = "cannot get a token for Kafka";

#[tokio::test]
async fn a_token_is_renewed_before_it_ends_and_an_issuer_that_is_down_costs_nothing() {
    let secure = SecureKafka::get();
    let world = secure.world().await;
    let topic = world.topic("orders", 2, &[]).await;
    let issuer = secure.issuer();
    issuer.live_for(Duration::from_secs(30));
    let relay = secure.by_issuer(&issuer).relay(&world).start_ready().await;
    let writes = BackgroundWrites::start(&world, &topic);
    // Down when the first token is to be renewed, and then slow.
    issuer.answer(IssuerAnswer::Text(503, String::new()));
    eventually(SOON, "a request in vain", async || {
        (issuer.requests() >= 2).then_some(())
    })
    .await;
    issuer.delay(Duration::from_secs(3));
    issuer.live_for(Duration::from_secs(3600));
    eventually(SOON, "a request that is answered", async || {
        relay.logged("there is a token for Kafka again").then_some(())
    })
    .await;
    let past_the_first = "SELECT max(published_at) > min(created_at) + interval '35 s' FROM outbox.message";
    world.until(past_the_first).await;
    writes.stop();
    world.drained(SOON).await;
    world.history(&topic).await.assert_exact();
    let longest = "SELECT (extract(epoch FROM max(published_at - created_at)) * 1000)::bigint FROM outbox.message";
    let longest = world.count(longest).await;
    assert!(longest < 3_000, "a row has waited for {longest} ms");
    assert_eq!(lines(&relay, "WARN", NO_TOKEN), 1, "{}", relay.log());
    assert_eq!(lines(&relay, "WARN", ""), 1, "{}", relay.log());
}

/// The client that looks topics up is polled by nobody, and is given its tokens.
#[tokio::test]
async fn lookups_have_a_token() {
    let secure = SecureKafka::get();
    let world = secure.world().await;
    let issuer = secure.issuer();
    // Connections log in again after nine tenths of it. Of a shorter life too little would be left then, whole seconds that it has.
    issuer.live_for(Duration::from_secs(10));
    let relay = secure.by_issuer(&issuer).relay(&world).start_ready().await;
    let topic = world.topic("first", 1, &[]).await;
    world.fill(&topic, 10, 2).await;
    world.drained(SOON).await;
    eventually(SOON, "some tokens to come and go", async || {
        (issuer.requests() >= 3).then_some(())
    })
    .await;
    let topic = world.topic("second", 1, &[]).await;
    world.fill(&topic, 10, 2).await;
    world.drained(SOON).await;
    world.history(&topic).await.assert_exact();
    assert_eq!(lines(&relay, "WARN", ""), 0, "{}", relay.log());
}

#[tokio::test]
async fn a_token_that_brokers_refuse_is_replaced_by_the_next() {
    let secure = SecureKafka::get();
    let world = secure.world().await;
    let topic = world.topic("orders", 1, &[]).await;
    let issuer = secure.issuer();
    issuer.answer(IssuerAnswer::Forged);
    let relay = secure.by_issuer(&issuer).relay(&world).start_ready().await;
    world.fill(&topic, 10, 2).await;
    warned(&relay, "the login by a token failed").await;
    issuer.live_for(Duration::from_secs(3600));
    world.drained(SOON).await;
    world.history(&topic).await.assert_exact();
    world.assert_nobody_blamed().await;
    assert_eq!(lines(&relay, "WARN", INSECURE), 1, "{}", relay.log());
    relay.assert_alive();
}

/// The relay starts, says once why there is no token, and publishes when there is one.
async fn is_said_once_and_waited_for(access: &Access, words: &str, repair: impl FnOnce()) {
    let world = SecureKafka::get().world().await;
    let topic = world.topic("orders", 1, &[]).await;
    let relay = access.relay(&world).start_ready().await;
    world.fill(&topic, 10, 2).await;
    warned(&relay, NO_TOKEN).await;
    repair();
    world.drained(SOON).await;
    world.assert_nobody_blamed().await;
    assert_eq!(lines(&relay, "WARN", NO_TOKEN), 1, "{}", relay.log());
    assert_eq!(lines(&relay, "WARN", words), 1, "{words}: {}", relay.log());
    assert!(!relay.logged("s3cret"), "{}", relay.log());
    relay.assert_alive();
}

#[tokio::test]
async fn a_command_that_fails_is_said_once_and_waited_for() {
    let secure = SecureKafka::get();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let script = folder.path().join("token");
    fs::write(&script, "echo s3cret; echo s3cret >&2; exit 3").expect("a file");
    let command = format!("sh {} s3cret", script.display());
    let access = secure.by_token().flag("--kafka-token-command", &command);
    let token = secure.signer.token("relay", Duration::from_secs(600));
    let repair = || fs::write(&script, format!("echo {token}")).expect("a file");
    is_said_once_and_waited_for(&access, "--kafka-token-command ended with status 3", repair).await;
}

#[tokio::test]
async fn a_file_whose_token_has_ended_is_said_once_and_waited_for() {
    let secure = SecureKafka::get();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("token");
    fs::write(&file, r#"{"token":"s3cret","expires_at":1}"#).expect("a file");
    let access = secure
        .by_token()
        .flag("--kafka-token-file", &file.display().to_string());
    let token = secure.signer.token("relay", Duration::from_secs(600));
    let repair = || fs::write(&file, token).expect("a file");
    is_said_once_and_waited_for(&access, "the token ended at 1970", repair).await;
}

#[tokio::test]
async fn a_client_that_the_issuer_does_not_know_is_said_once() {
    let secure = SecureKafka::get();
    let issuer = secure.issuer();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("kafka.properties").display().to_string();
    let access = secure.by_issuer(&issuer);
    let wrong = access.clone().with("sasl.oauthbearer.client.secret", "wrong-s3cret");
    let repair = || fs::write(&file, access.text()).expect("a file");
    is_said_once_and_waited_for(&wrong.in_file(&file), "invalid_client", repair).await;
    assert!(issuer.refused() > 0);
}

#[tokio::test]
async fn an_issuer_with_a_certificate_of_another_ca_is_said_once() {
    let secure = SecureKafka::get();
    let issuer = secure.issuer_over_tls();
    secure.copy("other-ca.pem", "issuer-ca.pem");
    let access = secure
        .by_issuer(&issuer)
        .with("https.ca.location", &secure.file("issuer-ca.pem"));
    let repair = || secure.copy("ca.pem", "issuer-ca.pem");
    is_said_once_and_waited_for(&access, "no trusted CA has issued it", repair).await;
}
