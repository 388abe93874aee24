//! Metrics of the whole outbox. One worker samples them for all.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use metrics::describe_gauge;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

use super::list::{
    backlog_estimated, backlog_rows, backlog_sampled, dead_rows, dead_tuples, delayed_rows, held_keys, oldest_pause,
    oldest_pending, oldest_unheld, parked_topics, paused_partitions, vacuum_horizon_age,
};
use super::metric::OTHER;
use super::{sampled_gauges, topics};
use crate::domain::sample::{Sample, TopicSample};

/// The sampled gauges. They have a recorder of their own, because a recorder cannot forget a single series. It is dropped as a
/// whole when another worker takes over sampling, since its figures would contradict the last ones of this worker.
struct Sampled {
    recorder: PrometheusRecorder,
    series: SampledSeries,
}

/// The series that were sampled before. They are sampled as 0 from then on if nothing is found.
#[derive(Default)]
pub struct SampledSeries {
    /// How many commands were sampled last, for each operation that has series of its own and each of its states.
    pub operations: BTreeMap<String, BTreeMap<String, i64>>,
}

/// `None` before the first sample, and while another worker samples.
static SAMPLED: Mutex<Option<Sampled>> = Mutex::new(None);

fn lock_sampled() -> MutexGuard<'static, Option<Sampled>> {
    SAMPLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sampled gauges in the format of a scrape. Empty while another worker samples.
pub fn render() -> String {
    let sampled = lock_sampled();
    sampled
        .as_ref()
        .map_or_else(String::new, |sampled| sampled.recorder.handle().render())
}

impl Sampled {
    fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            for metric in sampled_gauges() {
                describe_gauge!(metric.name, metric.unit(), metric.help);
            }
        });
        Sampled {
            recorder,
            series: SampledSeries::default(),
        }
    }
}

/// Records the gauges that `set` sets as sampled ones.
pub fn record(set: impl FnOnce(&mut SampledSeries)) {
    let mut sampled = lock_sampled();
    let Sampled { recorder, series } = sampled.get_or_insert_with(Sampled::new);
    metrics::with_local_recorder(&*recorder, || set(series));
}

/// Drops the gauges, because another worker samples them.
pub fn not_sampled() {
    backlog_sampled(false);
    *lock_sampled() = None;
}

pub fn backlog(sample: &Sample) {
    backlog_sampled(true);
    // Labels are given outside of the sampled recorder, since they make series of the worker's own metrics, too.
    let labelled = by_label(&sample.topics, topics::label);
    let known = topics::labelled_topics();
    record(|_| {
        record_topics(&known, &labelled);
        backlog_estimated(sample.estimated);
        delayed_rows(sample.delayed);
        held_keys(sample.held_keys);
        parked_topics(sample.parked_topics);
        paused_partitions(sample.paused_partitions);
        oldest_pause(sample.oldest_pause_seconds);
        vacuum_horizon_age(sample.horizon_age);
        dead_tuples(sample.dead_tuples);
    });
}

/// Adds up the topics that share a label. `label` gives the label of a topic.
fn by_label(sampled: &[TopicSample], label: impl Fn(&str) -> String) -> BTreeMap<String, TopicSample> {
    let mut labelled: BTreeMap<String, TopicSample> = BTreeMap::new();
    for topic in sampled {
        let label = topic.topic.as_deref().map_or_else(|| OTHER.to_owned(), &label);
        let sum = labelled.entry(label).or_default();
        sum.pending += topic.pending;
        sum.dead += topic.dead;
        sum.oldest_seconds = sum.oldest_seconds.max(topic.oldest_seconds);
        sum.oldest_unheld_seconds = sum.oldest_unheld_seconds.max(topic.oldest_unheld_seconds);
    }
    labelled
}

/// Records every topic, with 0 for those that have nothing pending or dead any more.
fn record_topics(known: &[String], labelled: &BTreeMap<String, TopicSample>) {
    let nothing = TopicSample::default();
    for label in known.iter().map(String::as_str).chain([OTHER]) {
        let topic = labelled.get(label).unwrap_or(&nothing);
        backlog_rows(label.to_owned(), topic.pending);
        oldest_pending(label.to_owned(), topic.oldest_seconds);
        oldest_unheld(label.to_owned(), topic.oldest_unheld_seconds);
        dead_rows(label.to_owned(), topic.dead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(topic: Option<&str>, pending: i64, oldest_seconds: f64, dead: i64) -> TopicSample {
        TopicSample {
            topic: topic.map(str::to_owned),
            pending,
            oldest_seconds,
            oldest_unheld_seconds: oldest_seconds / 2.0,
            dead,
        }
    }

    #[test]
    fn topics_that_share_a_label_are_added_up() {
        let sampled = [
            sample(Some("orders"), 5, 1.0, 0),
            sample(Some("new"), 3, 7.0, 1),
            sample(None, 10, 2.0, 4),
        ];
        let label = |topic: &str| if topic == "orders" { topic } else { OTHER }.to_owned();
        let labelled = by_label(&sampled, label);
        assert_eq!(labelled.keys().collect::<Vec<_>>(), ["orders", OTHER]);
        assert_eq!(labelled["orders"].pending, 5);
        let other = &labelled[OTHER];
        assert_eq!((other.pending, other.oldest_seconds, other.dead), (13, 7.0, 5));
        assert_eq!(other.oldest_unheld_seconds, 3.5);
    }
}
