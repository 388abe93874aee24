//! What was committed, what arrived, and whether the two agree. Pure: it is told everything, also the time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A message: the n-th of its key. Rolled-back messages use up numbers too, so a phantom cannot pass for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id {
    pub key: u32,
    pub sequence: u32,
}

#[derive(Debug, Default)]
pub struct Ledger {
    orders_committed: usize,
    orders_rolled_back: usize,
    committed: HashMap<Id, Instant>,
    /// The first copy of each.
    arrived: HashMap<Id, Instant>,
    /// How many are in both of the above. A message may arrive before its writer hears that the commit succeeded.
    matched: usize,
    newest: HashMap<u32, u32>,
    duplicates: usize,
    duplicates_flagged: usize,
    order_violations: usize,
    strangers: usize,
    killed_at: Option<Instant>,
}

impl Ledger {
    pub fn committed(&mut self, messages: &[Id], at: Instant) {
        self.orders_committed += 1;
        for id in messages {
            self.committed.insert(*id, at);
            self.matched += usize::from(self.arrived.contains_key(id));
        }
    }

    pub fn rolled_back(&mut self) {
        self.orders_rolled_back += 1;
    }

    pub fn killed(&mut self, at: Instant) {
        self.killed_at = Some(at);
    }

    /// A copy reached the consumer. Order is promised for first copies, a flag for all others.
    pub fn arrived(&mut self, id: Id, flagged: bool, at: Instant) {
        if self.arrived.contains_key(&id) {
            self.duplicates += 1;
            self.duplicates_flagged += usize::from(flagged);
            return;
        }
        self.arrived.insert(id, at);
        self.matched += usize::from(self.committed.contains_key(&id));
        let newest = self.newest.entry(id.key).or_default();
        if id.sequence < *newest {
            self.order_violations += 1;
        } else {
            *newest = id.sequence;
        }
    }

    /// Something arrived that this application never wrote.
    pub fn stranger(&mut self) {
        self.strangers += 1;
    }

    pub fn orders(&self) -> usize {
        self.orders_committed + self.orders_rolled_back
    }

    pub fn progress(&self) -> Progress {
        Progress {
            orders: self.orders(),
            committed: self.committed.len(),
            delivered: self.matched,
            duplicates: self.duplicates,
        }
    }

    pub fn tally(&self) -> Tally {
        let phantom = self.arrived.len() - self.matched + self.strangers;
        Tally {
            orders_committed: self.orders_committed,
            orders_rolled_back: self.orders_rolled_back,
            committed: self.committed.len(),
            delivered: self.matched,
            missing: self.committed.len() - self.matched,
            phantom,
            duplicates: self.duplicates,
            duplicates_flagged: self.duplicates_flagged,
            order_violations: self.order_violations,
            killed: self.killed_at.is_some(),
            messages_per_second: self.rate(),
            latency: Latency::of(self.latencies(None)),
            latency_before_kill: self.killed_at.and_then(|kill| Latency::of(self.latencies(Some(kill)))),
        }
    }

    fn rate(&self) -> f64 {
        let (first, last) = (self.committed.values().min(), self.arrived.values().max());
        let (Some(first), Some(last)) = (first, last) else {
            return 0.0;
        };
        let seconds = last.saturating_duration_since(*first).as_secs_f64();
        self.matched as f64 / seconds.max(0.001)
    }

    /// From the commit to the first copy, of what arrived before `until`.
    fn latencies(&self, until: Option<Instant>) -> Vec<Duration> {
        self.committed
            .iter()
            .filter_map(|(id, committed)| Some((*self.arrived.get(id)?, *committed)))
            .filter(|(arrived, _)| until.is_none_or(|until| *arrived < until))
            .map(|(arrived, committed)| arrived.saturating_duration_since(committed))
            .collect()
    }
}

/// Where things stand.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub orders: usize,
    pub committed: usize,
    pub delivered: usize,
    pub duplicates: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    pub p50: Duration,
    pub p99: Duration,
}

impl Latency {
    fn of(mut samples: Vec<Duration>) -> Option<Self> {
        samples.sort_unstable();
        let at = |percent: usize| samples.get((samples.len() * percent / 100).min(samples.len().checked_sub(1)?));
        Some(Latency {
            p50: *at(50)?,
            p99: *at(99)?,
        })
    }
}

