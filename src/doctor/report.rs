//! All diagnoses together.

use serde::Serialize;

use super::check::{Diagnosis, Verdict};
use crate::words::count;

/// What the doctor found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The gravest verdict; `ok` also where there is only advice.
    pub verdict: Verdict,
    pub problems: usize,
    pub unknown: usize,
    pub advice: usize,
    pub checks: Vec<Diagnosis>,
}

impl Report {
    /// Orders the diagnoses by check, and those of one check by topic.
    pub fn new(mut checks: Vec<Diagnosis>) -> Self {
        checks.sort_by(|a, b| (a.id, &a.topic).cmp(&(b.id, &b.topic)));
        let of = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
        let (problems, unknown, advice) = (of(Verdict::Problem), of(Verdict::Unknown), of(Verdict::Advice));
        let verdict = match (problems, unknown) {
            (0, 0) => Verdict::Ok,
            (0, _) => Verdict::Unknown,
            _ => Verdict::Problem,
        };
        Report {
            verdict,
            problems,
            unknown,
            advice,
            checks,
        }
    }

    /// How many checks ended how, and which ones have this verdict.
    pub fn summary(&self) -> String {
        let skipped = self.of(Verdict::Skipped).count();
        let ok = self.of(Verdict::Ok).count();
        format!(
            "{}, {} unknown, {} to improve, {ok} as they should be, {skipped} skipped",
            count(self.problems, "problem"),
            self.unknown,
            self.advice
        )
    }

    /// The checks with this verdict, by name.
    pub fn names(&self, verdict: Verdict) -> String {
        let names = self.of(verdict).map(|check| match &check.topic {
            Some(topic) => format!("{} of {topic}", check.id.name()),
            None => check.id.name().to_owned(),
        });
        names.collect::<Vec<_>>().join(", ")
    }

    pub fn of(&self, verdict: Verdict) -> impl Iterator<Item = &Diagnosis> {
        self.checks.iter().filter(move |check| check.verdict == verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::CheckId;
    use super::*;

    #[test]
    fn the_gravest_check_decides_and_advice_decides_nothing() {
        let ok = || CheckId::DbConnect.ok("there");
        let advice = || CheckId::DbTls.advice("plain", "why", "fix");
        let unknown = || CheckId::DbSlots.unknown("silence");
        let problem = || CheckId::DbGrants.problem("none", "why", "fix");
        let verdict = |checks: Vec<Diagnosis>| Report::new(checks).verdict;
        assert_eq!(verdict(vec![]), Verdict::Ok);
        assert_eq!(verdict(vec![advice(), ok()]), Verdict::Ok);
        assert_eq!(verdict(vec![advice(), unknown()]), Verdict::Unknown);
        assert_eq!(verdict(vec![problem(), unknown(), ok()]), Verdict::Problem);
    }

    #[test]
    fn checks_are_shown_in_one_order_whichever_answered_first() {
        let report = Report::new(vec![
            CheckId::KafkaTopicExists.problem("gone", "why", "fix").of_topic("b"),
            CheckId::KafkaTopicExists.problem("gone", "why", "fix").of_topic("a"),
            CheckId::DbConnect.ok("there"),
        ]);
        assert_eq!(
            report.names(Verdict::Problem),
            "kafka.topic.exists of a, kafka.topic.exists of b"
        );
        assert_eq!(report.checks[0].id, CheckId::DbConnect);
        assert_eq!(
            report.summary(),
            "2 problems, 0 unknown, 0 to improve, 1 as they should be, 0 skipped"
        );
    }
}
