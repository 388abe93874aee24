//! Which partition a record belongs to.

use super::row::Row;

/// See [`Row::partition_choice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionChoice {
    /// The application named the partition.
    Explicit(i32),
    /// The hash of the record's key decides.
    Hashed(u32),
}

impl PartitionChoice {
    pub fn of_key(key: &[u8]) -> Self {
        PartitionChoice::Hashed(murmur2(key))
    }

    /// The partition in a topic that has `count` of them. For a key it is the one that the Java client's default partitioner
    /// chooses. `None` if it does not exist.
    pub fn partition(self, count: i32) -> Option<i32> {
        match self {
            PartitionChoice::Explicit(partition) => Some(partition).filter(|partition| *partition < count),
            PartitionChoice::Hashed(hash) => ((hash & 0x7fff_ffff) as i32).checked_rem(count),
        }
    }
}

/// One partition of a topic that has, or had, `of` partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    pub number: i32,
    pub of: i32,
}

impl Partition {
    /// A paused partition in the format of `outbox.hold.unit`.
    pub fn unit(self) -> String {
        format!("s:{}/{}", self.number, self.of)
    }

    /// The paused partition that a hold is for, if it is for one.
    pub fn of_unit(unit: &str) -> Option<Self> {
        let (number, of) = unit.strip_prefix("s:")?.split_once('/')?;
        Some(Partition {
            number: number.parse().ok()?,
            of: of.parse().ok()?,
        })
    }

    /// Does the row belong to this partition? `outbox.holds_of` decides the same in SQL.
    pub fn takes(self, row: &Row) -> bool {
        row.partition_choice().partition(self.of) == Some(self.number)
    }
}

/// Kafka's variant of murmur2, as in the Java client's `Utils.murmur2`.
fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    let mut hash = SEED ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let tail = words.remainder();
    if !tail.is_empty() {
        for (index, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::row::tests::row;
    use proptest::prelude::*;

    /// The expected values of the Java client's own test of `Utils.murmur2`.
    #[test]
    fn murmur2_hashes_as_the_java_client_does() {
        let known: [(&[u8], i32); 7] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
            (b"", 275_646_681),
        ];
        for (key, hash) in known {
            assert_eq!(murmur2(key) as i32, hash, "{key:?}");
        }
    }

    #[test]
    fn a_paused_partition_is_written_as_it_is_read_and_takes_the_rows_that_belong_to_it() {
        let third = Partition { number: 3, of: 12 };
        assert_eq!(third.unit(), "s:3/12");
        assert_eq!(Partition::of_unit("s:3/12"), Some(third));
        for other in ["", "k:s:3/12", "p:3", "s:3", "s:a/b"] {
            assert_eq!(Partition::of_unit(other), None, "{other:?}");
        }
        let explicit = |partition| Row { partition, ..row(1) };
        assert!(third.takes(&explicit(Some(3))));
        assert!(!third.takes(&explicit(Some(15))));
        let hashed = row(1).partition_choice().partition(12).expect("a partition");
        assert!(Partition { number: hashed, of: 12 }.takes(&row(1)));
        let next = (hashed + 1) % 12;
        assert!(!Partition { number: next, of: 12 }.takes(&row(1)));
    }

    #[test]
    fn a_key_belongs_to_the_partition_that_the_java_client_chooses() {
        // 1,357,151,166: the expected value for "foobar" without its sign.
        let foobar = Row {
            key: Some("foobar".into()),
            ..row(1)
        };
        assert_eq!(foobar.partition_choice().partition(1000), Some(166));
        assert_eq!(foobar.partition_choice().partition(0), None);
        let third = Row {
            partition: Some(3),
            ..foobar
        };
        assert_eq!(
            (
                third.partition_choice().partition(4),
                third.partition_choice().partition(3)
            ),
            (Some(3), None)
        );
    }

    proptest! {
        #[test]
        fn an_explicit_partition_is_chosen_if_it_exists(partition in 0..=i32::MAX, count in 0..=i32::MAX) {
            let row = Row { partition: Some(partition), ..row(1) };
            prop_assert_eq!(row.partition_choice().partition(count), (partition < count).then_some(partition));
        }
    }
}
