//! What holds after every fault.

use super::{History, Relay, World};

impl World {
    /// Nothing lost, nothing phantom, order per key; every repeat says so and is admitted by the relays, which all
    /// lived through it; no row is blamed. Answers the history, for what else was promised.
    pub async fn assert_promises_kept(&self, topic: &str, relays: &[&Relay]) -> History {
        let history = self.history(topic).await;
        history.assert_sound();
        assert_eq!(history.unflagged_repeats, 0, "a repeat says that it may be one");
        let admitted: f64 = sum(relays, "outboxd_possible_duplicates_total");
        assert!(
            history.repeats as f64 <= admitted,
            "{} repeats, {admitted} admitted",
            history.repeats
        );
        assert_eq!(
            sum(relays, "outboxd_rows_forgotten_total"),
            0.0,
            "no floor passed a row"
        );
        assert_eq!(sum(relays, "outboxd_rows_dead_total"), 0.0);
        self.assert_nobody_blamed().await;
        for relay in relays {
            relay.assert_alive();
        }
        history
    }
}

fn sum(relays: &[&Relay], metric: &str) -> f64 {
    relays.iter().map(|relay| relay.metric(metric).expect(metric)).sum()
}
