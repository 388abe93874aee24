//! What is wrong with a connection is said once, in words. It costs time, and no attempt.

use testkit::*;

use super::{INSECURE, lines, warned};

/// The relay warns once, waits, and blames no row.
async fn is_said_once(access: &Access, words: &str) {
    let world = SecureKafka::get().world().await;
    let topic = world.topic("orders", 2, &[]).await;
    world.fill(&topic, 20, 5).await;
    let mut relay = access.relay(&world).args(&["--log-level", "debug"]).start_ready().await;
    warned(&relay, INSECURE).await;
    eventually(SOON, "the pause, and the same again from other clients", async || {
        let is_paused = relay.metric("outboxd_publisher_paused") == Some(1.0);
        (is_paused && lines(&relay, "DEBUG", "librdkafka") >= 3).then_some(())
    })
    .await;
    assert_eq!(lines(&relay, "WARN", INSECURE), 1, "{}", relay.log());
    assert_eq!(lines(&relay, "WARN", words), 1, "{words}: {}", relay.log());
    relay.assert_alive();
    world.assert_nobody_blamed().await;
    assert_eq!((world.pending().await, world.holds().await), (20, 0));
    assert!(!relay.logged("s3cret"), "{}", relay.log());
    relay.stop();
}

fn wrong_password() -> Access {
    SecureKafka::get().by_password("PLAIN", "relay", "wrong-s3cret")
}

fn wrong_scram_password() -> Access {
    SecureKafka::get().by_password("SCRAM-SHA-512", "relay", "wrong-s3cret")
}

fn wrong_ca() -> Access {
    let secure = SecureKafka::get();
    let other = secure.file("other-ca.pem");
    secure
        .by_password("PLAIN", "relay", "plain-s3cret")
        .with("ssl.ca.location", &other)
}

/// TLS to the listener that speaks none.
fn tls_switched_off() -> Access {
    SecureKafka::get().over_tls("BROKER")
}

fn certificate_of_another_ca() -> Access {
    let secure = SecureKafka::get();
    let (ca, common_name) = (Ca::Other, "relay");
    let leaf = Leaf {
        ca,
        common_name,
        ..Leaf::default()
    };
    secure.issue("relay-of-another", leaf);
    secure
        .by_certificate()
        .with("ssl.certificate.location", &secure.file("relay-of-another.pem"))
        .with("ssl.key.location", &secure.file("relay-of-another.key"))
}

#[tokio::test]
async fn a_wrong_password_is_said_once() {
    is_said_once(&wrong_password(), "the login of relay by PLAIN failed").await;
}

#[tokio::test]
async fn a_wrong_scram_password_is_said_once() {
    is_said_once(&wrong_scram_password(), "the login of relay by SCRAM-SHA-512 failed").await;
}

#[tokio::test]
async fn a_wrong_ca_is_said_once() {
    is_said_once(&wrong_ca(), "no trusted CA has issued it").await;
}

#[tokio::test]
async fn an_expired_certificate_is_said_once() {
    is_said_once(&SecureKafka::get().over_tls("EXPIRED"), "it expired on").await;
}

#[tokio::test]
async fn a_certificate_for_another_host_is_said_once() {
    let words = "it is for other.example, not for 127.0.0.1";
    is_said_once(&SecureKafka::get().over_tls("ELSEWHERE"), words).await;
}

#[tokio::test]
async fn tls_that_is_switched_off_is_said_once() {
    is_said_once(&tls_switched_off(), "does not answer in TLS").await;
}

#[tokio::test]
async fn a_client_certificate_that_is_missing_is_said_once() {
    is_said_once(
        &SecureKafka::get().over_tls("MTLS"),
        "see ssl.certificate.location and ssl.key.location",
    )
    .await;
}

#[tokio::test]
async fn a_client_certificate_of_another_ca_is_said_once() {
    is_said_once(
        &certificate_of_another_ca(),
        "see ssl.certificate.location and ssl.key.location",
    )
    .await;
}

/// They wait for the same answer, so side by side.
#[tokio::test]
async fn the_oracle_says_why_it_cannot_tell() {
    let secure = SecureKafka::get();
    let world = secure.world().await;
    let topic = world.topic("orders", 1, &[]).await;
    world.fill(&topic, 1, 0).await;
    let relay = RelayBuilder::new(&world.database_url, secure.plain())
        .start_ready()
        .await;
    world.drained(SOON).await;
    drop(relay);
    let issuer = secure.issuer();
    issuer.answer(IssuerAnswer::Text(503, "s3cret".to_owned()));
    let cases = [
        (wrong_password(), "the login of relay by PLAIN failed"),
        (wrong_ca(), "no trusted CA has issued it"),
        (secure.over_tls("EXPIRED"), "it expired on"),
        (tls_switched_off(), "does not answer in TLS"),
        (
            secure.over_tls("MTLS"),
            "see ssl.certificate.location and ssl.key.location",
        ),
        (secure.by_issuer(&issuer), "HTTP 503"),
    ];
    std::thread::scope(|scope| {
        for (access, words) in &cases {
            let world = &world;
            scope.spawn(move || {
                let undecided = access.verify(world);
                let said = stderr_of(&undecided);
                assert_eq!(undecided.status.code(), Some(2), "{words}: {said}");
                assert!(said.contains(words), "{words}: {said}");
                assert!(!said.contains("s3cret"), "{said}");
            });
        }
    });
}
