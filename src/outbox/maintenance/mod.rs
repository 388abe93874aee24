//! Retention, and the search for rows that a floor has passed or the server has lost.

use std::time::Duration;

use tokio_postgres::Row;
use uuid::Uuid;

use super::from_row::{FromRow, from_row};
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

from_row!(HistoryDays: dropped, locked);

/// What `purgeable.sql` counts: the rows of each table, and the days of the history.
impl FromRow for PurgeResult {
    fn from_row(row: &Row) -> Result<Self> {
        let rows = Table::ALL.iter().map(|table| Ok((*table, row.try_get(table.name())?)));
        Ok(PurgeResult {
            rows: rows.collect::<Result<_>>()?,
            history: HistoryDays::from_row(row)?,
        })
    }
}

impl Outbox {
    /// Runs one step of a purge. Returns how many rows it removed, and whether the purge is finished.
    pub async fn purge(&self, purge: &mut Purge, most: i32, retention: Retention) -> Result<(i64, bool)> {
        let sql = &self.statements;
        let purged: i64 = match purge.table {
            Table::Message => return self.purge_published(&mut purge.cursor, most, retention.published).await,
            Table::Processed => {
                let params: Params<'_> = &[&retention.processed.as_secs_f64(), &most];
                self.query_one(&sql.purge_processed, params).await?
            }
            Table::Inbox => {
                let params: Params<'_> = &[&retention.inbox.as_secs_f64(), &most];
                self.query_one(&sql.purge_inbox, params).await?
            }
            // Each row has its own expiry time.
            Table::Idempotency => self.query_one(&sql.purge_idempotency, &[&most]).await?,
        };
        // These are purged by an index by age. If fewer rows than `most` were removed, none is left.
        Ok((purged, purged < i64::from(most)))
    }

    /// Purges by id, from the cursor on. A pass ends at the first rows that are too young.
    async fn purge_published(&self, cursor: &mut i64, most: i32, retention: Duration) -> Result<(i64, bool)> {
        let params: Params<'_> = &[&retention.as_secs_f64(), cursor, &most];
        let (reached, purged, young): (Option<i64>, i64, bool) =
            self.query_one(&self.statements.purge_messages, params).await?;
        let more = reached.filter(|_| !young);
        *cursor = more.unwrap_or(0);
        Ok((purged, more.is_none()))
    }

    /// Fails for good at most `most` commands whose lock expired more than `age` ago. Returns how many.
    pub async fn end_orphaned(&self, age: Duration, most: i32) -> Result<i64> {
        let params: Params<'_> = &[&age.as_secs_f64(), &most];
        self.query_one(&self.statements.end_orphaned, params).await
    }

    /// Counts what a purge would remove now.
    pub async fn purgeable(&self, retention: Retention) -> Result<PurgeResult> {
        let ages: [f64; 3] = [retention.published, retention.processed, retention.inbox].map(|age| age.as_secs_f64());
        self.query_one(&self.statements.purgeable, &[&ages[0], &ages[1], &ages[2]])
            .await
    }

    /// Scans the next rows above `cursor` for lost rows. Returns the last id scanned, and how many lost rows were found.
    pub async fn rescan(&self, cursor: i64, most: i64) -> Result<(Option<i64>, i64)> {
        self.query_one(&self.statements.rescan, &[&cursor, &most]).await
    }

    /// Returns which of these published rows the server has lost.
    pub async fn lost_rows(&self, ids: Vec<i64>, message_ids: Vec<Uuid>) -> Result<Vec<i64>> {
        self.query(&self.lost_rows, &[&ids, &message_ids]).await
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
        self.query_one(&self.statements.history_expire, &[&retention.as_secs_f64()])
            .await
    }

    /// Deletes workers, claims and in-flight entries of which nothing is left to do.
    pub async fn delete_stale(&self) -> Result<()> {
        self.execute(&self.statements.delete_stale_workers, &[]).await?;
        self.execute(&self.statements.delete_stale_claims, &[]).await?;
        self.execute(&self.statements.delete_stale_in_flight, &[]).await?;
        Ok(())
    }
}
