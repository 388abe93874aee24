//! What is kept of a row and of a record while they are compared. It is a few words each, however large they are.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::domain::partition::PartitionChoice;
use crate::domain::row::{POSSIBLE_DUPLICATE, Row};

/// Microseconds since 1970, as PostgreSQL counts time.
pub type Micros = i64;

pub fn micros(at: SystemTime) -> Micros {
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_micros() as Micros,
        Err(before) => -(before.duration().as_micros() as Micros),
    }
}

pub const fn span(duration: Duration) -> Micros {
    duration.as_micros() as Micros
}

/// What the record of a row must be like.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    pub message_id: Uuid,
    pub id: i64,
    /// Its index in the list of topics.
    pub topic: u32,
    pub partition_choice: PartitionChoice,
    /// Topic and key, or topic and explicit partition, as a number. `None` if no order is promised.
    pub unit: Option<u64>,
    /// The aggregate as a number, and its version.
    pub version: Option<(u64, i64)>,
    pub created: Micros,
    pub state: RowState,
    pub content: Content,
}

/// The state of the row in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowState {
    Pending,
    Published(Micros),
    Dead,
}

impl Expected {
    pub fn of(row: &Row, topic: u32, state: RowState) -> Self {
        let aggregate = number(&(&row.aggregate_type, &row.aggregate_id));
        Expected {
            message_id: row.message_id,
            id: row.id,
            topic,
            partition_choice: row.partition_choice(),
            unit: row.unit().map(|unit| number(&(&row.topic, unit))),
            version: row
                .aggregate_version
                .filter(|_| row.aggregate_id.is_some())
                .map(|version| (aggregate, version)),
            created: micros(row.created_at),
            state,
            content: Content::of_row(row),
        }
    }
}

/// A record that was published from an outbox, as found in a topic.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrived {
    pub message_id: Uuid,
    pub topic: u32,
    pub partition: i32,
    pub offset: i64,
    pub timestamp: Micros,
    pub flagged: bool,
    pub content: Content,
}

/// The first copy of a row of a unit whose order is promised.
#[derive(Clone, Debug, PartialEq)]
pub struct First {
    pub unit: u64,
    pub message_id: Uuid,
    pub id: i64,
    pub topic: u32,
    pub partition: i32,
    pub offset: i64,
    pub version: Option<(u64, i64)>,
    pub created: Micros,
    pub published: Option<Micros>,
}

/// Key, payload and headers, each as a number. This is enough to tell which of them differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    pub key: u64,
    pub payload: u64,
    pub headers: u64,
}

impl Content {
    /// The content of a row that could not be read completely. Any record may belong to it.
    pub const UNKNOWN: Content = Content {
        key: 0,
        payload: 0,
        headers: 0,
    };

    /// The content that the relay would send for this row.
    pub fn of_row(row: &Row) -> Self {
        if row.unreadable.is_some() {
            return Content::UNKNOWN;
        }
        let mut headers = HeadersNumber::default();
        row.each_header(|name, value| headers.add(name, value));
        Content {
            key: number(&Some(row.record_key().as_bytes())),
            payload: number(&row.body.as_bytes()),
            headers: headers.0.finish(),
        }
    }

    pub fn of_record<'a>(
        key: Option<&[u8]>,
        payload: Option<&[u8]>,
        headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
    ) -> Self {
        let mut number_of_headers = HeadersNumber::default();
        headers.for_each(|(name, value)| number_of_headers.add(name, value));
        Content {
            key: number(&key),
            payload: number(&payload),
            headers: number_of_headers.0.finish(),
        }
    }

    /// Which part of the record differs from the row.
    pub fn difference(self, row: Content) -> Option<&'static str> {
        if row == Content::UNKNOWN {
            return None;
        }
        let parts = [
            (self.payload != row.payload, "payload"),
            (self.key != row.key, "key"),
            (self.headers != row.headers, "headers"),
        ];
        parts.into_iter().find(|(differs, _)| *differs).map(|(_, part)| part)
    }
}

/// All headers except for `possible-duplicate`, which is not part of the row.
#[derive(Default)]
struct HeadersNumber(DefaultHasher);

impl HeadersNumber {
    fn add(&mut self, name: &str, value: Option<&[u8]>) {
        if name != POSSIBLE_DUPLICATE {
            (name, value).hash(&mut self.0);
        }
    }
}

/// A hash, which is the same for the same value within this process.
pub fn number(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
