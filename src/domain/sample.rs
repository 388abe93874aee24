//! What is counted in the database periodically, for metrics and `outboxd status`.

use std::collections::BTreeMap;

use serde::Serialize;

/// A sample of the inbox.
#[derive(Clone, Copy, Debug)]
pub struct InboxSample {
    pub unfinished: i64,
    pub poison: i64,
}

/// A sample of the backlog.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sample {
    pub pending: i64,
    /// The count reached its limit, so there may be more pending rows.
    pub capped: bool,
    pub oldest_seconds: f64,
    pub delayed: i64,
    pub dead: i64,
    pub held_keys: i64,
    pub parked_topics: i64,
    pub paused_partitions: i64,
    /// Age in transactions of the oldest snapshot, which pins the vacuum horizon.
    #[serde(skip)]
    pub horizon_age: i64,
    #[serde(skip)]
    pub dead_tuples: i64,
}

/// Counts that only grow, until a crash of the server resets them to zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub granted: i64,
    pub replayed: i64,
    pub conflicted: i64,
    pub taken_over: i64,
    /// By consumer; `None` stands for all consumers that are not counted by name.
    pub duplicates: BTreeMap<Option<String>, i64>,
    pub payload_conflicts: i64,
    pub inbox_taken_over: i64,
}

/// How many commands of one operation are in one state.
#[derive(Clone, Debug)]
pub struct Commands {
    pub operation: String,
    pub state: String,
    pub count: i64,
}
