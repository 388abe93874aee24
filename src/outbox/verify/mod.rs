//! What `outboxd verify` reads: all rows, as they were at one moment.

use std::collections::HashSet;
use std::time::SystemTime;

use futures_util::TryStreamExt;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::{Database, Result, connect, in_schema, row};
use crate::domain::row::{Row, State};

/// A read-only transaction that sees one moment, on a connection without the daemon's statement timeout. Its statements have
/// no names, so that they pass a transaction pooler.
pub struct Snapshot {
    client: Client,
    schema: String,
}

type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// How much there is of one topic.
#[derive(Debug)]
pub struct Window {
    pub topic: String,
    pub rows: i64,
    /// When the oldest of its rows that are kept was published.
    pub oldest: Option<SystemTime>,
}

/// A row and what became of it.
#[derive(Debug)]
pub struct StoredRow {
    pub row: Row,
    pub state: State,
    pub published_at: Option<SystemTime>,
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

    /// The topics that rows name; the moment of the snapshot is this statement's.
    pub async fn windows(&self, topics: Option<&[String]>, since: Option<SystemTime>) -> Result<Vec<Window>> {
        let sql = in_schema(include_str!("verify_topics.sql"), &self.schema);
        let params: [Param; 2] = [(&topics, Type::TEXT_ARRAY), (&since, Type::TIMESTAMPTZ)];
        let rows = self.client.query_typed(&sql, &params).await?;
        rows.iter()
            .map(|row| {
                Ok(Window {
                    topic: row.try_get("topic")?,
                    rows: row.try_get("rows")?,
                    oldest: row.try_get("oldest")?,
                })
            })
            .collect()
    }

    /// Hands every row to `each` as it comes, and keeps none.
    pub async fn each_row<E: From<super::Error>>(
        &self,
        topics: &[String],
        since: Option<SystemTime>,
        mut each: impl FnMut(StoredRow) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let sql = in_schema(include_str!("verify_rows.sql"), &self.schema);
        let params: [Param; 2] = [(&topics, Type::TEXT_ARRAY), (&since, Type::TIMESTAMPTZ)];
        let stream = self.client.query_typed_raw(&sql, params).await;
        let stream = stream.map_err(super::Error::from)?;
        futures_util::pin_mut!(stream);
        while let Some(row) = stream.try_next().await.map_err(super::Error::from)? {
            each(kept(&row)?)?;
        }
        Ok(())
    }

    /// The moment is over: what is asked from here on is answered as of now.
    pub async fn close(&self) -> Result<()> {
        Ok(self.client.batch_execute("COMMIT").await?)
    }

    /// Which of these messages have a row?
    pub async fn known(&self, messages: &[Uuid]) -> Result<HashSet<Uuid>> {
        let sql = in_schema(include_str!("verify_known.sql"), &self.schema);
        let rows = self.client.query_typed(&sql, &[(&messages, Type::UUID_ARRAY)]).await?;
        rows.iter().map(|row| Ok(row.try_get("message_id")?)).collect()
    }
}

fn kept(row: &tokio_postgres::Row) -> Result<StoredRow> {
    let published_at: Option<SystemTime> = row.try_get("published_at")?;
    let state = match (published_at, row.try_get("dead")?) {
        (Some(_), _) => State::Published,
        (None, true) => State::Dead,
        (None, false) => State::Pending,
    };
    Ok(StoredRow {
        row: row::head(row)?,
        state,
        published_at,
    })
}
