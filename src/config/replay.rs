//! Which published messages a replay is about.

use clap::Args;

use super::Check;
use super::filter::ids;
use crate::domain::replay::{Moment, ReplayFilter};
use crate::outbox::operator::FILTER_BYTES_MAX;

/// Filters of published messages. All that are given must match.
#[derive(Args, Clone, Debug, Default)]
pub struct ReplayFilterArgs {
    /// Only of this topic; may be repeated
    #[arg(long = "topic", value_name = "TOPIC")]
    pub topics: Vec<String>,

    /// Only of this key; may be repeated
    #[arg(long = "key", value_name = "KEY")]
    pub keys: Vec<String>,

    /// Only what was published since, e.g. 2h, 7days or 2026-01-31T12:00:00Z
    #[arg(long, value_name = "DURATION|TIMESTAMP")]
    pub since: Option<String>,

    /// Only what was published before
    #[arg(long, value_name = "DURATION|TIMESTAMP")]
    pub until: Option<String>,

    /// Only these ids, one or many: 17 or 17,18,20-29; may be repeated
    #[arg(long = "id", value_name = "IDS")]
    pub ids: Vec<String>,

    /// Everything that is kept
    #[arg(long, conflicts_with_all = ["topics", "keys", "since", "until", "ids"])]
    pub all: bool,
}

impl ReplayFilterArgs {
    pub fn filter(&self, check: &mut Check) -> ReplayFilter {
        let ids = ids(check, &self.ids);
        let mut moment = |flag, text: &Option<String>| {
            let text = text.clone()?;
            let at = check.moment(flag, &text)?;
            Some(Moment { text, at })
        };
        let filter = ReplayFilter {
            topics: self.topics.clone(),
            keys: self.keys.clone(),
            since: moment("--since", &self.since),
            until: moment("--until", &self.until),
            ids,
        };
        self.check(check, &filter);
        filter
    }

    fn check(&self, check: &mut Check, filter: &ReplayFilter) {
        check.ensure(
            self.all || self.restricts(),
            "say what to replay: --topic, --key, --since, --until or --id; or --all",
        );
        if let (Some(since), Some(until)) = (&filter.since, &filter.until) {
            check.ensure(
                since.at < until.at,
                format!("--since {:?} is not before --until {:?}", since.text, until.text),
            );
        }
        check.ensure(
            filter.to_json().to_string().len() <= FILTER_BYTES_MAX,
            format!("the filter is longer than the {FILTER_BYTES_MAX} bytes that the audit keeps: name fewer ids or keys at once"),
        );
    }

    fn restricts(&self) -> bool {
        let lists = [&self.topics, &self.keys, &self.ids];
        self.since.is_some() || self.until.is_some() || lists.iter().any(|list| !list.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn problems(args: &ReplayFilterArgs) -> usize {
        Check::run(|check| Some(args.filter(check))).map_or_else(|problems| problems.0.len(), |_| 0)
    }

    #[test]
    fn something_must_be_named_and_every_problem_is_listed() {
        assert_eq!(problems(&ReplayFilterArgs::default()), 1);
        let all = ReplayFilterArgs {
            all: true,
            ..ReplayFilterArgs::default()
        };
        assert_eq!(problems(&all), 0);
        let between = |since: &str, until: &str| ReplayFilterArgs {
            since: Some(since.to_owned()),
            until: Some(until.to_owned()),
            ..ReplayFilterArgs::default()
        };
        assert_eq!(problems(&between("2h", "1h")), 0);
        assert_eq!(problems(&between("2026-01-31T12:00:00Z", "1s")), 0);
        assert_eq!(problems(&between("1h", "2h")), 1, "nothing can lie between");
        assert_eq!(problems(&between("soon", "later")), 2);
        let wrong = ReplayFilterArgs {
            ids: vec!["x".to_owned(), "1".to_owned()],
            ..between("20years", "1h")
        };
        assert_eq!(problems(&wrong), 2);
        let long = ReplayFilterArgs {
            keys: vec!["k".repeat(70_000)],
            ..ReplayFilterArgs::default()
        };
        assert_eq!(problems(&long), 1);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(since: Option<String>, until: Option<String>, ids: Vec<String>) {
            problems(&ReplayFilterArgs { since, until, ids, ..ReplayFilterArgs::default() });
        }
    }
}
