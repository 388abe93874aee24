//! What this process has handed to Kafka, or is about to, and whose outcome is not yet written: one record a batch. The database has the
//! same (`outbox.in_flight`), but a crash of the server may lose the last of it.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::Lanes;
use crate::domain::id_ranges::IdRanges;
use crate::domain::row::Row;

/// So many ranges of a lane at most, beside that of the rows that stand in line: delayed ones may lie anywhere.
const DELAYED_RANGES: usize = 8;

/// IdRanges of ids and the lanes they lie in, as a record has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InFlightRanges {
    pub lanes: Vec<i16>,
    pub first_ids: Vec<i64>,
    pub last_ids: Vec<i64>,
}

impl InFlightRanges {
    /// Of a batch. Rows that stand in line lie together: nothing else of their lane is between them but what was published, or is held.
    pub fn of(rows: &[Row]) -> Self {
        let mut lines: BTreeMap<i16, (i64, i64)> = BTreeMap::new();
        let mut delayed: BTreeMap<i16, Vec<i64>> = BTreeMap::new();
        for row in rows {
            let Some(lane) = row.lane else { continue };
            if row.delayed {
                delayed.entry(lane).or_default().push(row.id);
            } else {
                let (first, last) = lines.entry(lane).or_insert((row.id, row.id));
                (*first, *last) = ((*first).min(row.id), (*last).max(row.id));
            }
        }
        let mut ranges = InFlightRanges::default();
        for (lane, (first, last)) in lines {
            ranges.push(lane, first, last);
        }
        for (lane, ids) in delayed {
            let capped = IdRanges::of_ids(ids).capped(DELAYED_RANGES);
            capped.iter().for_each(|(first, last)| ranges.push(lane, first, last));
        }
        ranges
    }

    fn push(&mut self, lane: i16, first: i64, last: i64) {
        self.lanes.push(lane);
        self.first_ids.push(first);
        self.last_ids.push(last);
    }

    fn extend(&mut self, more: &InFlightRanges) {
        self.lanes.extend(&more.lanes);
        self.first_ids.extend(&more.first_ids);
        self.last_ids.extend(&more.last_ids);
    }
}

/// A record that is written: its id, and the place it has here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    pub id: i64,
    place: u64,
}

#[derive(Debug)]
struct Batch {
    worker: Uuid,
    /// No lower than this is the id of its record.
    from: i64,
    ranges: InFlightRanges,
}

/// All of them, whatever their term.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    batches: BTreeMap<u64, Batch>,
    next: u64,
    /// The highest id of any record. What is drawn from now on is higher.
    highest: i64,
}

impl Lanes {
    /// A record is about to be written: answers its place, for [`Lanes::recorded`].
    pub fn begin_entry(&self, worker: Uuid) -> u64 {
        let mut in_flight = self.in_flight();
        let (place, from) = (in_flight.next, in_flight.highest + 1);
        in_flight.next += 1;
        let ranges = InFlightRanges::default();
        in_flight.batches.insert(place, Batch { worker, from, ranges });
        place
    }

    /// It is written: now its rows may be sent.
    pub fn entry_written(&self, place: u64, id: i64, ranges: InFlightRanges) -> Record {
        let mut in_flight = self.in_flight();
        in_flight.highest = in_flight.highest.max(id);
        if let Some(batch) = in_flight.batches.get_mut(&place) {
            (batch.from, batch.ranges) = (id, ranges);
        }
        Record { id, place }
    }

    /// It was not written, and nothing is sent.
    pub fn entry_dropped(&self, place: u64) {
        self.in_flight().batches.remove(&place);
    }

    /// What became of them is written.
    pub fn entries_done(&self, records: &[Record]) {
        let mut in_flight = self.in_flight();
        for record in records {
            in_flight.batches.remove(&record.place);
        }
    }

    /// No record of this worker that matters has a lower id.
    pub fn oldest_entry(&self, worker: Uuid) -> i64 {
        let in_flight = self.in_flight();
        let batches = in_flight.batches.values().filter(|batch| batch.worker == worker);
        batches.map(|batch| batch.from).min().unwrap_or(in_flight.highest + 1)
    }

    /// What this worker had in flight, as far as its outcome is not written.
    pub fn open_entries(&self, worker: Uuid) -> InFlightRanges {
        let in_flight = self.in_flight();
        let mut all = InFlightRanges::default();
        let batches = in_flight.batches.values().filter(|batch| batch.worker == worker);
        batches.for_each(|batch| all.extend(&batch.ranges));
        all
    }

    /// The worker is stopped, and what it had in flight written down. Another life of the server may number anew.
    pub fn forget_entries(&self, worker: Uuid) {
        let mut in_flight = self.in_flight();
        in_flight.batches.retain(|_, batch| batch.worker != worker);
        in_flight.highest = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::row::tests::row;

    const ME: Uuid = Uuid::from_u128(1);

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
        assert_eq!(InFlightRanges::of(&scattered).lanes.len(), DELAYED_RANGES);
    }

    #[test]
    fn what_is_not_settled_is_known_and_no_record_of_it_lies_lower() {
        let lanes = Lanes::default();
        let ranges = |id| InFlightRanges::of(&[of_lane(0, id, false)]);
        let slow = lanes.begin_entry(ME);
        let fast = lanes.begin_entry(ME);
        let fast = lanes.entry_written(fast, 11, ranges(100));
        assert_eq!(lanes.oldest_entry(ME), 1, "the slow one may have drawn any");
        assert_eq!(lanes.open_entries(ME), ranges(100), "of the slow one nothing is sent");
        let other = lanes.begin_entry(Uuid::from_u128(2));
        let slow = lanes.entry_written(slow, 10, ranges(50));
        lanes.entries_done(&[fast]);
        assert_eq!((lanes.oldest_entry(ME), lanes.open_entries(ME)), (10, ranges(50)));
        lanes.entries_done(&[slow]);
        assert_eq!(lanes.oldest_entry(ME), 12, "none is left");
        let failed = lanes.begin_entry(ME);
        assert_eq!(lanes.oldest_entry(ME), 12);
        lanes.entry_dropped(failed);
        lanes.entry_written(lanes.begin_entry(ME), 13, ranges(60));
        lanes.forget_entries(ME);
        assert_eq!(lanes.open_entries(ME), InFlightRanges::default());
        assert_eq!(lanes.oldest_entry(ME), 1);
        assert_eq!(lanes.oldest_entry(Uuid::from_u128(2)), 12, "another's is left alone");
        lanes.entry_dropped(other);
    }
}
