//! Which published messages an operator has sent again, and how fast.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::filter::Filter;
use super::id_ranges::IdRanges;

/// A time as an operator wrote it: "2h" or "2026-01-31T12:00:00Z".
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    pub text: String,
    pub at: SystemTime,
}

/// All of its parts must match. What is empty or `None` restricts nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayFilter {
    pub topics: Vec<String>,
    pub keys: Vec<String>,
    pub ids: IdRanges,
    /// Published at this time or later.
    pub since: Option<Moment>,
    /// Published before this time.
    pub until: Option<Moment>,
}

impl ReplayFilter {
    /// The parts that restrict something, as the audit keeps them, or that all is meant. Times are kept as they were written: when a command is run
    /// again, "2h" means another time and yet the same replay.
    pub fn to_json(&self) -> Value {
        if self.restricts_nothing() {
            return json!({ "all": true });
        }
        let filter = Filter {
            topics: self.topics.clone(),
            keys: self.keys.clone(),
            ids: self.ids.clone(),
            ..Filter::default()
        };
        let mut json = filter.to_json();
        for (name, moment) in [("since", &self.since), ("until", &self.until)] {
            if let Some(moment) = moment {
                json[name] = Value::from(moment.text.as_str());
            }
        }
        json
    }

    fn restricts_nothing(&self) -> bool {
        *self == ReplayFilter::default()
    }
}

/// How many messages are sent again in a second.
#[derive(Clone, Copy, Debug)]
pub struct Rate(pub u32);

impl Rate {
    /// How many messages to take at once: what may be sent in half a second, and at most `most`.
    pub fn chunk(self, most: usize) -> i32 {
        (self.0 as usize / 2).clamp(1, most) as i32
    }

    /// How long so many messages take.
    pub fn time_of(self, messages: u64) -> Duration {
        Duration::from_secs_f64(messages as f64 / f64::from(self.0.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept_as_they_were_written() {
        assert_eq!(ReplayFilter::default().to_json(), json!({ "all": true }));
        let filter = ReplayFilter {
            topics: vec!["orders".to_owned()],
            ids: IdRanges::of_ids([5, 6, 7]),
            since: Some(Moment {
                text: "2h".to_owned(),
                at: SystemTime::UNIX_EPOCH,
            }),
            ..ReplayFilter::default()
        };
        let expected = json!({ "topics": ["orders"], "ids": "5-7", "since": "2h" });
        assert_eq!(filter.to_json(), expected);
    }

    #[test]
    fn a_chunk_is_half_a_second_of_messages() {
        let chunks = [1, 2, 999, 1_000, 5_000].map(|rate| Rate(rate).chunk(1_000));
        assert_eq!(chunks, [1, 1, 499, 500, 1_000]);
        assert_eq!(Rate(1_000).time_of(1_500), Duration::from_millis(1_500));
        assert_eq!(Rate(1).time_of(0), Duration::ZERO);
    }
}
