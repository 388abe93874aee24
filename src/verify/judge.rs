//! Compares rows with records. It is pure: it takes entries and returns findings.

use std::time::Duration;

use super::entry::{Arrived, Expected, Fate, First, Micros, span};
use super::findings::{Findings, Offender};
use crate::domain::partition::PartitionChoice;

/// The tolerance for clocks that differ, and for the time between an acknowledgement and its mark.
pub const SLACK: Micros = span(Duration::from_secs(600));

/// What the judge needs to know besides rows and records.
#[derive(Clone, Debug, Default)]
pub struct Circumstances {
    pub topics: Vec<Topic>,
    /// A record without a row from before this time may belong to a row that retention removed.
    pub phantoms_from: Micros,
    /// No two transactions of a key ever overlap and no row is delayed, so the ids are the order.
    pub serialized_keys: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Topic {
    pub name: String,
    /// Empty if Kafka does not know the topic.
    pub partitions: Vec<Partition>,
    /// Compaction may have removed any record.
    pub compacted: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Partition {
    /// Records from before this were not read, or have been removed. `None` if it was read from its first record on.
    pub begins: Option<Micros>,
    /// When its very first record was written, or earlier.
    pub first: Option<Micros>,
}

pub struct Judge {
    pub circumstances: Circumstances,
    pub findings: Findings,
}

/// The verdict about two rows of a unit that arrived against the order of their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Inversion {
    Right,
    MayOverlap,
    Wrong,
}

/// How many pairs of one unit are compared to find the worst of them. With more pairs than this, the unit may remain undecided.
const PAIRS: usize = 1_000_000;

impl Judge {
    pub fn new(circumstances: Circumstances) -> Self {
        Judge {
            circumstances,
            findings: Findings::default(),
        }
    }

    /// Compares rows with records. Passes the first copy of every row of a unit to `first`, and returns the records without a
    /// row, which may have been inserted since the snapshot.
    pub fn compare(
        &mut self,
        mut expected: Vec<Expected>,
        mut arrived: Vec<Arrived>,
        mut first: impl FnMut(First),
    ) -> Vec<Arrived> {
        expected.sort_unstable_by_key(|row| row.message_id);
        arrived.sort_unstable_by_key(|record| (record.message_id, record.partition, record.offset));
        self.findings.counts.records += arrived.len() as u64;
        self.findings.counts.flagged += arrived.iter().filter(|record| record.flagged).count() as u64;
        let mut unmatched = Vec::new();
        let mut rest = arrived.as_slice();
        for row in &expected {
            let (without_row, others) = rest.split_at(rest.partition_point(|r| r.message_id < row.message_id));
            let (copies, others) = others.split_at(others.partition_point(|r| r.message_id == row.message_id));
            unmatched.extend_from_slice(without_row);
            rest = others;
            if let Some(copy) = self.row(row, copies) {
                first(copy);
            }
        }
        unmatched.extend_from_slice(rest);
        let before = unmatched.len();
        unmatched.retain(|record| record.timestamp >= self.circumstances.phantoms_from);
        self.findings.counts.outside += (before - unmatched.len()) as u64;
        unmatched
    }

    /// Notes records that have no row, not even one inserted since the snapshot.
    pub fn phantoms(&mut self, records: &[Arrived]) {
        for record in records {
            let offender = self.at_record(None, record, "no row has this message id".to_owned());
            self.findings.phantom.add(|| offender);
        }
    }

    /// Compares one row with the records that have its message id.
    fn row(&mut self, row: &Expected, copies: &[Arrived]) -> Option<First> {
        self.findings.counts.rows += 1;
        match row.state {
            Fate::Pending => self.findings.counts.pending += 1,
            Fate::Published(_) => self.findings.counts.published += 1,
            Fate::Dead => self.findings.counts.dead += 1,
        }
        // An application that reads one topic and writes another often copies the headers.
        let (own, passed_on): (Vec<&Arrived>, Vec<&Arrived>) = copies.iter().partition(|copy| copy.topic == row.topic);
        self.findings.counts.foreign += passed_on.len() as u64;
        let Some(first) = first_of(&own) else {
            self.absent(row);
            return None;
        };
        // Only the copy that was sent first has no flag. If its request timed out, it may be written after its repeat.
        let original = own.iter().copied().find(|copy| !copy.flagged);
        for copy in &own {
            if !std::ptr::eq(*copy, first) {
                let overtaken = first.flagged && original.is_some_and(|original| std::ptr::eq(*copy, original));
                self.repeat(row, copy, copy.flagged || overtaken);
            }
            self.partition(row, copy);
            if let Some(part) = copy.content.difference(row.content) {
                let offender = self.at_record(Some(row.id), copy, format!("{part} differs from the row"));
                self.findings.altered.add(|| offender);
            }
        }
        row.unit
            .filter(|_| self.is_surely_first(row, first))
            .map(|unit| first_copy(row, first, unit))
    }

