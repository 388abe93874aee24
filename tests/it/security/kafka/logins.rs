//! Every way to log in carries rows, and lets them be read back.

use std::time::Duration;

use testkit::*;

use super::assert_publishes;

/// The relay publishes by this access, and the oracle reads by it.
async fn publishes_and_verifies(access: &Access) {
    let world = SecureKafka::get().world().await;
    let topic = world.topic("orders", 2, &[]).await;
    let mut relay = access.relay(&world).start_ready().await;
    assert_publishes(&world, &relay, &topic).await;
    relay.stop();
    let verified = access.verify(&world);
    assert_eq!(verified.status.code(), Some(0), "{}", stderr_of(&verified));
}

#[tokio::test]
async fn plain_publishes_and_verifies() {
    let access = SecureKafka::get().by_password("PLAIN", "relay", "plain-s3cret");
    publishes_and_verifies(&access).await;
}

#[tokio::test]
async fn scram_sha_256_publishes_and_verifies() {
    let access = SecureKafka::get().by_password("SCRAM-SHA-256", "relay", "scram-s3cret");
    publishes_and_verifies(&access).await;
}

#[tokio::test]
async fn scram_sha_512_publishes_and_verifies() {
    let access = SecureKafka::get().by_password("SCRAM-SHA-512", "relay", "scram-s3cret");
    publishes_and_verifies(&access).await;
}

#[tokio::test]
async fn a_client_certificate_publishes_and_verifies() {
    publishes_and_verifies(&SecureKafka::get().by_certificate()).await;
}

#[tokio::test]
async fn tokens_of_an_issuer_publish_and_verify() {
    let secure = SecureKafka::get();
    let issuer = secure.issuer_over_tls();
    let access = secure
        .by_issuer(&issuer)
        .with("https.ca.location", &secure.file("ca.pem"))
        .with("sasl.oauthbearer.scope", "kafka orders");
    publishes_and_verifies(&access).await;
    assert_eq!(issuer.requests(), 2, "one of the relay and one of the oracle");
}

#[tokio::test]
async fn the_token_of_a_file_publishes_and_verifies() {
    let secure = SecureKafka::get();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("token");
    let token = secure.signer.token("relay", Duration::from_secs(600));
    std::fs::write(&file, format!("{token}\n")).expect("a file");
    let access = secure
        .by_token()
        .flag("--kafka-token-file", &file.display().to_string());
    publishes_and_verifies(&access).await;
}

#[tokio::test]
async fn the_token_of_a_command_publishes_and_verifies() {
    let secure = SecureKafka::get();
    let token = secure.signer.token("relay", Duration::from_secs(600));
    let command = format!("echo '{{\"access_token\":\"{token}\",\"expires_in\":600}}'");
    publishes_and_verifies(&secure.by_token().flag("--kafka-token-command", &command)).await;
}

#[tokio::test]
async fn properties_of_a_file_publish_and_verify() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("kafka.properties").display().to_string();
    let access = SecureKafka::get().by_password("SCRAM-SHA-512", "relay", "scram-s3cret");
    publishes_and_verifies(&access.in_file(&file)).await;
}

#[test]
fn gssapi_is_refused_also_by_default() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("kafka.properties");
    for (properties, begins) in [
        (
            "security.protocol=sasl_ssl\nsasl.mechanism=GSSAPI\n",
            "--kafka-properties-file: sasl.mechanism=GSSAPI is not supported",
        ),
        (
            "security.protocol=SASL_PLAINTEXT\n",
            "security.protocol=sasl_plaintext without sasl.mechanism means GSSAPI, which is not supported",
        ),
    ] {
        std::fs::write(&file, properties).expect("a file");
        for command in ["run", "verify"] {
            let refused = outboxd()
                .args([command, "--database-url", "postgres://u@127.0.0.1/db"])
                .args(["--kafka-brokers", "127.0.0.1:9", "--kafka-properties-file"])
                .arg(&file)
                .output()
                .expect("outboxd runs");
            let said = stderr_of(&refused);
            assert_eq!(refused.status.code(), Some(64), "{said}");
            assert!(said.contains(begins), "{said}");
            assert!(said.contains("without Kerberos libraries"), "{said}");
        }
    }
}

#[test]
fn sources_of_tokens_that_do_not_fit_are_settings() {
    let oauth = ["security.protocol=sasl_ssl", "sasl.mechanism=OAUTHBEARER"];
    let file = ["--kafka-token-file", "/nowhere/token"];
    let command = ["--kafka-token-command", "echo token"];
    let cases: [(&[&str], &[&str], &str); 5] = [
        (&oauth, &[], "sasl.mechanism=OAUTHBEARER needs tokens"),
        (&[], &command, "--kafka-token-command has no effect"),
        (&oauth, &[file, command].concat(), "give one source of tokens"),
        (&oauth, &file, "--kafka-token-file /nowhere/token cannot be read"),
        (
            &oauth,
            &["--kafka-token-command", "'echo"],
            "--kafka-token-command has a quote",
        ),
    ];
    for (properties, flags, words) in cases {
        let refused = outboxd()
            .args([
                "run",
                "--database-url",
                "postgres://u@127.0.0.1/db",
                "--kafka-brokers",
                "127.0.0.1:9",
            ])
            .args(properties.iter().flat_map(|property| ["--kafka-property", property]))
            .args(flags)
            .output()
            .expect("outboxd runs");
        let said = stderr_of(&refused);
        assert_eq!(refused.status.code(), Some(64), "{said}");
        assert!(said.contains(words), "{words}: {said}");
    }
}
