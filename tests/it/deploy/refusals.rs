//! Values that helm refuses, before anything is installed.

use super::helm::Release;

/// A value, and what helm says against it.
const REFUSED: &[(&str, &str)] = &[
    ("mode=receive", "mode"),
    ("replica=3", "replica"),
    ("replicas=-1", "replicas"),
    ("replicas=two", "replicas"),
    ("settings.OUTBOXD_RETENSION=1d", "OUTBOXD_RETENSION"),
    ("settings.OUTBOXD_ON_PUBLISHED=burn", "OUTBOXD_ON_PUBLISHED"),
    (
        "settings.OUTBOXD_DATABASE_URL=postgres://u:p@h/db",
        "OUTBOXD_DATABASE_URL",
    ),
    ("settings.OUTBOXD_MIGRATE=true", "OUTBOXD_MIGRATE"),
    ("settings.OUTBOXD_SHUTDOWN_GRACE=5s", "OUTBOXD_SHUTDOWN_GRACE"),
    ("database.schema=Bad-Name", "schema"),
    ("database.pooler=session", "pooler"),
    ("database.login.urlSecret=outboxd", "urlSecret"),
    ("database.url=postgres://u:p@h/db", "url"),
    ("image.digest=sha256:short", "digest"),
    ("image.pullPolicy=Sometimes", "pullPolicy"),
    ("httpPort=0", "httpPort"),
    ("ui.url=outboxd.example", "url"),
    ("kafka.serviceAccountToken.expirationSeconds=60", "expirationSeconds"),
    ("podMonitor.interval=often", "interval"),
    ("autoscaling.by=hand", "by"),
    ("temporarySize=big", "temporarySize"),
    ("fullnameOverride=Not_A_Name", "fullnameOverride"),
    ("podLabels.count=3", "podLabels"),
];

#[test]
#[ignore = "needs helm: make test-all"]
fn a_value_that_makes_no_sense_is_named() {
    for (value, word) in REFUSED {
        let refusal = Release::of("minimal").set(value).refusal();
        let by_the_schema = refusal.contains("don't meet the specifications of the schema");
        assert!(by_the_schema && refusal.contains(word), "{value}: {refusal}");
    }
}

/// What the schema cannot see, each with the sentence that helm says.
const CONTRADICTIONS: &[(&str, &str)] = &[
    (
        "database.ca.secret=a,database.ca.configMap=b",
        "database.ca has a secret and a configMap",
    ),
    (
        "kafka.ca.secret=a,kafka.ca.configMap=b",
        "kafka.ca has a secret and a configMap",
    ),
    (
        "database.login.passwordSecret.name=p,settings.OUTBOXD_DATABASE_PASSWORD_COMMAND=/c",
        "OUTBOXD_DATABASE_PASSWORD_COMMAND; remove one",
    ),
    (
        "kafka.serviceAccountToken.enabled=true,settings.OUTBOXD_KAFKA_TOKEN_COMMAND=/c",
        "OUTBOXD_KAFKA_TOKEN_COMMAND; remove one",
    ),
    ("ui.enabled=true", "ui.tokenSecret.name is empty"),
    (
        "ui.enabled=true,ui.tokenSecret.name=t,ui.port=9090",
        "ui.port is httpPort",
    ),
    ("verify.enabled=true", "verify.login.urlSecret.name is empty"),
    (
        "autoscaling.by=hpa,autoscaling.maxReplicas=1",
        "maxReplicas is less than",
    ),
    (
        "autoscaling.by=keda",
        "autoscaling.keda.prometheus.serverAddress is empty",
    ),
];

#[test]
#[ignore = "needs helm: make test-all"]
fn values_that_contradict_each_other_are_refused() {
    for (values, sentence) in CONTRADICTIONS {
        let refusal = Release::of("minimal").set(values).refusal();
        assert!(refusal.contains(sentence), "{values}: {refusal}");
    }
    let refusal = Release::of("minimal").named(&"a".repeat(46)).refusal();
    assert!(refusal.contains("set fullnameOverride"), "{refusal}");
}

#[test]
#[ignore = "needs helm: make test-all"]
fn all_that_is_missing_is_listed_at_once() {
    let refusal = Release::without_values("outboxd").refusal();
    for word in [
        "3 problem(s)",
        "database.login.urlSecret.name",
        "kafka.brokers",
        "migration.login.urlSecret.name",
    ] {
        assert!(refusal.contains(word), "{word}: {refusal}");
    }
}
