//! Identifies the session or prepared transaction of an open writer, for the operator, who alone can end it. A prepared
//! transaction survives its session and a restart of the server.

use serde::Serialize;
use tokio_postgres::Row;

use crate::outbox::{Outbox, Result};

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum WriterIdentity {
    Session { pid: i32, application: String },
    Prepared { gid: String },
}

impl WriterIdentity {
    pub fn of(row: &Row) -> Result<Self> {
        Ok(match row.try_get("gid")? {
            Some(gid) => Self::Prepared { gid },
            None => Self::Session {
                pid: row.try_get("pid")?,
                application: row.try_get("application")?,
            },
        })
    }
}

impl Outbox {
    /// Returns who runs this transaction, or `None` if it has ended.
    pub async fn writer_identity(&self, transaction: i64) -> Result<Option<WriterIdentity>> {
        let rows = self.query(&self.statements.writer_identity, &[&transaction]).await?;
        rows.first().map(WriterIdentity::of).transpose()
    }
}
