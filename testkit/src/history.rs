//! What was committed against what arrived: the oracle of `outboxd verify`, and what a test asks of its findings.

use indicatif::ProgressBar;
use outboxd::config::{Check, KafkaArgs};
use outboxd::outbox::Database;
use outboxd::verify::findings::{Finding, Findings};
use outboxd::verify::{Settings, verify};

use crate::World;
use crate::relay::Relay;

/// The findings on one topic's history.
#[derive(Debug)]
pub struct History {
    pub duplicates: usize,
    pub unflagged_duplicates: usize,
    pub flagged: usize,
    pub findings: Findings,
}

impl World {
    /// What is in the topic against what the table says should be. Rows of a key must be there in the order of their ids.
    pub async fn history(&self, topic: &str) -> History {
        let kafka = KafkaArgs {
            kafka_brokers: Some(self.kafka.clone()),
            ..KafkaArgs::default()
        };
        let settings = Settings {
            database: Database::at(&self.database_url),
            schema: "outbox".to_owned(),
            kafka: Check::run(|check| kafka.consumer(check)).expect("brokers"),
            topics: Some(vec![topic.to_owned()]),
            since: None,
            serialized_keys: true,
            temp_dir: std::env::temp_dir(),
        };
        let findings = verify(&settings, &ProgressBar::hidden()).await.expect("both answer");
        History {
            duplicates: findings.duplicated.copies.count as usize,
            unflagged_duplicates: findings.duplicated.unflagged as usize,
            flagged: findings.counts.flagged as usize,
            findings,
        }
    }
}

impl World {
    /// The same where the database has lost rows: records of rows it does not know are left aside.
    pub async fn surviving_history(&self, topic: &str) -> History {
        let mut history = self.history(topic).await;
        history.findings.phantom = Finding::default();
        history
    }
}

impl History {
    /// Nothing missing or still waiting, nothing phantom, out of order, misplaced or altered.
    pub fn assert_sound(&self) {
        let findings = &self.findings;
        assert_eq!(findings.counts.waiting, 0, "rows that have not arrived");
        assert_none("missing", &findings.missing);
        assert_none("missing, perhaps", &findings.cannot_tell);
        assert_none("phantom", &findings.phantom);
        assert_none("out of order", &findings.out_of_order);
        assert_none("on the wrong partition", &findings.wrong_partition);
        assert_none("altered", &findings.altered);
    }

    /// Sound, with at most this many duplicates, each of them flagged.
    pub fn assert_duplicates_at_most(&self, in_flight: usize) {
        self.assert_sound();
        assert_eq!(self.unflagged_duplicates, 0, "a duplicate is flagged");
        let duplicates = self.duplicates;
        assert!(
            duplicates <= in_flight,
            "{duplicates} duplicates of {in_flight} rows in flight"
        );
    }

    /// Sound; every duplicate is flagged, the relays that live have counted every flagged copy, and no row was left for
    /// the rescan to find.
    pub fn assert_counted_by(&self, relays: &[&Relay]) {
        self.assert_duplicates_counted_by(relays);
        let counted = sum(relays, "outboxd_possible_duplicates_total");
        assert!(
            counted >= self.flagged as f64,
            "{} flagged, {counted} counted",
            self.flagged
        );
    }

    /// The same where other relays have died, which may have flagged copies as well.
    pub fn assert_duplicates_counted_by(&self, relays: &[&Relay]) {
        self.assert_sound();
        assert_eq!(self.unflagged_duplicates, 0, "a duplicate is flagged");
        let counted = sum(relays, "outboxd_possible_duplicates_total");
        assert!(
            counted >= self.duplicates as f64,
            "{} duplicates, {counted} counted",
            self.duplicates
        );
        assert_eq!(
            sum(relays, "outboxd_rescan_found_rows_total"),
            0.0,
            "the rescan found no row"
        );
    }

    /// Sound, and every row exactly once.
    pub fn assert_exact(&self) {
        self.assert_sound();
        assert_eq!(self.duplicates, 0, "no crash, so no duplicate");
    }
}

fn sum(relays: &[&Relay], metric: &str) -> f64 {
    relays.iter().map(|relay| relay.metric(metric).expect("it lives")).sum()
}

fn assert_none(what: &str, finding: &Finding) {
    assert_eq!(
        finding.count,
        0,
        "{} {what}: {:?}",
        finding.count,
        finding.first.first()
    );
}
