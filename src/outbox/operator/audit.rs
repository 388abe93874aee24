//! What operators did.

use std::time::{Duration, SystemTime};

use super::super::from_row::{FromRow, from_row};
use super::{Outbox, Params, Result};

/// A command of an operator, with all of its transactions.
#[derive(Debug)]
pub struct AuditedOperation {
    pub operation: i64,
    pub began_at: SystemTime,
    /// Who logged in.
    pub login: String,
    pub command: String,
    /// The filter, as JSON.
    pub filter: String,
    pub reason: Option<String>,
    pub changed: i64,
    pub topics: Vec<String>,
    pub transactions: i64,
}

from_row!(AuditedOperation: operation, began_at, login, command, filter, reason, changed, topics, transactions);

/// One transaction of an operation.
#[derive(Debug)]
pub struct AuditedTransaction {
    pub id: i64,
    pub at: SystemTime,
    pub changed: i32,
    pub topics: Vec<String>,
    pub ids: Vec<i64>,
    /// What a corrected message said before, as JSON.
    pub payload_before: Option<String>,
    /// The same of bytes, in hexadecimal.
    pub payload_bytes_before: Option<String>,
}

from_row!(AuditedTransaction: id, at, changed, topics, ids, payload_before, payload_bytes_before);

/// Which operations to list. What is empty or `None` restricts nothing.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    pub topics: Vec<String>,
    pub login: Option<String>,
    pub newer_than: Option<Duration>,
    /// Only operations that began before this one.
    pub before: Option<i64>,
    pub limit: i64,
}

impl Outbox {
    /// Lists operations that match the filter, the newest first.
    pub async fn audit_operations(&self, filter: &AuditFilter) -> Result<Vec<AuditedOperation>> {
        let topics: Vec<&str> = filter.topics.iter().map(String::as_str).collect();
        let newer_than = filter.newer_than.map(|age| age.as_secs_f64());
        let params: Params<'_> = &[
            &topics,
            &filter.login.as_deref(),
            &newer_than,
            &filter.limit,
            &filter.before,
        ];
        self.query(&self.statements.audit_operations, params).await
    }

    /// The transactions of an operation, in their order: all, or the first ones.
    pub async fn audit_transactions(&self, operation: i64, limit: Option<i64>) -> Result<Vec<AuditedTransaction>> {
        self.query(&self.statements.audit_transactions, &[&operation, &limit])
            .await
    }
}
