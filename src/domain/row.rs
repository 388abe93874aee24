//! What a row is, and the record that it becomes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::SystemTime;

use serde_json::value::RawValue;
use uuid::Uuid;

use super::partition::PartitionChoice;

/// How many lanes keyed rows are spread over. It cannot change, because the hash in the schema depends on it.
pub const LANE_COUNT: usize = 64;

/// The lane number that stands for unordered rows.
pub const UNORDERED_LANE: i16 = -1;

/// A header of every record: the key to deduplicate by.
pub const MESSAGE_ID: &str = "message-id";

/// A header of records that may be a second copy.
pub const POSSIBLE_DUPLICATE: &str = "possible-duplicate";

/// The state of a row of `outbox.message`. The schema allows no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Committed and not yet acknowledged by Kafka. It may be delayed, claimed or held meanwhile.
    Pending,
    /// Acknowledged: `published_at` is set, or the row was deleted or moved to the history.
    Published,
    /// Refused for good: `dead_at` is set, the reason is in `last_error`.
    Dead,
}

/// The value of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Json(Vec<u8>),
    Bytes(Vec<u8>),
    Tombstone,
}

impl Body {
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Body::Json(bytes) | Body::Bytes(bytes) => Some(bytes),
            Body::Tombstone => None,
        }
    }
}

/// A claimed row.
#[derive(Clone, Debug)]
pub struct Row {
    pub id: i64,
    /// `None` if the row is unordered; it was claimed with a lease of its own.
    pub lane: Option<i16>,
    pub message_id: Uuid,
    pub topic: String,
    pub key: Option<String>,
    pub partition: Option<i32>,
    pub body: Body,
    /// The application's headers: the text of a JSON object.
    pub headers: Option<Vec<u8>>,
    pub event_type: Option<String>,
    pub aggregate_type: Option<String>,
    pub aggregate_id: Option<String>,
    pub aggregate_version: Option<i64>,
    pub attempts: i16,
    pub created_at: SystemTime,
    /// It was delayed by the application, redriven or replayed by an operator, or refused before as an unordered row, and is due now.
    pub delayed: bool,
    /// A copy may have been sent before, by a worker that died or by this one without an answer.
    pub possible_duplicate: bool,
    /// An operator replays it: it was published before.
    pub is_repeat: bool,
    /// Why the row was not read completely, if so: it is larger than the limit, or PostgreSQL cannot read it. Such a row is never
    /// sent.
    pub unreadable: Option<String>,
}

impl Row {
    /// The unit of order: the rows of one key, or of one explicit partition, of one topic must stay in order. `outbox.hold.unit`
    /// has the same format. `None` if no other row waits for this one.
    pub fn unit(&self) -> Option<String> {
        match (&self.key, self.partition) {
            (Some(key), _) => Some(format!("k:{key}")),
            (None, Some(partition)) => Some(format!("p:{partition}")),
            (None, None) => None,
        }
    }

    /// Was it inserted without the trigger that assigns lanes? Sent as an unordered row it would overtake its key.
    pub fn lacks_its_lane(&self) -> bool {
        self.lane.is_none() && (self.key.is_some() || self.partition.is_some())
    }

    /// May an earlier copy of it be in the topic? The record then says so.
    pub fn is_flagged(&self) -> bool {
        self.possible_duplicate || self.is_repeat
    }

    /// The record's key. It is the row's own, or its message id, so that unordered rows spread evenly.
    pub fn record_key(&self) -> Cow<'_, str> {
        match &self.key {
            Some(key) => key.into(),
            None => self.message_id.hyphenated().to_string().into(),
        }
    }

    /// Which partition the record belongs to.
    pub fn partition_choice(&self) -> PartitionChoice {
        match self.partition {
            Some(partition) => PartitionChoice::Explicit(partition),
            None => PartitionChoice::of_key(self.record_key().as_bytes()),
        }
    }

    /// Calls `each` for every header of the record, those of the relay first.
    pub fn each_header(&self, mut each: impl FnMut(&str, Option<&[u8]>)) {
        let mut buffer = Uuid::encode_buffer();
        let message_id = self.message_id.hyphenated().encode_lower(&mut buffer);
        each(MESSAGE_ID, Some(message_id.as_bytes()));
        let own = [
            ("event-type", &self.event_type),
            ("aggregate-type", &self.aggregate_type),
            ("aggregate-id", &self.aggregate_id),
        ];
        for (name, value) in own {
            if let Some(value) = value {
                each(name, Some(value.as_bytes()));
            }
        }
        if let Some(version) = self.aggregate_version {
            each("aggregate-version", Some(version.to_string().as_bytes()));
        }
        if self.is_flagged() {
            each(POSSIBLE_DUPLICATE, Some(b"true"));
        }
        if let Some(headers) = &self.headers {
            each_application_header(headers, &mut each);
        }
    }

    /// About how many bytes the row takes in memory, here and in the producer's queue.
    pub fn size(&self) -> usize {
        // Names, ids and lengths, which a record has besides its payload.
        const OVERHEAD: usize = 200;
        OVERHEAD + self.bytes()
    }

    /// How many bytes the application wrote, as `outbox.message_size` counts them.
    pub fn bytes(&self) -> usize {
        let texts = [&self.key, &self.event_type, &self.aggregate_type, &self.aggregate_id];
        self.body.as_bytes().map_or(0, <[u8]>::len)
            + self.headers.as_ref().map_or(0, Vec::len)
            + texts.into_iter().flatten().map(String::len).sum::<usize>()
    }
}