/// How it ended.
#[derive(Clone, Debug)]
pub struct Tally {
    pub orders_committed: usize,
    pub orders_rolled_back: usize,
    pub committed: usize,
    pub delivered: usize,
    pub missing: usize,
    pub phantom: usize,
    pub duplicates: usize,
    pub duplicates_flagged: usize,
    pub order_violations: usize,
    pub killed: bool,
    pub messages_per_second: f64,
    pub latency: Option<Latency>,
    pub latency_before_kill: Option<Latency>,
}

impl Tally {
    /// Every promise that did not hold.
    pub fn broken(&self) -> Vec<String> {
        let unflagged = self.duplicates - self.duplicates_flagged;
        [
            (self.missing, "committed but missing"),
            (self.phantom, "delivered but never committed"),
            (self.order_violations, "out of order"),
            (unflagged, "repeated without a flag"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(key: u32, sequence: u32) -> Id {
        Id { key, sequence }
    }

    /// Three messages of one key in two orders; a third order was rolled back and used up number 3.
    fn written() -> (Ledger, Instant) {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.committed(&[id(7, 1), id(7, 2)], now);
        ledger.rolled_back();
        ledger.committed(&[id(7, 4)], now);
        (ledger, now)
    }

    fn broken_after(arrivals: &[(Id, bool)]) -> Vec<String> {
        let (mut ledger, now) = written();
        for (id, flagged) in arrivals {
            ledger.arrived(*id, *flagged, now);
        }
        ledger.tally().broken()
    }

    #[test]
    fn a_faultless_history_breaks_nothing() {
        let arrivals = [(id(7, 1), false), (id(7, 2), false), (id(7, 4), false)];
        assert!(broken_after(&arrivals).is_empty());
    }

    #[test]
    fn a_message_that_never_came_is_missing() {
        let arrivals = [(id(7, 1), false), (id(7, 2), false)];
        assert_eq!(broken_after(&arrivals), ["1 committed but missing"]);
    }

    #[test]
    fn a_rolled_back_message_that_came_is_a_phantom() {
        let arrivals = [1, 2, 3, 4].map(|n| (id(7, n), false));
        assert_eq!(broken_after(&arrivals), ["1 delivered but never committed"]);
    }

    #[test]
    fn a_message_nobody_wrote_is_a_phantom() {
        let mut ledger = Ledger::default();
        ledger.stranger();
        assert_eq!(ledger.tally().broken(), ["1 delivered but never committed"]);
    }

    #[test]
    fn a_message_behind_a_newer_one_of_its_key_is_out_of_order() {
        let arrivals = [(id(7, 2), false), (id(7, 1), false), (id(7, 4), false)];
        assert_eq!(broken_after(&arrivals), ["1 out of order"]);
    }

    #[test]
    fn keys_do_not_wait_for_each_other() {
        let (mut ledger, now) = written();
        ledger.committed(&[id(8, 1)], now);
        for id in [id(7, 1), id(7, 2), id(7, 4), id(8, 1)] {
            ledger.arrived(id, false, now);
        }
        assert!(ledger.tally().broken().is_empty());
    }

    #[test]
    fn a_repeat_may_come_late_but_not_without_its_flag() {
        let once = [(id(7, 1), false), (id(7, 2), false), (id(7, 4), false)];
        let flagged = [&once[..], &[(id(7, 1), true)]].concat();
        assert!(broken_after(&flagged).is_empty());
        let unflagged = [&once[..], &[(id(7, 1), false)]].concat();
        assert_eq!(broken_after(&unflagged), ["1 repeated without a flag"]);
    }

    #[test]
    fn a_message_may_arrive_before_its_writer_hears_of_the_commit() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.arrived(id(1, 1), false, now);
        ledger.committed(&[id(1, 1)], now + Duration::from_millis(1));
        let tally = ledger.tally();
        assert!(tally.broken().is_empty());
        assert_eq!(tally.latency.map(|latency| latency.p50), Some(Duration::ZERO));
    }

    #[test]
    fn latency_before_the_kill_leaves_out_what_waited_for_the_lease() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        let ms = Duration::from_millis;
        ledger.committed(&[id(1, 1)], now);
        ledger.arrived(id(1, 1), false, now + ms(5));
        ledger.committed(&[id(1, 2)], now + ms(6));
        ledger.killed(now + ms(10));
        ledger.arrived(id(1, 2), false, now + ms(5006));
        let tally = ledger.tally();
        assert_eq!(tally.latency.map(|latency| latency.p99), Some(ms(5000)));
        assert_eq!(tally.latency_before_kill.map(|latency| latency.p99), Some(ms(5)));
    }
}
