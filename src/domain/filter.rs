//! Which dead letters or holds an operator means.

use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::id_ranges::IdRanges;

/// All of its parts must match. What is empty or `None` restricts nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    pub topics: Vec<String>,
    pub keys: Vec<String>,
    /// Explicit or paused partitions, of holds. They are alternatives to keys.
    pub partitions: Vec<i32>,
    /// A part of the reason for the refusal, in upper or lower case.
    pub error: Option<String>,
    pub older_than: Option<Duration>,
    pub newer_than: Option<Duration>,
    pub ids: IdRanges,
    pub message_ids: Vec<Uuid>,
    /// Only so many.
    pub limit: Option<i64>,
}

impl Filter {
    /// The parts that restrict something, as the audit keeps them.
    pub fn to_json(&self) -> Value {
        let seconds = |age: Option<Duration>| age.map(|age| age.as_secs_f64());
        let message_ids: Vec<String> = self.message_ids.iter().map(Uuid::to_string).collect();
        let parts = [
            ("topics", json!(self.topics)),
            ("keys", json!(self.keys)),
            ("partitions", json!(self.partitions)),
            ("error", json!(self.error)),
            ("older_than_seconds", json!(seconds(self.older_than))),
            ("newer_than_seconds", json!(seconds(self.newer_than))),
            ("ids", json!(self.ids_text())),
            ("message_ids", json!(message_ids)),
            ("limit", json!(self.limit)),
        ];
        let restricts = |part: &Value| match part {
            Value::Null => false,
            Value::Array(some) => !some.is_empty(),
            _ => true,
        };
        parts.into_iter().filter(|(_, part)| restricts(part)).collect()
    }

    /// The ids as text, such as `1,5-9`. `None` if they restrict nothing.
    fn ids_text(&self) -> Option<String> {
        let ranges = self.ids.iter().map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        let ranges: Vec<String> = ranges.collect();
        (!ranges.is_empty()).then(|| ranges.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_restricts_is_kept() {
        assert_eq!(Filter::default().to_json(), json!({}));
        let mut ids = IdRanges::of_ids([5, 6, 7, 1]);
        ids.insert(100, 200);
        let filter = Filter {
            topics: vec!["orders".to_owned()],
            keys: vec![String::new()],
            error: Some("too large".to_owned()),
            older_than: Some(Duration::from_millis(90_500)),
            ids,
            message_ids: vec![Uuid::nil()],
            limit: Some(10),
            ..Filter::default()
        };
        assert_eq!(
            filter.to_json(),
            json!({
                "topics": ["orders"], "keys": [""], "error": "too large", "older_than_seconds": 90.5, "ids": "1,5-7,100-200",
                "message_ids": ["00000000-0000-0000-0000-000000000000"], "limit": 10
            })
        );
    }
}
