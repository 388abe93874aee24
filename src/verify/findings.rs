//! The findings of a comparison, and the verdict.

use std::collections::BTreeSet;

use serde::Serialize;

/// How many examples of each finding are kept.
const EXAMPLES: usize = 10;

/// One row or record that is not as it should be.
#[derive(Clone, Debug, Serialize)]
pub struct Offender {
    /// The row's id, if there is a row.
    pub id: Option<i64>,
    pub message_id: String,
    pub topic: String,
    pub partition: Option<i32>,
    pub offset: Option<i64>,
    pub what: String,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Finding {
    pub count: u64,
    pub first: Vec<Offender>,
}

impl Finding {
    pub fn add(&mut self, offender: Offender) {
        self.count += 1;
        if self.first.len() < EXAMPLES {
            self.first.push(offender);
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Duplicated {
    #[serde(flatten)]
    pub copies: Finding,
    pub flagged: u64,
    pub unflagged: u64,
}

/// How much was compared.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    pub rows: u64,
    pub published: u64,
    pub pending: u64,
    /// Pending rows without a record. All other pending rows have been sent and are about to be marked.
    pub waiting: u64,
    pub dead: u64,
    /// Records that carry a message id.
    pub records: u64,
    /// How many of these are flagged as possible duplicates.
    pub flagged: u64,
    /// Records that were not published from this outbox.
    pub foreign: u64,
    /// Records from before the window, whose rows retention may have removed.
    pub outside: u64,
}

/// What was compared, and what was found wrong with it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Findings {
    #[serde(flatten)]
    pub counts: Counts,
    pub missing: Finding,
    pub phantom: Finding,
    pub duplicated: Duplicated,
    pub out_of_order: Finding,
    pub may_overlap: Finding,
    pub wrong_partition: Finding,
    pub altered: Finding,
    /// Published rows whose record the topic may have removed since.
    pub cannot_tell: Finding,
    /// Topics that have got more partitions, so that older records of a key are on other partitions.
    pub grown: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Holds,
    Broken,
    Undecided,
}

impl Findings {
    /// The verdict, and the reason for it in one sentence.
    pub fn verdict(&self) -> (Verdict, String) {
        // Without published rows every record would count as a phantom.
        if self.counts.published == 0 {
            let reason = "nothing to compare: no published row is kept in this window. With --on-published delete there never is; \
                          keep or archive rows to verify them";
            return (Verdict::Undecided, reason.to_owned());
        }
        let broken = listed(&[
            (self.missing.count, "missing"),
            (self.phantom.count, "phantom"),
            (self.duplicated.unflagged, "duplicated without saying so"),
            (self.out_of_order.count, "out of order"),
            (self.wrong_partition.count, "on the wrong partition"),
            (self.altered.count, "altered"),
        ]);
        if !broken.is_empty() {
            return (Verdict::Broken, broken);
        }
        let undecided = listed(&[
            (
                self.may_overlap.count,
                "the other way round than their ids, which is right if their transactions overlapped; if none of one key \
                 ever does, --serialized-keys decides it",
            ),
            (
                self.cannot_tell.count,
                "older than what their topic still keeps; --since leaves those out",
            ),
        ]);
        if !undecided.is_empty() {
            return (Verdict::Undecided, undecided);
        }
        let reason = "every published row is in its topic, unaltered, in order; every repeat says that it may be one";
        (Verdict::Holds, reason.to_owned())
    }
}

fn listed(counts: &[(u64, &str)]) -> String {
    let found = counts.iter().filter(|(count, _)| *count > 0);
    let words: Vec<String> = found.map(|(count, what)| format!("{count} {what}")).collect();
    words.join(", ")
}
