//! What is counted by topic. The first topics that the process sees keep a label of their own, and all later ones share one, so
//! that an application which puts an id into its topics cannot create series without end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::{Counter, Histogram};

use super::list;
use super::metric::OTHER;

/// How many topics have a label of their own.
pub const TOPICS_MAX: usize = 50;

/// The handles of one topic's series. A batch uses them many times, and to look one up by its labels would allocate.
#[derive(Clone)]
struct Series {
    published: Counter,
    retried: Counter,
    dead: Counter,
    end_to_end: Histogram,
}

impl Series {
    fn new(label: &str) -> Self {
        let label = || label.to_owned().into();
        Series {
            published: list::rows_published(label()),
            retried: list::rows_retried(label()),
            dead: list::rows_dead(label()),
            end_to_end: list::end_to_end(label()),
        }
    }
}

/// The series of each label.
struct Topics(BTreeMap<String, Series>);

static TOPICS: Mutex<Topics> = Mutex::new(Topics(BTreeMap::new()));

fn lock() -> MutexGuard<'static, Topics> {
    TOPICS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Topics {
    /// The label of a topic. Gives it one of its own while there is room.
    fn label<'a>(&mut self, topic: &'a str) -> &'a str {
        let named = self.0.len() - usize::from(self.0.contains_key(OTHER));
        let label = if self.0.contains_key(topic) || named < TOPICS_MAX {
            topic
        } else {
            OTHER
        };
        if !self.0.contains_key(label) {
            self.0.insert(label.to_owned(), Series::new(label));
        }
        label
    }

    fn series(&mut self, topic: &str) -> Option<Series> {
        let label = self.label(topic);
        self.0.get(label).cloned()
    }
}

fn with_series(topic: &str, record: impl FnOnce(&Series)) {
    let series = lock().series(topic);
    if let Some(series) = &series {
        record(series);
    }
}

/// The label of a topic. Gives it one of its own while there is room.
pub(super) fn label(topic: &str) -> String {
    lock().label(topic).to_owned()
}

/// The topics that have labels of their own.
pub fn labelled_topics() -> Vec<String> {
    let topics = lock();
    topics.0.keys().filter(|label| *label != OTHER).cloned().collect()
}

/// Combines the values of each topic.
fn by_topic<'a, V: Copy>(
    items: impl Iterator<Item = (&'a str, V)>,
    combine: impl Fn(V, V) -> V,
) -> BTreeMap<&'a str, V> {
    let mut combined = BTreeMap::new();
    for (topic, value) in items {
        let of_topic = combined.entry(topic);
        of_topic
            .and_modify(|before| *before = combine(*before, value))
            .or_insert(value);
    }
    combined
}

/// How many rows this process has published. The series cannot be read.
static PUBLISHED: AtomicU64 = AtomicU64::new(0);

/// How many rows this process has published so far, of all topics.
pub fn published() -> u64 {
    PUBLISHED.load(Ordering::Relaxed)
}

/// Counts rows that Kafka has acknowledged, by their topics.
pub fn rows_published<'a>(topics: impl Iterator<Item = &'a str>) {
    let counts = by_topic(topics.map(|topic| (topic, 1u64)), |one, other| one + other);
    if !counts.is_empty() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        list::last_publish(now.unwrap_or_default());
    }
    for (topic, count) in counts {
        PUBLISHED.fetch_add(count, Ordering::Relaxed);
        with_series(topic, |series| series.published.increment(count));
    }
}

/// Counts a refusal of a row by Kafka.
pub fn row_refused(topic: &str, is_dead: bool) {
    with_series(topic, |series| {
        let counter = if is_dead { &series.dead } else { &series.retried };
        counter.increment(1);
    });
}

/// Records the age of the oldest row of each topic, among rows that were marked together.
pub fn end_to_end<'a>(created: impl Iterator<Item = (&'a str, SystemTime)>, age: impl Fn(SystemTime) -> Duration) {
    for (topic, oldest) in by_topic(created, SystemTime::min) {
        with_series(topic, |series| series.end_to_end.record(age(oldest)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_topics_keep_their_labels_and_all_others_share_one() {
        let mut topics = Topics(BTreeMap::new());
        let names: Vec<String> = (0..TOPICS_MAX + 10).map(|n| format!("topic-{n}")).collect();
        assert_eq!(topics.label(OTHER), OTHER, "a topic of this name shares the label");
        for (n, name) in names.iter().enumerate() {
            let label = if n < TOPICS_MAX { name.as_str() } else { OTHER };
            assert_eq!(topics.label(name), label);
        }
        for name in &names[..TOPICS_MAX] {
            assert_eq!(topics.label(name), name, "it keeps its label");
        }
        assert_eq!(topics.0.len(), TOPICS_MAX + 1);
    }

    #[test]
    fn the_values_of_each_topic_are_combined() {
        let items = [("a", 1), ("b", 5), ("a", 3), ("a", 2)];
        assert_eq!(
            by_topic(items.into_iter(), i32::max),
            BTreeMap::from([("a", 3), ("b", 5)])
        );
        assert_eq!(by_topic(items.into_iter(), |one, other| one + other)["a"], 6);
    }
}