/// A JSON string is sent as its text, null as a header without a value, anything else exactly as PostgreSQL spells it: numbers
/// may have more digits there, and arrays may be nested deeper, than a parsed value can hold.
fn each_application_header(json: &[u8], each: &mut impl FnMut(&str, Option<&[u8]>)) {
    // The schema accepts objects only. Anything else has no header names.
    let Ok(headers) = serde_json::from_slice::<BTreeMap<String, &RawValue>>(json) else {
        return;
    };
    for (name, value) in &headers {
        let spelling = value.get();
        match serde_json::from_str::<Option<String>>(spelling) {
            Ok(text) => each(name, text.as_ref().map(String::as_bytes)),
            Err(_) => each(name, Some(spelling.as_bytes())),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub fn row(id: i64) -> Row {
        Row {
            id,
            lane: Some(0),
            message_id: Uuid::from_u128(7),
            topic: "orders".into(),
            key: Some("k".into()),
            partition: None,
            body: Body::Json(b"{}".to_vec()),
            headers: None,
            event_type: None,
            aggregate_type: None,
            aggregate_id: None,
            aggregate_version: None,
            attempts: 0,
            created_at: SystemTime::UNIX_EPOCH,
            delayed: false,
            possible_duplicate: false,
            is_repeat: false,
            unreadable: None,
        }
    }

    #[test]
    fn a_row_with_a_key_or_a_partition_needs_a_lane() {
        for (lane, key, partition, lost) in [
            (Some(0), Some("k"), None, false),
            (Some(0), None, Some(1), false),
            (None, None, None, false),
            (None, Some("k"), None, true),
            (None, None, Some(1), true),
        ] {
            let row = Row {
                lane,
                key: key.map(str::to_owned),
                partition,
                ..row(1)
            };
            assert_eq!(row.lacks_its_lane(), lost, "{row:?}");
        }
    }

    fn headers_of(row: &Row) -> Vec<(String, Option<Vec<u8>>)> {
        let mut headers = Vec::new();
        row.each_header(|name, value| headers.push((name.to_owned(), value.map(<[u8]>::to_vec))));
        headers
    }

    #[test]
    fn headers_carry_the_metadata_and_the_applications_own() {
        let mut row = row(1);
        row.event_type = Some("OrderPlaced".into());
        row.aggregate_version = Some(3);
        row.headers = Some(br#"{"traceparent": "00-ab", "n": 5, "gone": null, "o": {"a": 1}}"#.to_vec());
        let headers = headers_of(&row);
        let value = |name: &str| headers.iter().find(|h| h.0 == name).map(|h| h.1.clone());
        assert_eq!(
            value("message-id"),
            Some(Some(b"00000000-0000-0000-0000-000000000007".to_vec()))
        );
        assert_eq!(value("event-type"), Some(Some(b"OrderPlaced".to_vec())));
        assert_eq!(value("aggregate-version"), Some(Some(b"3".to_vec())));
        assert_eq!(value("traceparent"), Some(Some(b"00-ab".to_vec())));
        assert_eq!(value("n"), Some(Some(b"5".to_vec())));
        assert_eq!(value("gone"), Some(None));
        assert_eq!(value("o"), Some(Some(br#"{"a": 1}"#.to_vec())));
        assert_eq!(value(POSSIBLE_DUPLICATE), None);
    }

    #[test]
    fn a_header_value_that_no_parser_accepts_is_sent_with_the_others() {
        let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let huge = ["1e400", "-1e-400", "123456789012345678901234567890.10", &nested];
        for value in huge {
            let row = Row {
                headers: Some(format!(r#"{{"huge": {value}, "plain": "\u00fc\ud83d\ude80\n"}}"#).into_bytes()),
                ..row(1)
            };
            let expected = [
                ("huge".to_owned(), Some(value.as_bytes().to_vec())),
                ("plain".to_owned(), Some("ü🚀\n".as_bytes().to_vec())),
            ];
            assert!(headers_of(&row)[1..] == expected, "{value:.40}");
        }
    }

    #[test]
    fn only_a_row_that_may_have_been_sent_is_flagged_as_a_possible_duplicate() {
        for (possible_duplicate, is_repeat) in [(false, false), (true, false), (false, true), (true, true)] {
            let row = Row {
                possible_duplicate,
                is_repeat,
                ..row(1)
            };
            let flags = headers_of(&row).iter().filter(|h| h.0 == POSSIBLE_DUPLICATE).count();
            assert_eq!(flags, usize::from(possible_duplicate || is_repeat), "{row:?}");
        }
    }

    #[test]
    fn the_size_of_a_row_is_all_that_was_written_and_an_overhead() {
        let bare = Row {
            body: Body::Tombstone,
            key: None,
            ..row(1)
        };
        let full = Row {
            body: Body::Bytes(vec![0; 5_000]),
            headers: Some(vec![b' '; 300]),
            key: Some("k".repeat(70)),
            event_type: Some("e".repeat(3)),
            aggregate_type: Some("a".repeat(2)),
            aggregate_id: Some("i".to_owned()),
            ..row(1)
        };
        assert_eq!((bare.bytes(), full.bytes()), (0, 5_376));
        assert!(bare.size() > 100);
        assert_eq!(full.size(), bare.size() + 5_376);
    }

    #[test]
    fn only_a_tombstone_has_no_bytes() {
        assert_eq!(Body::Json(b"{}".to_vec()).as_bytes(), Some(b"{}".as_slice()));
        assert_eq!(Body::Bytes(Vec::new()).as_bytes(), Some(b"".as_slice()));
        assert_eq!(Body::Tombstone.as_bytes(), None);
    }

    #[test]
    fn a_row_without_a_key_is_sent_with_its_message_id_as_the_key() {
        let mut unordered = row(1);
        unordered.key = None;
        assert_eq!(
            unordered.record_key().as_bytes(),
            b"00000000-0000-0000-0000-000000000007"
        );
        assert_eq!(unordered.unit(), None);
        unordered.partition = Some(3);
        assert_eq!(unordered.unit().as_deref(), Some("p:3"));
        assert_eq!(row(1).unit().as_deref(), Some("k:k"));
    }

    proptest! {
        #[test]
        fn every_key_is_the_key_of_its_record_and_belongs_to_a_partition_that_exists(
            key in ".{0,256}", count in 1..=i32::MAX,
        ) {
            let row = Row { key: Some(key.clone()), ..row(1) };
            let record_key = row.record_key();
            prop_assert_eq!(record_key.as_bytes(), key.as_bytes());
            let partition = row.partition_choice().partition(count);
            prop_assert!(partition.is_some_and(|partition| (0..count).contains(&partition)));
        }

        #[test]
        fn any_bytes_are_accepted_as_headers(json: Vec<u8>) {
            let mut row = row(1);
            row.headers = Some(json);
            prop_assert_eq!(&headers_of(&row)[0].0, "message-id");
        }
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<i32>().prop_map(|number| serde_json::Value::from(f64::from(number) / 8.0)),
            any::<String>().prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// A JSON value, neither a string nor null, in any spelling.
    fn any_spelling() -> impl Strategy<Value = String> {
        let number = r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?";
        let leaf = prop_oneof![number, "true|false", r#"\[null, *"\\\\u00fc"\]"#];
        (leaf, 0..300usize).prop_map(|(leaf, depth)| format!("{}{leaf}{}", "[ ".repeat(depth), "]".repeat(depth)))
    }

    proptest! {
        #[test]
        fn every_header_of_any_object_is_sent_once_and_reads_back(
            object in prop::collection::btree_map(any::<String>(), any_json(), 0..8),
        ) {
            let mut row = row(1);
            row.headers = Some(serde_json::to_vec(&object).expect("serialises"));
            let sent = headers_of(&row).split_off(1);
            prop_assert_eq!(sent.len(), object.len());
            for ((name, bytes), (wanted, value)) in sent.iter().zip(&object) {
                prop_assert_eq!(name, wanted);
                let read = match (bytes, value) {
                    (None, _) => serde_json::Value::Null,
                    (Some(bytes), serde_json::Value::String(_)) => String::from_utf8(bytes.clone()).expect("text").into(),
                    (Some(bytes), _) => serde_json::from_slice(bytes).expect("JSON"),
                };
                prop_assert_eq!(&read, value);
            }
        }

        #[test]
        fn a_header_that_is_not_a_string_is_sent_as_it_is_spelt(spellings in prop::collection::vec(any_spelling(), 0..8)) {
            let members: Vec<_> = spellings.iter().enumerate().map(|(n, value)| format!(r#""{n}": {value}"#)).collect();
            let row = Row { headers: Some(format!("{{{}}}", members.join(", ")).into_bytes()), ..row(1) };
            let sent: Vec<_> = headers_of(&row).into_iter().skip(1).map(|(_, value)| value.expect("a value")).collect();
            let spelt: Vec<_> = spellings.into_iter().map(String::into_bytes).collect();
            prop_assert_eq!(sent, spelt);
        }

        #[test]
        fn a_string_is_sent_unescaped_however_it_was_escaped(text: String) {
            let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            let row = Row { headers: Some(format!(r#"{{"text": "{escaped}"}}"#).into_bytes()), ..row(1) };
            prop_assert_eq!(headers_of(&row).pop(), Some(("text".to_owned(), Some(text.into_bytes()))));
        }

        #[test]
        fn two_keys_never_have_the_same_unit(one: String, other: String, partition: i32) {
            let unit = |key: Option<&str>| {
                let key = key.map(Into::into);
                Row { key, partition: Some(partition), ..row(1) }.unit()
            };
            prop_assert_eq!(unit(Some(&one)) == unit(Some(&other)), one == other);
            prop_assert_ne!(unit(Some(&one)), unit(None));
        }
    }
}
