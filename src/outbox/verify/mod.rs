//! Reads all rows for `outboxd verify`, in one snapshot.

use std::collections::HashSet;
use std::time::SystemTime;

use futures_util::TryStreamExt;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::from_row::{FromRow, from_row};
use super::{Database, Result, connect, in_schema, statement};
use crate::domain::row::{Row, State};

/// A larger message, or one that PostgreSQL cannot read, is not read whole.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A read-only transaction with one snapshot, on a connection without the daemon's statement timeout. Its statements are not
/// prepared, so it works behind a transaction pooler.
pub struct Snapshot {
    client: Client,
    schema: String,
}

type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// The rows of one topic.
#[derive(Debug)]
pub struct Window {
    pub topic: String,
    pub rows: i64,
    /// When the oldest of its stored rows was published.
    pub oldest: Option<SystemTime>,
}

from_row!(Window: topic, rows, oldest);

/// A row and what became of it.
#[derive(Debug)]
pub struct StoredRow {
    pub row: Row,
    pub state: State,
    pub published_at: Option<SystemTime>,
    /// The operation by which an operator had it sent again.
    pub requeued_by: Option<i64>,
    /// The operation that replayed it after it had been published.
    pub replayed_by: Option<i64>,
    /// An operator has replaced its payload.
    pub corrected: bool,
}

impl Snapshot {
    pub async fn open(database: &Database, schema: &str) -> Result<Self> {
        let client = connect(database).await?;
        client
            .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            .await?;
        Ok(Snapshot {
            client,
            schema: schema.to_owned(),
        })
    }

    /// Counts the rows of each topic. This statement takes the snapshot.
    pub async fn windows(&self, topics: Option<&[String]>, since: Option<SystemTime>) -> Result<Vec<Window>> {
        let sql = in_schema(include_str!("verify_topics.sql"), &self.schema);
        let params: [Param; 2] = [(&topics, Type::TEXT_ARRAY), (&since, Type::TIMESTAMPTZ)];
        let rows = self.client.query_typed(&sql, &params).await?;
        rows.iter().map(Window::from_row).collect()
    }

    /// Passes every row to `each` as it is read.
    pub async fn each_row<E: From<super::Error>>(
        &self,
        topics: &[String],
        since: Option<SystemTime>,
        mut each: impl FnMut(StoredRow) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let sql = statement::adapted(include_str!("verify_rows.sql"), &self.schema, MESSAGE_BYTES_MAX);
        let params: [Param; 2] = [(&topics, Type::TEXT_ARRAY), (&since, Type::TIMESTAMPTZ)];
        let stream = self.client.query_typed_raw(&sql, params).await;
        let stream = stream.map_err(super::Error::from)?;
        futures_util::pin_mut!(stream);
        while let Some(row) = stream.try_next().await.map_err(super::Error::from)? {
            each(stored_row(&row)?)?;
        }
        Ok(())
    }

    /// Ends the snapshot. Later statements see the current rows.
    pub async fn close(&self) -> Result<()> {
        Ok(self.client.batch_execute("COMMIT").await?)
    }

    /// Returns which of these messages have a row.
    pub async fn known(&self, messages: &[Uuid]) -> Result<HashSet<Uuid>> {
        let sql = in_schema(include_str!("verify_known.sql"), &self.schema);
        let rows = self.client.query_typed(&sql, &[(&messages, Type::UUID_ARRAY)]).await?;
        rows.iter().map(|row| Ok(row.try_get("message_id")?)).collect()
    }
}

fn stored_row(row: &tokio_postgres::Row) -> Result<StoredRow> {
    let published_at: Option<SystemTime> = row.try_get("published_at")?;
    let state = match (published_at, row.try_get("dead")?) {
        (Some(_), _) => State::Published,
        (None, true) => State::Dead,
        (None, false) => State::Pending,
    };
    Ok(StoredRow {
        row: Row::from_row(row)?,
        state,
        published_at,
        requeued_by: row.try_get("requeued_by")?,
        replayed_by: row.try_get("replayed_by")?,
        corrected: row.try_get("corrected")?,
    })
}
