//! What rows look like: how many keys and topics, how large.

use std::sync::LazyLock;

/// Text that does not compress, neither in PostgreSQL nor on the way to Kafka. The same in every run. Much more of it than a produce
/// batch has, and rows begin anywhere in it: what two neighbours share would be sent once.
pub static FILLER: LazyLock<String> = LazyLock::new(|| {
    let mut random = fastrand::Rng::with_seed(6);
    (0..1 << 22).map(|_| random.alphanumeric()).collect()
});

/// Beside the filler a payload has a number, two names and some punctuation.
const FILLER_OF_200_BYTES: usize = 170;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// About 200 bytes, 1,000 keys, one topic: what is measured unless something else is said.
    Keyed,
    Unordered,
    OneKey,
    TenKilobytes,
    /// Twenty topics, some of them much busier than others, and 2,500 keys in each.
    Mixed,
}

/// From where in the filler one row's part begins to where the next one's does, again from the beginning behind its end.
pub const STRIDE: usize = 1_299_709;

pub const MIXED_TOPICS: usize = 20;

impl Shape {
    pub fn name(self) -> &'static str {
        match self {
            Shape::Keyed => "1,000 keys",
            Shape::Unordered => "no key",
            Shape::OneKey => "one hot key",
            Shape::TenKilobytes => "10 KB rows",
            Shape::Mixed => "20 topics × 2,500 keys, skewed",
        }
    }

    pub fn topics(self) -> usize {
        if self == Shape::Mixed { MIXED_TOPICS } else { 1 }
    }

    pub fn filler_bytes(self) -> usize {
        if self == Shape::TenKilobytes {
            10_000
        } else {
            FILLER_OF_200_BYTES
        }
    }

    /// Topic, key and payload of rows numbered `i`, for an INSERT; `$1` is the filler, as bytes: where a character of a long text
    /// begins is found by counting all before it.
    pub fn select(self, first_topic: &str, rows: i64) -> String {
        let topic = match self {
            // A third of all rows in the first topic, one in sixty in the last.
            Shape::Mixed => {
                format!("'{first_topic}' || '.' || floor({MIXED_TOPICS} * pow((i * 7919 % 100003) / 100003.0, 3))")
            }
            _ => format!("'{first_topic}'"),
        };
        let key = match self {
            Shape::Unordered => "NULL",
            Shape::OneKey => "'key'",
            Shape::Mixed => "'key-' || floor(2500 * pow((i * 40503 % 65537) / 65537.0, 2))",
            Shape::Keyed | Shape::TenKilobytes => "'key-' || i % 1000",
        };
        let bytes = self.filler_bytes();
        let places = FILLER.len() - bytes;
        format!(
            "SELECT {topic}, {key}, jsonb_build_object('n', i, 'fill', convert_from(substr($1::bytea, (i * {STRIDE} % {places})::integer + 1, {bytes}), 'UTF8'))
             FROM generate_series(1, {rows}::bigint) i"
        )
    }
}
