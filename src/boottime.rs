//! The clock for leases, CLOCK_BOOTTIME. `Instant` stops while a virtual machine is suspended, so a worker that is resumed would
//! rely on a lease that ended long ago.

use std::ops::Add;
use std::time::Duration;

/// A moment on the boot clock, which also counts while the machine is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(Duration);

impl BootInstant {
    pub fn now() -> Self {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a timespec of ours, which the call fills.
        let failed = unsafe { libc::clock_gettime(CLOCK, &mut now) };
        assert_eq!(failed, 0, "the system has no boot clock");
        BootInstant(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
    }

    /// The time from `earlier` to this moment, or zero if this one came first.
    pub fn saturating_since(self, earlier: BootInstant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The time until this moment, or zero if it has passed.
    pub fn left(self) -> Duration {
        self.saturating_since(BootInstant::now())
    }

    pub fn elapsed(self) -> Duration {
        BootInstant::now().saturating_since(self)
    }
}

#[cfg(target_os = "linux")]
const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;
/// Other systems are for development only, where the monotonic clock is good enough.
#[cfg(not(target_os = "linux"))]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

impl Add<Duration> for BootInstant {
    type Output = BootInstant;

    fn add(self, duration: Duration) -> BootInstant {
        BootInstant(self.0.saturating_add(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_ordered_and_differ_by_what_was_added() {
        let (then, second) = (BootInstant(Duration::from_secs(7)), Duration::from_secs(1));
        assert!(then < then + second);
        assert_eq!((then + second).saturating_since(then), second);
        assert_eq!(then.saturating_since(then + second), Duration::ZERO);
        assert_eq!(
            then + Duration::MAX,
            BootInstant(Duration::MAX),
            "an addition never overflows"
        );
    }

    #[test]
    fn time_passes() {
        let (before, hour) = (BootInstant::now(), Duration::from_secs(3600));
        assert!(before > BootInstant(Duration::ZERO) && BootInstant::now() >= before);
        let left = (before + hour).left();
        assert!(left > Duration::ZERO && left <= hour);
        assert_eq!(before.left(), Duration::ZERO);
        assert!(before.elapsed() < hour);
    }
}
