//! In-flight entries: what a batch is about to send, stored before it is sent and deleted with its mark.

use std::collections::BTreeMap;

use super::id_ranges::IdRanges;
use super::row::Row;

/// The most ranges that an entry has for the delayed rows of a lane, which may lie anywhere.
const DELAYED_RANGES_MAX: usize = 8;

/// A stored entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InFlightEntry {
    pub id: i64,
    /// Where this process keeps the entry in memory.
    pub slot: u64,
}

/// Ranges of ids with their lanes, as the columns of an entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InFlightRanges {
    pub lanes: Vec<i16>,
    pub first_ids: Vec<i64>,
    pub last_ids: Vec<i64>,
}

impl InFlightRanges {
    /// The ranges of a batch: one for each lane, because between its rows the lane has only rows that are published or held, and a
    /// few for its delayed rows.
    pub fn of(rows: &[Row]) -> Self {
        let mut bounds: BTreeMap<i16, (i64, i64)> = BTreeMap::new();
        let mut delayed: BTreeMap<i16, Vec<i64>> = BTreeMap::new();
        for row in rows {
            let Some(lane) = row.lane else { continue };
            if row.delayed {
                delayed.entry(lane).or_default().push(row.id);
            } else {
                let (first, last) = bounds.entry(lane).or_insert((row.id, row.id));
                (*first, *last) = ((*first).min(row.id), (*last).max(row.id));
            }
        }
        let mut ranges = InFlightRanges::default();
        for (lane, (first, last)) in bounds {
            ranges.push(lane, first, last);
        }
        for (lane, ids) in delayed {
            let capped = IdRanges::of_ids(ids).capped(DELAYED_RANGES_MAX);
            capped.iter().for_each(|(first, last)| ranges.push(lane, first, last));
        }
        ranges
    }

    fn push(&mut self, lane: i16, first: i64, last: i64) {
        self.lanes.push(lane);
        self.first_ids.push(first);
        self.last_ids.push(last);
    }

    pub fn extend(&mut self, more: &InFlightRanges) {
        self.lanes.extend(&more.lanes);
        self.first_ids.extend(&more.first_ids);
        self.last_ids.extend(&more.last_ids);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::row::tests::row;

    fn of_lane(lane: i16, id: i64, delayed: bool) -> Row {
        Row {
            lane: Some(lane),
            delayed,
            ..row(id)
        }
    }

    #[test]
    fn a_batch_is_a_range_a_lane_and_those_of_its_delayed_rows() {
        let rows = [
            of_lane(3, 7, false),
            of_lane(1, 9, false),
            of_lane(3, 20, false),
            of_lane(3, 2, true),
            of_lane(3, 3, true),
            of_lane(3, 900, true),
        ];
        let ranges = InFlightRanges::of(&rows);
        assert_eq!(ranges.lanes, [1, 3, 3, 3]);
        assert_eq!(ranges.first_ids, [9, 7, 2, 900]);
        assert_eq!(ranges.last_ids, [9, 20, 3, 900]);
        let scattered: Vec<Row> = (0..100).map(|n| of_lane(0, n * n, true)).collect();
        assert_eq!(InFlightRanges::of(&scattered).lanes.len(), DELAYED_RANGES_MAX);
    }
}
