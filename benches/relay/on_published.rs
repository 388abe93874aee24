//! What becomes of a row once Kafka has it, and the product's statements that do it.

use outboxd::outbox::statement;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPublished {
    Keep,
    Archive,
    Delete,
}

impl OnPublished {
    pub const ALL: [OnPublished; 3] = [OnPublished::Keep, OnPublished::Archive, OnPublished::Delete];

    /// As `--on-published` takes it.
    pub fn name(self) -> &'static str {
        match self {
            OnPublished::Keep => "keep",
            OnPublished::Archive => "archive",
            OnPublished::Delete => "delete",
        }
    }

    pub fn mark_lanes(self) -> String {
        statement::text(match self {
            OnPublished::Keep => "mark_lanes_keep",
            OnPublished::Archive => "mark_lanes_archive",
            OnPublished::Delete => "mark_lanes_delete",
        })
    }

    pub fn mark_unordered(self) -> String {
        statement::text(match self {
            OnPublished::Keep => "mark_unordered_keep",
            OnPublished::Archive => "mark_unordered_archive",
            OnPublished::Delete => "mark_unordered_delete",
        })
    }
}
