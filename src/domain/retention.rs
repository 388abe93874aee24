//! What is finished and old: which tables have it, and how long it stays.

use std::time::Duration;

/// No row is removed sooner after it was published.
pub const RETENTION_MIN: Duration = Duration::from_secs(3600);

/// How long what is finished stays, by what it is.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    pub published: Duration,
    pub processed: Duration,
    pub inbox: Duration,
}

/// What retention removes rows of.
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
