//! TLS and logins, to PostgreSQL and to Kafka.

use testkit::*;

use super::{Report, assert_contains, doctor, examine};

#[tokio::test]
async fn what_encrypts_a_session_and_what_it_proves_is_told() {
    let postgres = SecurePostgres::start().await;
    let world = postgres.world().await;
    let plain = examine(&world.database_url, &[]);
    assert_eq!(
        plain.verdict("db.tls"),
        "advice",
        "the server offers TLS, and nobody verifies it"
    );
    let url = world
        .login_with("client", &["outbox_relay", "by_password"], "r1ght")
        .await;
    let ca = format!("sslrootcert={}", postgres.certificates.path("ca.pem"));
    let verified = examine(&format!("{url}?sslmode=verify-full&{ca}"), &[]);
    assert_eq!(
        (verified.code, verified.verdict("db.tls")),
        (0, "ok"),
        "{:#}",
        verified.json
    );
    let (found, fix) = examine(&format!("{url}?sslmode=require"), &[]).only_advice("db.tls");
    assert_contains(&found, &["TLSv1.3", "not verified"]);
    assert_contains(&fix, &["sslmode=verify-full"]);

    postgres.certificates.leaf("expired", Leaf::default().expired());
    postgres.show("expired").await;
    let refused = examine(&format!("{url}?sslmode=verify-full&{ca}"), &[]);
    let (found, _) = refused.only_problem("db.tls");
    assert_contains(&found, &["the server's certificate is not trusted: it expired"]);
    assert_eq!(refused.verdict("db.connect"), "skipped");
    let wrong = url.replacen("r1ght", "wr0ng", 1);
    let (found, fix) = examine(&wrong, &[]).only_problem("db.connect");
    assert_contains(&found, &["password authentication failed"]);
    assert_contains(&fix, &["pg_hba.conf"]);
    assert!(!found.contains("wr0ng"));
}

/// Examines a world whose Kafka is reached so.
fn examine_by(world: &World, access: &Access) -> Report {
    let arguments = access.arguments();
    let mut all = vec![
        "--database-url",
        &world.database_url,
        "--kafka-brokers",
        &access.brokers,
    ];
    all.extend(arguments.iter().map(String::as_str));
    doctor(&all)
}

#[tokio::test]
async fn who_the_relay_is_to_the_brokers_is_told() {
    let secure = SecureKafka::get();
    let world = secure.world().await;
    let topic = world.topic("orders", 1, &[]).await;
    world.fill(&topic, 1, 1).await;
    let issuer = secure.issuer();
    for (access, words) in [
        (
            secure.by_password("SCRAM-SHA-512", "relay", "scram-s3cret"),
            "by SCRAM-SHA-512 and is User:relay",
        ),
        (secure.by_certificate(), "shows its certificate"),
        (secure.by_issuer(&issuer), "by OAUTHBEARER and is User:relay"),
    ] {
        let report = examine_by(&world, &access);
        assert_eq!(report.with("problem"), [""; 0], "{:#}", report.json);
        assert_contains(report.check("kafka.auth")["found"].as_str().expect("a text"), &[words]);
        assert_eq!(report.verdict("kafka.tls"), "ok");
        assert_eq!(report.verdict("kafka.topic.write"), "ok", "{:#}", report.json);
        // Nothing but Write and Read was granted.
        assert_eq!(report.verdict("kafka.topic.size"), "advice", "{:#}", report.json);
    }
}

#[tokio::test]
async fn why_brokers_cannot_be_reached_securely_is_told() {
    let secure = SecureKafka::get();
    let world = secure.world().await;
    let right = secure.by_password("SCRAM-SHA-512", "relay", "scram-s3cret");
    let wrong = secure.by_password("SCRAM-SHA-512", "relay", "wr0ng");
    let (found, _) = examine_by(&world, &wrong).only_problem("kafka.auth");
    assert!(!found.contains("wr0ng"), "{found}");
    let untrusted = right.with("ssl.ca.location", &secure.file("other-ca.pem"));
    let (found, _) = examine_by(&world, &untrusted).only_problem("kafka.tls");
    assert_contains(&found, &["certificate"]);
    let issuer = secure.issuer();
    let access = secure
        .by_issuer(&issuer)
        .with("sasl.oauthbearer.client.secret", "wr0ng");
    let (found, _) = examine_by(&world, &access).only_problem("kafka.auth");
    assert_contains(&found, &["there is no token"]);
    assert!(!found.contains("wr0ng"), "{found}");
}
