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
const AFTER_BLIND_LOOK: Duration = Duration::from_millis(20);

/// The wait after a silence of this length.
pub fn delay(silence: Duration, poll_max: Duration) -> Duration {
    (silence / 8).max(POLL_MIN).min(poll_max)
}

/// What came of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Nothing,
    Something,
    /// More than a look takes in.
    Blind,
    Failed,
}

#[derive(Debug)]
struct Pace {
    due: Instant,
    last_found: Instant,
    failures: u32,
}

/// The watch of one process.
#[derive(Debug)]
pub struct Watch {
    poll_max: Duration,
    pace: Mutex<Pace>,
}

/// The right to take the next look.
#[derive(Debug)]
pub struct Turn<'a> {
    poll_max: Duration,
    pace: MutexGuard<'a, Pace>,
}

impl Watch {
    pub fn new(poll_max: Duration) -> Self {
        let now = Instant::now();
        let pace = Pace {
            due: now,
            last_found: now,
            failures: 0,
        };
        Watch {
            poll_max,
            pace: Mutex::new(pace),
        }
    }

    /// The next look, if it is time for it and nobody is at it.
    pub fn due(&self) -> Option<Turn<'_>> {
        let pace = self.pace.try_lock().ok().filter(|pace| pace.due <= Instant::now())?;
        Some(self.turn_of(pace))
    }

    /// Waits until it is time for the next look, and nobody else is at it.
    pub async fn turn(&self) -> Turn<'_> {
        let pace = self.pace.lock().await;
        sleep_until(pace.due.into()).await;
        self.turn_of(pace)
    }

    fn turn_of<'a>(&self, pace: MutexGuard<'a, Pace>) -> Turn<'a> {
        Turn {
            poll_max: self.poll_max,
            pace,
        }
    }
}

impl Turn<'_> {
    /// Is this the first look that fails?
    pub fn is_first_failure(&self) -> bool {
        self.pace.failures == 0
    }

    /// The look is over; the next is somebody else's.
    pub fn over(mut self, look: Look) {
        let now = Instant::now();
        if matches!(look, Look::Something | Look::Blind) {
            self.pace.last_found = now;
        }
        self.pace.failures = if look == Look::Failed {
            self.pace.failures + 1
        } else {
            0
        };
        let wait = delay(now - self.pace.last_found, self.poll_max);
        self.pace.due = now
            + match look {
                Look::Nothing | Look::Something => wait,
                Look::Blind => wait.max(AFTER_BLIND_LOOK),
                Look::Failed => jittered(wait.max(Duration::from_millis(100) * self.pace.failures.min(20))),
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
    async fn wait_after(watch: &Watch, look: Look) -> Duration {
        watch.turn().await.over(look);
        let pace = watch.pace.try_lock().expect("nobody is at it");
        pace.due - pace.last_found
    }

    #[tokio::test]
    async fn one_looks_at_a_time_and_not_before_it_is_time() {
        let watch = Watch::new(Duration::from_secs(1));
        let turn = watch.due().expect("the first look is due at once");
        assert!(watch.due().is_none(), "somebody is at it");
        turn.over(Look::Failed);
        assert!(watch.pace.try_lock().is_ok(), "nobody is at it");
        assert!(watch.due().is_none(), "it was just looked");
        watch.turn().await.over(Look::Nothing);
    }

    #[tokio::test]
    async fn a_blind_look_and_a_failed_one_are_not_repeated_at_once() {
        let watch = Watch::new(Duration::from_secs(1));
        assert_eq!(wait_after(&watch, Look::Something).await, POLL_MIN);
        assert_eq!(wait_after(&watch, Look::Blind).await, AFTER_BLIND_LOOK);
        assert!(wait_after(&watch, Look::Failed).await > AFTER_BLIND_LOOK);
        assert!(!watch.turn().await.is_first_failure());
    }
}
