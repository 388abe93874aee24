//! Turns. A host that is short of processors leaves this machine a part of its own, and tests side by side would starve each other
//! there: the less the machine gets, the fewer run at once.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use crate::cpu_ticks::Ticks;

/// A machine that gets so much of its processors has as many tests at once as were asked for.
const NEARLY_ALL: f64 = 0.9;

/// Over how long at least it is looked what it gets.
const WINDOW: Duration = Duration::from_secs(5);

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(|| Mutex::new(Table::new()));

thread_local! {
    /// A test has a thread of its own, and its turn ends with that.
    static TURN: Turn = Turn::wait_for();
}

/// Waits until this test may begin; at once if it has begun. Only on the test's own thread: another would wait for a turn of its own.
pub fn take_turn() {
    TURN.with(|_taken| ());
}

struct Turn;

impl Turn {
    fn wait_for() -> Self {
        while !with_table(Table::seat) {
            std::thread::sleep(Duration::from_millis(100));
        }
        Turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        with_table(|table| table.seated -= 1);
    }
}

fn with_table<T>(change: impl FnOnce(&mut Table) -> T) -> T {
    change(&mut TABLE.lock().unwrap_or_else(PoisonError::into_inner))
}

struct Table {
    seated: usize,
    seats: usize,
    looked: Instant,
    ticks: Ticks,
}

impl Table {
    fn new() -> Self {
        Table {
            seated: 0,
            seats: usize::MAX,
            looked: Instant::now(),
            ticks: Ticks::so_far(),
        }
    }

    /// Whether there was a seat.
    fn seat(&mut self) -> bool {
        self.look();
        let free = self.seated < self.seats;
        self.seated += usize::from(free);
        free
    }

    fn look(&mut self) {
        if self.looked.elapsed() >= WINDOW {
            self.seats = seats(self.ticks.share_got(), threads());
            (self.looked, self.ticks) = (Instant::now(), Ticks::so_far());
        }
    }
}

fn seats(share: f64, threads: usize) -> usize {
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
    let of_four = [1.0, 0.8, 0.5, 0.3, 0.0].map(|share| seats(share, 4));
    assert_eq!(of_four, [usize::MAX, 3, 2, 1, 1]);
}
