//! The checks, each with its id, and what one of them says.

use serde::{Serialize, Serializer};

macro_rules! checks {
    ($($check:ident $id:literal)*) => {
        /// What is checked. The ids are stable: programs wait for them by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum CheckId { $($check),* }

        impl CheckId {
            /// In the order in which they are shown.
            pub const ALL: &'static [CheckId] = &[$(CheckId::$check),*];

            pub fn name(self) -> &'static str {
                match self { $(CheckId::$check => $id),* }
            }
        }
    };
}

checks! {
    DbConnect "db.connect"
    DbTls "db.tls"
    DbVersion "db.version"
    DbPrimary "db.primary"
    DbPooler "db.pooler"
    DbClock "db.clock"
    DbConnections "db.connections"
    DbRole "db.role"
    DbSchema "db.schema"
    DbGrants "db.grants"
    DbRowSecurity "db.row_security"
    DbTrigger "db.trigger"
    DbSequence "db.sequence"
    DbTimeline "db.timeline"
    DbSynchronousCommit "db.synchronous_commit"
    DbHistoryDays "db.history_days"
    DbAutovacuum "db.autovacuum"
    DbIdleInTransaction "db.idle_in_transaction"
    DbOpenWriter "db.open_writer"
    DbOldSnapshot "db.old_snapshot"
    DbPreparedTransactions "db.prepared_transactions"
    DbSlots "db.slots"
    KafkaConnect "kafka.connect"
    KafkaTls "kafka.tls"
    KafkaAuth "kafka.auth"
    KafkaTopicExists "kafka.topic.exists"
    KafkaTopicWrite "kafka.topic.write"
    KafkaTopicPartitions "kafka.topic.partitions"
    KafkaTopicIsr "kafka.topic.isr"
    KafkaTopicSize "kafka.topic.size"
    KafkaTopicTimestamps "kafka.topic.timestamps"
    RelayLease "relay.lease"
    RelayWorkers "relay.workers"
    RelayVersions "relay.versions"
    RelayPauses "relay.pauses"
    UiLogin "ui.login"
}

impl Serialize for CheckId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Ordered by how much an operator must know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Ok,
    /// It was not checked, on purpose.
    Skipped,
    /// It works, and could be better.
    Advice,
    /// Nobody has answered.
    Unknown,
    /// It fails, or will.
    Problem,
}

/// What a check says.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    pub id: CheckId,
    /// Which topic, if the check is of one.
    pub topic: Option<String>,
    pub verdict: Verdict,
    /// What is the case.
    pub found: String,
    /// What it leads to, unless it is as it should be.
    pub why: Option<String>,
    /// What to do about it, with the command.
    pub fix: Option<String>,
}

impl CheckId {
    pub fn ok(self, found: impl Into<String>) -> Diagnosis {
        self.diagnosis(Verdict::Ok, found)
    }

    pub fn skipped(self, reason: impl Into<String>) -> Diagnosis {
        self.diagnosis(Verdict::Skipped, reason)
    }

    pub fn unknown(self, reason: impl Into<String>) -> Diagnosis {
        self.diagnosis(Verdict::Unknown, reason)
    }

    pub fn advice(self, found: impl Into<String>, why: &str, fix: impl Into<String>) -> Diagnosis {
        self.diagnosis(Verdict::Advice, found).explained(why, fix)
    }

    pub fn problem(self, found: impl Into<String>, why: &str, fix: impl Into<String>) -> Diagnosis {
        self.diagnosis(Verdict::Problem, found).explained(why, fix)
    }

    fn diagnosis(self, verdict: Verdict, found: impl Into<String>) -> Diagnosis {
        Diagnosis {
            id: self,
            topic: None,
            verdict,
            found: found.into(),
            why: None,
            fix: None,
        }
    }
}

impl Diagnosis {
    fn explained(self, why: &str, fix: impl Into<String>) -> Self {
        Diagnosis {
            why: Some(why.to_owned()),
            fix: Some(fix.into()),
            ..self
        }
    }

    pub fn of_topic(self, topic: &str) -> Self {
        Diagnosis {
            topic: Some(topic.to_owned()),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids that `docs/doctor.md` explains, in its order.
    fn documented() -> Vec<String> {
        let page = std::fs::read_to_string("docs/doctor.md").expect("the page is there");
        let headings = page
            .lines()
            .filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
        headings.map(str::to_owned).collect()
    }

    #[test]
    fn every_check_is_documented_and_nothing_else_is() {
        let ids: Vec<_> = CheckId::ALL.iter().map(|id| id.name()).collect();
        assert_eq!(documented(), ids);
    }

    #[test]
    fn what_is_wrong_says_why_and_what_to_do() {
        let problem = CheckId::DbSlots.problem("a", "b", "c").of_topic("orders");
        let json = serde_json::to_value(&problem).expect("serialises");
        let expected = serde_json::json!({
            "id": "db.slots", "topic": "orders", "verdict": "problem", "found": "a", "why": "b", "fix": "c",
        });
        assert_eq!(json, expected);
        assert!(Verdict::Problem > Verdict::Unknown && Verdict::Unknown > Verdict::Advice);
    }
}
