//! What was committed against what arrived: loss, phantoms, order, repeats.

use std::collections::{HashMap, HashSet};

use super::consumer::Record;
use super::relay::Relay;

/// A row that committed.
#[derive(Clone, Debug)]
pub struct Committed {
    pub message_id: String,
    pub key: Option<String>,
    /// The writer's own count within the key: later rows have higher ones.
    pub sequence: i64,
}

/// The verdict on one topic's history.
#[derive(Debug, Default)]
pub struct History {
    pub missing: Vec<String>,
    pub phantom: Vec<String>,
    /// Keys with the two sequence numbers that arrived the wrong way round.
    pub out_of_order: Vec<(String, i64, i64)>,
    pub repeats: usize,
    pub unflagged_repeats: usize,
    pub flagged: usize,
}

impl History {
    /// Compares; records must be in partition and offset order.
    pub fn check(committed: &[Committed], records: &[Record]) -> Self {
        let expected: HashMap<&str, &Committed> = committed.iter().map(|row| (row.message_id.as_str(), row)).collect();
        let mut history = History::default();
        let mut seen = HashSet::new();
        let mut last: HashMap<&str, i64> = HashMap::new();
        for record in records {
            history.flagged += usize::from(record.is_flagged());
            let id = record.message_id();
            let Some(row) = expected.get(id.as_str()) else {
                history.phantom.push(id);
                continue;
            };
            if !seen.insert(id) {
                history.repeats += 1;
                history.unflagged_repeats += usize::from(!record.is_flagged());
                continue;
            }
            let Some(key) = &row.key else { continue };
            let before = last.insert(key, row.sequence).unwrap_or(i64::MIN);
            if before > row.sequence {
                history.out_of_order.push((key.clone(), before, row.sequence));
            }
        }
        let missing = committed.iter().filter(|row| !seen.contains(&row.message_id));
        history.missing = missing.map(|row| row.message_id.clone()).collect();
        history
    }

    /// Nothing missing, nothing phantom, nothing out of order.
    pub fn assert_sound(&self) {
        assert!(
            self.missing.is_empty(),
            "{} missing: {:?}",
            self.missing.len(),
            self.missing.first()
        );
        assert!(
            self.phantom.is_empty(),
            "{} phantoms: {:?}",
            self.phantom.len(),
            self.phantom.first()
        );
        let offenders = &self.out_of_order;
        assert!(
            offenders.is_empty(),
            "{} out of order: {:?}",
            offenders.len(),
            offenders.first()
        );
    }

    /// Sound; every repeat says that it is one, and the relay admits at least as many.
    pub fn assert_admitted_by(&self, relay: &Relay) {
        self.assert_sound();
        assert_eq!(self.unflagged_repeats, 0, "a repeat says that it is one");
        let admitted = relay.metric("outboxd_possible_duplicates_total").expect("it runs");
        let repeats = self.repeats;
        assert!(repeats as f64 <= admitted, "{repeats} repeats, {admitted} admitted");
    }

    /// Sound, and every row exactly once.
    pub fn assert_exact(&self) {
        self.assert_sound();
        assert_eq!(self.repeats, 0, "no crash, so no repeat");
    }
}
