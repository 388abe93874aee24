//! Waiting that does not count what the host took away: a virtual machine whose processors run other machines stands still for
//! seconds, and a bound on time would then judge the neighbours.

use std::fs;
use std::time::{Duration, Instant};

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
        let now = Ticks::so_far();
        let (run, stolen) = (now.run - self.ticks.run, now.stolen - self.ticks.stolen);
        self.elapsed().mul_f64(share(run, stolen))
    }
}

fn share(run: f64, stolen: f64) -> f64 {
    let share = if stolen > 0.0 { run / (run + stolen) } else { 1.0 };
    share.max(1.0 / STRETCH_MOST)
}

/// What all processors have done since the machine started, in the kernel's unit.
struct Ticks {
    run: f64,
    stolen: f64,
}

impl Ticks {
    fn so_far() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let all: Vec<f64> = stat
            .split_whitespace()
            .skip(1)
            .map_while(|ticks| ticks.parse().ok())
            .collect();
        let sum = |places: &[usize]| places.iter().filter_map(|place| all.get(*place)).sum();
        Ticks {
            // user, nice, system, irq, softirq; idle and iowait lie between.
            run: sum(&[0, 1, 2, 5, 6]),
            stolen: sum(&[7]),
        }
    }
}

#[test]
fn what_the_host_took_away_stretches_a_wait_within_bounds() {
    assert_eq!(share(0.0, 0.0), 1.0);
    assert_eq!(share(80.0, 0.0), 1.0);
    assert_eq!(share(60.0, 20.0), 0.75);
    assert_eq!(share(1.0, 99.0), 0.25);
    assert!(Ticks::so_far().run > 0.0, "the kernel tells");
}
