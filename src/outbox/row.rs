//! Reads messages by the positions of `fragment/message_columns.sql`. A JSON document is read as its text. A value above the size
//! limit is NULL (`outbox.limit_bytes`), and the column `parts` counts the values in the table, so that such a row is noticed.

use tokio_postgres::types::{FromSql, Type};

use super::Result;
use super::from_row::FromRow;
use crate::domain::row::{Body, Row};

/// Text that is not checked to be UTF-8, which the server has done.
struct RawText<'a>(&'a [u8]);

impl<'a> FromSql<'a> for RawText<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> std::result::Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(RawText(raw))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TEXT
    }
}

/// A row of `claim_lanes.sql`, `poll.sql` or `read_claim.sql`, whose next column says whether it was delayed.
pub fn ordered(row: &tokio_postgres::Row) -> Result<Row> {
    let mut message = Row::from_row(row)?;
    message.delayed = row.try_get(17)?;
    Ok(message)
}

/// A row of `read_claim.sql`, whose last column says whether an earlier claim may have sent it.
pub fn unordered(row: &tokio_postgres::Row) -> Result<Row> {
    let mut message = ordered(row)?;
    message.possible_duplicate = row.try_get(18)?;
    Ok(message)
}

impl FromRow for Row {
    /// A row that was not read whole is unreadable, for a reason that is not known yet.
    fn from_row(row: &tokio_postgres::Row) -> Result<Self> {
        let json: Option<RawText<'_>> = row.try_get(6)?;
        let bytes: Option<&[u8]> = row.try_get(7)?;
        let body = match (json, bytes) {
            (Some(json), _) => Body::Json(json.0.to_vec()),
            (None, Some(bytes)) => Body::Bytes(bytes.to_vec()),
            (None, None) => Body::Tombstone,
        };
        let mut message = Row {
            id: row.try_get(0)?,
            lane: row.try_get(1)?,
            message_id: row.try_get(2)?,
            topic: row.try_get(3)?,
            key: row.try_get(4)?,
            partition: row.try_get(5)?,
            body,
            headers: row.try_get::<_, Option<RawText<'_>>>(8)?.map(|json| json.0.to_vec()),
            event_type: row.try_get(9)?,
            aggregate_type: row.try_get(10)?,
            aggregate_id: row.try_get(11)?,
            aggregate_version: row.try_get(12)?,
            attempts: row.try_get(13)?,
            created_at: row.try_get(14)?,
            delayed: false,
            possible_duplicate: false,
            is_repeat: row.try_get(16)?,
            unreadable: None,
        };
        let stored: i32 = row.try_get(15)?;
        message.unreadable = (parts_read(&message) < stored).then(String::new);
        Ok(message)
    }
}

/// How many of the columns counted by `parts` were read.
fn parts_read(row: &Row) -> i32 {
    let texts = [&row.event_type, &row.aggregate_type, &row.aggregate_id];
    let texts = texts.into_iter().flatten().count();
    texts as i32 + i32::from(row.body != Body::Tombstone) + i32::from(row.headers.is_some())
}
