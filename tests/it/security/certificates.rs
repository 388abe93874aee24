//! When the certificates expire by which a worker and its servers know each other.

use std::time::{SystemTime, UNIX_EPOCH};

use testkit::*;

/// In how many days each certificate expires that this worker shows as a metric. Tests issue leaves for 30 days, and CAs for 60.
fn days_left(relay: &Relay) -> Option<Vec<(String, i64)>> {
    let scrape = relay.get("/metrics")?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs_f64();
    let ends = Relay::series_in(&scrape, "outboxd_certificate_not_after_timestamp_seconds");
    let begins = Relay::series_in(&scrape, "outboxd_certificate_not_before_timestamp_seconds");
    assert!(
        ends.iter().all(|(labels, end)| *end == 0.0 || begins[labels] < now),
        "{scrape}"
    );
    let known = ends.into_iter().filter(|(_, end)| *end > 0.0).map(|(labels, end)| {
        let name = labels.trim_start_matches("{certificate=\"").trim_end_matches("\"}");
        (name.to_owned(), ((end - now) / 86_400.0).round() as i64)
    });
    Some(known.collect())
}

async fn shows(relay: &Relay, expected: &[(&str, i64)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, days)| ((*name).to_owned(), *days))
        .collect();
    eventually(SOON, &format!("{expected:?}"), async || {
        (days_left(relay)? == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_worker_shows_when_each_certificate_expires() {
    let (postgres, kafka) = (SecurePostgres::start().await, SecureKafka::get());
    let world = World::on(&postgres.server.url, kafka.plain()).await;
    let login = world.login("client", &["outbox_relay", "by_certificate"]).await;
    let files = &postgres.certificates;
    files.leaf("relay", Leaf::of(&format!("{}_client", world.name)));
    let (ca, certificate, key) = (files.path("ca.pem"), files.path("relay.pem"), files.path("relay.key"));
    let url = format!("{login}?sslmode=verify-full&sslrootcert={ca}&sslcert={certificate}&sslkey={key}");
    let access = kafka.by_certificate();
    let arguments = access.arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let relay = RelayBuilder::new(&url, &access.brokers)
        .args(&arguments)
        .start_ready()
        .await;
    let expected = [
        ("database_ca", 60),
        ("database_client", 30),
        ("database_server", 30),
        ("kafka_ca", 60),
        ("kafka_client", 30),
        ("kafka_server", 30),
    ];
    shows(&relay, &expected).await;
}

#[tokio::test]
async fn a_certificate_that_nobody_trusts_any_more_is_shown_as_well() {
    let kafka = SecureKafka::get();
    let world = kafka.world().await;
    let relay = kafka.over_tls("EXPIRED").relay(&world).start_ready().await;
    shows(&relay, &[("kafka_ca", 60), ("kafka_server", -1)]).await;
}

#[tokio::test]
async fn without_tls_there_is_no_certificate() {
    let world = World::new().await;
    let relay = world.relay().start_ready().await;
    eventually(SOON, "it to work", async || {
        (relay.metric("outboxd_backlog_sampled") == Some(1.0)).then_some(())
    })
    .await;
    assert_eq!(days_left(&relay), Some(Vec::new()));
}
