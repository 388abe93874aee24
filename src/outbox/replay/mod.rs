//! Replays: published messages are sent again, through the functions that `outbox_operator` may call.

use std::time::SystemTime;

use super::from_row::{FromRow, from_row};
use super::param::{Params, multirange};
use super::{Outbox, Result};
use crate::domain::replay::{Moment, ReplayFilter};

/// What a replay takes of one topic.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayableTopic {
    pub topic: String,
    pub messages: i64,
    /// When the first and the last of them were published.
    pub oldest: SystemTime,
    pub newest: SystemTime,
}

from_row!(ReplayableTopic: topic, messages, oldest, newest);

/// A replay that has just begun.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BegunReplay {
    pub operation: i64,
    pub matched: i64,
}

from_row!(BegunReplay: operation, matched);

/// A replay that was stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnfinishedReplay {
    pub operation: i64,
    pub began_at: SystemTime,
}

from_row!(UnfinishedReplay: operation, began_at);

/// What one step of a replay did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayStep {
    /// How many messages are sent again.
    pub changed: i32,
    /// How many were removed, or sent again by another replay, since the replay began.
    pub gone: i32,
    /// The ids of messages that stay in the history, because a newer one has their id or their idempotency key.
    pub conflicts: Vec<i64>,
    /// All messages up to this id are taken.
    pub reached: i64,
    /// Until the next messages have been published for long enough.
    pub wait_seconds: f64,
    pub finished: bool,
}

from_row!(ReplayStep: changed, gone, conflicts, reached, wait_seconds, finished);

impl ReplayStep {
    /// How many messages of the replay this step has dealt with.
    pub fn taken(&self) -> i64 {
        i64::from(self.changed) + i64::from(self.gone) + self.conflicts.len() as i64
    }
}

/// The parts of a filter as the statements take them.
struct Columns<'a> {
    topics: Vec<&'a str>,
    keys: Vec<&'a str>,
    since: Option<SystemTime>,
    until: Option<SystemTime>,
    ids: Option<String>,
}

impl<'a> Columns<'a> {
    fn of(filter: &'a ReplayFilter) -> Self {
        let at = |moment: &Option<Moment>| moment.as_ref().map(|moment| moment.at);
        Columns {
            topics: filter.topics.iter().map(String::as_str).collect(),
            keys: filter.keys.iter().map(String::as_str).collect(),
            since: at(&filter.since),
            until: at(&filter.until),
            ids: multirange(&filter.ids),
        }
    }
}

impl Outbox {
    /// What a replay would take now.
    pub async fn replayable(&self, filter: &ReplayFilter) -> Result<Vec<ReplayableTopic>> {
        let columns = Columns::of(filter);
        let params: Params<'_> = &[
            &columns.topics,
            &columns.keys,
            &columns.since,
            &columns.until,
            &columns.ids.as_deref(),
        ];
        self.query(&self.statements.replay_preview, params).await
    }

    /// Begins a replay. `None` if nothing matches.
    pub async fn begin_replay(&self, filter: &ReplayFilter, reason: Option<&str>) -> Result<Option<BegunReplay>> {
        let columns = Columns::of(filter);
        let params: Params<'_> = &[
            &columns.topics,
            &columns.keys,
            &columns.since,
            &columns.until,
            &columns.ids.as_deref(),
            &reason,
            &filter.to_json().to_string(),
        ];
        self.query_opt(&self.statements.replay_begin, params).await
    }

    /// Sends the next messages of a replay again, at most `most`, above the id that the step before reached.
    pub async fn replay_step(&self, operation: i64, most: i32, after: i64) -> Result<ReplayStep> {
        let params: Params<'_> = &[&operation, &most, &after];
        self.query_one(&self.statements.replay_step, params).await
    }

    /// The replay with this filter that this login can continue.
    pub async fn unfinished_replay(&self, filter: &ReplayFilter) -> Result<Option<UnfinishedReplay>> {
        let filter = filter.to_json().to_string();
        self.query_opt(&self.statements.replay_unfinished, &[&filter]).await
    }

    /// What a replay has yet to take.
    pub async fn replay_left(&self, operation: i64) -> Result<Vec<ReplayableTopic>> {
        self.query(&self.statements.replay_left, &[&operation]).await
    }

    /// How many rows are due that were delayed, redriven or replayed; at most `most`.
    pub async fn due_rows(&self, most: i64) -> Result<u64> {
        self.query_one(&self.statements.due_rows, &[&most]).await
    }
}
