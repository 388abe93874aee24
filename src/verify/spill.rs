//! Entries, distributed over buckets by a hash. The buckets are files, so that a comparison needs only one of them in memory at a
//! time. Where no file can be written, as in the image without a volume, a small number of entries is kept in memory.

use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use tempfile::{SpooledTempFile, spooled_tempfile, spooled_tempfile_in, tempfile_in};
use uuid::Uuid;

use super::entry::{Arrived, Content, Expected, First};
use crate::domain::partition::PartitionChoice;

/// Memory is needed for one bucket at a time. Three spills open this many files each, well below the usual limit of 1,024.
pub const BUCKETS: usize = 128;

/// Maximum size of the entries in memory where no file can be written. It is enough for a quarter of a million rows.
const MEMORY_MAX: u64 = 64 << 20;

/// Maximum size of the entries of a row: what is expected of its record, and its first copy.
const ROW_BYTES: u64 = 194;
/// Size of the entry of a record.
const RECORD_BYTES: u64 = 65;

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
        let Err(error) = tempfile_in(folder) else {
            return Ok(Storage::Files(folder.to_owned()));
        };
        let needed = rows * ROW_BYTES + records * RECORD_BYTES;
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

    fn bucket(&self) -> Bucket {
        let file = match self {
            // A file without a name, which is gone when the process ends, even if it crashes.
            Storage::Files(folder) => spooled_tempfile_in(0, folder),
            Storage::Memory => spooled_tempfile(usize::MAX),
        };
        Bucket {
            file: BufWriter::new(file),
            entries: 0,
        }
    }
}

/// Entries in the order in which they were added.
struct Bucket {
    file: BufWriter<SpooledTempFile>,
    entries: usize,
}

/// Entries in buckets. Each bucket can be read once all of its entries have been added.
pub struct Spill<E> {
    buckets: Vec<Bucket>,
    entries: PhantomData<E>,
}

impl<E: Entry> Spill<E> {
    pub fn new(storage: &Storage) -> Self {
        Spill {
            buckets: (0..BUCKETS).map(|_| storage.bucket()).collect(),
            entries: PhantomData,
        }
    }

    /// Adds an entry. Entries that are compared with each other must have the same hash.
    pub fn push(&mut self, hash: u64, entry: &E) -> io::Result<()> {
        let bucket = &mut self.buckets[(hash % BUCKETS as u64) as usize];
        bucket.entries += 1;
        entry.write(&mut bucket.file)
    }

    /// All entries of one bucket.
    pub fn bucket(&mut self, index: usize) -> io::Result<Vec<E>> {
        let bucket = &mut self.buckets[index];
        bucket.file.rewind()?;
        let mut reader = BufReader::new(bucket.file.get_mut());
        let mut entries = Vec::with_capacity(bucket.entries);
        for _ in 0..bucket.entries {
            entries.push(E::read(&mut reader)?);
        }
        Ok(entries)
    }
}

/// What can be written to a file and read back.
pub trait Entry: Sized {
    fn write(&self, to: &mut impl Write) -> io::Result<()>;
    fn read(from: &mut impl Read) -> io::Result<Self>;
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Entry for $number {
            fn write(&self, to: &mut impl Write) -> io::Result<()> {
                to.write_all(&self.to_le_bytes())
            }

            fn read(from: &mut impl Read) -> io::Result<Self> {
                let mut bytes = [0; size_of::<Self>()];
                from.read_exact(&mut bytes)?;
                Ok(Self::from_le_bytes(bytes))
            }
        }
    )*};
}

/// A struct is written field by field.
macro_rules! fields {
    ($($entry:ident { $($field:ident),* })*) => {$(
        impl Entry for $entry {
            fn write(&self, to: &mut impl Write) -> io::Result<()> {
                $(self.$field.write(to)?;)*
                Ok(())
            }

            fn read(from: &mut impl Read) -> io::Result<Self> {
                Ok($entry { $($field: Entry::read(from)?),* })
            }
        }
    )*};
}

numbers! { u8 u32 i32 u64 i64 u128 }

fields! {
    Expected { message_id, id, topic, partition_choice, unit, repeat_unit, version, created, published, dead, corrected, content }
    Arrived { message_id, topic, partition, offset, timestamp, flagged, content }
    First { unit, message_id, id, topic, partition, offset, version, created, published }
    Content { key, payload, headers }
}

