//! Reads what `outboxd status` shows, and samples for gauges. No statement here writes, locks a row or scans without a limit.

use serde::Serialize;

use super::{Outbox, Params, Result, WriterIdentity};
use crate::domain::sample::{Commands, Counters, InboxSample, Sample};

/// How many rows are scanned for a count, and how many examples are shown.
const SCAN_MAX: i64 = 100_000;
const EXAMPLES_MAX: i64 = 10;

#[derive(Debug, Serialize)]
pub struct Status {
    pub backlog: Backlog,
    pub workers: Vec<WorkerStatus>,
    pub free_lanes: i64,
    pub holds: Vec<HoldStatus>,
    pub dead: Vec<DeadStatus>,
    pub open_writer: Option<OpenWriter>,
}

#[derive(Debug, Serialize)]
pub struct Backlog {
    pub pending: i64,
    /// The count reached its limit, so there may be more pending rows.
    pub capped: bool,
    pub oldest_seconds: f64,
    pub delayed: i64,
    pub dead: i64,
    pub held_keys: i64,
    pub parked_topics: i64,
    pub paused_partitions: i64,
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

#[derive(Debug, Serialize)]
pub struct HoldStatus {
    pub topic: String,
    /// `k:` and a key, `p:` and an explicit partition, `s:` and a paused partition with its topic's partition count, or empty for
    /// the whole topic.
    pub unit: String,
    pub lanes: i64,
    pub failures: i32,
    pub reason: String,
    pub head_id: Option<i64>,
    pub age_seconds: f64,
    /// `None` if it waits for an operator.
    pub retry_in_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct DeadStatus {
    pub id: i64,
    pub topic: String,
    pub key: Option<String>,
    pub attempts: i16,
    pub reason: Option<String>,
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

impl Outbox {
    pub async fn status(&self) -> Result<Status> {
        let sample = self.sample_backlog(SCAN_MAX).await?;
        Ok(Status {
            backlog: Backlog {
                pending: sample.pending,
                capped: sample.capped,
                oldest_seconds: sample.oldest_seconds,
                delayed: sample.delayed,
                dead: sample.dead,
                held_keys: sample.held_keys,
                parked_topics: sample.parked_topics,
                paused_partitions: sample.paused_partitions,
            },
            workers: self.status_workers().await?,
            free_lanes: self
                .query_one(&self.statements.status_free_lanes, &[])
                .await?
                .try_get("free")?,
            holds: self.status_holds().await?,
            dead: self.status_dead().await?,
            open_writer: self.status_open_writer().await?,
        })
    }

    async fn status_workers(&self) -> Result<Vec<WorkerStatus>> {
        let rows = self.query(&self.statements.status_workers, &[]).await?;
        rows.iter()
            .map(|row| {
                Ok(WorkerStatus {
                    name: row.try_get("name")?,
                    id: row.try_get::<_, uuid::Uuid>("id")?.to_string(),
                    version: row.try_get("version")?,
                    lanes: row.try_get::<_, Option<Vec<i16>>>("lanes")?.unwrap_or_default(),
                    lease_left_seconds: row.try_get("lease_left")?,
                    age_seconds: row.try_get("age")?,
                })
            })
            .collect()
    }

    async fn status_holds(&self) -> Result<Vec<HoldStatus>> {
        let rows = self.query(&self.statements.status_holds, &[&EXAMPLES_MAX]).await?;
        rows.iter()
            .map(|row| {
                Ok(HoldStatus {
                    topic: row.try_get("topic")?,
                    unit: row.try_get("unit")?,
                    lanes: row.try_get("lanes")?,
                    failures: row.try_get("failures")?,
                    reason: row.try_get("reason")?,
                    head_id: row.try_get("head_id")?,
                    age_seconds: row.try_get("age")?,
                    retry_in_seconds: row.try_get("retry_in")?,
                })
            })
            .collect()
    }

    async fn status_dead(&self) -> Result<Vec<DeadStatus>> {
        let rows = self.query(&self.statements.status_dead, &[&EXAMPLES_MAX]).await?;
        rows.iter()
            .map(|row| {
                Ok(DeadStatus {
                    id: row.try_get("id")?,
                    topic: row.try_get("topic")?,
                    key: row.try_get("key")?,
                    attempts: row.try_get("attempts")?,
                    reason: row.try_get("last_error")?,
                    age_seconds: row.try_get("age")?,
                })
            })
            .collect()
    }

    async fn status_open_writer(&self) -> Result<Option<OpenWriter>> {
        let rows = self.query(&self.statements.status_open_writer, &[]).await?;
        rows.first()
            .map(|row| {
                Ok(OpenWriter {
                    writer: WriterIdentity::of(row)?,
                    age_seconds: row.try_get("age")?,
                    later_transactions: row.try_get("later")?,
                })
            })
            .transpose()
    }

    pub async fn sample_backlog(&self, scan_max: i64) -> Result<Sample> {
        let row = self.query_one(&self.statements.sample_backlog, &[&scan_max]).await?;
        Ok(Sample {
            pending: row.try_get("pending")?,
            capped: row.try_get("capped")?,
            oldest_seconds: row.try_get("oldest_seconds")?,
            dead: row.try_get("dead")?,
            delayed: row.try_get("delayed")?,
            held_keys: row.try_get("held_keys")?,
            parked_topics: row.try_get("parked_topics")?,
            paused_partitions: row.try_get("paused_partitions")?,
            horizon_age: row.try_get("horizon_age")?,
            dead_tuples: row.try_get::<_, Option<i64>>("dead_tuples")?.unwrap_or(0),
        })
    }

    pub async fn sample_inbox(&self, scan_max: i64) -> Result<InboxSample> {
        let row = self.query_one(&self.statements.sample_inbox, &[&scan_max]).await?;
        Ok(InboxSample {
            unfinished: row.try_get("unfinished")?,
            poison: row.try_get("poison")?,
        })
    }

    pub async fn sample_counters(&self) -> Result<Counters> {
        let row = self.query_one(&self.statements.sample_counters, &[]).await?;
        let duplicates = self.query(&self.statements.sample_duplicates, &[]).await?;
        let duplicates = duplicates
            .iter()
            .map(|row| Ok((row.try_get("consumer")?, row.try_get("duplicates_suppressed")?)));
        Ok(Counters {
            granted: row.try_get("granted")?,
            replayed: row.try_get("replayed")?,
            conflicted: row.try_get("conflicted")?,
            taken_over: row.try_get("taken_over")?,
            duplicates: duplicates.collect::<Result<_>>()?,
            payload_conflicts: row.try_get("payload_conflicts")?,
            inbox_taken_over: row.try_get("inbox_taken_over")?,
        })
    }

    pub async fn sample_commands(&self, scan_max: i64, operations: usize) -> Result<Vec<Commands>> {
        let params: Params<'_> = &[&scan_max, &(operations as i64)];
        let rows = self.query(&self.statements.sample_commands, params).await?;
        rows.iter()
            .map(|row| {
                Ok(Commands {
                    operation: row.try_get("operation")?,
                    state: row.try_get("state")?,
                    count: row.try_get("commands")?,
                })
            })
            .collect()
    }
}
