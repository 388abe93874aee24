//! The clock for leases, CLOCK_BOOTTIME. `Instant` stops while a virtual machine is suspended, so a worker that is resumed would
//! rely on a lease that ended long ago.

use std::time::Duration;

use crate::domain::boot_instant::BootInstant;

#[cfg(target_os = "linux")]
const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;
/// Other systems are for development only, where the monotonic clock is good enough.
#[cfg(not(target_os = "linux"))]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

pub fn now() -> BootInstant {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours, which the call fills.
    let failed = unsafe { libc::clock_gettime(CLOCK, &mut now) };
    assert_eq!(failed, 0, "the system has no boot clock");
    BootInstant::since_boot(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
}

/// The time until this moment, or zero if it has passed.
pub fn left(until: BootInstant) -> Duration {
    until.saturating_since(now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes() {
        let (before, hour) = (now(), Duration::from_secs(3600));
        assert!(before > BootInstant::since_boot(Duration::ZERO) && now() >= before);
        assert!(left(before + hour) > Duration::ZERO && left(before + hour) <= hour);
        assert_eq!(left(before), Duration::ZERO);
    }
}
