//! The alerting rules and the dashboard: what they name exists, each alert fires when it should, and a runbook says what to do then.

mod dashboard;
mod faults;
mod panels;
mod promql;
mod rules;

use std::collections::BTreeMap;
use std::fs;

use serde::Deserialize;
use testkit::*;

const RULES: &str = "deploy/prometheus/alerts.yaml";

/// Labels that Prometheus gives every series that it scrapes.
const OF_TARGETS: [&str; 3] = ["namespace", "job", "instance"];

#[derive(Deserialize)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

/// A rule that records a series, or one that alerts.
#[derive(Clone, Deserialize)]
struct Rule {
    #[serde(default)]
    record: String,
    #[serde(default)]
    alert: String,
    expr: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

fn rules() -> Vec<Rule> {
    let file: RuleFile = serde_saphyr::from_str(&text_of(RULES)).expect("rules");
    file.groups.into_iter().flat_map(|group| group.rules).collect()
}

fn alerts() -> Vec<Rule> {
    rules().into_iter().filter(|rule| !rule.alert.is_empty()).collect()
}

/// Every series that an expression may name, with its labels: those of a relay, and those that rules record.
fn known_series() -> BTreeMap<String, Vec<String>> {
    let of_relays = outboxd::metrics::series().map(|(name, labels)| {
        let labels = labels.iter().chain(&OF_TARGETS).map(|label| (*label).to_owned());
        (name, labels.collect())
    });
    let recorded = rules().into_iter().filter(|rule| !rule.record.is_empty());
    let recorded = recorded.map(|rule| {
        let labels = promql::named(&rule.expr).labels;
        (rule.record, labels.into_iter().map(str::to_owned).collect())
    });
    of_relays.chain(recorded).collect()
}

/// What an expression names that does not exist, a line each.
fn unknown_in(expression: &str, known: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let named = promql::named(expression);
    let mut unknown = Vec::new();
    let mut labels: Vec<&str> = OF_TARGETS.to_vec();
    for (series, matched) in &named.series {
        let Some(of_series) = known.get(*series) else {
            unknown.push(format!("there is no series {series}: {expression}"));
            continue;
        };
        let lacking = matched
            .iter()
            .filter(|label| !of_series.iter().any(|known| known == *label));
        unknown.extend(lacking.map(|label| format!("{series} has no label {label}: {expression}")));
        labels.extend(of_series.iter().map(String::as_str));
    }
    let foreign = named.labels.iter().filter(|label| !labels.contains(label));
    unknown.extend(foreign.map(|label| format!("no series has the label {label}: {expression}")));
    unknown
}
