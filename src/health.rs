//! How the process is doing, as the probes of `http` tell it. A leaf.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Loops that must turn. Each does so at least once per statement timeout, even while the database is away.
#[derive(Clone, Copy, Debug)]
pub enum Loop {
    Lease,
    Relay,
}

/// Longer than any turn of a healthy loop.
const STUCK_AFTER: Duration = Duration::from_secs(90);

/// What the probes say.
#[derive(Debug)]
pub struct Health {
    verified: AtomicBool,
    draining: AtomicBool,
    started: Instant,
    /// When each loop last turned, in seconds since the start.
    turned: [AtomicU64; 2],
}

impl Default for Health {
    fn default() -> Self {
        Health {
            verified: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            started: Instant::now(),
            turned: Default::default(),
        }
    }
}

impl Health {
    pub fn turned(&self, which: Loop) {
        self.turned[which as usize].store(self.started.elapsed().as_secs(), Ordering::Relaxed);
    }

    /// Does a loop that should turn stand still?
    pub fn is_stuck(&self) -> bool {
        // Before the schema is verified, and after a stop was asked for, the loops do not run.
        let running = self.is_verified() && !self.is_draining();
        let now = self.started.elapsed().as_secs();
        let silent = |turned: &AtomicU64| now.saturating_sub(turned.load(Ordering::Relaxed)) > STUCK_AFTER.as_secs();
        running && self.turned.iter().any(silent)
    }

    /// The schema is there and ours to use. It stays so while PostgreSQL or Kafka are away: a restart would not help.
    pub fn verified(&self) {
        self.turned(Loop::Lease);
        self.turned(Loop::Relay);
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
