//! The rules: Prometheus accepts them, each alert has its tests and its section in the runbook, and what they name exists.

use std::collections::BTreeSet;
use std::process::Command;

use super::*;

const TESTS: [&str; 2] = [
    "deploy/prometheus/alerts.test.yaml",
    "deploy/prometheus/alerts.latency.test.yaml",
];
const RUNBOOK: &str = "docs/runbook.md";

/// A file of tests as promtool runs them.
#[derive(Deserialize)]
struct TestFile {
    tests: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    promql_expr_test: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    expr: String,
    #[serde(default)]
    exp_samples: Vec<ExpectedSample>,
}

#[derive(Deserialize)]
struct ExpectedSample {
    labels: String,
}

fn assert_succeeds(args: &[&str]) {
    let output = promtool(args);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "promtool {args:?}: {said}\n{}",
        stderr_of(&output)
    );
}

fn path(file: &str) -> String {
    repository().join(file).display().to_string()
}

#[test]
fn prometheus_accepts_the_rules_and_they_pass_their_tests() {
    assert_succeeds(&["check", "rules", &path(RULES)]);
    let [tests, of_latency] = TESTS.map(path);
    assert_succeeds(&["test", "rules", &tests, &of_latency]);
}

#[test]
fn each_alert_is_tested_to_fire_and_to_stay_quiet() {
    let cases = TESTS.into_iter().flat_map(|file| {
        let file: TestFile = serde_saphyr::from_str(&text_of(file)).expect(file);
        file.tests
    });
    let mut wanted: BTreeSet<(String, &str)> = BTreeSet::new();
    for Rule { alert, .. } in alerts() {
        wanted.insert((alert.clone(), "fires"));
        wanted.insert((alert, "stays quiet"));
    }
    let mut tested: BTreeSet<(String, &str)> = BTreeSet::new();
    for Case { name, promql_expr_test } in cases {
        let alert = name.split(' ').next().expect("a name").to_owned();
        let [expected] = promql_expr_test.as_slice() else {
            panic!("{name}: one expression");
        };
        let firing = format!("ALERTS{{alertname=\"{alert}\", alertstate=\"firing\"}}");
        if expected.exp_samples.is_empty() {
            assert_eq!(expected.expr, format!("count_over_time({firing}[30d])"), "{name}");
            assert!(name.starts_with(&format!("{alert} stays quiet ")), "{name}");
            tested.insert((alert, "stays quiet"));
        } else {
            assert_eq!(expected.expr, firing, "{name}");
            assert!(name.starts_with(&format!("{alert} fires ")), "{name}");
            let severity = alerts()
                .into_iter()
                .find(|rule| rule.alert == alert)
                .expect("an alert")
                .labels["severity"]
                .clone();
            for sample in &expected.exp_samples {
                assert!(sample.labels.contains(&format!("severity=\"{severity}\"")), "{name}");
            }
            tested.insert((alert, "fires"));
        }
    }
    assert_eq!(tested, wanted);
}

#[test]
fn what_the_rules_name_exists() {
    let known = known_series();
    let unknown: Vec<String> = rules().iter().flat_map(|rule| unknown_in(&rule.expr, &known)).collect();
    assert!(unknown.is_empty(), "\n{}\n", unknown.join("\n"));
}

/// However many replicas there are, and however many outboxes one Prometheus sees.
#[test]
fn each_alert_is_one_for_an_outbox() {
    for Rule { alert, expr, .. } in alerts() {
        let named = promql::named(&expr);
        let is_recorded = named
            .series
            .iter()
            .all(|(series, _)| series.starts_with("namespace_job_topic:"));
        let lists = expr.matches(" by (").count();
        assert!(is_recorded || lists > 0, "{alert} does not say by which labels");
        assert_eq!(
            expr.matches(" by (namespace, job").count(),
            lists,
            "{alert} mixes outboxes"
        );
        assert!(!named.labels.contains(&"instance"), "{alert} is one for each replica");
    }
}

#[test]
fn each_alert_says_how_bad_it_is_what_it_means_and_what_to_type() {
    for Rule {
        alert,
        labels,
        annotations,
        ..
    } in alerts()
    {
        assert!(["page", "ticket"].contains(&labels["severity"].as_str()), "{alert}");
        let names: Vec<&str> = annotations.keys().map(String::as_str).collect();
        assert_eq!(names, ["command", "description", "runbook_url", "summary"], "{alert}");
        assert_eq!(
            annotations["runbook_url"],
            format!("{RUNBOOK}#{}", alert.to_lowercase())
        );
    }
}

/// The commands of outboxd itself are checked with those of the other pages.
#[tokio::test]
async fn the_sql_in_the_runbook_runs() {
    let world = World::new().await;
    let operator = world.login("operator", &["outbox_operator"]).await;
    let text = text_of(RUNBOOK);
    let commands: Vec<&str> = text.lines().filter(|line| line.starts_with("psql ")).collect();
    assert!(commands.len() >= 6, "{commands:?}");
    for command in commands {
        let output = Command::new("bash")
            .args(["-c", command])
            .env("OUTBOXD_DATABASE_URL", &operator)
            .output();
        let output = output.expect("bash runs");
        assert!(output.status.success(), "{command}: {}", stderr_of(&output));
    }
}

/// The sections of the runbook, by the alert that each is about.
fn sections() -> BTreeMap<String, String> {
    let text = text_of(RUNBOOK);
    let sections = text.split("\n### ").skip(1);
    let section = |section: &str| {
        let (name, text) = section.split_once('\n').expect("a heading");
        (
            name.to_owned(),
            text.split("\n## ").next().unwrap_or_default().to_owned(),
        )
    };
    sections.map(section).collect()
}

#[test]
fn the_runbook_has_a_section_for_each_alert_and_for_nothing_else() {
    let sections = sections();
    let alerts: BTreeMap<String, Rule> = alerts().into_iter().map(|rule| (rule.alert.clone(), rule)).collect();
    assert_eq!(sections.keys().collect::<Vec<_>>(), alerts.keys().collect::<Vec<_>>());
    for (alert, text) in sections {
        let rule = &alerts[&alert];
        let severity = if rule.labels["severity"] == "page" {
            "Page."
        } else {
            "Ticket."
        };
        assert!(text.trim_start().starts_with(severity), "{alert}: {severity}");
        assert!(
            text.contains("\nEnds ") || text.contains(". Ends "),
            "{alert}: when does it end?"
        );
        let shown = text.split("```sh\n").nth(1).unwrap_or_default();
        let first = shown.lines().next().unwrap_or_default();
        let command = &rule.annotations["command"];
        assert!(first.starts_with(command.as_str()), "{alert}: {first} is not {command}");
    }
}
