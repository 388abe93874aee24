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
use crate::kafka::consumer::{self, Consumer, Extent};
use crate::kafka::{ClientSettings, Clients, KafkaError};
use crate::outbox::verify::{Snapshot, Window};
use crate::outbox::{self, Database};
use entry::{Arrived, Expected, First, Micros, micros, number, span};
use findings::Findings;
use judge::{Context, Judge, Partition, SLACK, Topic};
use spill::{BUCKETS, Spill, Storage};

/// Retention removes rows in steps, so it may have removed rows that are younger by this than the oldest one kept.
const RETENTION_STEP: Micros = span(Duration::from_secs(300));

pub struct Settings {
    pub database: Database,
    pub schema: String,
    pub kafka: ClientSettings,
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
    #[error("Kafka cannot be read: {0}; {1}")]
    Connection(KafkaError, String),
    #[error("Kafka cannot be read: {0}")]
    Token(String),
    #[error("temporary files cannot be used: {0}")]
    Disk(#[from] std::io::Error),
    #[error("{0}")]
    NoRoom(String),
    #[error("reading the topics broke off: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

/// Compares everything; `bar` shows the progress.
pub async fn verify(settings: &Settings, bar: &ProgressBar) -> Result<Findings, Error> {
    let clients = Clients::new(settings.kafka.clone());
    clients.first_token().await.map_err(Error::Token)?;
    let _renewing = clients.keep_renewing_tokens();
    let snapshot = Snapshot::open(&settings.database, &settings.schema).await?;
    let windows = snapshot.windows(settings.topics.as_deref(), settings.since).await?;
    let names = match &settings.topics {
        Some(topics) => topics.clone(),
        None => windows.iter().map(|window| window.topic.clone()).collect(),
    };
    // A record is written before its row is marked.
    let since = settings.since.map(|since| (micros(since) - SLACK) / 1000);
    // The ends of the topics are asked for right after the snapshot, so that few records have rows that are not in it.
    let asked = clients.clone();
    let source = on_thread(move || Source::open(&asked, names, since)).await;
    let source = explained(source, &clients).await?;
    let rows = windows.iter().map(|window| window.rows as u64).sum();
    let records = source.extents.iter().map(|extents| offsets(extents)).sum();
    bar.inc_length(rows + records);
    let storage = Storage::choose(&settings.temp_dir, rows, records).map_err(Error::NoRoom)?;
    let mut expected = Spill::new(&storage);
    let indices: HashMap<&str, u32> = source.names.iter().map(String::as_str).zip(0..).collect();
    snapshot
        .each_row(&source.names, settings.since, |stored| {
            bar.inc(1);
            let entry = Expected::of(&stored, indices[stored.row.topic.as_str()]);
            Ok::<_, Error>(expected.push(number(&entry.message_id), &entry)?)
        })
        .await?;
    snapshot.close().await?;
    let (entries, progress) = (Spill::new(&storage), bar.clone());
    let arrivals = on_thread(move || source.read(entries, &progress)).await;
    let mut arrivals = explained(arrivals, &clients).await?;
    for topic in &mut arrivals.topics {
        let said = consumer::is_compacted(&clients, &topic.name).await;
        topic.compacted = said.unwrap_or(topic.compacted);
    }
    let mut judge = Judge::new(Context {
        topics: arrivals.topics,
        phantoms_from: phantoms_from(&windows, settings.since),
        serialized_keys: settings.serialized_keys,
    });
    judge.findings.counts.foreign = arrivals.foreign;
    compare(&mut judge, &snapshot, expected, arrivals.entries, Spill::new(&storage)).await?;
    Ok(judge.findings)
}

/// The result, and if Kafka could not be read, why its connections failed.
async fn explained<T>(result: Result<T, Error>, clients: &Clients) -> Result<T, Error> {
    match result {
        Err(Error::Kafka(error)) => match clients.explained_failure().await {
            Some(why) => Err(Error::Connection(error, why)),
            None => Err(Error::Kafka(error)),
        },
        result => result,
    }
}

/// Runs `work` on a thread that may block, since the Kafka client does.
async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await?
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
    judge: &mut Judge,
    snapshot: &Snapshot,
    mut expected: Spill<Expected>,
    mut arrived: Spill<Arrived>,
    mut firsts: Spill<First>,
) -> Result<(), Error> {
    for bucket in 0..BUCKETS {
        let note_first = |first: First| firsts.push(first.unit, &first);
        let mut unmatched = judge.compare(expected.bucket(bucket)?, arrived.bucket(bucket)?, note_first)?;
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
    Ok(())
}

/// The topics, and how far to read them.
struct Source {
    consumer: Consumer,
    /// In milliseconds since 1970. Older records are not read.
    since: Option<i64>,
    names: Vec<String>,
    /// What to read of each topic, by partition.
    extents: Vec<Vec<Extent>>,
}

/// What was read of the topics.
struct Arrivals {
    entries: Spill<Arrived>,
    topics: Vec<Topic>,
    foreign: u64,
}

impl Source {
    /// Asks where the topics end.
    fn open(clients: &Clients, names: Vec<String>, since: Option<i64>) -> Result<Self, Error> {
        let consumer = Consumer::new(clients)?;
        let extents: Result<_, _> = names.iter().map(|name| consumer.extents(name, since)).collect();
        Ok(Source {
            extents: extents?,
            consumer,
            since,
            names,
        })
    }

    fn read(&self, mut entries: Spill<Arrived>, bar: &ProgressBar) -> Result<Arrivals, Error> {
        let (mut topics, mut foreign) = (Vec::new(), 0);
        for (name, extents) in self.names.iter().zip(&self.extents) {
            // The time of the first record of each partition.
            let mut first = vec![None; extents.len()];
            let mut records = 0;
            self.consumer.read(name, extents, |record| {
                bar.inc(1);
                records += 1;
                let timestamp = record.timestamp.unwrap_or(0) * 1000;
                first[record.partition as usize].get_or_insert(timestamp);
                match Arrived::of(record, topics.len() as u32, timestamp) {
                    Some(entry) => entries.push(number(&entry.message_id), &entry)?,
                    None => foreign += 1,
                }
                Ok::<_, Error>(())
            })?;
            let partition = |(extent, first)| self.partition(extent, first);
            topics.push(Topic {
                name: name.clone(),
                partitions: extents.iter().zip(first).map(partition).collect(),
                // If Kafka does not say whether it is compacted, missing offsets suggest it.
                compacted: records < offsets(extents),
            });
        }
        Ok(Arrivals {
            entries,
            topics,
            foreign,
        })
    }

    fn partition(&self, extent: &Extent, first: Option<Micros>) -> Partition {
        // Kafka has removed the records before `low`, or all of them.
        let truncated_to = (extent.low > 0 && extent.from == extent.low).then(|| first.unwrap_or(Micros::MAX));
        Partition {
            begins: truncated_to.max(self.since.map(|since| since * 1000)),
            // If offsets do not begin at 0, there were earlier records.
            first: if extent.from > 0 { Some(Micros::MIN) } else { first },
        }
    }
}

/// The number of offsets to read, which is the maximum number of records.
fn offsets(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| (extent.to - extent.from) as u64).sum()
}
