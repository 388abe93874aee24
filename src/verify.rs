//! The oracle: compares what the outbox says was published with what is in the topics.
//!
//! Rows are read from one snapshot, and topics up to their ends just after it. What was published before is in both, so no row is
//! missing merely because it is young. A record whose row is not in the snapshot is searched for once more before it counts as a
//! phantom. Rows and records become entries of a few words ([`entry`]), which are spilled to files by a hash of the message id
//! ([`spill`]) and compared bucket by bucket ([`judge`]). The first copies are spilled once more, by their key, to judge their
//! order.

pub mod entry;
pub mod findings;
pub mod judge;
pub mod spill;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use indicatif::ProgressBar;
use uuid::Uuid;

use crate::domain::retention::RETENTION_MIN;
use crate::domain::row::{MESSAGE_ID, POSSIBLE_DUPLICATE, State};
use crate::kafka::consumer::{self, Consumer, Extent, Record};
use crate::kafka::{ClientConfig, KafkaError};
use crate::outbox::verify::{Snapshot, StoredRow, Window};
use crate::outbox::{self, Database};
use entry::{Arrived, Content, Expected, First, Micros, RowState, micros, span};
use findings::Findings;
use judge::{Context, Judge, Partition, SLACK, Topic};
use spill::{BUCKETS, Spill, Storage};

/// Retention removes rows in steps, so it may have removed rows that are younger by this than the oldest one kept.
const RETENTION_STEP: Micros = span(Duration::from_secs(300));

pub struct Settings {
    pub database: Database,
    pub schema: String,
    pub kafka: ClientConfig,
    /// The topics to compare, or `None` for all that rows name.
    pub topics: Option<Vec<String>>,
    pub since: Option<SystemTime>,
    pub serialized_keys: bool,
    /// The directory of temporary files.
    pub temp_dir: PathBuf,
}

