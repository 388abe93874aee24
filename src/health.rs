//! The health of the process, which `http` reports.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The loops that are watched. Each begins a round at least once per statement timeout, even while the database is down.
#[derive(Clone, Copy, Debug)]
pub enum Loop {
    Lease,
    Relay,
}

/// This is longer than any round of a healthy loop.
const STUCK_AFTER: Duration = Duration::from_secs(90);

/// What the probes report.
#[derive(Debug)]
pub struct Health {
    verified: AtomicBool,
    draining: AtomicBool,
    started: Instant,
    /// When each loop last began a round, in seconds since the start.
    heartbeats: [AtomicU64; 2],
}

impl Default for Health {
    fn default() -> Self {
        Health {
            verified: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            started: Instant::now(),
            heartbeats: Default::default(),
        }
    }
}

impl Health {
    /// Notes that the loop begins a round.
    pub fn heartbeat(&self, which: Loop) {
        self.heartbeats[which as usize].store(self.started.elapsed().as_secs(), Ordering::Relaxed);
    }

    /// Has a loop that should be running not begun a round for too long?
    pub fn is_stuck(&self) -> bool {
        // The loops do not run before the schema is verified, nor after a stop was requested.
        let running = self.is_verified() && !self.is_draining();
        let now = self.started.elapsed().as_secs();
        let is_late = |last: &AtomicU64| now.saturating_sub(last.load(Ordering::Relaxed)) > STUCK_AFTER.as_secs();
        running && self.heartbeats.iter().any(is_late)
    }

    /// Notes that the schema exists and may be used. This stays true while PostgreSQL or Kafka are down, since a restart would
    /// not help.
    pub fn verified(&self) {
        self.heartbeat(Loop::Lease);
        self.heartbeat(Loop::Relay);
        self.verified.store(true, Ordering::Relaxed);
    }

    pub fn draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub fn is_verified(&self) -> bool {
        self.verified.load(Ordering::Relaxed)
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}
