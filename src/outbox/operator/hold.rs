//! Holds, listed and made due.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::from_row::{FromRow, from_row};
use super::{CHUNK_ROWS, Outbox, Params, Purpose, Result, Step};
use crate::domain::filter::Filter;

/// The holds of one key, partition or topic. A topic as a whole has one in each lane.
#[derive(Clone, Debug, Serialize)]
pub struct HeldUnit {
    pub topic: String,
    /// As in `outbox.hold`: `k:` and a key, `p:` and an explicit partition, `s:` and a paused partition, or empty for the topic.
    pub unit: String,
    pub holds: i64,
    pub failures: i32,
    pub error: String,
    pub head_id: Option<i64>,
    pub age_seconds: f64,
    /// `None` if it waits for an operator.
    pub retry_in_seconds: Option<f64>,
}

from_row!(HeldUnit: topic, unit, holds, failures, error, head_id, age_seconds, retry_in_seconds);

/// How many holds there are of each topic.
pub fn by_topic(held: &[HeldUnit]) -> Vec<(String, u64)> {
    let mut topics = BTreeMap::new();
    for held in held {
        *topics.entry(held.topic.clone()).or_default() += held.holds.unsigned_abs();
    }
    topics.into_iter().collect()
}

/// Chunks of at most [`CHUNK_ROWS`] holds, or of one unit that has more.
pub fn chunks(held: &[HeldUnit]) -> Vec<&[HeldUnit]> {
    let (mut chunks, mut rest) = (Vec::new(), held);
    while !rest.is_empty() {
        let mut holds = 0;
        let fits = rest.iter().take_while(|held| {
            holds += held.holds.unsigned_abs() as usize;
            holds <= CHUNK_ROWS
        });
        let (chunk, others) = rest.split_at(fits.count().max(1));
        chunks.push(chunk);
        rest = others;
    }
    chunks
}

impl Outbox {
    /// Lists holds that match the filter, the oldest first.
    pub async fn hold_list(&self, filter: &Filter) -> Result<Vec<HeldUnit>> {
        self.query_holds(filter, true).await
    }

    /// The same without holds of what is paused. The pauses are listed by themselves, and say why nothing is tried.
    pub async fn hold_list_unless_paused(&self, filter: &Filter) -> Result<Vec<HeldUnit>> {
        self.query_holds(filter, false).await
    }

    async fn query_holds(&self, filter: &Filter, with_paused: bool) -> Result<Vec<HeldUnit>> {
        let topics: Vec<&str> = filter.topics.iter().map(String::as_str).collect();
        let keys: Vec<&str> = filter.keys.iter().map(String::as_str).collect();
        let seconds = |age: Option<std::time::Duration>| age.map(|age| age.as_secs_f64());
        let params: Params<'_> = &[
            &topics,
            &keys,
            &filter.partitions,
            &filter.error.as_deref(),
            &seconds(filter.older_than),
            &seconds(filter.newer_than),
            &filter.limit,
            &with_paused,
        ];
        self.query(&self.statements.hold_list, params).await
    }

    /// Makes these holds due now.
    pub async fn holds_release(&self, held: &[HeldUnit], purpose: &Purpose, operation: Option<i64>) -> Result<Step> {
        let topics: Vec<&str> = held.iter().map(|held| held.topic.as_str()).collect();
        let units: Vec<&str> = held.iter().map(|held| held.unit.as_str()).collect();
        let reason = purpose.reason.as_deref();
        let params: Params<'_> = &[&topics, &units, &reason, &operation, &purpose.filter];
        self.step(&self.statements.holds_release, params).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(topic: &str, holds: i64) -> HeldUnit {
        HeldUnit {
            topic: topic.to_owned(),
            unit: String::new(),
            holds,
            failures: 1,
            error: String::new(),
            head_id: None,
            age_seconds: 1.0,
            retry_in_seconds: None,
        }
    }

    #[test]
    fn a_transaction_changes_a_bounded_number_of_holds() {
        let all: Vec<HeldUnit> = (0..40).map(|n| held(&format!("t{}", n % 2), 64)).collect();
        let sizes: Vec<usize> = chunks(&all).iter().map(|chunk| chunk.len()).collect();
        assert_eq!(sizes, [15, 15, 10]);
        assert_eq!(chunks(&[held("t", 5_000), held("t", 1)]).len(), 2);
        assert_eq!(by_topic(&all), [("t0".to_owned(), 1_280), ("t1".to_owned(), 1_280)]);
    }
}
