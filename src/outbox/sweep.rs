//! What the janitor does: retention, the safety net, samples.

use std::time::Duration;

use super::{Outbox, Result};

/// The backlog as sampled.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub pending: i64,
    pub capped: bool,
    pub oldest_seconds: f64,
    pub dead: i64,
    pub delayed: i64,
    pub held_keys: i64,
    pub parked_topics: i64,
    pub horizon_age: i64,
    pub dead_tuples: i64,
}

/// The way in, as sampled.
#[derive(Clone, Copy, Debug)]
pub struct Intake {
    /// Counted by the database since it started.
    pub counted: Counted,
    pub inbox_unfinished: i64,
    pub inbox_due: i64,
    pub inbox_poison: i64,
    pub inbox_oldest_seconds: f64,
}

/// Counts that only grow, until a crash of the server sets them back to zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub granted: i64,
    pub replayed: i64,
    pub conflicted: i64,
    pub duplicates: i64,
    pub payload_conflicts: i64,
}

/// Commands of one operation in one state.
#[derive(Clone, Debug)]
pub struct Commands {
    pub operation: String,
    pub state: String,
    pub count: i64,
}

impl Outbox {
    /// One step of retention above `cursor`: (where it got, how many rows went, whether the rest is too young).
    pub async fn purge(&self, cursor: i64, most: i64, retention: Duration) -> Result<(Option<i64>, i64, bool)> {
        let row = self
            .query_one(&self.statements.purge, &[&cursor, &most, &retention.as_secs_f64()])
            .await?;
        Ok((row.try_get("reached")?, row.try_get("purged")?, row.try_get("young")?))
    }

    /// One step of the safety net above `cursor`: (where it got, how many forgotten rows it found).
    pub async fn rescan(&self, cursor: i64, most: i64) -> Result<(Option<i64>, i64)> {
        let row = self.query_one(&self.statements.rescan, &[&cursor, &most]).await?;
        Ok((row.try_get("reached")?, row.try_get("found")?))
    }

    pub async fn history_prepare(&self) -> Result<()> {
        self.execute(&self.statements.history_prepare, &[]).await?;
        Ok(())
    }

    pub async fn history_drop(&self, retention: Duration) -> Result<()> {
        self.execute(&self.statements.history_drop, &[&retention.as_secs_f64()])
            .await?;
        Ok(())
    }

    pub async fn forget_workers(&self) -> Result<()> {
        self.execute(&self.statements.forget_workers, &[]).await?;
        Ok(())
    }

    pub async fn sample(&self, walk: i64) -> Result<Sample> {
        let row = self.query_one(&self.statements.sample, &[&walk]).await?;
        Ok(Sample {
            pending: row.try_get("pending")?,
            capped: row.try_get("capped")?,
            oldest_seconds: row.try_get("oldest_seconds")?,
            dead: row.try_get("dead")?,
            delayed: row.try_get("delayed")?,
            held_keys: row.try_get("held_keys")?,
            parked_topics: row.try_get("parked_topics")?,
            horizon_age: row.try_get("horizon_age")?,
            dead_tuples: row.try_get::<_, Option<i64>>("dead_tuples")?.unwrap_or(0),
        })
    }

    pub async fn sample_intake(&self, walk: i64) -> Result<Intake> {
        let row = self.query_one(&self.statements.sample_intake, &[&walk]).await?;
        Ok(Intake {
            counted: Counted {
                granted: row.try_get("granted")?,
                replayed: row.try_get("replayed")?,
                conflicted: row.try_get("conflicted")?,
                duplicates: row.try_get("duplicates_suppressed")?,
                payload_conflicts: row.try_get("payload_conflicts")?,
            },
            inbox_unfinished: row.try_get("unfinished")?,
            inbox_due: row.try_get("due")?,
            inbox_poison: row.try_get("poison")?,
            inbox_oldest_seconds: row.try_get("oldest_seconds")?,
        })
    }

    pub async fn sample_commands(&self, walk: i64, operations: i64) -> Result<Vec<Commands>> {
        let rows = self.query(&self.statements.sample_commands, &[&walk, &operations]).await?;
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