    /// Is this certainly the first copy? An earlier one may have been removed from the topic, or may not have been read.
    fn is_surely_first(&self, row: &Expected, copy: &Arrived) -> bool {
        let topic = &self.circumstances.topics[copy.topic as usize];
        let begins = topic.partitions.get(copy.partition as usize).and_then(|p| p.begins);
        begins.is_none_or(|begins| row.created >= begins) && !(topic.compacted && copy.flagged)
    }

    fn absent(&mut self, row: &Expected) {
        let Fate::Published(at) = row.state else {
            self.findings.counts.waiting += u64::from(row.state == Fate::Pending);
            return;
        };
        let topic = &self.circumstances.topics[row.topic as usize];
        let offender = |what: &str| Offender {
            id: Some(row.id),
            message_id: row.message_id.to_string(),
            topic: topic.name.clone(),
            partition: row.place.partition(topic.partitions.len() as i32),
            offset: None,
            what: what.to_owned(),
        };
        if topic.would_have(row.place, at) {
            self.findings
                .missing
                .add(|| offender("published, but not in the topic"));
        } else {
            self.findings
                .cannot_tell
                .add(|| offender("the topic need not have it any more"));
        }
    }

    fn repeat(&mut self, row: &Expected, copy: &Arrived, flagged: bool) {
        let what = match (copy.flagged, flagged) {
            (true, _) => "repeat, flagged",
            (false, true) => "overtaken by its repeat, which is flagged",
            (false, false) => "repeat, not flagged",
        };
        let offender = self.at_record(Some(row.id), copy, what.to_owned());
        let duplicated = &mut self.findings.duplicated;
        duplicated.copies.add(|| offender);
        if flagged {
            duplicated.flagged += 1;
        } else {
            duplicated.unflagged += 1;
        }
    }

    fn partition(&mut self, row: &Expected, copy: &Arrived) {
        let topic = &self.circumstances.topics[row.topic as usize];
        let right = row.place.partition(topic.partitions.len() as i32);
        if right == Some(copy.partition) {
            return;
        }
        if topic.had_fewer(row.place, copy) {
            let name = topic.name.clone();
            self.findings.grown.insert(name);
            return;
        }
        let what = match right {
            Some(partition) => format!("belongs on partition {partition}"),
            None => "asks for a partition that does not exist".to_owned(),
        };
        let offender = self.at_record(Some(row.id), copy, what);
        self.findings.wrong_partition.add(|| offender);
    }

    /// Judges the order of each unit. All of its first copies must be among these.
    pub fn order(&mut self, mut firsts: Vec<First>) {
        firsts.sort_unstable_by_key(|copy| (copy.unit, copy.partition, copy.offset));
        for copies in firsts.chunk_by(|a, b| (a.unit, a.partition) == (b.unit, b.partition)) {
            self.order_of_unit(copies);
        }
    }

    fn order_of_unit(&mut self, copies: &[First]) {
        let mut highest = i64::MIN;
        let mut pairs = PAIRS;
        for (place, late) in copies.iter().enumerate() {
            if late.id > highest {
                highest = late.id;
                continue;
            }
            let (inversion, early) = self.worst(late, &copies[..place], &mut pairs);
            let what = format!("arrived after row {} (offset {})", early.id, early.offset);
            let offender = Offender {
                id: Some(late.id),
                message_id: late.message_id.to_string(),
                topic: self.circumstances.topics[late.topic as usize].name.clone(),
                partition: Some(late.partition),
                offset: Some(late.offset),
                what,
            };
            match inversion {
                Inversion::Right => {}
                Inversion::MayOverlap => self.findings.may_overlap.add(|| offender),
                Inversion::Wrong => self.findings.out_of_order.add(|| offender),
            }
        }
    }

