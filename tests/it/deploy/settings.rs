//! Each setting that the chart, the manifests and docs/deploy.md name is one of this binary. A variable that outboxd does not know
//! has no effect, and nobody would be told.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use testkit::*;

use super::{files, yaml};

/// The variables of a command, each with the words that it takes, if it takes only some.
fn settings_of(command: &str) -> BTreeMap<String, Vec<String>> {
    let output = outboxd().args([command, "-h"]).output().expect("outboxd runs");
    let help = String::from_utf8(output.stdout).expect("text");
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let settings = help.split("[env: ").skip(1).map(|part| {
        let (variable, rest) = part.split_once(']').expect("a bracket");
        let name = variable.split('=').next().unwrap_or_default();
        let words = rest.split_once("[possible values: ");
        let words = words
            .and_then(|(_, words)| words.split_once(']'))
            .map(|(words, _)| words);
        let words = words.into_iter().flat_map(|words| words.split(", ")).map(str::to_owned);
        (name.to_owned(), words.collect())
    });
    settings.collect()
}

/// The names of variables in a text.
fn variables(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
    let names = text.match_indices("OUTBOXD_").map(|(at, _)| {
        let name = &text[at..];
        name[..name.find(|c| !is_part(c)).unwrap_or(name.len())].to_owned()
    });
    names.collect()
}

/// The commands that pods and people run.
const COMMANDS: [&str; 6] = ["run", "migrate", "verify", "doctor", "status", "healthcheck"];

#[test]
fn every_variable_that_is_named_is_a_setting_of_this_binary() {
    let known: BTreeSet<String> = COMMANDS
        .iter()
        .flat_map(|command| settings_of(command).into_keys())
        .collect();
    let mut pages = files("deploy/chart");
    pages.extend(files("deploy/kubernetes"));
    pages.push(repository().join("docs/deploy.md"));
    for page in pages {
        let named = variables(&text_of(&page));
        // `OUTBOXD_` alone stands for all of them.
        let unknown: Vec<&String> = named
            .iter()
            .filter(|name| *name != "OUTBOXD_" && !known.contains(*name))
            .collect();
        assert!(
            unknown.is_empty(),
            "{}: outboxd has no setting {unknown:?}",
            page.display()
        );
    }
}

#[test]
fn every_metric_that_a_template_asks_for_is_one_of_this_binary() {
    let page = text_of("docs/metrics.md");
    let mut asked = BTreeSet::new();
    for file in files("deploy/chart/templates") {
        let text = text_of(&file);
        let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
        asked.extend(words.filter(|word| word.starts_with("outboxd_")).map(str::to_owned));
    }
    assert!(asked.contains("outboxd_backlog_rows"), "{asked:?}");
    let unknown: Vec<&String> = asked
        .iter()
        .filter(|name| !page.contains(&format!("`{name}`")))
        .collect();
    assert!(unknown.is_empty(), "docs/metrics.md has no {unknown:?}");
}

/// Settings of `outboxd run` that are neither free to set nor set by the chart, with the reason.
const NOT_IN_THE_CHART: [(&str, &str); 3] = [
    ("OUTBOXD_DATABASE_URL", "a Secret is mounted as a file"),
    ("OUTBOXD_MIGRATE", "the hook migrates, under another login"),
    ("OUTBOXD_WORKER_NAME", "each pod has the name that Kubernetes gives it"),
];

/// The variables that the templates set: those of an `env` and of the ConfigMap.
fn set_by_the_templates() -> BTreeSet<String> {
    let templates = files("deploy/chart/templates");
    let lines = templates.iter().flat_map(|path| {
        let text = text_of(path);
        text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    });
    let set = lines.filter(|line| line.starts_with("- name: OUTBOXD_") || line.starts_with("OUTBOXD_"));
    set.flat_map(|line| variables(&line)).collect()
}

fn schema() -> Value {
    serde_json::from_str(&text_of("deploy/chart/values.schema.json")).expect("JSON")
}

#[test]
fn the_schema_of_the_values_has_each_setting_of_run_that_the_chart_does_not_set() {
    let run = settings_of("run");
    let settings = schema()["properties"]["settings"]["properties"].clone();
    let settings = settings.as_object().expect("properties").clone();
    let set = set_by_the_templates();
    let excused: BTreeSet<&str> = NOT_IN_THE_CHART.iter().map(|(name, _)| *name).collect();
    let expected: BTreeSet<&str> = run
        .keys()
        .map(String::as_str)
        .filter(|name| !set.contains(*name) && !excused.contains(name))
        .collect();
    let offered: BTreeSet<&str> = settings.keys().map(String::as_str).collect();
    assert_eq!(offered, expected, "the settings of values.schema.json");

    for (name, schema) in &settings {
        let words = run[name]
            .iter()
            .map(|word| Value::from(word.as_str()))
            .collect::<Vec<_>>();
        let offered = schema["enum"].as_array().cloned().unwrap_or_default();
        assert_eq!(offered, words, "the words of {name}");
    }
}

/// The names of all values that the schema knows, down to where it takes anything.
fn leaves(schema: &Value, root: &Value, path: &str, found: &mut BTreeSet<String>) {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => root.pointer(&reference[1..]).expect("a definition"),
        None => schema,
    };
    match schema["properties"].as_object() {
        Some(properties) if path != ".settings" => {
            for (name, property) in properties {
                leaves(property, root, &format!("{path}.{name}"), found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

#[test]
fn each_value_that_the_schema_knows_has_a_default() {
    let root = schema();
    let mut known = BTreeSet::new();
    leaves(&root, &root, "", &mut known);
    let values = yaml(&text_of("deploy/chart/values.yaml")).remove(0);
    let pointer = |path: &str| path.replace('.', "/");
    for path in &known {
        // Helm sets it in a chart that is part of another, and that the requests of resources may have claims is Kubernetes' matter.
        if path == ".global" || path.ends_with(".claims") {
            continue;
        }
        assert!(values.pointer(&pointer(path)).is_some(), "values.yaml lacks {path}");
    }
}

#[test]
fn the_chart_installs_the_version_that_it_is_part_of() {
    let chart = yaml(&text_of("deploy/chart/Chart.yaml")).remove(0);
    let output = outboxd().arg("--version").output().expect("outboxd runs");
    let version = String::from_utf8(output.stdout).expect("text");
    let version = version.trim().trim_start_matches("outboxd ");
    assert_eq!(chart["version"], version, "version");
    assert_eq!(chart["appVersion"], version, "appVersion");
}

#[test]
fn the_alerts_of_the_chart_are_those_of_prometheus() {
    // A chart takes no files from outside.
    assert_eq!(
        text_of("deploy/chart/rules/alerts.yaml"),
        text_of("deploy/prometheus/alerts.yaml"),
        "cp deploy/prometheus/alerts.yaml deploy/chart/rules/"
    );
}
