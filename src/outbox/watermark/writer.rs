//! Who left a transaction open after an INSERT: for the operator, who alone can end it. One that is prepared has outlived its session,
//! and outlives the server.

use serde::Serialize;
use tokio_postgres::Row;

use crate::outbox::{Outbox, Result};

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Holder {
    Session { pid: i32, application: String },
    Prepared { gid: String },
}

impl Holder {
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
    pub async fn holder(&self, transaction: i64) -> Result<Option<Holder>> {
        let rows = self.query(&self.statements.writer_identity, &[&transaction]).await?;
        rows.first().map(Holder::of).transpose()
    }
}
