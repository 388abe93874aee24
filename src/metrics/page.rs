//! Writes `docs/metrics.md` from the list. A test holds the page to it.

use std::fmt::Write as _;

use super::metric::{Kind, Metric};
use super::{SECTIONS, all};

const INTRODUCTION: &str = include_str!("page_introduction.md");

/// Of each section its heading, and what its metrics have in common.
const HEADINGS: [(&str, &str); SECTIONS.len()] = [
    ("This worker", "Every worker shows its own."),
    (
        "The Kafka client",
        "Of the producer that carries batches, from the statistics of librdkafka: every 15 seconds, or as often as \
         `--kafka-property statistics.interval.ms=…` says.",
    ),
    (
        "The whole outbox",
        "Sampled every 15 seconds by the owner of lane 0, and shown by that worker alone. `outboxd_backlog_sampled` is 1 there \
         and 0 elsewhere. No series means unknown, not zero.",
    ),
    (
        "Commands, consumers and the inbox",
        "Of the SQL for applications, read every 60 seconds by the owner of lane 0. The gauges are shown by that worker alone. \
         The counters and histograms count what is new since its last sample, so add them up over all workers. PostgreSQL counts \
         anew after a crash or a failover, and an attempt or a message that was rolled back may be counted.",
    ),
    (
        "The process",
        "Read from the system at each scrape, under the names that Prometheus gives them.",
    ),
];

/// What each label says.
const LABELS: [(&str, &str); 13] = [
    (
        "topic",
        "The first 50 topics that the process sees keep theirs until it ends. All later ones are `other`, and so is what a \
         sample finds in topics without a label.",
    ),
    (
        "cause",
        "`uncertain`: its worker died or was replaced, or Kafka did not answer. `replay`: an operator replays it.",
    ),
    (
        "certificate",
        "`database_ca`, `database_client`, `database_server`, `kafka_ca`, `kafka_client`, `kafka_server`.",
    ),
    ("stream", "`ordered`: rows with a key. `unordered`: rows without."),
    ("table", "The table of the schema."),
    (
        "state",
        "Of connections: `used`, `idle`, `waiting`. Of commands: `active`, `stale`, `retryable`, `expired`, `final`.",
    ),
    (
        "reason",
        "`authentication`, `tls`, `resolve`, `connection`, `timeout`, `all_brokers_down`, `fatal`, `other`.",
    ),
    ("quantile", "`0.5`, `0.99`."),
    (
        "operation",
        "The part of a command's scope behind the tenant. The first 20 keep theirs, the others are `other`.",
    ),
    (
        "consumer",
        "The first 32 consumers (`outbox.consumer_slot`) have theirs, the others are `other`.",
    ),
    (
        "outcome",
        "Of commands: `succeeded`, `failed_retryable`, `failed_final`. Of inbox messages: `done`, `discarded`, `poison`.",
    ),
    ("version", "The release."),
    ("revision", "What the build was given as `OUTBOXD_REVISION`."),
];

/// The whole page.
fn text() -> String {
    let mut page = String::from(INTRODUCTION);
    // Writing to a String cannot fail.
    let _ = write_lists(&mut page);
    page
}

fn write_lists(page: &mut String) -> std::fmt::Result {
    for ((heading, common), section) in HEADINGS.iter().zip(SECTIONS) {
        writeln!(page, "\n## {heading}\n\n{common}\n")?;
        writeln!(page, "| metric | type | labels | series at most | what it says |")?;
        writeln!(page, "|---|---|---|---|---|")?;
        for metric in section {
            write_metric(page, metric)?;
        }
    }
    writeln!(page, "\n## Labels\n\n| label | values |\n|---|---|")?;
    for (label, values) in LABELS {
        writeln!(page, "| `{label}` | {values} |")?;
    }
    let total: usize = all().map(Metric::series_max).sum();
    writeln!(
        page,
        "\nA scrape shows at most {total} series, whatever applications do."
    )
}

fn write_metric(page: &mut String, metric: &Metric) -> std::fmt::Result {
    let labels: Vec<String> = metric.labels.iter().map(|(label, _)| format!("`{label}`")).collect();
    writeln!(
        page,
        "| `{}` | {} | {} | {} | {} |",
        metric.name,
        match metric.kind {
            Kind::Counter | Kind::TopicCounter => "counter",
            Kind::Gauge | Kind::GaugeByChange | Kind::SampledGauge => "gauge",
            Kind::Histogram => "histogram",
        },
        labels.join(", "),
        metric.series_max(),
        metric.help
    )
}

#[test]
fn the_page_is_current() {
    const PATH: &str = "docs/metrics.md";
    let text = text();
    if std::env::var_os("OUTBOXD_WRITE_METRICS").is_some() {
        std::fs::write(PATH, &text).expect("the page can be written");
    }
    let page = std::fs::read_to_string(PATH).unwrap_or_default();
    assert!(
        page == text,
        "{PATH} is not what the code says: run `make metrics-page`"
    );
}

#[test]
fn every_label_is_explained_and_every_metric_that_is_named_exists() {
    for label in all().flat_map(|metric| metric.labels).map(|(label, _)| label) {
        assert!(LABELS.iter().any(|(explained, _)| explained == label), "{label}");
    }
    let named = INTRODUCTION.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    for name in named.filter(|name| name.starts_with("outboxd_")) {
        let metric = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix));
        let metric = metric.unwrap_or(name);
        assert!(all().any(|known| known.name == metric), "{name}");
    }
}

#[test]
fn help_is_a_sentence_that_fits_into_a_table() {
    for metric in all() {
        assert!(
            metric.help.ends_with('.') && !metric.help.contains(['|', '\n']),
            "{}",
            metric.name
        );
    }
}