impl Entry for bool {
    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        u8::from(*self).write(to)
    }

    fn read(from: &mut impl Read) -> io::Result<Self> {
        Ok(u8::read(from)? == 1)
    }
}

impl Entry for Uuid {
    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        self.as_u128().write(to)
    }

    fn read(from: &mut impl Read) -> io::Result<Self> {
        u128::read(from).map(Uuid::from_u128)
    }
}

impl<T: Entry> Entry for Option<T> {
    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        self.is_some().write(to)?;
        self.iter().try_for_each(|value| value.write(to))
    }

    fn read(from: &mut impl Read) -> io::Result<Self> {
        bool::read(from)?.then(|| T::read(from)).transpose()
    }
}

impl<A: Entry, B: Entry> Entry for (A, B) {
    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        self.0.write(to)?;
        self.1.write(to)
    }

    fn read(from: &mut impl Read) -> io::Result<Self> {
        Ok((A::read(from)?, B::read(from)?))
    }
}

impl Entry for PartitionChoice {
    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        match *self {
            PartitionChoice::Explicit(partition) => (true, partition as u32).write(to),
            PartitionChoice::Hashed(hash) => (false, hash).write(to),
        }
    }

    fn read(from: &mut impl Read) -> io::Result<Self> {
        Ok(match Entry::read(from)? {
            (true, partition) => PartitionChoice::Explicit(partition as i32),
            (false, hash) => PartitionChoice::Hashed(hash),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content() -> impl Strategy<Value = Content> {
        any::<[u64; 3]>().prop_map(|[key, payload, headers]| Content { key, payload, headers })
    }

    prop_compose! {
        fn expected()(id: u128, row: i64, topic: u32, explicit: bool, choice in 0..i32::MAX, unit: Option<u64>, repeat_unit: Option<u64>,
                      version: Option<(u64, i64)>, created: i64, published: Option<i64>, dead: bool,
                      corrected: bool, content in proptest::option::of(content())) -> Expected {
            Expected {
                message_id: Uuid::from_u128(id),
                id: row,
                topic,
                partition_choice: match explicit {
                    true => PartitionChoice::Explicit(choice),
                    false => PartitionChoice::Hashed(choice as u32),
                },
                unit,
                repeat_unit,
                version,
                created,
                published,
                dead,
                corrected,
                content,
            }
        }
    }

    prop_compose! {
        fn arrived()(id: u128, topic: u32, partition: i32, offset: i64, timestamp: i64, flagged: bool,
                     content in content()) -> Arrived {
            Arrived { message_id: Uuid::from_u128(id), topic, partition, offset, timestamp, flagged, content }
        }
    }

    prop_compose! {
        fn first()(unit: u64, message: u128, id: i64, topic: u32, partition: i32, offset: i64,
                   version: Option<(u64, i64)>, created: i64, published: Option<i64>) -> First {
            First { unit, message_id: Uuid::from_u128(message), id, topic, partition, offset, version, created, published }
        }
    }

    /// Checks that the entry can be read back, and returns its size.
    fn reads_back<E: Entry + PartialEq + std::fmt::Debug>(entry: &E) -> u64 {
        let mut bytes = Vec::new();
        entry.write(&mut bytes).expect("written");
        let mut rest = bytes.as_slice();
        assert_eq!(&E::read(&mut rest).expect("read"), entry);
        assert!(rest.is_empty());
        bytes.len() as u64
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(expected in expected(), arrived in arrived(), first in first()) {
            prop_assert!(reads_back(&expected) + reads_back(&first) <= ROW_BYTES);
            prop_assert_eq!(reads_back(&arrived), RECORD_BYTES);
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
        let mut spill = Spill::new(storage);
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
        (0..10_000).for_each(|unit| spill.push(unit, &first(unit)).expect("written"));
        let buckets: Vec<Vec<First>> = (0..BUCKETS).map(|bucket| spill.bucket(bucket).expect("read")).collect();
        let mut units: Vec<u64> = buckets.iter().flatten().map(|first| first.unit).collect();
        units.sort_unstable();
        assert_eq!(units, (0..10_000).collect::<Vec<_>>());
    }
}
