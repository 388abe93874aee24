//! Entries, distributed over buckets by a hash. The buckets are files, so that a comparison needs only one of them in memory at a
//! time. Where no file can be written, as in the image without a volume, a small number of entries is kept in memory.

use std::fs::{File, OpenOptions, remove_file};
use std::io::{self, BufReader, BufWriter, Cursor, Read, Seek, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::entry::{Arrived, Content, Expected, First, RowState, number};
use crate::domain::partition::PartitionChoice;

/// Memory is needed for one bucket at a time. Three spills open this many files each, well below the usual limit of 1,024.
pub const BUCKETS: usize = 128;

/// An entry, which is written as a fixed number of words.
pub trait Entry: Sized {
    const WORDS: usize;
    /// The hash that chooses the bucket. Entries that are compared with each other have the same one.
    fn bucket_hash(&self) -> u64;
    fn write(&self, words: &mut Vec<u64>);
    fn read(words: &[u64]) -> Self;
}

/// Maximum size of the entries in memory where no file can be written. It is enough for a quarter of a million rows.
const MEMORY_MAX: u64 = 64 << 20;

/// Where entries are stored.
#[derive(Clone, Debug, PartialEq)]
pub enum Storage {
    Files(PathBuf),
    Memory,
}

impl Storage {
    /// Chooses files in `folder`, or memory if the folder is not writable and this many rows and records fit. Otherwise returns
    /// what is needed.
    pub fn choose(folder: &Path, rows: u64, records: u64) -> Result<Self, String> {
        let Err(error) = unlinked_file(folder) else {
            return Ok(Storage::Files(folder.to_owned()));
        };
        let needed =
            rows * (size_of_entry::<Expected>() + size_of_entry::<First>()) + records * size_of_entry::<Arrived>();
        if needed <= MEMORY_MAX {
            return Ok(Storage::Memory);
        }
        Err(format!(
            "temporary files of {} MiB are needed, and {} cannot be written to ({error}): mount a volume there, or name a \
             directory with --temp-dir; or compare less with --topic or --since",
            needed.div_ceil(1 << 20),
            folder.display(),
        ))
    }
}

const fn size_of_entry<E: Entry>() -> u64 {
    (E::WORDS * size_of::<u64>()) as u64
}

enum Bucket {
    File(BufWriter<File>),
    Memory(Cursor<Vec<u8>>),
}

impl Bucket {
    fn new(storage: &Storage) -> io::Result<Self> {
        Ok(match storage {
            Storage::Files(folder) => Bucket::File(BufWriter::new(unlinked_file(folder)?)),
            Storage::Memory => Bucket::Memory(Cursor::default()),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Bucket::File(file) => file.write_all(bytes),
            Bucket::Memory(memory) => memory.write_all(bytes),
        }
    }

    /// A reader of everything that was written, and its size in bytes.
    fn reader(&mut self) -> io::Result<(u64, Box<dyn Read + '_>)> {
        match self {
            Bucket::File(writer) => {
                writer.flush()?;
                let file = writer.get_mut();
                let length = file.stream_position()?;
                file.rewind()?;
                Ok((length, Box::new(BufReader::new(file))))
            }
            Bucket::Memory(memory) => {
                let length = memory.position();
                memory.rewind()?;
                Ok((length, Box::new(memory)))
            }
        }
    }
}

pub struct Spill<E> {
    buckets: Vec<Bucket>,
    words: Vec<u64>,
    entries: PhantomData<E>,
}

impl<E: Entry> Spill<E> {
    pub fn new(storage: &Storage) -> io::Result<Self> {
        let buckets: io::Result<_> = (0..BUCKETS).map(|_| Bucket::new(storage)).collect();
        Ok(Spill {
            buckets: buckets?,
            words: Vec::new(),
            entries: PhantomData,
        })
    }

    pub fn push(&mut self, entry: &E) -> io::Result<()> {
        self.words.clear();
        entry.write(&mut self.words);
        let bucket = &mut self.buckets[(entry.bucket_hash() % BUCKETS as u64) as usize];
        self.words.iter().try_for_each(|word| bucket.write(&word.to_le_bytes()))
    }

    /// All entries of one bucket.
    pub fn bucket(&mut self, index: usize) -> io::Result<Vec<E>> {
        let (length, mut reader) = self.buckets[index].reader()?;
        let count = (length / size_of_entry::<E>()) as usize;
        let mut bytes = vec![0; size_of_entry::<E>() as usize];
        let mut words = vec![0; E::WORDS];
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            reader.read_exact(&mut bytes)?;
            for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            entries.push(E::read(&words));
        }
        Ok(entries)
    }
}

/// An unlinked file, which is gone when the process ends, even if it crashes.
fn unlinked_file(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!("outboxd-verify-{}", Uuid::new_v4()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    remove_file(&path)?;
    Ok(file)
}

/// Encodes a missing number. Times and versions are always far above it.
const NONE: i64 = i64::MIN;
const DEAD: i64 = i64::MIN + 1;

fn write_id(id: Uuid, words: &mut Vec<u64>) {
    let (high, low) = id.as_u64_pair();
    words.extend([high, low]);
}

fn write_content(content: Content, words: &mut Vec<u64>) {
    words.extend([content.key, content.payload, content.headers]);
}

fn read_content(words: &[u64]) -> Content {
    Content {
        key: words[0],
        payload: words[1],
        headers: words[2],
    }
}

fn write_version(version: Option<(u64, i64)>, words: &mut Vec<u64>) {
    let (aggregate, version) = version.unwrap_or((0, NONE));
    words.extend([aggregate, version as u64]);
}

fn read_version(words: &[u64]) -> Option<(u64, i64)> {
    let version = words[1] as i64;
    (version != NONE).then_some((words[0], version))
}

/// Encodes two small numbers in one word.
fn pair(topic: u32, small: u32) -> u64 {
    u64::from(topic) << 32 | u64::from(small)
}

impl Entry for Expected {
    const WORDS: usize = 13;

    fn bucket_hash(&self) -> u64 {
        number(&self.message_id)
    }

    fn write(&self, words: &mut Vec<u64>) {
        write_id(self.message_id, words);
        let (kind, choice) = match self.partition_choice {
            PartitionChoice::Explicit(partition) => (1, partition as u32),
            PartitionChoice::Hashed(hash) => (0, hash),
        };
        let state = match self.state {
            RowState::Pending => NONE,
            RowState::Dead => DEAD,
            RowState::Published(at) => at,
        };
        let unit = self.unit.unwrap_or(0);
        let flags = kind | u32::from(self.unit.is_some()) << 1;
        words.extend([self.id as u64, pair(self.topic, flags), u64::from(choice), unit]);
        write_version(self.version, words);
        words.extend([self.created as u64, state as u64]);
        write_content(self.content, words);
    }

    fn read(words: &[u64]) -> Self {
        let flags = words[3] as u32;
        let choice = words[4] as u32;
        Expected {
            message_id: Uuid::from_u64_pair(words[0], words[1]),
            id: words[2] as i64,
            topic: (words[3] >> 32) as u32,
            partition_choice: match flags & 1 {
                1 => PartitionChoice::Explicit(choice as i32),
                _ => PartitionChoice::Hashed(choice),
            },
            unit: (flags & 2 != 0).then_some(words[5]),
            version: read_version(&words[6..]),
            created: words[8] as i64,
            state: match words[9] as i64 {
                NONE => RowState::Pending,
                DEAD => RowState::Dead,
                at => RowState::Published(at),
            },
            content: read_content(&words[10..]),
        }
    }
}

impl Entry for Arrived {
    const WORDS: usize = 8;

    fn bucket_hash(&self) -> u64 {
        number(&self.message_id)
    }

    fn write(&self, words: &mut Vec<u64>) {
        write_id(self.message_id, words);
        // An offset is never negative, so its highest bit can carry the flag.
        let offset = self.offset as u64 | u64::from(self.flagged) << 63;
        words.extend([pair(self.topic, self.partition as u32), offset, self.timestamp as u64]);
        write_content(self.content, words);
    }

    fn read(words: &[u64]) -> Self {
        Arrived {
            message_id: Uuid::from_u64_pair(words[0], words[1]),
            topic: (words[2] >> 32) as u32,
            partition: words[2] as u32 as i32,
            offset: (words[3] & !(1 << 63)) as i64,
            flagged: words[3] >> 63 == 1,
            timestamp: words[4] as i64,
            content: read_content(&words[5..]),
        }
    }
}

impl Entry for First {
    const WORDS: usize = 10;

    fn bucket_hash(&self) -> u64 {
        self.unit
    }

    fn write(&self, words: &mut Vec<u64>) {
        words.push(self.unit);
        write_id(self.message_id, words);
        words.extend([
            self.id as u64,
            pair(self.topic, self.partition as u32),
            self.offset as u64,
        ]);
        write_version(self.version, words);
        words.extend([self.created as u64, self.published.unwrap_or(NONE) as u64]);
    }

    fn read(words: &[u64]) -> Self {
        let published = words[9] as i64;
        First {
            unit: words[0],
            message_id: Uuid::from_u64_pair(words[1], words[2]),
            id: words[3] as i64,
            topic: (words[4] >> 32) as u32,
            partition: words[4] as u32 as i32,
            offset: words[5] as i64,
            version: read_version(&words[6..]),
            created: words[8] as i64,
            published: (published != NONE).then_some(published),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content() -> impl Strategy<Value = Content> {
        any::<[u64; 3]>().prop_map(|[key, payload, headers]| Content { key, payload, headers })
    }

    fn version() -> impl Strategy<Value = Option<(u64, i64)>> {
        proptest::option::of((any::<u64>(), NONE + 1..))
    }

    prop_compose! {
        fn expected()(id: u128, row: i64, topic: u32, explicit: bool, choice in 0..i32::MAX, unit: Option<u64>,
                      version in version(), created: i64, state in 0..3usize, at in DEAD + 1..,
                      content in content()) -> Expected {
            Expected {
                message_id: Uuid::from_u128(id),
                id: row,
                topic,
                partition_choice: match explicit {
                    true => PartitionChoice::Explicit(choice),
                    false => PartitionChoice::Hashed(choice as u32),
                },
                unit,
                version,
                created,
                state: [RowState::Pending, RowState::Dead, RowState::Published(at)][state],
                content,
            }
        }
    }

    prop_compose! {
        fn arrived()(id: u128, topic: u32, partition in 0..i32::MAX, offset in 0..i64::MAX, timestamp: i64, flagged: bool,
                     content in content()) -> Arrived {
            Arrived { message_id: Uuid::from_u128(id), topic, partition, offset, timestamp, flagged, content }
        }
    }

    prop_compose! {
        fn first()(unit: u64, message: u128, id: i64, topic: u32, partition in 0..i32::MAX, offset in 0..i64::MAX,
                   version in version(), created: i64, published in proptest::option::of(NONE + 1..)) -> First {
            First { unit, message_id: Uuid::from_u128(message), id, topic, partition, offset, version, created, published }
        }
    }

    fn reads_back<E: Entry + PartialEq + std::fmt::Debug>(entry: &E) {
        let mut words = Vec::new();
        entry.write(&mut words);
        assert_eq!(words.len(), E::WORDS);
        assert_eq!(&E::read(&words), entry);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(expected in expected(), arrived in arrived(), first in first()) {
            reads_back(&expected);
            reads_back(&arrived);
            reads_back(&first);
        }
    }

    #[test]
    fn a_spill_returns_every_entry_and_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let files = Storage::choose(folder.path(), u64::MAX >> 20, 0).expect("files");
        returns_every_entry(&files);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
        returns_every_entry(&Storage::Memory);
    }

    #[test]
    fn without_a_folder_few_entries_are_kept_in_memory_and_many_are_refused() {
        let nowhere = Path::new("/nowhere");
        assert_eq!(Storage::choose(nowhere, 200_000, 200_000), Ok(Storage::Memory));
        let refused = Storage::choose(nowhere, 1_000_000, 1_000_000).expect_err("too much");
        assert!(
            refused.contains("--temp-dir") && refused.contains("/nowhere"),
            "{refused}"
        );
    }

    fn returns_every_entry(storage: &Storage) {
        let mut spill = Spill::new(storage).expect("buckets");
        let first = |unit| First {
            unit,
            message_id: Uuid::nil(),
            id: unit as i64,
            topic: 0,
            partition: 0,
            offset: 0,
            version: None,
            created: 0,
            published: None,
        };
        (0..10_000).for_each(|unit| spill.push(&first(unit)).expect("written"));
        let buckets: Vec<Vec<First>> = (0..BUCKETS).map(|bucket| spill.bucket(bucket).expect("read")).collect();
        let mut units: Vec<u64> = buckets.iter().flatten().map(|first| first.unit).collect();
        units.sort_unstable();
        assert_eq!(units, (0..10_000).collect::<Vec<_>>());
    }
}
