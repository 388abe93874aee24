//! Entries on disk, sorted into heaps by a hash: a comparison then needs one heap in memory at a time.

use std::fs::{File, OpenOptions, remove_file};
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::marker::PhantomData;
use std::path::Path;

use uuid::Uuid;

use super::entry::{Arrived, Content, Expected, Fate, First, number};
use crate::message::Place;

/// Memory is what one heap holds; open files are three times this many, well below the usual limit of 1,024.
pub const HEAPS: usize = 128;

/// What is written as a fixed number of words.
pub trait Entry: Sized {
    const WORDS: usize;
    /// Entries that must meet have the same.
    fn spread(&self) -> u64;
    fn write(&self, words: &mut Vec<u64>);
    fn read(words: &[u64]) -> Self;
}

pub struct Spill<E> {
    heaps: Vec<BufWriter<File>>,
    words: Vec<u64>,
    entries: PhantomData<E>,
}

impl<E: Entry> Spill<E> {
    pub fn new(folder: &Path) -> io::Result<Self> {
        let heaps: io::Result<_> = (0..HEAPS).map(|_| nameless(folder).map(BufWriter::new)).collect();
        Ok(Spill {
            heaps: heaps?,
            words: Vec::new(),
            entries: PhantomData,
        })
    }

    pub fn push(&mut self, entry: &E) -> io::Result<()> {
        self.words.clear();
        entry.write(&mut self.words);
        let heap = &mut self.heaps[(entry.spread() % HEAPS as u64) as usize];
        self.words
            .iter()
            .try_for_each(|word| heap.write_all(&word.to_le_bytes()))
    }

    /// Everything in one heap.
    pub fn heap(&mut self, place: usize) -> io::Result<Vec<E>> {
        let heap = &mut self.heaps[place];
        heap.flush()?;
        let file = heap.get_mut();
        let entry_size = E::WORDS * size_of::<u64>();
        let count = file.stream_position()? as usize / entry_size;
        file.rewind()?;
        let mut reader = BufReader::new(file);
        let mut bytes = vec![0; entry_size];
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

/// A file without a name: it is gone when the process is, however that ends.
fn nameless(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!("outboxd-verify-{}", Uuid::new_v4()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    remove_file(&path)?;
    Ok(file)
}

/// No number of ours is this one: times and versions stay far above it.
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

/// Two small numbers in one word.
fn pair(topic: u32, small: u32) -> u64 {
    u64::from(topic) << 32 | u64::from(small)
}

impl Entry for Expected {
    const WORDS: usize = 13;

    fn spread(&self) -> u64 {
        number(&self.message_id)
    }

    fn write(&self, words: &mut Vec<u64>) {
        write_id(self.message_id, words);
        let (kind, place) = match self.place {
            Place::Explicit(partition) => (1, partition as u32),
            Place::Hashed(hash) => (0, hash),
        };
        let state = match self.state {
            Fate::Pending => NONE,
            Fate::Dead => DEAD,
            Fate::Published(at) => at,
        };
        let unit = self.unit.unwrap_or(0);
        let flags = kind | u32::from(self.unit.is_some()) << 1;
        words.extend([self.id as u64, pair(self.topic, flags), u64::from(place), unit]);
        write_version(self.version, words);
        words.extend([self.created as u64, state as u64]);
        write_content(self.content, words);
    }

    fn read(words: &[u64]) -> Self {
        let flags = words[3] as u32;
        let place = words[4] as u32;
        Expected {
            message_id: Uuid::from_u64_pair(words[0], words[1]),
            id: words[2] as i64,
            topic: (words[3] >> 32) as u32,
            place: match flags & 1 {
                1 => Place::Explicit(place as i32),
                _ => Place::Hashed(place),
            },
            unit: (flags & 2 != 0).then_some(words[5]),
            version: read_version(&words[6..]),
            created: words[8] as i64,
            state: match words[9] as i64 {
                NONE => Fate::Pending,
                DEAD => Fate::Dead,
                at => Fate::Published(at),
            },
            content: read_content(&words[10..]),
        }
    }
}

impl Entry for Arrived {
    const WORDS: usize = 8;

    fn spread(&self) -> u64 {
        number(&self.message_id)
    }

    fn write(&self, words: &mut Vec<u64>) {
        write_id(self.message_id, words);
        // An offset is never negative: its highest bit carries the flag.
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

    fn spread(&self) -> u64 {
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
