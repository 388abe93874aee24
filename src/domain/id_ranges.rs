//! Ids of rows that may have been sent before, as ranges. They are small however many ids there are, and include few others.

/// Most ranges of a lane that are stored.
const STORED_MAX: usize = 32;

/// Ranges of ids, including the first and the last of each. They are sorted, and neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdRanges(Vec<(i64, i64)>);

impl IdRanges {
    /// Reads the format in which they are stored: first, last, first, last.
    pub fn from_flat(flat: &[i64]) -> Self {
        let mut ranges = IdRanges::default();
        for pair in flat.chunks_exact(2) {
            ranges.insert(pair[0], pair[1]);
        }
        ranges
    }

    pub fn to_flat(&self) -> Vec<i64> {
        self.0.iter().flat_map(|(first, last)| [*first, *last]).collect()
    }

    pub fn of_ids(ids: impl IntoIterator<Item = i64>) -> Self {
        let mut ids: Vec<i64> = ids.into_iter().collect();
        ids.sort_unstable();
        let mut ranges = IdRanges::default();
        ids.into_iter().for_each(|id| ranges.insert(id, id));
        ranges
    }

    /// Adds a range, and merges it with ranges that it overlaps or touches.
    pub fn insert(&mut self, first: i64, last: i64) {
        let from = self.0.partition_point(|range| range.1.saturating_add(1) < first);
        let to = self.0.partition_point(|range| range.0 <= last.saturating_add(1));
        let (mut first, mut last) = (first, last);
        if let Some(merged) = self.0.get(from..to).filter(|merged| !merged.is_empty()) {
            first = first.min(merged[0].0);
            last = last.max(merged[merged.len() - 1].1);
        }
        self.0.splice(from..to.max(from), [(first, last)]);
    }

    pub fn extend(&mut self, others: &IdRanges) {
        others.0.iter().for_each(|(first, last)| self.insert(*first, *last));
    }

    /// Reduces them to at most `max` ranges, by merging those with the smallest gaps.
    pub fn capped(mut self, max: usize) -> Self {
        while self.0.len() > max.max(1) {
            let gaps = self.0.windows(2).map(|pair| pair[1].0 - pair[0].1).enumerate();
            let Some((index, _)) = gaps.min_by_key(|(_, gap)| *gap) else {
                break;
            };
            let (_, last) = self.0.remove(index + 1);
            self.0[index].1 = last;
        }
        self
    }

    /// The format in which the ranges of a lane are stored. There are few of them, so they may include more ids.
    pub fn to_stored(&self) -> Vec<i64> {
        self.clone().capped(STORED_MAX).to_flat()
    }

    pub fn contains(&self, id: i64) -> bool {
        let index = self.0.partition_point(|range| range.1 < id);
        self.0.get(index).is_some_and(|range| range.0 <= id)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn iter(&self) -> impl Iterator<Item = (i64, i64)> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn flat(ranges: &[(i64, i64)]) -> Vec<i64> {
        let mut all = IdRanges::default();
        ranges.iter().for_each(|(first, last)| all.insert(*first, *last));
        all.to_flat()
    }

    #[test]
    fn ranges_that_overlap_or_touch_are_merged() {
        assert_eq!(flat(&[(5, 6), (1, 2)]), [1, 2, 5, 6]);
        assert_eq!(flat(&[(1, 2), (3, 4)]), [1, 4], "they touch");
        assert_eq!(flat(&[(1, 2), (8, 9), (2, 8)]), [1, 9]);
        assert_eq!(flat(&[(1, 9), (3, 4)]), [1, 9]);
        assert_eq!(flat(&[(1, i64::MAX), (3, 4)]), [1, i64::MAX]);
    }

    #[test]
    fn a_cap_merges_the_ranges_with_the_smallest_gaps() {
        let ranges = IdRanges::of_ids([100, 1, 3, 50, 103]);
        assert_eq!(ranges.clone().capped(5), ranges);
        assert_eq!(ranges.clone().capped(3).to_flat(), [1, 3, 50, 50, 100, 103]);
        assert_eq!(ranges.clone().capped(2).to_flat(), [1, 50, 100, 103]);
        assert_eq!(ranges.capped(0).to_flat(), [1, 103]);
    }

    proptest! {
        #[test]
        fn ranges_contain_exactly_what_was_inserted_and_a_cap_loses_nothing(
            inserted in prop::collection::vec((0..60i64, 0..6i64), 0..20), max in 1..5usize,
        ) {
            let mut ranges = IdRanges::default();
            let mut ids = BTreeSet::new();
            for (first, more) in inserted {
                ranges.insert(first, first + more);
                ids.extend(first..=first + more);
            }
            let found: BTreeSet<i64> = (-5..80).filter(|id| ranges.contains(*id)).collect();
            prop_assert_eq!(&found, &ids);
            prop_assert_eq!(&IdRanges::of_ids(ids.iter().copied()), &ranges, "equal sets have equal ranges");
            prop_assert_eq!(&IdRanges::from_flat(&ranges.to_flat()), &ranges);
            let capped = ranges.capped(max);
            prop_assert!(capped.iter().count() <= max);
            prop_assert!(ids.iter().all(|id| capped.contains(*id)));
        }
    }
}
