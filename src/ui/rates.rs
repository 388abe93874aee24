//! How fast something grows, over the last ten minutes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How far back it is remembered.
pub const SPAN: Duration = Duration::from_secs(600);
/// Into how many parts the span is divided.
pub const COLUMNS: u32 = 120;
/// Counts that are further apart say nothing about the time between them.
const GAP_MAX: Duration = Duration::from_secs(30);
/// The present, for [`Counts::current`].
const RECENT: Duration = Duration::from_secs(10);

/// A count that grows, at several times.
#[derive(Clone, Debug, Default)]
pub struct Counts(VecDeque<(Instant, u64)>);

impl Counts {
    pub fn push(&mut self, at: Instant, count: u64) {
        // It was counted anew, so the earlier counts are of something else.
        if self.0.back().is_some_and(|(_, last)| count < *last) {
            self.0.clear();
        }
        self.0.push_back((at, count));
        let is_over = |second: &(Instant, u64)| at.saturating_duration_since(second.0) >= SPAN;
        while self.0.get(1).is_some_and(is_over) {
            self.0.pop_front();
        }
    }

    /// The growth a second in each part of the span that ends `now`, the oldest first. `None` where it is not known.
    pub fn rates(&self, now: Instant) -> Vec<Option<f64>> {
        let column = SPAN / COLUMNS;
        let rate = |number: u32| {
            let end = now.checked_sub(column * (COLUMNS - 1 - number))?;
            let growth = self.at(end)? - self.at(end.checked_sub(column)?)?;
            Some(growth / column.as_secs_f64())
        };
        (0..COLUMNS).map(rate).collect()
    }

    /// The growth a second of late.
    pub fn current(&self) -> Option<f64> {
        let (last, count) = *self.0.back()?;
        let is_recent = |point: &&(Instant, u64)| last.saturating_duration_since(point.0) <= RECENT;
        let (first, earlier) = *self.0.iter().rev().take_while(is_recent).last()?;
        let seconds = last.saturating_duration_since(first).as_secs_f64();
        (seconds > 1.0).then(|| (count - earlier) as f64 / seconds)
    }

    /// When it was counted last.
    pub fn last(&self) -> Option<Instant> {
        self.0.back().map(|(at, _)| *at)
    }

    /// The count at a time, on a line between the counts before and after it.
    fn at(&self, time: Instant) -> Option<f64> {
        let after = self.0.partition_point(|(at, _)| *at < time);
        let (to, high) = *self.0.get(after)?;
        if to == time {
            return Some(high as f64);
        }
        let (from, low) = *self.0.get(after.checked_sub(1)?)?;
        let gap = to.saturating_duration_since(from);
        let share = time.saturating_duration_since(from).as_secs_f64() / gap.as_secs_f64();
        (gap <= GAP_MAX).then(|| low as f64 + share * (high - low) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_steady_growth_is_the_same_in_each_column_that_is_known() {
        let (mut counts, began) = (Counts::default(), Instant::now());
        for step in 0..=50u32 {
            counts.push(began + SECOND * 2 * step, u64::from(step) * 200);
        }
        let rates = counts.rates(began + SECOND * 100);
        assert_eq!(rates.len(), COLUMNS as usize);
        let known: Vec<f64> = rates.iter().flatten().copied().collect();
        assert_eq!(known.len(), 20, "a hundred seconds");
        assert!(known.iter().all(|rate| (rate - 100.0).abs() < 0.001), "{known:?}");
        assert_eq!(rates[..100], [None; 100]);
        assert_eq!(counts.current(), Some(100.0));
    }

    #[test]
    fn what_lies_between_distant_counts_is_not_known() {
        let (mut counts, began) = (Counts::default(), Instant::now());
        for (at, count) in [(0, 0), (5, 50), (100, 1_000), (105, 1_050)] {
            counts.push(began + SECOND * at, count);
        }
        let rates = counts.rates(began + SECOND * 105);
        assert_eq!(rates.iter().flatten().count(), 2);
        assert_eq!(counts.current(), Some(10.0));
    }

    #[test]
    fn a_count_that_falls_begins_anew_and_old_counts_are_forgotten() {
        let (mut counts, began) = (Counts::default(), Instant::now());
        counts.push(began, 1_000);
        counts.push(began + SECOND, 3);
        assert_eq!((counts.0.len(), counts.current()), (1, None));
        for step in 1..2_000u32 {
            counts.push(began + SECOND * (1 + step), 3);
        }
        assert!(counts.0.len() <= 602, "{}", counts.0.len());
        assert_eq!(counts.current(), Some(0.0));
    }
}
