//! Reads what `outboxd status` shows, and samples for gauges. No statement here writes, locks a row or scans without a limit.

use std::time::SystemTime;

use serde::Serialize;
use tokio_postgres::Row;

use super::from_row::{FromRow, from_row, json};
use super::{HeldUnit, Outbox, Params, PauseStatus, Result, WriterIdentity};
use crate::domain::filter::Filter;
use crate::domain::sample::{
    Commands, ConsumerCount, Counters, DurationCount, FinishedGroup, FinishedMessages, InboxSample, Sample, TopicSample,
};

/// How many rows a command scans for a count.
pub const SCAN_MAX: i64 = 100_000;
/// How many examples are shown.
const EXAMPLES_MAX: i64 = 10;
/// How many pauses are shown.
const PAUSES_MAX: i64 = 100;

#[derive(Debug, Serialize)]
pub struct Status {
    pub backlog: Sample,
    pub workers: Vec<WorkerStatus>,
    pub free_lanes: i64,
    pub pauses: Vec<PauseStatus>,
    pub holds: Vec<HeldUnit>,
    pub dead: Vec<DeadStatus>,
    pub open_writer: Option<OpenWriter>,
}

#[derive(Debug, Serialize)]
pub struct WorkerStatus {
    pub name: String,
    pub id: String,
    pub version: String,
    pub lanes: Vec<i16>,
    pub lease_left_seconds: f64,
    pub age_seconds: f64,
}

impl WorkerStatus {
    pub fn is_live(&self) -> bool {
        self.lease_left_seconds > 0.0
    }
}

#[derive(Debug, Serialize)]
pub struct DeadStatus {
    pub id: i64,
    pub topic: String,
    pub key: Option<String>,
    pub attempts: i16,
    pub error: Option<String>,
    pub age_seconds: f64,
}

#[derive(Debug, Serialize)]
pub struct OpenWriter {
    #[serde(flatten)]
    pub writer: WriterIdentity,
    /// `None` if this login may not see it.
    pub age_seconds: Option<f64>,
    /// How many transactions have begun to write after it, to any table.
    pub later_transactions: i64,
}

/// How many rows of `outbox.message` were inserted, updated and deleted, as far as the server has counted. Each grows until the server
/// crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    pub inserted: i64,
    pub updated: i64,
    pub deleted: i64,
}

from_row!(Activity: inserted, updated, deleted);
from_row!(WorkerStatus: name, id, version, lanes, lease_left_seconds, age_seconds);
from_row!(DeadStatus: id, topic, key, attempts, error, age_seconds);
from_row!(OpenWriter: age_seconds, later_transactions; writer);
from_row!(Sample: pending, estimated, oldest_seconds, delayed, dead, held_keys, parked_topics, paused_partitions, oldest_pause_seconds, horizon_age, dead_tuples; topics);
from_row!(InboxSample: unfinished, poison);
from_row!(FinishedMessages: until, is_full; groups);
from_row!(Commands: operation, state, count);

impl FromRow for Counters {
    fn from_row(row: &Row) -> Result<Self> {
        Ok(Counters {
            granted: row.try_get("granted")?,
            replayed: row.try_get("replayed")?,
            conflicted: row.try_get("conflicted")?,
            taken_over: row.try_get("taken_over")?,
            duplicates: json::<Vec<ConsumerCount>>(row, "duplicates")?,
            payload_conflicts: row.try_get("payload_conflicts")?,
            inbox_taken_over: row.try_get("inbox_taken_over")?,
            durations: json::<Vec<DurationCount>>(row, "durations")?,
        })
    }
}

impl FromRow for Vec<TopicSample> {
    fn from_row(row: &Row) -> Result<Self> {
        json(row, "topics")
    }
}

impl FromRow for Vec<FinishedGroup> {
    fn from_row(row: &Row) -> Result<Self> {
        json(row, "groups")
    }
}

impl Outbox {
    /// Scans at most so many rows for each count.
    pub async fn status(&self, scan_max: i64) -> Result<Status> {
        let held = Filter {
            limit: Some(EXAMPLES_MAX),
            ..Filter::default()
        };
        Ok(Status {
            backlog: self.sample_backlog(scan_max, &[]).await?,
            workers: self.workers().await?,
            free_lanes: self.free_lanes().await?,
            pauses: self.list_pauses(PAUSES_MAX).await?,
            holds: self.hold_list_unless_paused(&held).await?,
            dead: self.query(&self.statements.status_dead, &[&EXAMPLES_MAX]).await?,
            open_writer: self.open_writer().await?,
        })
    }

    /// What was written to `outbox.message` so far.
    pub async fn activity(&self) -> Result<Activity> {
        self.query_one(&self.statements.activity, &[]).await
    }

    /// The workers that have not stopped, expired ones included.
    pub async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.query(&self.statements.status_workers, &[]).await
    }

    /// How many lanes have no live owner.
    pub async fn free_lanes(&self) -> Result<i64> {
        self.query_one(&self.statements.status_free_lanes, &[]).await
    }

    /// The transaction that was the first of those that have written to the outbox and are open.
    pub async fn open_writer(&self) -> Result<Option<OpenWriter>> {
        self.query_opt(&self.statements.status_open_writer, &[]).await
    }

    /// Samples the backlog. `topics` are returned by name, besides those with the most rows.
    pub async fn sample_backlog(&self, scan_max: i64, topics: &[String]) -> Result<Sample> {
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        self.query_one(&self.statements.sample_backlog, &[&scan_max, &topics])
            .await
    }

    pub async fn sample_inbox(&self, scan_max: i64) -> Result<InboxSample> {
        self.query_one(&self.statements.sample_inbox, &[&scan_max]).await
    }

    pub async fn sample_counters(&self) -> Result<Counters> {
        self.query_one(&self.statements.sample_counters, &[]).await
    }

    /// Inbox messages that were finished since then, or none if that is `None`. The consumers of `counters` are returned by name, and
    /// messages that took about the same time, by these bounds in seconds, together.
    pub async fn sample_finished(
        &self,
        since: Option<SystemTime>,
        scan_max: i64,
        counters: &Counters,
        bounds: &[f64],
    ) -> Result<FinishedMessages> {
        let consumers = counters.duplicates.iter();
        let consumers: Vec<&str> = consumers.filter_map(|count| count.consumer.as_deref()).collect();
        let params: Params<'_> = &[&since, &consumers, &bounds.to_vec(), &scan_max];
        self.query_one(&self.statements.sample_finished, params).await
    }

    pub async fn sample_commands(&self, scan_max: i64, operations: usize) -> Result<Vec<Commands>> {
        let params: Params<'_> = &[&scan_max, &(operations as i64)];
        self.query(&self.statements.sample_commands, params).await
    }
}
