//! A moment of the clock for leases.

use std::ops::Add;
use std::time::Duration;

/// A moment on the boot clock, which also counts while the machine is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(Duration);

impl BootInstant {
    pub fn since_boot(elapsed: Duration) -> Self {
        BootInstant(elapsed)
    }

    /// The time from `earlier` to this moment, or zero if this one came first.
    pub fn saturating_since(self, earlier: BootInstant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

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
        assert_eq!(then + Duration::MAX, BootInstant(Duration::MAX), "far enough");
    }
}
