//! Retention, the rescan for lost rows, and samples for gauges.

use std::time::Duration;

use super::param::Params;
use super::{OnPublished, Outbox, Result};
use crate::domain::retention::{Retention, Table};
use crate::domain::sample::{Commands, Counters, InboxSample, Sample};

/// A purge in progress. Only `outbox.message` needs a cursor; the other tables have an index by age.
#[derive(Debug)]
pub struct Purge {
    pub table: Table,
    cursor: i64,
}

impl Purge {
    pub fn of(table: Table) -> Self {
        Purge { table, cursor: 0 }
    }
}

/// What a purge removed, or would remove.
#[derive(Debug)]
pub struct PurgeResult {
    pub rows: Vec<(Table, i64)>,
    pub history: HistoryDays,
}

/// Days of the history that are old enough to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryDays {
    pub dropped: i32,
    /// Not dropped yet, because another session, such as a backup, reads them.
    pub locked: i32,
}

impl Outbox {
    /// Runs one step of a purge. Returns how many rows it removed, and whether the purge is finished.
    pub async fn purge(&self, purge: &mut Purge, most: i32, retention: Retention) -> Result<(i64, bool)> {
        match purge.table {
            Table::Message => self.purge_published(&mut purge.cursor, most, retention.published).await,
            Table::Processed => {
                let statement = &self.statements.purge_processed;
                self.purge_indexed(statement, &[&retention.processed.as_secs_f64(), &most], most)
                    .await
            }
            Table::Inbox => {
                let statement = &self.statements.purge_inbox;
                self.purge_indexed(statement, &[&retention.inbox.as_secs_f64(), &most], most)
                    .await
            }
            // Each row has its own expiry time.
            Table::Idempotency => {
                self.purge_indexed(&self.statements.purge_idempotency, &[&most], most)
                    .await
            }
        }
    }

    /// Purges by id, from the cursor on. A pass ends at the first rows that are too young.
    async fn purge_published(&self, cursor: &mut i64, most: i32, retention: Duration) -> Result<(i64, bool)> {
        let params: Params<'_> = &[&retention.as_secs_f64(), cursor, &most];
        let row = self.query_one(&self.statements.purge_messages, params).await?;
        let reached = row.try_get::<_, Option<i64>>("reached")?;
        let young: bool = row.try_get("young")?;
        let more = reached.filter(|_| !young);
        *cursor = more.unwrap_or(0);
        Ok((row.try_get("purged")?, more.is_none()))
    }

    /// Purges by an index by age. If it removes fewer rows than `most`, none is left.
    async fn purge_indexed(&self, statement: &str, params: Params<'_>, most: i32) -> Result<(i64, bool)> {
        let purged = self.query_one(statement, params).await?.try_get("purged")?;
        Ok((purged, purged < i64::from(most)))
    }

    /// Fails for good at most `most` commands whose lock expired more than `age` ago. Returns how many.
    pub async fn end_orphaned(&self, age: Duration, most: i32) -> Result<i64> {
        let params: Params<'_> = &[&age.as_secs_f64(), &most];
        let row = self.query_one(&self.statements.end_orphaned, params).await?;
        Ok(row.try_get("ended")?)
    }

    /// Counts what a purge would remove now.
    pub async fn purgeable(&self, retention: Retention) -> Result<PurgeResult> {
        let ages: [f64; 3] = [retention.published, retention.processed, retention.inbox].map(|age| age.as_secs_f64());
        let row = self
            .query_one(&self.statements.purgeable, &[&ages[0], &ages[1], &ages[2]])
            .await?;
        let rows = Table::ALL.iter().map(|table| Ok((*table, row.try_get(table.name())?)));
        Ok(PurgeResult {
            rows: rows.collect::<Result<_>>()?,
            history: HistoryDays {
                dropped: row.try_get::<_, i64>("history_days")? as i32,
                locked: 0,
            },
        })
    }

    pub async fn sample_inbox(&self, scan_max: i64) -> Result<InboxSample> {
        let row = self.query_one(&self.statements.sample_inbox, &[&scan_max]).await?;
        Ok(InboxSample {
            unfinished: row.try_get("unfinished")?,
            poison: row.try_get("poison")?,
        })
    }

    /// Scans the next rows above `cursor` for lost rows. Returns the last id scanned, and how many lost rows were found.
    pub async fn rescan(&self, cursor: i64, most: i64) -> Result<(Option<i64>, i64)> {
        let row = self.query_one(&self.statements.rescan, &[&cursor, &most]).await?;
        Ok((row.try_get("reached")?, row.try_get("found")?))
    }

    /// Creates the partitions of the history for the next days, if published rows are archived.
    pub async fn history_prepare(&self) -> Result<()> {
        if self.on_published == OnPublished::Archive {
            self.execute(&self.statements.history_prepare, &[]).await?;
        }
        Ok(())
    }

    /// Drops days of the history that are old enough, except those in use.
    pub async fn history_expire(&self, retention: Duration) -> Result<HistoryDays> {
        let row = self
            .query_one(&self.statements.history_expire, &[&retention.as_secs_f64()])
            .await?;
        Ok(HistoryDays {
            dropped: row.try_get("dropped")?,
            locked: row.try_get("locked")?,
        })
    }

    pub async fn delete_stale_claims(&self) -> Result<()> {
        self.execute(&self.statements.delete_stale_claims, &[]).await?;
        Ok(())
    }

    pub async fn delete_stale_in_flight(&self) -> Result<()> {
        self.execute(&self.statements.delete_stale_in_flight, &[]).await?;
        Ok(())
    }

    pub async fn delete_stale_workers(&self) -> Result<()> {
        self.execute(&self.statements.delete_stale_workers, &[]).await?;
        Ok(())
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
