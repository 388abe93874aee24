//! What becomes of a row once Kafka has it, and the product's statements that do it.

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

    pub fn mark_lanes(self) -> &'static str {
        match self {
            Mode::Keep => include_str!("../../src/outbox/mark_lanes_keep.sql"),
            Mode::Archive => include_str!("../../src/outbox/mark_lanes_archive.sql"),
            Mode::Delete => include_str!("../../src/outbox/mark_lanes_delete.sql"),
        }
    }

    pub fn mark_keyless(self) -> &'static str {
        match self {
            Mode::Keep => include_str!("../../src/outbox/mark_keyless_keep.sql"),
            Mode::Archive => include_str!("../../src/outbox/mark_keyless_archive.sql"),
            Mode::Delete => include_str!("../../src/outbox/mark_keyless_delete.sql"),
        }
    }
}
