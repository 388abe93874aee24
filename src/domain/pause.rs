//! What operators have paused: everything, topics, or keys of topics.

use std::collections::HashMap;

use super::hold::Hold;
use super::row::Row;

/// The longest key that a message may have, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// The longest topic name of Kafka, in bytes.
const TOPIC_BYTES_MAX: usize = 249;

/// Can a Kafka topic have this name?
pub fn is_topic_name(name: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=TOPIC_BYTES_MAX).contains(&name.len()) && name.chars().all(is_legal) && !matches!(name, "." | "..")
}

/// A pause as it is stored: of everything without a topic, of the whole topic without a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    pub topic: Option<String>,
    pub key: Option<String>,
    pub reason: String,
}

/// What a pause keeps back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Everything,
    Topic,
    Key,
}

/// The pause that keeps a row back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paused<'a> {
    pub scope: Scope,
    /// The operator's.
    pub reason: &'a str,
}

impl<'a> Paused<'a> {
    fn new(scope: Scope, reason: &'a str) -> Self {
        Paused { scope, reason }
    }
}

/// The pauses of one topic, each by its reason.
#[derive(Clone, Debug, Default)]
struct OfTopic {
    whole: Option<String>,
    keys: HashMap<String, String>,
}

/// All pauses at one moment.
#[derive(Clone, Debug, Default)]
pub struct Pauses {
    /// Counts the changes of pauses in the order of their commits.
    pub version: i64,
    everything: Option<String>,
    topics: HashMap<String, OfTopic>,
}

impl Pauses {
    pub fn new(version: i64, all: impl IntoIterator<Item = Pause>) -> Self {
        let mut pauses = Pauses {
            version,
            ..Pauses::default()
        };
        for Pause { topic, key, reason } in all {
            let Some(topic) = topic else {
                pauses.everything = Some(reason);
                continue;
            };
            let of_topic = pauses.topics.entry(topic).or_default();
            if let Some(key) = key {
                of_topic.keys.insert(key, reason);
            } else {
                of_topic.whole = Some(reason);
            }
        }
        pauses
    }

    /// How many pauses there are.
    pub fn count(&self) -> usize {
        let of_topics = self.topics.values();
        let of_topics = of_topics.map(|of_topic| usize::from(of_topic.whole.is_some()) + of_topic.keys.len());
        usize::from(self.everything.is_some()) + of_topics.sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.everything.is_none() && self.topics.is_empty()
    }

    pub fn cover_everything(&self) -> bool {
        self.everything.is_some()
    }

