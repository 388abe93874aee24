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
/// The wait after a poll that found too much. Every lane is claimed from then, which must not happen every few milliseconds. It may
/// have been too many rows of other processes, so this is no sign that something was found here.
const AFTER_OVERFLOW_MIN: Duration = Duration::from_millis(20);
const AFTER_OVERFLOW_MAX: Duration = Duration::from_millis(100);

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

impl PollResult {
    /// How long to wait after this result, if the usual wait is this long.
    fn next_wait(self, usual: Duration, failures: u32) -> Duration {
        match self {
            PollResult::Empty | PollResult::Found => usual,
            PollResult::Overflow => usual.clamp(AFTER_OVERFLOW_MIN, AFTER_OVERFLOW_MAX),
            PollResult::Failed => jittered(usual.max(Duration::from_millis(100) * failures.min(20))),
        }
    }
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
        if result == PollResult::Found {
            self.timing.last_found = now;
        }
        self.timing.failures = if result == PollResult::Failed {
            self.timing.failures + 1
        } else {
            0
        };
        let wait = delay(now - self.timing.last_found, self.poll_max);
        self.timing.due = now + result.next_wait(wait, self.timing.failures);
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

    #[test]
    fn a_poll_that_overflowed_or_failed_is_repeated_neither_at_once_nor_late() {
        let (short, long) = (POLL_MIN, Duration::from_secs(1));
        assert_eq!(PollResult::Found.next_wait(short, 0), short);
        assert_eq!(PollResult::Overflow.next_wait(short, 0), AFTER_OVERFLOW_MIN);
        assert_eq!(PollResult::Overflow.next_wait(long, 0), AFTER_OVERFLOW_MAX);
        assert!(PollResult::Failed.next_wait(short, 1) > AFTER_OVERFLOW_MIN);
    }

    #[tokio::test]
    async fn rows_of_other_processes_do_not_make_polls_more_frequent() {
        let schedule = PollSchedule::new(Duration::from_secs(1));
        let last_found = schedule.timing.try_lock().expect("no task polls").last_found;
        schedule.slot().await.done(PollResult::Overflow);
        assert_eq!(
            schedule.timing.try_lock().expect("no task polls").last_found,
            last_found
        );
        schedule.slot().await.done(PollResult::Failed);
        assert!(!schedule.slot().await.is_first_failure());
    }
}
