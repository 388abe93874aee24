//! Who left a transaction open after an INSERT: for the operator, who alone can end it. One that is prepared has outlived its session,
//! and outlives the server.

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
    /// Whose transaction this is. `None`: it has ended.
    pub async fn writer(&self, transaction: i64) -> Result<Option<WriterIdentity>> {
        let rows = self.query(&self.statements.writer_identity, &[&transaction]).await?;
        rows.first().map(WriterIdentity::of).transpose()
    }
}