/// Why no comparison was possible.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Database(#[from] outbox::Error),
    #[error("Kafka cannot be read: {0}")]
    Kafka(#[from] KafkaError),
    #[error("temporary files cannot be used: {0}")]
    Disk(#[from] std::io::Error),
    #[error("{0}")]
    NoRoom(String),
    #[error("reading the topics broke off: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

/// Compares everything; `bar` shows the progress.
pub async fn verify(settings: &Settings, bar: &ProgressBar) -> Result<Findings, Error> {
    let snapshot = Snapshot::open(&settings.database, &settings.schema).await?;
    let windows = snapshot.windows(settings.topics.as_deref(), settings.since).await?;
    let names = match &settings.topics {
        Some(topics) => topics.clone(),
        None => windows.iter().map(|window| window.topic.clone()).collect(),
    };
    let reading = Reading::new(settings, names, bar)?;
    let mut reading = on_thread(reading, Reading::measure).await?;
    let rows = windows.iter().map(|window| window.rows as u64).sum();
    bar.inc_length(rows);
    let storage = Storage::choose(&settings.temp_dir, rows, reading.records()).map_err(Error::NoRoom)?;
    let mut expected = Spill::new(&storage)?;
    reading.arrived = Spill::new(&storage)?;
    let topics = &reading.names;
    let indices: HashMap<&str, u32> = topics.iter().map(String::as_str).zip(0..).collect();
    snapshot
        .each_row(topics, settings.since, |kept| {
            bar.inc(1);
            let topic = indices[kept.row.topic.as_str()];
            Ok::<_, Error>(expected.push(&Expected::of(&kept.row, topic, row_state(&kept)))?)
        })
        .await?;
    snapshot.close().await?;
    let mut reading = on_thread(reading, Reading::read).await?;
    let judge = Judge::new(Context {
        topics: reading.topics(&settings.kafka).await,
        phantoms_from: phantoms_from(&windows, settings.since),
        serialized_keys: settings.serialized_keys,
    });
    let firsts = Spill::new(&storage)?;
    let mut findings = compare(judge, &snapshot, &mut expected, &mut reading.arrived, firsts).await?;
    findings.counts.foreign += reading.foreign;
    Ok(findings)
}

/// Runs `work` on a thread that may block, since the Kafka client does.
async fn on_thread<T: Send + 'static>(
    mut reading: Reading,
    work: fn(&mut Reading) -> Result<T, Error>,
) -> Result<Reading, Error> {
    tokio::task::spawn_blocking(move || work(&mut reading).map(|_| reading)).await?
}

fn row_state(kept: &StoredRow) -> RowState {
    match (kept.state, kept.published_at) {
        (State::Published, Some(at)) => RowState::Published(micros(at)),
        (State::Dead, _) => RowState::Dead,
        _ => RowState::Pending,
    }
}

/// A record older than this may belong to a row that retention removed. Retention keeps every row for at least an hour, and
/// removes none that is much younger than the oldest one kept.
fn phantoms_from(windows: &[Window], since: Option<SystemTime>) -> Micros {
    let now = micros(SystemTime::now());
    let youngest_removed = now - span(RETENTION_MIN) + RETENTION_STEP;
    let oldest_kept = windows
        .iter()
        .filter_map(|window| window.oldest)
        .min()
        .map_or(now, micros);
    let kept = youngest_removed.min(oldest_kept + RETENTION_STEP);
    since.map_or(kept, |since| kept.max(micros(since)))
}

async fn compare(
    mut judge: Judge,
    snapshot: &Snapshot,
    expected: &mut Spill<Expected>,
    arrived: &mut Spill<Arrived>,
    mut firsts: Spill<First>,
) -> Result<Findings, Error> {
    for bucket in 0..BUCKETS {
        let mut spilled = Ok(());
        let mut unmatched = judge.compare(expected.bucket(bucket)?, arrived.bucket(bucket)?, |first| {
            if spilled.is_ok() {
                spilled = firsts.push(&first);
            }
        });
        spilled?;
        if !unmatched.is_empty() {
            let messages: Vec<Uuid> = unmatched.iter().map(|record| record.message_id).collect();
            let known = snapshot.known(&messages).await?;
            unmatched.retain(|record| !known.contains(&record.message_id));
            judge.phantoms(&unmatched);
        }
    }
    for bucket in 0..BUCKETS {
        judge.order(firsts.bucket(bucket)?);
    }
    Ok(judge.findings)
}

/// The topics and how far they have been read.
struct Reading {
    consumer: Consumer,
    names: Vec<String>,
    since: Option<i64>,
    extents: Vec<Vec<Extent>>,
    /// Per topic and partition, the time of the first record that was read.
    first: Vec<Vec<Option<Micros>>>,
    /// Per topic, how many records were read.
    read: Vec<u64>,
    arrived: Spill<Arrived>,
    foreign: u64,
    bar: ProgressBar,
}

impl Reading {
    fn new(settings: &Settings, names: Vec<String>, bar: &ProgressBar) -> Result<Self, Error> {
        Ok(Reading {
            consumer: Consumer::new(&settings.kafka)?,
            // A record is written before its row is marked.
            since: settings.since.map(|since| (micros(since) - SLACK) / 1000),
            extents: Vec::new(),
            first: Vec::new(),
            read: vec![0; names.len()],
            // Replaced once it is known how much there is to read.
            arrived: Spill::new(&Storage::Memory)?,
            foreign: 0,
            bar: bar.clone(),
            names,
        })
    }

    /// Asks where the topics end. This comes right after the snapshot, so that few records have rows that are not in it.
    fn measure(&mut self) -> Result<(), Error> {
        for name in &self.names {
            let extents = self.consumer.extents(name, self.since)?;
            self.bar
                .inc_length(extents.iter().map(|extent| (extent.to - extent.from) as u64).sum());
            self.first.push(vec![None; extents.len()]);
            self.extents.push(extents);
        }
        Ok(())
    }

    /// The maximum number of records to read.
    fn records(&self) -> u64 {
        let extents = self.extents.iter().flatten();
        extents.map(|extent| (extent.to - extent.from) as u64).sum()
    }

    fn read(&mut self) -> Result<(), Error> {
        for (topic, name) in self.names.iter().enumerate() {
            let (first, read) = (&mut self.first[topic], &mut self.read[topic]);
            self.consumer.read(name, &self.extents[topic], |record| {
                self.bar.inc(1);
                *read += 1;
                let written = record.timestamp.unwrap_or(0) * 1000;
                first[record.partition as usize].get_or_insert(written);
                match arrived(topic as u32, written, record) {
                    Some(arrived) => self.arrived.push(&arrived)?,
                    None => self.foreign += 1,
                }
                Ok::<_, Error>(())
            })?;
        }
        Ok(())
    }

    async fn topics(&self, kafka: &ClientConfig) -> Vec<Topic> {
        let mut topics = Vec::new();
        for (index, name) in self.names.iter().enumerate() {
            let extents = &self.extents[index];
            let span: i64 = extents.iter().map(|extent| extent.to - extent.from).sum();
            let has_holes = self.read[index] < span as u64;
            topics.push(Topic {
                name: name.clone(),
                partitions: extents
                    .iter()
                    .zip(&self.first[index])
                    .map(|(e, f)| self.partition(e, *f))
                    .collect(),
                // If we may not ask, missing offsets suggest compaction.
                compacted: consumer::is_compacted(kafka, name).await.unwrap_or(has_holes),
            });
        }
        topics
    }

    fn partition(&self, extent: &Extent, first: Option<Micros>) -> Partition {
        let asked = self.since.map(|since| since * 1000);
        // Kafka has removed the records before `low`, or all of them.
        let truncated_to = (extent.low > 0 && extent.from == extent.low).then(|| first.unwrap_or(Micros::MAX));
        Partition {
            begins: truncated_to.max(asked),
            // If offsets do not begin at 0, there were earlier records.
            first: if extent.from > 0 { Some(Micros::MIN) } else { first },
        }
    }
}

/// The entry of a record. `None` if it was not published from an outbox.
fn arrived(topic: u32, timestamp: Micros, record: &Record<'_>) -> Option<Arrived> {
    let id = record.headers.iter().find(|(name, _)| *name == MESSAGE_ID)?.1?;
    Some(Arrived {
        message_id: Uuid::try_parse_ascii(id).ok()?,
        topic,
        partition: record.partition,
        offset: record.offset,
        timestamp,
        flagged: record.headers.iter().any(|(name, _)| *name == POSSIBLE_DUPLICATE),
        content: Content::of_record(record.key, record.payload, record.headers.iter().copied()),
    })
}
