//! How much goes into one batch: as much as memory allows, and as the connection to Kafka carries within the batch deadline. A
//! batch that is too large for its deadline would be cancelled half-way, sent again, and cancelled again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The assumed size of a row until some have been sent.
const ROW_BYTES_GUESS: usize = 1000;
/// A batch of this size is never too large.
const BYTES_MIN: usize = 16 << 10;

#[derive(Debug)]
pub struct BatchBudget {
    /// As much as memory allows.
    bytes_max: usize,
    /// As much as the connection seems to carry.
    bytes: AtomicUsize,
    /// The average size of the last rows.
    row_bytes: AtomicUsize,
}

impl BatchBudget {
    pub fn new(bytes_max: usize) -> Self {
        BatchBudget {
            bytes_max,
            bytes: AtomicUsize::new(bytes_max),
            row_bytes: AtomicUsize::new(ROW_BYTES_GUESS),
        }
    }

    /// The most bytes of one batch.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many rows fit, if they are as large as the last ones.
    pub fn rows(&self) -> usize {
        (self.bytes() / self.row_bytes.load(Ordering::Relaxed).max(1)).max(1)
    }

    /// Notes the size of a batch that is about to be sent.
    pub fn weigh(&self, rows: usize, bytes: usize) {
        let average = (3 * self.row_bytes.load(Ordering::Relaxed) + bytes / rows) / 4;
        self.row_bytes.store(average, Ordering::Relaxed);
    }

    /// Notes how long a batch took. If it was late, the next one is much smaller, because every attempt costs a deadline. If it
    /// took less than half of the deadline, the next one may be twice as large.
    pub fn sent(&self, bytes: usize, took: Duration, deadline: Duration) {
        let now = self.bytes();
        let next = if took >= deadline {
            (bytes / 4).clamp(BYTES_MIN.min(now), now)
        } else if took < deadline / 2 && bytes > now / 4 {
            (now * 2).min(self.bytes_max)
        } else {
            now
        };
        self.bytes.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(4);

    #[test]
    fn it_converges_on_what_a_slow_connection_carries_within_the_deadline() {
        let budget = BatchBudget::new(8 << 20);
        let mut late = 0;
        for _ in 0..20 {
            let bytes = budget.bytes();
            let took = Duration::from_secs_f64(bytes as f64 / 100_000.0);
            late += u32::from(took >= DEADLINE);
            budget.sent(bytes, took.min(DEADLINE), DEADLINE);
        }
        assert_eq!(late, 3, "after three late batches none is late again");
        assert!(
            budget.bytes() > 100_000,
            "not less than the connection carries: {}",
            budget.bytes()
        );
    }

    #[test]
    fn it_forgets_an_outage_and_stays_within_memory() {
        let budget = BatchBudget::new(1 << 20);
        for _ in 0..10 {
            budget.sent(budget.bytes(), DEADLINE, DEADLINE);
        }
        assert_eq!(budget.bytes(), BYTES_MIN);
        for _ in 0..10 {
            budget.sent(budget.bytes(), Duration::ZERO, DEADLINE);
        }
        assert_eq!(budget.bytes(), 1 << 20);
    }

    #[test]
    fn a_batch_has_as_many_rows_as_fit_by_the_weight_of_the_last_ones() {
        let budget = BatchBudget::new(100_000);
        assert_eq!(budget.rows(), 100, "by a guess");
        budget.weigh(10, 50_000);
        assert_eq!(budget.rows(), 50, "rows of 5,000 bytes count for a quarter");
        assert_eq!(BatchBudget::new(10).rows(), 1, "one row goes whatever it weighs");
        (0..100).for_each(|_| budget.weigh(1, 0));
        assert_eq!(budget.rows(), 100_000, "a byte each at the least");
    }

    #[test]
    fn it_changes_only_by_what_a_batch_tells() {
        let after = |bytes, took| {
            let budget = BatchBudget::new(8 << 20);
            budget.sent(4 << 20, DEADLINE, DEADLINE);
            assert_eq!(budget.bytes(), 1 << 20, "late: a quarter of what was sent");
            budget.sent(bytes, took, DEADLINE);
            budget.bytes()
        };
        let just_in_half = DEADLINE / 2 - Duration::from_millis(1);
        assert_eq!(after(1 << 20, just_in_half), 2 << 20);
        assert_eq!(after(1 << 20, DEADLINE / 2), 1 << 20);
        assert_eq!(after(1 << 20, DEADLINE - Duration::from_millis(1)), 1 << 20);
        assert_eq!(after((1 << 18) + 1, Duration::ZERO), 2 << 20);
        assert_eq!(after(1 << 18, Duration::ZERO), 1 << 20, "a small batch is always quick");
    }
}
