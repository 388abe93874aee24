//! The fields of a query or a form.

use axum::http::Uri;
use form_urlencoded::Serializer;

use crate::config::{Check, DeadFilterArgs, FilterArgs, HoldFilterArgs, Problems};
use crate::domain::filter::Filter;
use crate::domain::id_ranges::IdRanges;

/// The fields in their order. A name may come more than once.
#[derive(Clone, Debug, Default)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    pub fn parse(encoded: &[u8]) -> Self {
        let pairs = form_urlencoded::parse(encoded);
        Fields(
            pairs
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect(),
        )
    }

    pub fn of_uri(uri: &Uri) -> Self {
        Fields::parse(uri.query().unwrap_or_default().as_bytes())
    }

    pub fn has_nul(&self) -> bool {
        let mut texts = self.0.iter().flat_map(|(name, value)| [name, value]);
        texts.any(|text| text.contains('\0'))
    }

    /// The first field of this name, which may be empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        let field = self.0.iter().find(|(known, _)| known == name);
        field.map(|(_, value)| value.as_str())
    }

    /// The same unless it is empty, as a field of a form is into which nobody has written.
    pub fn filled(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Those of these names that are not empty, in the order in which they came.
    pub fn only(&self, names: &[&str]) -> Vec<(&str, &str)> {
        let fields = self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        fields
            .filter(|(name, value)| names.contains(name) && !value.is_empty())
            .collect()
    }

    fn all(&self, name: &str) -> Vec<String> {
        let fields = self.only(&[name]).into_iter();
        fields.map(|(_, value)| value.to_owned()).collect()
    }

    /// The filter of dead letters, as the flags of `outboxd dead` take it.
    pub fn dead_filter(&self) -> Result<Filter, Problems> {
        let args = DeadFilterArgs {
            filter: self.filter_args(),
            ids: self.all("id"),
            message_ids: self.all("message-id"),
            limit: None,
        };
        Check::run(|check| Some(args.filter(check)))
    }

    /// The ids in the fields of this name.
    pub fn ids(&self, name: &str) -> Result<IdRanges, Problems> {
        let args = DeadFilterArgs {
            ids: self.all(name),
            ..DeadFilterArgs::default()
        };
        Check::run(|check| Some(args.filter(check).ids))
    }

    /// The filter of holds, as the flags of `outboxd hold` take it.
    pub fn hold_filter(&self) -> Result<Filter, Problems> {
        let partition = |text: String| {
            let number = text.parse::<i32>().ok().filter(|number| *number >= 0);
            number.ok_or_else(|| format!("--partition {text:?} is not a number of a partition"))
        };
        Check::run(|check| {
            let partitions = self.all("partition").into_iter();
            let partitions = partitions.filter_map(|text| check.ok(partition(text))).collect();
            let mut args = HoldFilterArgs {
                filter: self.filter_args(),
                partitions,
            };
            // A hold of a key is named exactly, also that of the empty key.
            let unit = self.get("unit");
            args.filter
                .keys
                .extend(unit.and_then(|unit| unit.strip_prefix("k:")).map(str::to_owned));
            Some(args.filter(check))
        })
    }

    fn filter_args(&self) -> FilterArgs {
        let filled = |name| self.filled(name).map(str::to_owned);
        FilterArgs {
            topics: self.all("topic"),
            keys: self.all("key"),
            error: filled("error"),
            older_than: filled("older-than"),
            newer_than: filled("newer-than"),
        }
    }
}

/// The names of the fields of [`Fields::dead_filter`].
pub const DEAD_FILTER: [&str; 7] = ["topic", "key", "error", "older-than", "newer-than", "id", "message-id"];

/// The names of the fields of [`Fields::hold_filter`].
pub const HOLD_FILTER: [&str; 7] = ["topic", "key", "error", "older-than", "newer-than", "partition", "unit"];

/// The address of a page of ours with these fields.
pub fn link<'a>(path: &str, fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let query = Serializer::new(String::new()).extend_pairs(fields).finish();
    if query.is_empty() {
        return path.to_owned();
    }
    format!("{path}?{query}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_filter_is_read_as_a_command_reads_it() {
        let fields = Fields::parse(b"topic=orders&topic=&key=a%26b&id=17,20-29&older-than=10m&error=too+large");
        let filter = fields.dead_filter().expect("valid");
        assert_eq!(
            (filter.topics, filter.keys),
            (vec!["orders".to_owned()], vec!["a&b".to_owned()])
        );
        assert_eq!(filter.error.as_deref(), Some("too large"));
        assert_eq!(filter.ids.to_flat(), [17, 17, 20, 29]);
        let wrong = Fields::parse(b"id=x&older-than=soon&newer-than=x&message-id=y");
        assert_eq!(wrong.dead_filter().expect_err("wrong").0.len(), 4);
    }

    #[test]
    fn a_hold_is_named_by_its_unit() {
        let keys = |query: &str| Fields::parse(query.as_bytes()).hold_filter().expect("valid").keys;
        assert_eq!(keys("topic=t&unit=k%3A"), [""]);
        assert_eq!(keys("topic=t&unit=k%3Aa+b"), ["a b"]);
        assert!(keys("topic=t&unit=").is_empty() && keys("topic=t&key=").is_empty());
        let partitions = Fields::parse(b"partition=3&partition=x&partition=-1").hold_filter();
        assert_eq!(partitions.expect_err("two").0.len(), 2);
    }

    proptest! {
        #[test]
        fn what_a_link_says_is_read_again(pairs in prop::collection::vec(("[a-z]{1,5}", ".*"), 0..5)) {
            let fields = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let address = link("/dead", fields);
            prop_assert!(address.is_ascii());
            let query = address.split_once('?').map_or("", |(_, query)| query);
            prop_assert_eq!(Fields::parse(query.as_bytes()).0, pairs);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let fields = Fields::parse(&bytes);
            let _ = (fields.dead_filter(), fields.hold_filter());
        }
    }
}
