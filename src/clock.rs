//! The database's clock, extrapolated by the monotonic clock of this machine. Ages and record timestamps are taken from it.
//!
//! A worker's own wall clock may be hours off. Kafka refuses records from the future, and deletes those older than the
//! topic's retention as soon as it has acknowledged them.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(Debug)]
pub struct Clock {
    started: Instant,
    /// The database's time when this process started, in microseconds since 1970. Until it is known, the time of this machine.
    started_us: AtomicI64,
}

impl Default for Clock {
    fn default() -> Self {
        Clock {
            started: Instant::now(),
            started_us: AtomicI64::new(micros(SystemTime::now())),
        }
    }
}

impl Clock {
    /// Notes the database's time, which was read just now.
    pub fn set(&self, now: SystemTime) {
        let elapsed = self.started.elapsed().as_micros() as i64;
        self.started_us.store(micros(now) - elapsed, Ordering::Relaxed);
    }

    pub fn now(&self) -> SystemTime {
        let started = Duration::from_micros(self.started_us.load(Ordering::Relaxed).unsigned_abs());
        UNIX_EPOCH + started + self.started.elapsed()
    }

    /// The time as Kafka counts it, in milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        micros(self.now()) / 1000
    }

    /// The age of something that has a timestamp of the database.
    pub fn age(&self, timestamp: SystemTime) -> Duration {
        self.now().duration_since(timestamp).unwrap_or_default()
    }
}

fn micros(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_follows_the_database_and_not_this_machine() {
        let clock = Clock::default();
        // PostgreSQL knows microseconds. A finer time would be cut, and the clock would begin before it.
        let this_machine = UNIX_EPOCH + Duration::from_micros(micros(SystemTime::now()).unsigned_abs());
        let database = this_machine - Duration::from_secs(7200);
        clock.set(database);
        let drift = clock.now().duration_since(database).expect("it continues");
        assert!(drift < Duration::from_secs(60), "{drift:?}");
        assert!(clock.age(database - Duration::from_secs(100)) >= Duration::from_secs(100));
    }
}
