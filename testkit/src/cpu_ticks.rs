//! What the processors of this machine have done, as the kernel counts it.

use std::fs;

/// All of them since the machine started, in the kernel's unit.
#[derive(Clone, Copy)]
pub struct CpuTicks {
    run: f64,
    /// The host of a virtual machine ran others meanwhile.
    stolen: f64,
}

impl CpuTicks {
    pub fn so_far() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let all: Vec<f64> = stat
            .split_whitespace()
            .skip(1)
            .map_while(|ticks| ticks.parse().ok())
            .collect();
        let sum = |places: &[usize]| places.iter().filter_map(|place| all.get(*place)).sum();
        CpuTicks {
            // user, nice, system, irq, softirq; idle and iowait lie between.
            run: sum(&[0, 1, 2, 5, 6]),
            stolen: sum(&[7]),
        }
    }

    /// The share that this machine has got since then of the processor time it wanted.
    pub fn share_got(self) -> f64 {
        let now = CpuTicks::so_far();
        share(now.run - self.run, now.stolen - self.stolen)
    }
}

fn share(run: f64, stolen: f64) -> f64 {
    if stolen > 0.0 { run / (run + stolen) } else { 1.0 }
}

#[test]
fn what_the_host_took_away_is_missing_from_what_was_got() {
    assert_eq!(share(0.0, 0.0), 1.0);
    assert_eq!(share(80.0, 0.0), 1.0);
    assert_eq!(share(60.0, 20.0), 0.75);
    assert!(CpuTicks::so_far().run > 0.0, "the kernel tells");
}
