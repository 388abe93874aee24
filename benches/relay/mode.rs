//! What becomes of a row once Kafka has it, and the product's statements that do it.

use outboxd::outbox::statement;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Keep,
    Archive,
    Delete,
}

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::Keep, Mode::Archive, Mode::Delete];

    /// As `--on-published` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Keep => "keep",
            Mode::Archive => "archive",
            Mode::Delete => "delete",
        }
    }

    pub fn mark_lanes(self) -> String {
        statement::text(match self {
            Mode::Keep => "mark_lanes_keep",
            Mode::Archive => "mark_lanes_archive",
            Mode::Delete => "mark_lanes_delete",
        })
    }

    pub fn mark_keyless(self) -> String {
        statement::text(match self {
            Mode::Keep => "mark_keyless_keep",
            Mode::Archive => "mark_keyless_archive",
            Mode::Delete => "mark_keyless_delete",
        })
    }
}
