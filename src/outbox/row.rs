//! Rows of a claim, read by position: the order of columns is the same in every claim statement. A document comes as its text; what is
//! larger than we take comes as NULL (`outbox.limit_bytes`), and how many columns have a value in the table is said beside them.

use tokio_postgres::types::{FromSql, Type};

use super::Result;
use crate::domain::row::{Body, Row};

/// A text as it came: whether it is UTF-8 is the server's business.
struct RawText<'a>(&'a [u8]);

impl<'a> FromSql<'a> for RawText<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> std::result::Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(RawText(raw))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TEXT
    }
}

/// A row of `claim_lanes.sql` or `poll.sql`: the column behind those all share says whether it was delayed.
pub fn of_lane(row: &tokio_postgres::Row) -> Result<Row> {
    let mut claimed = head(row)?;
    claimed.delayed = row.try_get(16)?;
    Ok(claimed)
}

/// A row of `read_claim.sql`: the last column says whether an earlier claim of it had expired.
pub fn unordered(row: &tokio_postgres::Row) -> Result<Row> {
    let mut claimed = head(row)?;
    claimed.possible_duplicate = row.try_get(16)?;
    Ok(claimed)
}

/// The columns all claims share. A row that did not come whole is unreadable, and why is not yet known.
pub fn head(row: &tokio_postgres::Row) -> Result<Row> {
    let json: Option<RawText<'_>> = row.try_get(6)?;
    let bytes: Option<&[u8]> = row.try_get(7)?;
    let body = match (json, bytes) {
        (Some(json), _) => Body::Json(json.0.to_vec()),
        (None, Some(bytes)) => Body::Bytes(bytes.to_vec()),
        (None, None) => Body::Tombstone,
    };
    let mut read = Row {
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
        unreadable: None,
    };
    let written: i32 = row.try_get(15)?;
    read.unreadable = (parts(&read) < written).then(String::new);
    Ok(read)
}

/// How many of the columns have come of which the row has any number.
fn parts(row: &Row) -> i32 {
    let texts = [&row.event_type, &row.aggregate_type, &row.aggregate_id];
    let texts = texts.into_iter().flatten().count();
    texts as i32 + i32::from(row.body != Body::Tombstone) + i32::from(row.headers.is_some())
}
