//! What holds after every fault.

use crate::{History, Relay, World};

impl World {
    /// Nothing lost, nothing phantom, order per key; every duplicate is flagged and counted by the relays, which all
    /// lived through it; no row is blamed. Answers the history, for what else was promised.
    pub async fn assert_promises_kept(&self, topic: &str, relays: &[&Relay]) -> History {
        let history = self.history(topic).await;
        history.assert_counted_by(relays);
        self.assert_nobody_blamed().await;
        for relay in relays {
            relay.assert_alive();
        }
        history
    }
}