    /// The pause that keeps this row back, if any does: the one that covers most.
    ///
    /// The pause of a key does not cover a row without its lane, which no hold of the key could keep back. Such a row is never
    /// sent in any case.
    pub fn covering(&self, row: &Row) -> Option<Paused<'_>> {
        if let Some(reason) = &self.everything {
            return Some(Paused::new(Scope::Everything, reason));
        }
        let of_topic = self.topics.get(&row.topic)?;
        if let Some(reason) = &of_topic.whole {
            return Some(Paused::new(Scope::Topic, reason));
        }
        let key = row.key.as_ref().filter(|_| row.lane.is_some())?;
        let reason = of_topic.keys.get(key)?;
        Some(Paused::new(Scope::Key, reason))
    }

    /// Must the hold wait although it is due?
    pub fn cover_hold(&self, hold: &Hold) -> bool {
        self.cover_everything()
            || self.topics.get(&hold.topic).is_some_and(|of_topic| {
                let key = hold.unit.strip_prefix("k:");
                of_topic.whole.is_some() || key.is_some_and(|key| of_topic.keys.contains_key(key))
            })
    }

    /// The topics that are paused as a whole.
    pub fn topics(&self) -> Vec<&str> {
        let whole = self.topics.iter().filter(|(_, of_topic)| of_topic.whole.is_some());
        whole.map(|(topic, _)| topic.as_str()).collect()
    }

    /// The topics and units of the holds of paused keys.
    pub fn key_units(&self) -> (Vec<&str>, Vec<String>) {
        let (mut topics, mut units) = (Vec::new(), Vec::new());
        for (topic, of_topic) in &self.topics {
            topics.extend(of_topic.keys.keys().map(|_| topic.as_str()));
            units.extend(of_topic.keys.keys().map(|key| format!("k:{key}")));
        }
        (topics, units)
    }

    /// The paused keys of one topic.
    pub fn keys_of(&self, topic: &str) -> Vec<&str> {
        let keys = self.topics.get(topic).map(|of_topic| of_topic.keys.keys());
        keys.into_iter().flatten().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::row::{UNORDERED_LANE, tests::row};

    fn pause(topic: Option<&str>, key: Option<&str>) -> Pause {
        Pause {
            topic: topic.map(str::to_owned),
            key: key.map(str::to_owned),
            reason: format!("{topic:?} {key:?}"),
        }
    }

    fn of(topic: &str, key: Option<&str>) -> Row {
        Row {
            topic: topic.to_owned(),
            key: key.map(str::to_owned),
            lane: key.map(|_| 0),
            ..row(1)
        }
    }

    fn hold(topic: &str, unit: &str) -> Hold {
        Hold {
            lane: UNORDERED_LANE,
            topic: topic.to_owned(),
            unit: unit.to_owned(),
            head_id: None,
            resume_floor: 0,
            failures: 0,
            wait: 0.0,
        }
    }

    fn orders_and_a_key_of_bills() -> Pauses {
        let all = [
            pause(Some("orders"), None),
            pause(Some("orders"), Some("7")),
            pause(Some("bills"), Some("7")),
        ];
        Pauses::new(3, all)
    }

    #[test]
    fn a_row_is_kept_back_by_the_pause_that_covers_most() {
        let pauses = orders_and_a_key_of_bills();
        let scope = |row: &Row| pauses.covering(row).map(|paused| paused.scope);
        assert_eq!(scope(&of("orders", Some("7"))), Some(Scope::Topic));
        assert_eq!(scope(&of("orders", None)), Some(Scope::Topic));
        assert_eq!(scope(&of("bills", Some("7"))), Some(Scope::Key));
        assert_eq!(scope(&of("bills", Some("8"))), None);
        assert_eq!(scope(&of("bills", None)), None);
        assert_eq!(scope(&of("other", Some("7"))), None);
        let without_lane = Row {
            lane: None,
            ..of("bills", Some("7"))
        };
        assert_eq!(scope(&without_lane), None, "no hold could keep it back");
        let row = of("bills", Some("7"));
        let paused = pauses.covering(&row).expect("paused");
        assert_eq!(paused.reason, r#"Some("bills") Some("7")"#);
        let everything = Pauses::new(4, [pause(None, None), pause(Some("orders"), None)]);
        let covering = everything.covering(&row).map(|paused| paused.scope);
        assert_eq!(covering, Some(Scope::Everything));
    }

    #[test]
    fn a_hold_waits_for_the_pause_of_its_topic_and_of_its_key() {
        let pauses = orders_and_a_key_of_bills();
        for unit in ["", "k:7", "k:8", "p:7", "s:3/12"] {
            assert!(pauses.cover_hold(&hold("orders", unit)), "{unit:?}");
            assert_eq!(pauses.cover_hold(&hold("bills", unit)), unit == "k:7", "{unit:?}");
            assert!(!pauses.cover_hold(&hold("other", unit)), "{unit:?}");
        }
        assert!(Pauses::new(1, [pause(None, None)]).cover_hold(&hold("other", "")));
    }

    #[test]
    fn pauses_are_listed_as_statements_take_them() {
        let pauses = orders_and_a_key_of_bills();
        assert_eq!((pauses.version, pauses.count()), (3, 3));
        assert_eq!(pauses.topics(), ["orders"]);
        assert_eq!(pauses.keys_of("bills"), ["7"]);
        assert!(pauses.keys_of("other").is_empty());
        let (topics, units) = pauses.key_units();
        let mut keys: Vec<(&str, String)> = topics.into_iter().zip(units).collect();
        keys.sort();
        assert_eq!(keys, [("bills", "k:7".to_owned()), ("orders", "k:7".to_owned())]);
        assert!(!pauses.cover_everything());
        let everything = Pauses::new(4, [pause(None, None)]);
        assert!(everything.cover_everything() && everything.topics().is_empty());
        assert_eq!((everything.count(), Pauses::default().count()), (1, 0));
        assert!(Pauses::default().is_empty() && !everything.is_empty() && !pauses.is_empty());
    }
}
