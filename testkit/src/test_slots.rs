//! Slots for tests. A host that is short of processors leaves this machine only a part of its own, and tests that run side by side
//! would starve each other. So the less processor time the machine gets, the fewer tests run at once.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use crate::cpu_ticks::CpuTicks;

/// A machine that gets so much of its processors has as many tests at once as were asked for.
const NEARLY_ALL: f64 = 0.9;

/// The shortest time over which the machine's share is measured.
const MEASURED_OVER: Duration = Duration::from_secs(5);

static SLOTS: LazyLock<Mutex<Slots>> = LazyLock::new(|| Mutex::new(Slots::new()));

thread_local! {
    /// A test has a thread of its own, and its slot is free again when that ends.
    static SLOT: Slot = Slot::wait_for();
}

/// Waits until this test may begin; at once if it has begun. Only on the test's own thread: another would wait for a slot of its own.
pub fn wait_for_slot() {
    SLOT.with(|_taken| ());
}

struct Slot;

impl Slot {
    fn wait_for() -> Self {
        while !with_slots(Slots::take) {
            std::thread::sleep(Duration::from_millis(100));
        }
        Slot
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        with_slots(|slots| slots.taken -= 1);
    }
}

fn with_slots<T>(change: impl FnOnce(&mut Slots) -> T) -> T {
    change(&mut SLOTS.lock().unwrap_or_else(PoisonError::into_inner))
}

struct Slots {
    taken: usize,
    limit: usize,
    measured_at: Instant,
    ticks: CpuTicks,
}

impl Slots {
    fn new() -> Self {
        Slots {
            taken: 0,
            limit: usize::MAX,
            measured_at: Instant::now(),
            ticks: CpuTicks::so_far(),
        }
    }

    /// Whether there was a free slot.
    fn take(&mut self) -> bool {
        self.measure();
        let free = self.taken < self.limit;
        self.taken += usize::from(free);
        free
    }

    fn measure(&mut self) {
        if self.measured_at.elapsed() >= MEASURED_OVER {
            self.limit = limit(self.ticks.share_got(), threads());
            (self.measured_at, self.ticks) = (Instant::now(), CpuTicks::so_far());
        }
    }
}

fn limit(share: f64, threads: usize) -> usize {
    match share {
        NEARLY_ALL.. => usize::MAX,
        _ => ((share * threads as f64).round() as usize).max(1),
    }
}

/// How many tests there are at once, unless a flag says otherwise.
fn threads() -> usize {
    let asked = std::env::var("RUST_TEST_THREADS")
        .ok()
        .and_then(|threads| threads.parse().ok());
    asked.unwrap_or_else(|| available_parallelism().map_or(1, usize::from))
}

#[test]
fn the_less_the_machine_gets_the_fewer_tests_run_at_once_and_one_always_does() {
    let of_four = [1.0, 0.8, 0.5, 0.3, 0.0].map(|share| limit(share, 4));
    assert_eq!(of_four, [usize::MAX, 3, 2, 1, 1]);
}
