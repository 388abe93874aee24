//! A stopwatch that does not count steal time: a virtual machine whose processors run other machines stands still for seconds, and a
//! bound on time would then measure those.

use std::time::{Duration, Instant};

use crate::cpu_ticks::CpuTicks;

/// However busy the host is, no wait is stretched by more than this factor.
const STRETCH_MAX: f64 = 4.0;

/// Runs since something is waited for.
pub struct Stopwatch {
    began: Instant,
    ticks: CpuTicks,
}

impl Stopwatch {
    pub fn start() -> Self {
        Stopwatch {
            began: Instant::now(),
            ticks: CpuTicks::so_far(),
        }
    }

    /// The time since, by the clock.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// The time since, times the share that this machine got of the processor time it wanted.
    pub fn without_steal(&self) -> Duration {
        self.elapsed().mul_f64(counted(self.ticks.share_got()))
    }
}

fn counted(share: f64) -> f64 {
    share.max(1.0 / STRETCH_MAX)
}

#[test]
fn what_the_host_took_away_stretches_a_wait_within_bounds() {
    assert_eq!(counted(1.0), 1.0);
    assert_eq!(counted(0.75), 0.75);
    assert_eq!(counted(0.01), 0.25);
}