    /// The worst of the pairs of this row with rows of higher ids that arrived before it. There is at least one.
    fn worst<'a>(&self, late: &First, earlier: &'a [First], pairs: &mut usize) -> (Inversion, &'a First) {
        let mut worst = (Inversion::Right, &earlier[0]);
        for early in earlier.iter().rev().filter(|early| early.id > late.id) {
            let inversion = match pairs.checked_sub(1) {
                None => Inversion::MayOverlap,
                Some(left) => {
                    *pairs = left;
                    self.weigh(late, early)
                }
            };
            if inversion > worst.0 {
                worst = (inversion, early);
            }
            if inversion == Inversion::Wrong || *pairs == 0 {
                break;
            }
        }
        worst
    }

    /// Two transactions that do not overlap draw ids in the order in which they commit. The table shows that two did overlap if
    /// the row with the lower id was written after the other one had been published.
    fn weigh(&self, late: &First, early: &First) -> Inversion {
        if self.circumstances.serialized_keys {
            return Inversion::Wrong;
        }
        if early.published.is_some_and(|at| at < late.created) {
            return Inversion::Right;
        }
        match (late.version, early.version) {
            (Some(late), Some(early)) if late.0 == early.0 && late.1 < early.1 => Inversion::Wrong,
            (Some(late), Some(early)) if late.0 == early.0 && late.1 > early.1 => Inversion::Right,
            _ => Inversion::MayOverlap,
        }
    }

    fn at_record(&self, id: Option<i64>, record: &Arrived, what: String) -> Offender {
        Offender {
            id,
            message_id: record.message_id.to_string(),
            topic: self.circumstances.topics[record.topic as usize].name.clone(),
            partition: Some(record.partition),
            offset: Some(record.offset),
            what,
        }
    }
}

impl Topic {
    /// Must the record of a row that was published then be among those that were read?
    fn would_have(&self, place: PartitionChoice, published: Micros) -> bool {
        let partition = place.partition(self.partitions.len() as i32);
        let Some(partition) = partition.and_then(|partition| self.partitions.get(partition as usize)) else {
            return false;
        };
        let read = |begins: Micros| published.saturating_sub(SLACK) >= begins;
        !self.compacted && partition.begins.is_none_or(read)
    }

    /// Was this the right partition when the topic had fewer of them? Then those added since had no record at that time.
    fn had_fewer(&self, place: PartitionChoice, copy: &Arrived) -> bool {
        let PartitionChoice::Hashed(_) = place else {
            return false;
        };
        let partitions = self.partitions.len() as i32;
        (copy.partition + 1..partitions).any(|fewer| {
            let added = &self.partitions[fewer as usize..];
            place.partition(fewer) == Some(copy.partition)
                && added
                    .iter()
                    .all(|partition| partition.first.is_none_or(|first| first > copy.timestamp))
        })
    }
}

/// The first copy, by offset within a partition and by timestamp between partitions.
fn first_of<'a>(copies: &[&'a Arrived]) -> Option<&'a Arrived> {
    let partitions = copies.chunk_by(|a, b| a.partition == b.partition);
    partitions
        .map(|partition| partition[0])
        .min_by_key(|copy| copy.timestamp)
}

