//! When Kafka last acknowledged a record, to any producer of this process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub struct LastAck {
    started: Instant,
    /// In milliseconds since `started`, plus one. 0 means never.
    at: AtomicU64,
}

impl LastAck {
    pub fn new() -> Self {
        LastAck {
            started: Instant::now(),
            at: AtomicU64::new(0),
        }
    }

    pub fn note(&self) {
        let now = self.started.elapsed().as_millis() as u64 + 1;
        self.at.fetch_max(now, Ordering::Relaxed);
    }

    pub fn is_since(&self, then: Instant) -> bool {
        let last = self.at.load(Ordering::Relaxed);
        last > 0 && self.started + Duration::from_millis(last - 1) >= then
    }
}
