//! When to look again: one cheap look for the whole process, more often the more recently something was there.
//!
//! Polling, not notification: a notifying commit takes a lock shared by the whole database, and a lost notification
//! would need the poll anyway. The wait is an eighth of the silence so far, so that a row after a pause of one second
//! waits at most 125 ms, and an idle daemon asks once per `poll_interval_max`.
//!
//! Nobody does this alone: a task that has nothing else to do keeps watch, one at a time, and relays itself what it finds.

use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::sleep_until;

use crate::jitter::jittered;

/// The shortest wait between two looks. With less, steady commits are found in ever smaller batches, and each batch costs
/// PostgreSQL a look and a mark.
const POLL_MIN: Duration = Duration::from_micros(4500);
/// After a look that was cut short every lane is claimed from: not every few milliseconds.
const AFTER_OVERFLOW: Duration = Duration::from_millis(20);

/// The wait after a silence of this length.
pub fn delay(silence: Duration, poll_max: Duration) -> Duration {
    (silence / 8).max(POLL_MIN).min(poll_max)
}

/// What came of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollResult {
    Empty,
    Found,
    /// More than a look takes in.
    Overflow,
    Failed,
}

#[derive(Debug)]
struct Timing {
    due: Instant,
    last_found: Instant,
    failures: u32,
}

/// The watch of one process.
#[derive(Debug)]
pub struct PollSchedule {
    poll_max: Duration,
    timing: Mutex<Timing>,
}

/// The right to take the next look.
#[derive(Debug)]
pub struct PollSlot<'a> {
    poll_max: Duration,
    timing: MutexGuard<'a, Timing>,
}

impl PollSchedule {
    pub fn new(poll_max: Duration) -> Self {
        let now = Instant::now();
        let timing = Timing {
            due: now,
            last_found: now,
            failures: 0,
        };
        PollSchedule {
            poll_max,
            timing: Mutex::new(timing),
        }
    }

    /// The next look, if it is time for it and nobody is at it.
    pub fn due(&self) -> Option<PollSlot<'_>> {
        let timing = self
            .timing
            .try_lock()
            .ok()
            .filter(|timing| timing.due <= Instant::now())?;
        Some(self.slot_of(timing))
    }

    /// Waits until it is time for the next look, and nobody else is at it.
    pub async fn slot(&self) -> PollSlot<'_> {
        let timing = self.timing.lock().await;
        sleep_until(timing.due.into()).await;
        self.slot_of(timing)
    }

    fn slot_of<'a>(&self, timing: MutexGuard<'a, Timing>) -> PollSlot<'a> {
        PollSlot {
            poll_max: self.poll_max,
            timing,
        }
    }
}

impl PollSlot<'_> {
    /// Is this the first look that fails?
    pub fn is_first_failure(&self) -> bool {
        self.timing.failures == 0
    }

    /// The look is over; the next is somebody else's.
    pub fn over(mut self, look: PollResult) {
        let now = Instant::now();
        if matches!(look, PollResult::Found | PollResult::Overflow) {
            self.timing.last_found = now;
        }
        self.timing.failures = if look == PollResult::Failed {
            self.timing.failures + 1
        } else {
            0
        };
        let wait = delay(now - self.timing.last_found, self.poll_max);
        self.timing.due = now
            + match look {
                PollResult::Empty | PollResult::Found => wait,
                PollResult::Overflow => wait.max(AFTER_OVERFLOW),
                PollResult::Failed => jittered(wait.max(Duration::from_millis(100) * self.timing.failures.min(20))),
            };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_the_silence_the_longer_the_wait_within_bounds() {
        let most = Duration::from_secs(1);
        assert_eq!(delay(Duration::ZERO, most), POLL_MIN);
        assert_eq!(delay(Duration::from_secs(1), most), Duration::from_millis(125));
        assert_eq!(delay(Duration::from_secs(3600), most), most);
        let less = Duration::from_millis(1);
        assert_eq!(delay(Duration::ZERO, less), less, "as the operator wants it");
    }

    /// How long after something was last found the next look is due, once this one is over.
    async fn wait_after(schedule: &PollSchedule, look: PollResult) -> Duration {
        schedule.slot().await.over(look);
        let timing = schedule.timing.try_lock().expect("nobody is at it");
        timing.due - timing.last_found
    }

    #[tokio::test]
    async fn one_looks_at_a_time_and_not_before_it_is_time() {
        let schedule = PollSchedule::new(Duration::from_secs(1));
        let slot = schedule.due().expect("the first look is due at once");
        assert!(schedule.due().is_none(), "somebody is at it");
        slot.over(PollResult::Failed);
        assert!(schedule.timing.try_lock().is_ok(), "nobody is at it");
        assert!(schedule.due().is_none(), "it was just looked");
        schedule.slot().await.over(PollResult::Empty);
    }

    #[tokio::test]
    async fn a_blind_look_and_a_failed_one_are_not_repeated_at_once() {
        let schedule = PollSchedule::new(Duration::from_secs(1));
        assert_eq!(wait_after(&schedule, PollResult::Found).await, POLL_MIN);
        assert_eq!(wait_after(&schedule, PollResult::Overflow).await, AFTER_OVERFLOW);
        assert!(wait_after(&schedule, PollResult::Failed).await > AFTER_OVERFLOW);
        assert!(!schedule.slot().await.is_first_failure());
    }
}
