//! When to poll: one cheap poll for the whole process, more often the more recently something was found.
//!
//! The relay polls and is not notified, because a commit that notifies takes a lock shared by the whole database, and a lost
//! notification would need the poll anyway. The wait is an eighth of the time since something was found. So a row that comes after
//! a pause of one second waits at most 125 ms, and an idle daemon polls once per `poll_interval_max`.
//!
//! There is no task for polls. One idle task of the relay at a time waits for the next poll, and publishes what it finds itself.

use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::sleep_until;

use crate::jitter::jittered;

/// The shortest wait between two polls. With less, steady commits are found in ever smaller batches, and each batch costs
/// PostgreSQL a poll and a mark.
const POLL_MIN: Duration = Duration::from_micros(4500);
/// The wait after a poll that found too much. Every lane is claimed from then, which must not happen every few milliseconds.
const AFTER_OVERFLOW: Duration = Duration::from_millis(20);

/// The wait if nothing was found for this long.
pub fn delay(silence: Duration, poll_max: Duration) -> Duration {
    (silence / 8).max(POLL_MIN).min(poll_max)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollResult {
    Empty,
    Found,
    /// There are more rows than a poll reads.
    Overflow,
    Failed,
}

#[derive(Debug)]
struct Timing {
    due: Instant,
    last_found: Instant,
    failures: u32,
}

#[derive(Debug)]
pub struct PollSchedule {
    poll_max: Duration,
    timing: Mutex<Timing>,
}

/// The right to do the next poll.
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

    /// The next poll, if it is due and no other task does it.
    pub fn due(&self) -> Option<PollSlot<'_>> {
        let timing = self
            .timing
            .try_lock()
            .ok()
            .filter(|timing| timing.due <= Instant::now())?;
        Some(self.slot_of(timing))
    }

    /// Waits until the next poll is due and no other task does it.
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
    /// Was the last poll answered?
    pub fn is_first_failure(&self) -> bool {
        self.timing.failures == 0
    }

    /// Ends the poll, so that any task can do the next one.
    pub fn done(mut self, result: PollResult) {
        let now = Instant::now();
        if matches!(result, PollResult::Found | PollResult::Overflow) {
            self.timing.last_found = now;
        }
        self.timing.failures = if result == PollResult::Failed {
            self.timing.failures + 1
        } else {
            0
        };
        let wait = delay(now - self.timing.last_found, self.poll_max);
        self.timing.due = now
            + match result {
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

    /// How long after something was last found the next poll is due, once this one is done.
    async fn wait_after(schedule: &PollSchedule, result: PollResult) -> Duration {
        schedule.slot().await.done(result);
        let timing = schedule.timing.try_lock().expect("no task polls");
        timing.due - timing.last_found
    }

    #[tokio::test]
    async fn one_task_polls_at_a_time_and_not_before_it_is_due() {
        let schedule = PollSchedule::new(Duration::from_secs(1));
        let slot = schedule.due().expect("the first poll is due at once");
        assert!(schedule.due().is_none(), "another task polls");
        slot.done(PollResult::Failed);
        assert!(schedule.timing.try_lock().is_ok(), "no task polls");
        assert!(schedule.due().is_none(), "it has just failed");
        schedule.slot().await.done(PollResult::Empty);
    }

    #[tokio::test]
    async fn a_poll_that_overflowed_or_failed_is_not_repeated_at_once() {
        let schedule = PollSchedule::new(Duration::from_secs(1));
        assert_eq!(wait_after(&schedule, PollResult::Found).await, POLL_MIN);
        assert_eq!(wait_after(&schedule, PollResult::Overflow).await, AFTER_OVERFLOW);
        assert!(wait_after(&schedule, PollResult::Failed).await > AFTER_OVERFLOW);
        assert!(!schedule.slot().await.is_first_failure());
    }
}