fn first_copy(row: &Expected, copy: &Arrived, unit: u64) -> First {
    First {
        unit,
        message_id: row.message_id,
        id: row.id,
        topic: row.topic,
        partition: copy.partition,
        offset: copy.offset,
        version: row.version,
        created: row.created,
        published: match row.state {
            Fate::Published(at) => Some(at),
            Fate::Pending | Fate::Dead => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::entry::Content;
    use proptest::prelude::*;
    use uuid::Uuid;

    const CONTENT: Content = Content {
        key: 1,
        payload: 2,
        headers: 3,
    };
    const UNITS: i64 = 5;

    /// What is done to one row of a sound history.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Plant {
        Nothing,
        Lost,
        Pending,
        Dead,
        Phantom,
        Flagged,
        Unflagged,
        Misplaced,
        Altered,
        /// It changes places with the next row of its unit.
        Swapped,
    }

    fn row(id: i64) -> Expected {
        Expected {
            message_id: Uuid::from_u128(id as u128),
            id,
            topic: 0,
            place: PartitionChoice::Explicit(0),
            unit: Some((id % UNITS) as u64),
            version: None,
            created: id,
            state: Fate::Published(1_000_000),
            content: CONTENT,
        }
    }

    fn record(id: i64, offset: i64) -> Arrived {
        Arrived {
            message_id: Uuid::from_u128(id as u128),
            topic: 0,
            partition: 0,
            offset,
            timestamp: 500_000,
            flagged: false,
            content: CONTENT,
        }
    }

    fn circumstances() -> Circumstances {
        Circumstances {
            topics: vec![Topic {
                name: "orders".to_owned(),
                partitions: vec![Partition::default(); 2],
                compacted: false,
            }],
            phantoms_from: 0,
            serialized_keys: true,
        }
    }

    fn judged(circumstances: Circumstances, rows: Vec<Expected>, records: Vec<Arrived>) -> Findings {
        let mut judge = Judge::new(circumstances);
        let mut firsts = Vec::new();
        let unmatched = judge.compare(rows, records, |first| firsts.push(first));
        judge.phantoms(&unmatched);
        judge.order(firsts);
        judge.findings
    }

    /// A history with these defects: rows, records.
    fn planted(plants: &[Plant]) -> (Vec<Expected>, Vec<Arrived>) {
        let (mut rows, mut records) = (Vec::new(), Vec::new());
        let last = plants.len() as i64;
        for (id, plant) in (0..).zip(plants) {
            let (mut row, mut record) = (row(id), record(id, id));
            let mut repeat = Arrived {
                offset: last + id,
                ..record.clone()
            };
            match plant {
                Plant::Pending => row.state = Fate::Pending,
                Plant::Dead => row.state = Fate::Dead,
                Plant::Misplaced => record.partition = 1,
                Plant::Altered => record.content.payload = 9,
                Plant::Swapped => record.offset = id + UNITS,
                _ if id >= UNITS && plants[(id - UNITS) as usize] == Plant::Swapped => record.offset = id - UNITS,
                _ => {}
            }
            if *plant != Plant::Phantom {
                rows.push(row);
            }
            if matches!(plant, Plant::Flagged | Plant::Unflagged) {
                repeat.flagged = *plant == Plant::Flagged;
                records.push(repeat);
            }
            if !matches!(plant, Plant::Lost | Plant::Pending | Plant::Dead) {
                records.push(record);
            }
        }
        (rows, records)
    }

    fn plants() -> impl Strategy<Value = Vec<Plant>> {
        let plant = prop_oneof![
            20 => Just(Plant::Nothing),
            1 => Just(Plant::Lost),
            1 => Just(Plant::Pending),
            1 => Just(Plant::Dead),
            1 => Just(Plant::Phantom),
            1 => Just(Plant::Flagged),
            1 => Just(Plant::Unflagged),
            1 => Just(Plant::Misplaced),
            1 => Just(Plant::Altered),
            1 => Just(Plant::Swapped),
        ];
        proptest::collection::vec(plant, 0..200).prop_map(|mut plants| {
            // A swap needs an undisturbed partner behind it.
            for place in 0..plants.len() {
                if plants[place] == Plant::Swapped {
                    match plants.get_mut(place + UNITS as usize) {
                        Some(partner) => *partner = Plant::Nothing,
                        None => plants[place] = Plant::Nothing,
                    }
                }
            }
            plants
        })
    }

    proptest! {
        #[test]
        fn every_planted_defect_is_found_and_nothing_else(plants in plants()) {
            let count = |plant: Plant| plants.iter().filter(|p| **p == plant).count() as u64;
            let (rows, records) = planted(&plants);
            let findings = judged(circumstances(), rows, records);
            prop_assert_eq!(findings.missing.count, count(Plant::Lost));
            prop_assert_eq!(findings.counts.pending, count(Plant::Pending));
            prop_assert_eq!(findings.counts.dead, count(Plant::Dead));
            prop_assert_eq!(findings.phantom.count, count(Plant::Phantom));
            prop_assert_eq!(findings.duplicated.flagged, count(Plant::Flagged));
            prop_assert_eq!(findings.duplicated.unflagged, count(Plant::Unflagged));
            prop_assert_eq!(findings.wrong_partition.count, count(Plant::Misplaced));
            prop_assert_eq!(findings.altered.count, count(Plant::Altered));
            prop_assert_eq!(findings.out_of_order.count, count(Plant::Swapped));
            prop_assert_eq!(findings.may_overlap.count + findings.cannot_tell.count, 0);
        }

        #[test]
        fn without_serialized_keys_no_inversion_is_passed_over_or_called_wrong(order in Just((0..40i64).collect::<Vec<_>>()).prop_shuffle()) {
            let rows: Vec<Expected> = (0..40).map(|id| Expected { unit: Some(1), ..row(id) }).collect();
            let records = (0..).zip(&order).map(|(offset, id)| record(*id, offset)).collect();
            let findings = judged(Circumstances { serialized_keys: false, ..circumstances() }, rows, records);
            let behind = (0..order.len()).filter(|place| order[..*place].iter().any(|id| id > &order[*place])).count();
            prop_assert_eq!((findings.may_overlap.count, findings.out_of_order.count), (behind as u64, 0));
        }
    }

    #[test]
    fn a_second_copy_at_the_beginning_of_a_cut_topic_is_not_taken_for_the_first() {
        let mut cut = circumstances();
        cut.topics[0].partitions[0].begins = Some(100);
        // Row 5 came first, before the cut; what is left is row 10, and the repeat of row 5.
        let findings = judged(cut.clone(), vec![row(5), row(10)], vec![record(10, 7), record(5, 8)]);
        assert_eq!(findings.out_of_order.count, 0);
        let young = |id: i64| Expected {
            created: 100 + id,
            ..row(id)
        };
        let findings = judged(cut, vec![young(5), young(10)], vec![record(10, 7), record(5, 8)]);
        assert_eq!(findings.out_of_order.count, 1);
    }

    #[test]
    fn a_repeat_that_compaction_left_is_not_taken_for_the_first_copy() {
        let repeat = Arrived {
            flagged: true,
            ..record(5, 8)
        };
        let mut compacted = circumstances();
        compacted.topics[0].compacted = true;
        let records = vec![record(10, 7), repeat];
        let findings = judged(compacted, vec![row(5), row(10)], records.clone());
        assert_eq!(findings.out_of_order.count, 0);
        assert_eq!(
            judged(circumstances(), vec![row(5), row(10)], records)
                .out_of_order
                .count,
            1
        );
    }

    #[test]
    fn a_copy_that_its_flagged_repeat_overtook_is_not_held_against_anybody_and_a_second_one_is() {
        let flagged = Arrived {
            flagged: true,
            ..record(5, 7)
        };
        let findings = judged(circumstances(), vec![row(5)], vec![flagged.clone(), record(5, 8)]);
        assert_eq!((findings.duplicated.flagged, findings.duplicated.unflagged), (1, 0));
        let copies = vec![flagged, record(5, 8), record(5, 9)];
        let findings = judged(circumstances(), vec![row(5)], copies);
        assert_eq!((findings.duplicated.flagged, findings.duplicated.unflagged), (1, 1));
    }

    #[test]
    fn a_record_with_the_id_of_a_row_of_another_topic_was_passed_on_by_somebody() {
        let mut two = circumstances();
        two.topics.push(two.topics[0].clone());
        let passed_on = Arrived {
            topic: 1,
            ..record(1, 0)
        };
        let findings = judged(two, vec![row(1)], vec![record(1, 0), passed_on]);
        assert_eq!(
            (
                findings.counts.foreign,
                findings.duplicated.copies.count,
                findings.phantom.count
            ),
            (1, 0, 0)
        );
    }

    #[test]
    fn a_unit_that_is_all_out_of_order_is_judged_in_bounded_time_and_stays_undecided() {
        let rows: Vec<Expected> = (0..20_000)
            .map(|id| Expected {
                unit: Some(1),
                ..row(id)
            })
            .collect();
        let records = (0..20_000).map(|id| record(id, 20_000 - id)).collect();
        let findings = judged(
            Circumstances {
                serialized_keys: false,
                ..circumstances()
            },
            rows,
            records,
        );
        assert_eq!(findings.may_overlap.count, 19_999);
    }
}
