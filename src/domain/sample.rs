//! What is counted in the database periodically, for metrics and `outboxd status`.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// A sample of the inbox.
#[derive(Clone, Copy, Debug)]
pub struct InboxSample {
    pub unfinished: i64,
    pub poison: i64,
}

/// A sample of the backlog.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sample {
    pub pending: i64,
    /// There were too many rows to count, so the number of pending rows is estimated from some of them.
    pub estimated: bool,
    pub oldest_seconds: f64,
    pub delayed: i64,
    pub dead: i64,
    pub held_keys: i64,
    pub parked_topics: i64,
    pub paused_partitions: i64,
    /// Age of the oldest pause; 0 if nothing is paused.
    #[serde(skip)]
    pub oldest_pause_seconds: f64,
    /// Age in transactions of the oldest snapshot, which pins the vacuum horizon.
    #[serde(skip)]
    pub horizon_age: i64,
    #[serde(skip)]
    pub dead_tuples: i64,
    /// Topics with rows that are pending or dead, those with the most rows first.
    pub topics: Vec<TopicSample>,
}

/// The part of one topic in a [`Sample`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TopicSample {
    /// `None` stands for all topics that are not named.
    pub topic: Option<String>,
    pub pending: i64,
    pub oldest_seconds: f64,
    /// The same of those that neither a hold nor a pause keeps back.
    pub oldest_unheld_seconds: f64,
    pub dead: i64,
}

/// Counts that only grow, until a crash of the server resets them to zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    pub granted: i64,
    pub replayed: i64,
    pub conflicted: i64,
    pub taken_over: i64,
    pub duplicates: Vec<ConsumerCount>,
    pub payload_conflicts: i64,
    pub inbox_taken_over: i64,
    /// Attempts of commands, always by the same outcomes and durations and in the same order.
    pub durations: Vec<DurationCount>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ConsumerCount {
    /// `None` stands for all consumers that are not counted by name.
    pub consumer: Option<String>,
    pub count: i64,
}

/// How many attempts of commands had this outcome and took so long.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct DurationCount {
    pub outcome: String,
    /// `None` for those that took longer than all others.
    pub at_most_seconds: Option<f64>,
    pub count: i64,
}

/// Inbox messages that were finished in a span of time.
#[derive(Clone, Debug)]
pub struct FinishedMessages {
    /// The end of the span.
    pub until: SystemTime,
    /// As many were found as were asked for, so the span ends early.
    pub is_full: bool,
    pub groups: Vec<FinishedGroup>,
}

/// Messages of one consumer and outcome that took about the same time.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct FinishedGroup {
    /// `None` stands for all consumers that are not named.
    pub consumer: Option<String>,
    pub outcome: String,
    pub count: i64,
    /// How long all of them took together.
    pub seconds: f64,
}

/// How many commands of one operation are in one state.
#[derive(Clone, Debug)]
pub struct Commands {
    pub operation: String,
    pub state: String,
    pub count: i64,
}

/// The connections of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    pub max: usize,
    pub used: usize,
    pub idle: usize,
    /// Tasks that wait for one.
    pub waiting: usize,
}
