//! Metrics. [`list`] has all of them, with their names, labels and help. The other modules record what needs more than one line.
//!
//! Invariant: every label has a bound, which the list states. No application can create series without end.

mod client;
mod kit;
mod list;
mod metric;
#[cfg(test)]
mod page;
mod process;
mod samples;
mod topics;

use std::sync::{Arc, OnceLock};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;

use crate::domain::row::Row;
pub use client::{BrokerTimes, ClientInterval, client_interval};
pub use kit::{COMMAND_BUCKETS, INBOX_BUCKETS, OPERATIONS_MAX, commands, counted, finished, inbox};
pub use list::*;
pub use metric::{Certificate, ClientError, Stream};
use metric::{Kind, Metric, Repeat};
pub use process::connections;
pub use samples::{backlog, not_sampled};
pub use topics::{end_to_end, labelled_topics, published, row_refused, rows_published};

/// The upper bounds of histograms, in seconds.
const BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// The parts of the list.
const SECTIONS: [&[Metric]; 5] = [list::RELAY, list::KAFKA, list::OUTBOX, list::KIT, process::PROCESS];

/// The recorder of this process, once it is installed.
static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();

/// Answers scrapes.
#[derive(Clone, Default)]
pub struct Scrape {
    process: Collector,
    before: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>,
}

/// Installs the recorder and registers every metric of this worker, so that a scrape shows zeros rather than gaps.
pub fn install() -> Result<Scrape, String> {
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), BUCKETS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Full(COMMAND_SECONDS.to_owned()), COMMAND_BUCKETS))
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|error| error.to_string())?;
    RECORDER.get_or_init(|| recorder);
    all().for_each(Metric::register);
    kit::register();
    process::register();
    Ok(Scrape::default())
}

impl Scrape {
    /// Calls `record` before each answer, for what is only known by asking. The first caller's is kept.
    pub fn ask_before(&self, record: impl Fn() + Send + Sync + 'static) {
        self.before.get_or_init(|| Box::new(record));
    }

    /// The answer to a scrape.
    pub fn render(&self) -> String {
        if let Some(record) = self.before.get() {
            record();
        }
        process::collect(&self.process);
        let mut text = RECORDER.get().map_or_else(String::new, PrometheusHandle::render);
        text.push_str(&samples::render());
        text
    }
}

/// Folds the values that histograms were given into their buckets. Until then each takes memory, so this must be called now and
/// then even if nobody scrapes.
pub fn upkeep() {
    if let Some(recorder) = RECORDER.get() {
        recorder.run_upkeep();
    }
}

/// Counts records that say in a header that they may repeat an earlier copy. A replayed row that may also have been sent by
/// somebody else counts as replayed.
pub fn possible_duplicates<'a>(rows: impl Iterator<Item = &'a Row>) {
    let (mut uncertain, mut replayed) = (0, 0);
    for row in rows.filter(|row| row.is_flagged()) {
        *if row.is_repeat { &mut replayed } else { &mut uncertain } += 1;
    }
    list::possible_duplicates_of(Repeat::Uncertain, uncertain);
    list::possible_duplicates_of(Repeat::Replay, replayed);
}

fn all() -> impl Iterator<Item = &'static Metric> {
    SECTIONS.into_iter().flatten()
}

/// The names of all metrics.
pub fn names() -> impl Iterator<Item = &'static str> {
    all().map(|metric| metric.name)
}

/// The names of all metrics, and how many series of each a scrape shows at most.
pub fn bounds() -> impl Iterator<Item = (&'static str, usize)> {
    all().map(|metric| (metric.name, metric.series_max()))
}

/// The names of all series, those that a histogram consists of included, each with its labels.
pub fn series() -> impl Iterator<Item = (String, Vec<&'static str>)> {
    all().flat_map(Metric::series)
}

/// The names of the metrics that only the worker that samples exports.
pub fn sampled() -> impl Iterator<Item = &'static str> {
    sampled_gauges().map(|metric| metric.name)
}

fn sampled_gauges() -> impl Iterator<Item = &'static Metric> {
    all().filter(|metric| metric.kind == Kind::SampledGauge)
}

/// Counts a batch as in flight for as long as it lives.
pub struct InFlight {
    rows: f64,
    bytes: f64,
}

impl InFlight {
    pub fn new(rows: usize, bytes: usize) -> Self {
        let batch = InFlight {
            rows: rows as f64,
            bytes: bytes as f64,
        };
        in_flight_rows(batch.rows);
        in_flight_bytes(batch.bytes);
        batch
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        in_flight_rows(-self.rows);
        in_flight_bytes(-self.bytes);
    }
}
