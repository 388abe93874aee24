//! Which dead letters or holds a command is about.

use clap::Args;
use uuid::Uuid;

use super::Check;
use crate::domain::filter::Filter;
use crate::domain::id_ranges::IdRanges;

/// Filters of dead letters and of holds. All that are given must match.
#[derive(Args, Clone, Debug, Default)]
pub struct FilterArgs {
    /// Only of this topic; may be repeated
    #[arg(long = "topic", value_name = "TOPIC")]
    pub topics: Vec<String>,

    /// Only of this key; may be repeated
    #[arg(long = "key", value_name = "KEY")]
    pub keys: Vec<String>,

    /// Only where the error contains this text, in upper or lower case
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,

    /// Only what is dead or held for longer than this, e.g. 10m, 2h, 7days
    #[arg(long, value_name = "DURATION")]
    pub older_than: Option<String>,

    /// Only what is dead or held for at most this long
    #[arg(long, value_name = "DURATION")]
    pub newer_than: Option<String>,
}

/// Filters of dead letters.
#[derive(Args, Clone, Debug, Default)]
pub struct DeadFilterArgs {
    #[command(flatten)]
    pub filter: FilterArgs,

    /// Only these ids, one or many: 17 or 17,18,20-29; may be repeated
    #[arg(long = "id", value_name = "IDS")]
    pub ids: Vec<String>,

    /// Only the message with this id, as in the header message-id; may be repeated
    #[arg(long = "message-id", value_name = "UUID")]
    pub message_ids: Vec<String>,

    /// At most so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub limit: Option<i64>,
}

/// Filters of holds.
#[derive(Args, Clone, Debug, Default)]
pub struct HoldFilterArgs {
    #[command(flatten)]
    pub filter: FilterArgs,

    /// Only of this partition; may be repeated
    #[arg(long = "partition", value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub partitions: Vec<i32>,
}

impl FilterArgs {
    fn filter(&self, check: &mut Check) -> Filter {
        let mut age = |flag, age: &Option<String>| age.as_ref().map(|age| check.duration(flag, age));
        Filter {
            topics: self.topics.clone(),
            keys: self.keys.clone(),
            error: self.error.clone(),
            older_than: age("--older-than", &self.older_than),
            newer_than: age("--newer-than", &self.newer_than),
            ..Filter::default()
        }
    }
}

impl DeadFilterArgs {
    pub fn filter(&self, check: &mut Check) -> Filter {
        let ids = ids(check, &self.ids);
        let message_ids = self.message_ids.iter();
        let message_ids = message_ids.filter_map(|text| check.ok(parse_message_id(text)));
        Filter {
            message_ids: message_ids.collect(),
            ids,
            limit: self.limit,
            ..self.filter.filter(check)
        }
    }
}

/// The ids that the flags name together.
pub(super) fn ids(check: &mut Check, texts: &[String]) -> IdRanges {
    let mut ids = IdRanges::default();
    for text in texts {
        ids.extend(&check.ok(parse_ids(text)).unwrap_or_default());
    }
    ids
}

impl HoldFilterArgs {
    pub fn filter(&self, check: &mut Check) -> Filter {
        Filter {
            partitions: self.partitions.clone(),
            ..self.filter.filter(check)
        }
    }
}

/// The largest id that the end of a range may have: the database stores the id behind it.
const ID_MAX: i64 = i64::MAX - 1;

/// Reads ids and ranges of ids, as in `17,18,20-29`.
fn parse_ids(text: &str) -> Result<IdRanges, String> {
    let id = |text: &str| text.trim().parse::<i64>().ok().filter(|id| (1..=ID_MAX).contains(id));
    let mut ids = IdRanges::default();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = id(first).zip(id(last)).filter(|(first, last)| first <= last);
        let (first, last) = range.ok_or_else(|| format!("--id {text:?} names no ids; write e.g. 17 or 17,18,20-29"))?;
        ids.insert(first, last);
    }
    Ok(ids)
}

fn parse_message_id(text: &str) -> Result<Uuid, String> {
    Uuid::try_parse(text.trim()).map_err(|_| format!("--message-id {text:?} is not a UUID"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_are_single_or_ranges() {
        let flat = |text| parse_ids(text).map(|ids| ids.to_flat());
        assert_eq!(flat("17"), Ok(vec![17, 17]));
        assert_eq!(flat("20-29, 17,18"), Ok(vec![17, 18, 20, 29]));
        for wrong in ["", "17,", "a", "-1", "0", "9-3", "1-2-3", "9223372036854775807"] {
            assert!(flat(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_problem_of_a_filter_is_listed() {
        let args = DeadFilterArgs {
            filter: FilterArgs {
                older_than: Some("soon".to_owned()),
                newer_than: Some("later".to_owned()),
                ..FilterArgs::default()
            },
            ids: vec!["x".to_owned()],
            message_ids: vec!["y".to_owned()],
            limit: None,
        };
        let problems = Check::run(|check| Some(args.filter(check))).expect_err("four problems");
        assert_eq!(problems.0.len(), 4, "{:?}", problems.0);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text: String) {
            let _ = parse_ids(&text);
            let _ = parse_message_id(&text);
        }
    }
}
