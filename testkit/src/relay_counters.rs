//! What processes have counted, those that were killed since included.

use std::collections::HashMap;

use crate::relay::Relay;

/// The counters of every process that ever ran, as last seen.
#[derive(Default)]
pub struct Counters(HashMap<u32, [f64; 3]>);

impl Counters {
    const NAMES: [&str; 3] = [
        "outboxd_rows_marked_total",
        "outboxd_possible_duplicates_total",
        "outboxd_rescan_found_rows_total",
    ];

    pub fn scrape(&mut self, relay: &Relay) {
        let [Some(marked), Some(duplicates), Some(forgotten)] = Self::NAMES.map(|name| relay.metric(name)) else {
            return;
        };
        self.0.insert(relay.pid(), [marked, duplicates, forgotten]);
    }

    /// Marked, possible duplicates, forgotten.
    pub fn sum(&self) -> [f64; 3] {
        [0, 1, 2].map(|place| self.0.values().map(|counters| counters[place]).sum())
    }
}
