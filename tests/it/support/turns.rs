//! Turns. A host that is short of processors leaves this machine a part of its own, and tests side by side would starve each other
//! there: the less the machine gets, the fewer run at once.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::ticks::Ticks;

/// So many tests at once the machine bears, if it gets all its processors.
const AT_ONCE: f64 = 4.0;

/// Over how long it is looked what it gets.
const WINDOW: Duration = Duration::from_secs(5);

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(|| Mutex::new(Table::new()));

thread_local! {
    /// A test has a thread of its own, and its turn ends with that.
    static TURN: Turn = Turn::wait_for();
}

/// Waits until this test may begin; at once if it has begun.
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
            seats: seats(1.0),
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
            self.seats = seats(self.ticks.share_got());
            (self.looked, self.ticks) = (Instant::now(), Ticks::so_far());
        }
    }
}

fn seats(share: f64) -> usize {
    ((share * AT_ONCE).round() as usize).max(1)
}

#[test]
fn the_less_the_machine_gets_the_fewer_tests_run_at_once_and_one_always_does() {
    assert_eq!([1.0, 0.7, 0.5, 0.3, 0.0].map(seats), [4, 3, 2, 1, 1]);
}
