//! Writes `deploy/grafana/dashboard.json` from the panels. A test holds the file to them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::panels::{Panel, ROWS, Unit};
use super::*;

const PATH: &str = "deploy/grafana/dashboard.json";

/// Grafana divides the width of a dashboard into so many columns.
const COLUMNS: usize = 24;
const PANELS_IN_A_LINE: usize = 3;
const HEIGHT: usize = 8;

/// What `$outbox` stands for in an expression.
const OUTBOX: &str = "namespace=~\"$namespace\",job=\"$job\"";

/// The expressions of all panels for the outbox with these labels, rates being over this span.
pub fn expressions(outbox: &str, span: &str) -> Vec<String> {
    let queries = ROWS.iter().flat_map(|row| row.panels).flat_map(|panel| panel.queries);
    let expressions =
        queries.map(|(expression, _)| expression.replace("$outbox", outbox).replace("$__rate_interval", span));
    expressions.collect()
}

fn dashboard() -> Value {
    let mut panels = Vec::new();
    let mut y = 0;
    for row in ROWS {
        panels.push(json!({
            "type": "row", "title": row.title, "id": panels.len() + 1, "collapsed": false, "panels": [],
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
        }));
        y += 1;
        for (at, panel) in row.panels.iter().enumerate() {
            let (line, column) = (at / PANELS_IN_A_LINE, at % PANELS_IN_A_LINE);
            let (width, id) = (COLUMNS / PANELS_IN_A_LINE, panels.len() + 1);
            let place = json!({"h": HEIGHT, "w": width, "x": column * width, "y": y + line * HEIGHT});
            panels.push(time_series(panel, id, place));
        }
        y += row.panels.len().div_ceil(PANELS_IN_A_LINE) * HEIGHT;
    }
    json!({
        "title": "outboxd", "uid": "outboxd", "tags": ["outboxd", "kafka", "postgresql"], "schemaVersion": 39, "version": 1,
        "editable": true, "graphTooltip": 1, "refresh": "30s", "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables()}, "panels": panels,
    })
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

fn time_series(panel: &Panel, id: usize, place: Value) -> Value {
    let query = |(at, (expression, legend)): (usize, &(&str, &str))| {
        let name = char::from(b'A' + u8::try_from(at).expect("few queries"));
        json!({
            "refId": name.to_string(), "datasource": datasource(), "expr": expression.replace("$outbox", OUTBOX), "legendFormat": legend,
        })
    };
    let queries: Vec<Value> = panel.queries.iter().enumerate().map(query).collect();
    json!({
        "type": "timeseries", "title": panel.title, "id": id, "gridPos": place, "datasource": datasource(), "targets": queries,
        "fieldConfig": {
            "defaults": {"unit": unit(panel.unit), "min": 0, "custom": {"fillOpacity": 10, "showPoints": "never"}},
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
    })
}

/// Grafana's name of a unit.
fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Count => "short",
        Unit::PerSecond => "cps",
        Unit::Seconds => "s",
        Unit::Bytes => "bytes",
        Unit::Ratio => "percentunit",
    }
}

/// The data source and the outbox, to be chosen above the panels. Where scrapes have no namespace, all of them have the empty one.
fn variables() -> Value {
    let of_label = |label: &str, series: &str, all: bool| {
        let query = format!("label_values({series}, {label})");
        json!({
            "type": "query", "name": label, "label": label, "datasource": datasource(), "definition": query,
            "query": {"query": query, "refId": label}, "refresh": 2, "sort": 1, "includeAll": all, "multi": all,
            "allValue": if all { Value::from(".*") } else { Value::Null },
            "current": if all { json!({"text": ["All"], "value": ["$__all"]}) } else { json!({}) },
        })
    };
    json!([
        {"type": "datasource", "name": "datasource", "label": "data source", "query": "prometheus", "refresh": 1},
        of_label("namespace", "outboxd_build_info", true),
        of_label("job", "outboxd_build_info{namespace=~\"$namespace\"}", false),
    ])
}

#[test]
fn the_dashboard_is_current() {
    let text = format!("{:#}\n", dashboard());
    if std::env::var_os("OUTBOXD_WRITE_DASHBOARD").is_some() {
        fs::write(repository().join(PATH), &text).expect("the dashboard can be written");
    }
    let written = fs::read_to_string(repository().join(PATH)).unwrap_or_default();
    assert!(
        written == text,
        "{PATH} is not what the panels say: run `make dashboard`"
    );
}

#[test]
fn what_the_dashboard_names_exists_and_every_metric_is_on_it() {
    let mut known = known_series();
    let of_alerts = ["alertname", "alertstate", "severity", "topic"]
        .iter()
        .chain(&OF_TARGETS);
    known.insert(
        "ALERTS".to_owned(),
        of_alerts.map(|label| (*label).to_owned()).collect(),
    );
    let expressions = expressions("job=\"orders\"", "1m");
    let unknown: Vec<String> = expressions
        .iter()
        .flat_map(|expression| unknown_in(expression, &known))
        .collect();
    assert!(unknown.is_empty(), "\n{}\n", unknown.join("\n"));

    let shown: BTreeSet<&str> = expressions
        .iter()
        .flat_map(|expression| promql::named(expression).series)
        .map(|(name, _)| name)
        .collect();
    for metric in outboxd::metrics::names() {
        let is_shown = shown.contains(metric) || shown.contains(format!("{metric}_bucket").as_str());
        assert!(is_shown, "{metric} is on no panel");
    }
}

#[test]
fn each_expression_is_of_the_chosen_outbox_and_has_a_legend() {
    for panel in ROWS.iter().flat_map(|row| row.panels) {
        for (expression, legend) in panel.queries {
            let selectors = expression.matches("$outbox").count();
            let expression = expression.replace("$outbox", OUTBOX);
            assert_eq!(
                promql::named(&expression).series.len(),
                selectors,
                "{}: {expression}",
                panel.title
            );
            assert!(!legend.is_empty(), "{}", panel.title);
        }
    }
}
