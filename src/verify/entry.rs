//! What is kept of a row and of a record while they are compared: about a hundred bytes of each, however large they are.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::domain::partition::PartitionChoice;
use crate::domain::row::{MESSAGE_ID, POSSIBLE_DUPLICATE, Row, State};
use crate::kafka::consumer::Record;
use crate::outbox::verify::StoredRow;

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
    /// Topic and key, or topic and explicit partition, as a number. `None` if no order is promised. Rows that an operator had sent
    /// again are a unit of their own for each operation: they follow newer rows of their key, and each other by id.
    pub unit: Option<u64>,
    /// The same of its repeat, with the operation that replayed it. `None` if it was not replayed. Rows without order have one, too.
    pub repeat_unit: Option<u64>,
    /// The aggregate as a number, and its version.
    pub version: Option<(u64, i64)>,
    pub created: Micros,
    /// `None` if the row is pending or dead.
    pub published: Option<Micros>,
    pub dead: bool,
    /// Its payload was replaced. A record from before may have another one.
    pub corrected: bool,
    /// `None` if the row could not be read completely. Any record may belong to it.
    pub content: Option<Content>,
}

impl Expected {
    pub fn of(stored: &StoredRow, topic: u32) -> Self {
        let row = &stored.row;
        let aggregate = number(&(&row.aggregate_type, &row.aggregate_id));
        let version = row.aggregate_version.filter(|_| row.aggregate_id.is_some());
        Expected {
            message_id: row.message_id,
            id: row.id,
            topic,
            partition_choice: row.partition_choice(),
            unit: row.unit().map(|unit| number(&(&row.topic, unit, stored.requeued_by))),
            repeat_unit: stored
                .replayed_by
                .map(|replay| number(&(&row.topic, row.unit(), replay))),
            version: version.map(|version| (aggregate, version)),
            created: micros(row.created_at),
            published: stored.published_at.map(micros),
            dead: stored.state == State::Dead,
            corrected: stored.corrected,
            content: row.unreadable.is_none().then(|| Content::of_row(row)),
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

impl Arrived {
    /// `None` if the record was not published from an outbox.
    pub fn of(record: &Record<'_>, topic: u32, timestamp: Micros) -> Option<Self> {
        let id = record.headers.iter().find(|(name, _)| *name == MESSAGE_ID)?.1?;
        Some(Arrived {
            message_id: Uuid::try_parse_ascii(id).ok()?,
            topic,
            partition: record.partition,
            offset: record.offset,
            timestamp,
            flagged: record.headers.iter().any(|(name, _)| *name == POSSIBLE_DUPLICATE),
            content: Content::of_record(record),
        })
    }
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
    /// The content that the relay would send for this row.
    fn of_row(row: &Row) -> Self {
        let mut headers = DefaultHasher::new();
        row.each_header(|name, value| add_header(&mut headers, name, value));
        Content {
            key: number(&Some(row.record_key().as_bytes())),
            payload: number(&row.body.as_bytes()),
            headers: headers.finish(),
        }
    }

    fn of_record(record: &Record<'_>) -> Self {
        let mut headers = DefaultHasher::new();
        for (name, value) in &record.headers {
            add_header(&mut headers, name, *value);
        }
        Content {
            key: number(&record.key),
            payload: number(&record.payload),
            headers: headers.finish(),
        }
    }

    /// Which part of the record differs from the row.
    pub fn difference(self, row: Content) -> Option<&'static str> {
        let parts = [
            (self.payload != row.payload, "payload"),
            (self.key != row.key, "key"),
            (self.headers != row.headers, "headers"),
        ];
        parts.into_iter().find(|(differs, _)| *differs).map(|(_, part)| part)
    }
}

/// Adds a header, unless it is `possible-duplicate`, which is not part of the row.
fn add_header(headers: &mut DefaultHasher, name: &str, value: Option<&[u8]>) {
    if name != POSSIBLE_DUPLICATE {
        (name, value).hash(headers);
    }
}

/// A hash, which is the same for the same value within this process.
pub fn number(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
