//! Waiting that does not count what the host took away: a virtual machine whose processors run other machines stands still for
//! seconds, and a bound on time would then judge the neighbours.

use std::time::{Duration, Instant};

use crate::cpu_ticks::Ticks;

/// However busy the host is, nobody waits for more than so many times as long.
const STRETCH_MOST: f64 = 4.0;

/// Since when something is waited for.
pub struct Patience {
    began: Instant,
    ticks: Ticks,
}

impl Patience {
    pub fn begin() -> Self {
        Patience {
            began: Instant::now(),
            ticks: Ticks::so_far(),
        }
    }

    /// By the clock.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// The time since, times the share that this machine got of the processor time it wanted.
    pub fn spent(&self) -> Duration {
        self.elapsed().mul_f64(counted(self.ticks.share_got()))
    }
}

fn counted(share: f64) -> f64 {
    share.max(1.0 / STRETCH_MOST)
}

#[test]
fn what_the_host_took_away_stretches_a_wait_within_bounds() {
    assert_eq!(counted(1.0), 1.0);
    assert_eq!(counted(0.75), 0.75);
    assert_eq!(counted(0.01), 0.25);
}
