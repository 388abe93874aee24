//! The chart: everything that it prints is valid, and says what it should.

use std::collections::BTreeSet;

use serde_json::Value;
use testkit::{promtool, stderr_of, text_of};

use super::helm::{MATRIX, Release, pod_spec, succeed, tool};
use super::{files, yaml};

#[test]
#[ignore = "needs helm: make test-all"]
fn helm_has_nothing_to_say_against_it() {
    for values in MATRIX {
        let file = format!("deploy/chart/ci/{values}-values.yaml");
        let said = succeed(tool("helm").args(["lint", "--strict", "deploy/chart", "--values", &file]));
        assert!(said.contains("0 chart(s) failed"), "{said}");
    }
}

/// What kubeconform says of some objects: whether all are valid, and its words. It passes over what it does not know as a manifest, so
/// the number of objects counts, too.
fn validate(manifest: &str) -> (bool, String) {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a file");
    std::fs::write(file.path(), manifest).expect("written");
    let mut kubeconform = tool("kubeconform");
    kubeconform
        .args(["-strict", "-summary", "-schema-location"])
        .arg("tests/it/deploy/schemas/{{.ResourceKind}}{{.KindSuffix}}.json")
        .arg(file.path());
    let output = kubeconform.output().expect("kubeconform runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let all = format!("Valid: {}, Invalid: 0, Errors: 0, Skipped: 0", yaml(manifest).len());
    (output.status.success() && said.contains(&all), said)
}

#[test]
#[ignore = "needs helm: make test-all"]
fn each_object_is_one_that_kubernetes_and_its_operators_take() {
    for values in MATRIX {
        let (is_valid, said) = validate(&Release::of(values).text());
        assert!(is_valid, "{values}: {said}");
    }
    for manifest in files("deploy/kubernetes") {
        let name = manifest.file_name().expect("a name").to_string_lossy().into_owned();
        if name.ends_with(".yaml") && !["values.yaml", "kustomization.yaml"].contains(&name.as_str()) {
            let (is_valid, said) = validate(&text_of(&manifest));
            assert!(is_valid, "{name}: {said}");
        }
    }
}

#[test]
#[ignore = "needs helm: make test-all"]
fn a_field_that_kubernetes_does_not_know_is_found() {
    // The test above would be worth nothing with schemas that accept everything.
    for (right, wrong) in [
        ("enableServiceLinks:", "enableServiceLink:"),
        ("podMetricsEndpoints:", "podMetricEndpoints:"),
        ("minReplicaCount:", "minReplicas:"),
        ("periodSeconds: 2", "periodSeconds: soon"),
        ("apiVersion: policy/v1", "apiVersion: policy/v1beta1"),
    ] {
        let text = Release::of("strimzi").text();
        assert!(text.contains(right), "{right}");
        let (is_valid, _) = validate(&text.replace(right, wrong));
        assert!(!is_valid, "{wrong} is accepted");
    }
}

#[test]
#[ignore = "needs helm: make test-all"]
fn prometheus_takes_the_rules_as_the_operator_hands_them_on() {
    let rule = Release::of("strimzi").object("PrometheusRule", "outboxd");
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a file");
    // JSON is YAML.
    std::fs::write(file.path(), rule["spec"].to_string()).expect("written");
    let output = promtool(&["check", "rules", &file.path().display().to_string()]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    let rules: Vec<&Value> = rule
        .pointer("/spec/groups")
        .and_then(Value::as_array)
        .expect("groups")
        .iter()
        .flat_map(|group| group["rules"].as_array().expect("rules"))
        .collect();
    assert!(
        said.contains(&format!("SUCCESS: {} rules found", rules.len())),
        "{said}"
    );
    for alert in rules.iter().filter(|rule| !rule["alert"].is_null()) {
        let runbook = alert["annotations"]["runbook_url"].as_str().expect("a runbook");
        assert!(
            runbook.starts_with("https://docs.example/outboxd/runbook.html#"),
            "{runbook}"
        );
    }
}

/// Kind and name of each object, and the pods that each selects.
fn identities(release: &Release) -> BTreeSet<String> {
    let objects = release.objects();
    let identity = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
    objects.iter().map(identity).collect()
}

#[test]
#[ignore = "needs helm: make test-all"]
fn two_releases_in_a_namespace_share_nothing() {
    for values in ["minimal", "strimzi", "cloud"] {
        let (one, other) = (Release::of(values), Release::of(values).named("payments"));
        let shared: Vec<String> = identities(&one).intersection(&identities(&other)).cloned().collect();
        assert!(shared.is_empty(), "{values}: {shared:?}");
        let selector = |release: &Release| release.object("Deployment", "")["spec"]["selector"]["matchLabels"].clone();
        assert_ne!(selector(&one), selector(&other), "{values}");
    }
    let payments = Release::of("minimal").named("payments").set("database.schema=payments");
    let deployment = payments.object("Deployment", "payments-outboxd");
    let environment = deployment
        .pointer("/spec/template/spec/containers/0/env")
        .expect("an env");
    let schema = serde_json::json!({"name": "OUTBOXD_SCHEMA", "value": "payments"});
    assert!(
        environment.as_array().expect("a list").contains(&schema),
        "{environment}"
    );
}

#[test]
#[ignore = "needs helm: make test-all"]
fn whatever_selects_pods_selects_those_of_the_deployment_alone() {
    let release = Release::of("strimzi");
    let deployment = release.object("Deployment", "outboxd");
    let labels = deployment
        .pointer("/spec/template/metadata/labels")
        .expect("labels")
        .clone();
    for (kind, path) in [
        ("PodDisruptionBudget", "/spec/selector/matchLabels"),
        ("PodMonitor", "/spec/selector/matchLabels"),
        ("Service", "/spec/selector"),
        ("Deployment", "/spec/selector/matchLabels"),
    ] {
        let suffix = if kind == "Service" { "outboxd-ui" } else { "outboxd" };
        let selector = release.object(kind, suffix).pointer(path).expect(path).clone();
        let selects = |labels: &Value| {
            let selector = selector.as_object().expect("labels");
            selector.iter().all(|(name, value)| labels[name] == *value)
        };
        assert!(selects(&labels), "{kind}: {selector}");
        for path in [
            "/spec/jobTemplate/spec/template/metadata/labels",
            "/spec/template/metadata/labels",
            "/metadata/labels",
        ] {
            for object in release.objects() {
                let makes_other_pods = pod_spec(&object).is_some() && object["kind"] != "Deployment";
                if makes_other_pods && let Some(labels) = object.pointer(path) {
                    assert!(
                        !selects(labels),
                        "{kind} selects pods of {}",
                        object["metadata"]["name"]
                    );
                }
            }
        }
    }
}

#[test]
#[ignore = "needs helm: make test-all"]
fn pods_are_replaced_when_a_setting_changes_and_only_then() {
    let template = |release: Release| release.object("Deployment", "outboxd")["spec"]["template"].clone();
    let before = template(Release::of("minimal"));
    assert_eq!(before, template(Release::of("minimal").set("replicas=5")), "scaled");
    assert_eq!(
        before,
        template(Release::of("minimal").set("podMonitor.enabled=true")),
        "watched"
    );
    assert_ne!(
        before,
        template(Release::of("minimal").set("settings.OUTBOXD_TASKS=4")),
        "a setting"
    );
    assert_ne!(
        before,
        template(Release::of("minimal").set("image.tag=0.2.0")),
        "an image"
    );
}

#[test]
#[ignore = "needs helm: make test-all"]
fn a_pod_is_killed_later_than_it_has_to_have_stopped() {
    for grace in [5, 25, 300] {
        let release = Release::of("minimal").set(&format!("shutdownGraceSeconds={grace}"));
        let deployment = release.object("Deployment", "outboxd");
        let until_killed = deployment.pointer("/spec/template/spec/terminationGracePeriodSeconds");
        assert_eq!(until_killed.and_then(Value::as_i64), Some(grace + 20));
        let settings = &release.object("ConfigMap", "outboxd")["data"];
        assert_eq!(settings["OUTBOXD_SHUTDOWN_GRACE"], format!("{grace}s"));
    }
}

#[test]
#[ignore = "needs helm: make test-all"]
fn numbers_stay_as_they_were_written() {
    let settings = Release::of("strimzi").object("ConfigMap", "outboxd")["data"].clone();
    assert_eq!(settings["OUTBOXD_BATCH_ROWS"], "100000");
    assert_eq!(settings["OUTBOXD_MAX_IN_FLIGHT_BYTES"], "12582912");
}

#[test]
#[ignore = "needs helm: make test-all"]
fn an_autoscaler_alone_decides_how_many_pods_there_are() {
    let replicas = |values: &str| Release::of(values).object("Deployment", "")["spec"]["replicas"].clone();
    assert_eq!(replicas("minimal"), 2);
    for values in ["strimzi", "cloud", "by-hand"] {
        assert!(replicas(values).is_null(), "{values}");
    }
    let scaled = Release::of("strimzi").object("ScaledObject", "outboxd");
    let trigger = &scaled["spec"]["triggers"][0]["metadata"];
    let query = trigger["query"].as_str().expect("a query");
    let pods = r#"outboxd_backlog_rows{namespace="shop",pod=~"outboxd-[a-z0-9]+-[a-z0-9]+"}"#;
    assert_eq!(query, format!("sum(max by (topic) ({pods}))"));
    assert_eq!(trigger["ignoreNullValues"], "false", "unknown is not zero");
}

#[test]
#[ignore = "needs helm: make test-all"]
fn the_migration_runs_before_everything_else_with_all_that_it_needs() {
    let release = Release::of("strimzi");
    let hooks = release.objects().into_iter().filter(|object| {
        let hook = object.pointer("/metadata/annotations/helm.sh~1hook");
        hook.is_some_and(|hook| hook == "pre-install,pre-upgrade")
    });
    let mut hooks: Vec<(i64, String)> = hooks
        .map(|object| {
            let weight = object.pointer("/metadata/annotations/helm.sh~1hook-weight");
            let weight = weight
                .and_then(Value::as_str)
                .map_or(0, |weight| weight.parse().expect("a number"));
            (weight, object["kind"].as_str().expect("a kind").to_owned())
        })
        .collect();
    hooks.sort();
    let expected = [(-1, "NetworkPolicy"), (-1, "ServiceAccount"), (0, "Job")];
    assert_eq!(hooks, expected.map(|(weight, kind)| (weight, kind.to_owned())));

    let job = release.object("Job", "outboxd-migrate");
    let pod = pod_spec(&job).expect("a pod");
    assert_eq!(pod["serviceAccountName"], "outboxd-migrate", "not that of the release");
    let secrets = pod
        .pointer("/volumes/0/projected/sources")
        .expect("sources")
        .to_string();
    assert!(
        secrets.contains("outboxd-migration") && !secrets.contains("outboxd-relay"),
        "{secrets}"
    );
    let containers = pod["containers"].to_string();
    assert!(
        !containers.contains("KAFKA") && !containers.contains("POOLER"),
        "{containers}"
    );
}

#[test]
#[ignore = "needs helm: make test-all"]
fn nobody_may_scrape_where_nobody_is_named() {
    let policy = Release::of("cloud").object("NetworkPolicy", "outboxd");
    assert!(
        policy["spec"]["ingress"].is_null(),
        "an empty list of peers would admit all: {policy}"
    );
    let policy = Release::of("strimzi").object("NetworkPolicy", "outboxd");
    let ports: Vec<&Value> = policy["spec"]["ingress"]
        .as_array()
        .expect("rules")
        .iter()
        .map(|rule| &rule["ports"][0]["port"])
        .collect();
    assert_eq!(ports, ["http", "ui"]);
}
