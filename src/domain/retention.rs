//! How long finished rows are kept, and in which tables.

use std::time::Duration;

/// Every published row is kept for at least this time.
pub const RETENTION_MIN: Duration = Duration::from_secs(3600);

/// How long finished rows of each kind are kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    pub published: Duration,
    pub processed: Duration,
    pub inbox: Duration,
}

/// The tables that retention removes rows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Message,
    Processed,
    Inbox,
    Idempotency,
}

impl Table {
    pub const ALL: [Table; 4] = [Table::Message, Table::Processed, Table::Inbox, Table::Idempotency];

    /// Its name in the schema.
    pub fn name(self) -> &'static str {
        match self {
            Table::Message => "message",
            Table::Processed => "processed_message",
            Table::Inbox => "inbox_message",
            Table::Idempotency => "idempotency_request",
        }
    }
}
