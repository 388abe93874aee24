//! Retention, and the search for rows that a floor has passed or the server has lost.

use std::time::Duration;

use uuid::Uuid;

use super::param::Params;
use super::{OnPublished, Outbox, Result};
use crate::domain::retention::{Retention, Table};

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

    /// Scans the next rows above `cursor` for lost rows. Returns the last id scanned, and how many lost rows were found.
    pub async fn rescan(&self, cursor: i64, most: i64) -> Result<(Option<i64>, i64)> {
        let row = self.query_one(&self.statements.rescan, &[&cursor, &most]).await?;
        Ok((row.try_get("reached")?, row.try_get("found")?))
    }

    /// Returns which of these published rows the server has lost.
    pub async fn lost_rows(&self, ids: Vec<i64>, message_ids: Vec<Uuid>) -> Result<Vec<i64>> {
        let sql = match self.on_published {
            OnPublished::Keep | OnPublished::Archive => &self.statements.lost_kept,
            OnPublished::Delete => &self.statements.lost_deleted,
        };
        let rows = self.query(sql, &[&ids, &message_ids]).await?;
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
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
}
