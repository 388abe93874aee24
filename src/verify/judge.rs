//! Compares rows with records. It is pure: it takes entries and returns findings.

use std::time::Duration;

use super::entry::{Arrived, Expected, First, Micros, span};
use super::findings::{Findings, Offender};
use crate::domain::partition::PartitionChoice;

/// The tolerance for clocks that differ, and for the time between an acknowledgement and its mark.
pub const SLACK: Micros = span(Duration::from_secs(600));

/// What the judge needs to know besides rows and records.
#[derive(Clone, Debug, Default)]
pub struct Context {
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
    pub context: Context,
    pub findings: Findings,
}

/// How to judge two rows of a unit that arrived against the order of their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Inversion {
    Right,
    MayOverlap,
    Wrong,
}

/// How many pairs of one unit are compared to find the worst of them. With more pairs than this, the unit may remain undecided.
const PAIRS: usize = 1_000_000;

impl Judge {
    pub fn new(context: Context) -> Self {
        Judge {
            context,
            findings: Findings::default(),
        }
    }

    /// Compares rows with records. Passes the first copy of every row of a unit to `first`, and returns the records without a
    /// row, which may have been inserted since the snapshot. Fails only if `first` does.
    pub fn compare<E>(
        &mut self,
        mut expected: Vec<Expected>,
        mut arrived: Vec<Arrived>,
        mut first: impl FnMut(First) -> Result<(), E>,
    ) -> Result<Vec<Arrived>, E> {
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
            if let Some(copy) = self.compare_row(row, copies) {
                first(copy)?;
            }
        }
        unmatched.extend_from_slice(rest);
        let before = unmatched.len();
        unmatched.retain(|record| record.timestamp >= self.context.phantoms_from);
        self.findings.counts.outside += (before - unmatched.len()) as u64;
        Ok(unmatched)
    }

    /// Notes records that have no row, not even one inserted since the snapshot.
    pub fn phantoms(&mut self, records: &[Arrived]) {
        for record in records {
            let offender = self.at_record(None, record, "no row has this message id");
            self.findings.phantom.add(offender);
        }
    }

    /// Compares one row with the records that have its message id.
    fn compare_row(&mut self, row: &Expected, copies: &[Arrived]) -> Option<First> {
        let counts = &mut self.findings.counts;
        counts.rows += 1;
        match (row.published, row.dead) {
            (Some(_), _) => counts.published += 1,
            (None, true) => counts.dead += 1,
            (None, false) => counts.pending += 1,
        }
        // An application that reads one topic and writes to another often copies the headers.
        let (own, copied): (Vec<&Arrived>, Vec<&Arrived>) = copies.iter().partition(|copy| copy.topic == row.topic);
        counts.foreign += copied.len() as u64;
        let Some(first) = first_of(&own) else {
            self.note_missing(row, "published, but not in the topic");
            return None;
        };
        // Only the copy that was sent first has no flag. If its request timed out, it may be written after its repeat.
        let original = own.iter().copied().find(|copy| !copy.flagged);
        let difference = |copy: &Arrived| row.content.and_then(|content| copy.content.difference(content));
        // It may have arrived as it was before, and then must arrive as it is now.
        let excused = row.corrected && (row.published.is_none() || own.iter().any(|copy| difference(copy).is_none()));
        for copy in &own {
            if !std::ptr::eq(*copy, first) {
                let overtaken = first.flagged && original.is_some_and(|original| std::ptr::eq(*copy, original));
                self.note_repeat(row, copy, copy.flagged || overtaken);
            }
            self.check_partition(row, copy);
            if let Some(part) = difference(copy).filter(|_| !excused) {
                let offender = self.at_record(Some(row.id), copy, &format!("{part} differs from the row"));
                self.findings.altered.add(offender);
            }
        }
        let repeats = own.iter().filter(|copy| copy.flagged).count();
        if row.repeat_unit.is_some() && repeats == 0 {
            self.note_missing(row, "replayed, but only the earlier copy is in the topic");
        }
        self.unit_of(row, first, repeats)
            .map(|unit| first_copy(row, first, unit))
    }

    /// The unit among whose rows the first copy has its place. `None` if no order is promised, or if it is not certain which copy
    /// this is.
    fn unit_of(&self, row: &Expected, first: &Arrived, repeats: usize) -> Option<u64> {
        let unit = row.unit.filter(|_| self.is_surely_first(row, first))?;
        match row.repeat_unit {
            // What was published first is gone, as from a topic that was made anew. Only one repeat is certainly the last one's.
            Some(repeat) if first.flagged => (repeats == 1).then_some(repeat),
            _ => Some(unit),
        }
    }

    /// Is this certainly the first copy? An earlier one may have been removed from the topic, or may not have been read.
    fn is_surely_first(&self, row: &Expected, copy: &Arrived) -> bool {
        let topic = &self.context.topics[copy.topic as usize];
        let begins = topic.partitions.get(copy.partition as usize).and_then(|p| p.begins);
        begins.is_none_or(|begins| row.created >= begins) && !(topic.compacted && copy.flagged)
    }

    fn note_missing(&mut self, row: &Expected, missing: &str) {
        let Some(published) = row.published else {
            self.findings.counts.waiting += u64::from(!row.dead);
            return;
        };
        let topic = &self.context.topics[row.topic as usize];
        let (finding, what) = if topic.must_have(row.partition_choice, published) {
            (&mut self.findings.missing, missing)
        } else {
            (&mut self.findings.cannot_tell, "the topic need not have it any more")
        };
        finding.add(Offender {
            id: Some(row.id),
            message_id: row.message_id.to_string(),
            topic: topic.name.clone(),
            partition: row.partition_choice.partition(topic.partitions.len() as i32),
            offset: None,
            what: what.to_owned(),
        });
    }

    fn note_repeat(&mut self, row: &Expected, copy: &Arrived, flagged: bool) {
        let what = match (copy.flagged, flagged) {
            (true, _) => "repeat, flagged",
            (false, true) => "overtaken by its repeat, which is flagged",
            (false, false) => "repeat, not flagged",
        };
        let offender = self.at_record(Some(row.id), copy, what);
        let duplicated = &mut self.findings.duplicated;
        duplicated.copies.add(offender);
        duplicated.flagged += u64::from(flagged);
        duplicated.unflagged += u64::from(!flagged);
    }

    fn check_partition(&mut self, row: &Expected, copy: &Arrived) {
        let topic = &self.context.topics[row.topic as usize];
        let right = row.partition_choice.partition(topic.partitions.len() as i32);
        if right == Some(copy.partition) {
            return;
        }
        if topic.had_fewer(row.partition_choice, copy) {
            self.findings.grown.insert(topic.name.clone());
            return;
        }
        let what = match right {
            Some(partition) => format!("belongs on partition {partition}"),
            None => "asks for a partition that does not exist".to_owned(),
        };
        let offender = self.at_record(Some(row.id), copy, &what);
        self.findings.wrong_partition.add(offender);
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
        for (index, late) in copies.iter().enumerate() {
            if late.id > highest {
                highest = late.id;
                continue;
            }
            let (inversion, early) = self.worst_inversion(late, &copies[..index], &mut pairs);
            let finding = match inversion {
                Inversion::Right => continue,
                Inversion::MayOverlap => &mut self.findings.may_overlap,
                Inversion::Wrong => &mut self.findings.out_of_order,
            };
            finding.add(Offender {
                id: Some(late.id),
                message_id: late.message_id.to_string(),
                topic: self.context.topics[late.topic as usize].name.clone(),
                partition: Some(late.partition),
                offset: Some(late.offset),
                what: format!("arrived after row {} (offset {})", early.id, early.offset),
            });
        }
    }

    /// The worst of the pairs of this row with rows of higher ids that arrived before it. There is at least one.
    fn worst_inversion<'a>(&self, late: &First, earlier: &'a [First], pairs: &mut usize) -> (Inversion, &'a First) {
        let mut worst = (Inversion::Right, &earlier[0]);
        for early in earlier.iter().rev().filter(|early| early.id > late.id) {
            let inversion = match pairs.checked_sub(1) {
                None => Inversion::MayOverlap,
                Some(left) => {
                    *pairs = left;
                    self.inversion(late, early)
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
    fn inversion(&self, late: &First, early: &First) -> Inversion {
        if self.context.serialized_keys {
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

    fn at_record(&self, id: Option<i64>, record: &Arrived, what: &str) -> Offender {
        Offender {
            id,
            message_id: record.message_id.to_string(),
            topic: self.context.topics[record.topic as usize].name.clone(),
            partition: Some(record.partition),
            offset: Some(record.offset),
            what: what.to_owned(),
        }
    }
}

impl Topic {
    /// Must the record of a row that was published then be among those that were read?
    fn must_have(&self, choice: PartitionChoice, published: Micros) -> bool {
        let partition = choice.partition(self.partitions.len() as i32);
        let partition = partition.and_then(|partition| self.partitions.get(partition as usize));
        let was_read = |begins: Micros| published.saturating_sub(SLACK) >= begins;
        !self.compacted && partition.is_some_and(|partition| partition.begins.is_none_or(was_read))
    }

    /// Was this the right partition when the topic had fewer of them? Then those added since had no record at that time.
    fn had_fewer(&self, choice: PartitionChoice, copy: &Arrived) -> bool {
        let is_hashed = matches!(choice, PartitionChoice::Hashed(_));
        let is_younger = |added: &Partition| added.first.is_none_or(|first| first > copy.timestamp);
        let mut fewer = copy.partition + 1..self.partitions.len() as i32;
        is_hashed
            && fewer.any(|count| {
                let added = &self.partitions[count as usize..];
                choice.partition(count) == Some(copy.partition) && added.iter().all(is_younger)
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
        published: row.published,
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

    /// What is wrong with one row of a history.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Defect {
        Nothing,
        Lost,
        Pending,
        Dead,
        Phantom,
        Flagged,
        Unflagged,
        Misplaced,
        Altered,
        /// It swaps places with the next row of its unit.
        Swapped,
    }

    fn row(id: i64) -> Expected {
        Expected {
            message_id: Uuid::from_u128(id as u128),
            id,
            topic: 0,
            partition_choice: PartitionChoice::Explicit(0),
            unit: Some((id % UNITS) as u64),
            repeat_unit: None,
            version: None,
            created: id,
            published: Some(1_000_000),
            dead: false,
            corrected: false,
            content: Some(CONTENT),
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

    fn context() -> Context {
        Context {
            topics: vec![Topic {
                name: "orders".to_owned(),
                partitions: vec![Partition::default(); 2],
                compacted: false,
            }],
            phantoms_from: 0,
            serialized_keys: true,
        }
    }

    fn judged(context: Context, rows: Vec<Expected>, records: Vec<Arrived>) -> Findings {
        let mut judge = Judge::new(context);
        let mut firsts = Vec::new();
        let note_first = |first| {
            firsts.push(first);
            Ok::<_, std::convert::Infallible>(())
        };
        let unmatched = judge.compare(rows, records, note_first).expect("cannot fail");
        judge.phantoms(&unmatched);
        judge.order(firsts);
        judge.findings
    }

    /// The rows and records of a history with these defects.
    fn history(defects: &[Defect]) -> (Vec<Expected>, Vec<Arrived>) {
        let (mut rows, mut records) = (Vec::new(), Vec::new());
        let last = defects.len() as i64;
        for (id, defect) in (0..).zip(defects) {
            let (mut row, mut record) = (row(id), record(id, id));
            let mut repeat = Arrived {
                offset: last + id,
                ..record.clone()
            };
            match defect {
                Defect::Pending => row.published = None,
                Defect::Dead => (row.published, row.dead) = (None, true),
                Defect::Misplaced => record.partition = 1,
                Defect::Altered => record.content.payload = 9,
                Defect::Swapped => record.offset = id + UNITS,
                _ if id >= UNITS && defects[(id - UNITS) as usize] == Defect::Swapped => record.offset = id - UNITS,
                _ => {}
            }
            if *defect != Defect::Phantom {
                rows.push(row);
            }
            if matches!(defect, Defect::Flagged | Defect::Unflagged) {
                repeat.flagged = *defect == Defect::Flagged;
                records.push(repeat);
            }
            if !matches!(defect, Defect::Lost | Defect::Pending | Defect::Dead) {
                records.push(record);
            }
        }
        (rows, records)
    }

    fn defects() -> impl Strategy<Value = Vec<Defect>> {
        let defect = prop_oneof![
            20 => Just(Defect::Nothing),
            1 => Just(Defect::Lost),
            1 => Just(Defect::Pending),
            1 => Just(Defect::Dead),
            1 => Just(Defect::Phantom),
            1 => Just(Defect::Flagged),
            1 => Just(Defect::Unflagged),
            1 => Just(Defect::Misplaced),
            1 => Just(Defect::Altered),
            1 => Just(Defect::Swapped),
        ];
        proptest::collection::vec(defect, 0..200).prop_map(|mut defects| {
            // A swap needs a next row of its unit without a defect.
            for index in 0..defects.len() {
                if defects[index] == Defect::Swapped {
                    match defects.get_mut(index + UNITS as usize) {
                        Some(partner) => *partner = Defect::Nothing,
                        None => defects[index] = Defect::Nothing,
                    }
                }
            }
            defects
        })
    }

    proptest! {
        #[test]
        fn every_defect_is_found_and_nothing_else(defects in defects()) {
            let count = |defect: Defect| defects.iter().filter(|p| **p == defect).count() as u64;
            let (rows, records) = history(&defects);
            let findings = judged(context(), rows, records);
            prop_assert_eq!(findings.missing.count, count(Defect::Lost));
            prop_assert_eq!(findings.counts.pending, count(Defect::Pending));
            prop_assert_eq!(findings.counts.dead, count(Defect::Dead));
            prop_assert_eq!(findings.phantom.count, count(Defect::Phantom));
            prop_assert_eq!(findings.duplicated.flagged, count(Defect::Flagged));
            prop_assert_eq!(findings.duplicated.unflagged, count(Defect::Unflagged));
            prop_assert_eq!(findings.wrong_partition.count, count(Defect::Misplaced));
            prop_assert_eq!(findings.altered.count, count(Defect::Altered));
            prop_assert_eq!(findings.out_of_order.count, count(Defect::Swapped));
            prop_assert_eq!(findings.may_overlap.count + findings.cannot_tell.count, 0);
        }

        #[test]
        fn without_serialized_keys_every_inversion_is_undecided(order in Just((0..40i64).collect::<Vec<_>>()).prop_shuffle()) {
            let rows: Vec<Expected> = (0..40).map(|id| Expected { unit: Some(1), ..row(id) }).collect();
            let records = (0..).zip(&order).map(|(offset, id)| record(*id, offset)).collect();
            let findings = judged(Context { serialized_keys: false, ..context() }, rows, records);
            let behind = (0..order.len()).filter(|index| order[..*index].iter().any(|id| id > &order[*index])).count();
            prop_assert_eq!((findings.may_overlap.count, findings.out_of_order.count), (behind as u64, 0));
        }
    }

    #[test]
    fn a_second_copy_at_the_beginning_of_a_truncated_topic_is_not_taken_for_the_first() {
        let mut truncated = context();
        truncated.topics[0].partitions[0].begins = Some(100);
        // Row 5 arrived first, and that copy was removed. Row 10 and the repeat of row 5 are left.
        let findings = judged(
            truncated.clone(),
            vec![row(5), row(10)],
            vec![record(10, 7), record(5, 8)],
        );
        assert_eq!(findings.out_of_order.count, 0);
        let young = |id: i64| Expected {
            created: 100 + id,
            ..row(id)
        };
        let findings = judged(truncated, vec![young(5), young(10)], vec![record(10, 7), record(5, 8)]);
        assert_eq!(findings.out_of_order.count, 1);
    }

    #[test]
    fn a_repeat_that_compaction_left_is_not_taken_for_the_first_copy() {
        let repeat = Arrived {
            flagged: true,
            ..record(5, 8)
        };
        let mut compacted = context();
        compacted.topics[0].compacted = true;
        let records = vec![record(10, 7), repeat];
        let findings = judged(compacted, vec![row(5), row(10)], records.clone());
        assert_eq!(findings.out_of_order.count, 0);
        assert_eq!(judged(context(), vec![row(5), row(10)], records).out_of_order.count, 1);
    }

    #[test]
    fn one_unflagged_copy_may_arrive_after_its_flagged_repeat_but_a_second_one_may_not() {
        let flagged = Arrived {
            flagged: true,
            ..record(5, 7)
        };
        let findings = judged(context(), vec![row(5)], vec![flagged.clone(), record(5, 8)]);
        assert_eq!((findings.duplicated.flagged, findings.duplicated.unflagged), (1, 0));
        let copies = vec![flagged, record(5, 8), record(5, 9)];
        let findings = judged(context(), vec![row(5)], copies);
        assert_eq!((findings.duplicated.flagged, findings.duplicated.unflagged), (1, 1));
    }

    #[test]
    fn a_corrected_row_may_have_arrived_as_it_was_and_must_arrive_as_it_is() {
        let corrected = Expected {
            corrected: true,
            ..row(5)
        };
        let mut before = record(5, 7);
        before.content.payload = 9;
        let after = Arrived {
            flagged: true,
            ..record(5, 8)
        };
        let altered = |row: &Expected, records| judged(context(), vec![row.clone()], records).altered.count;
        assert_eq!(altered(&corrected, vec![before.clone(), after.clone()]), 0);
        assert_eq!(altered(&corrected, vec![before.clone()]), 1, "only as it was");
        assert_eq!(
            altered(&row(5), vec![before.clone(), after]),
            1,
            "nobody has corrected it"
        );
        let pending = Expected {
            published: None,
            ..corrected
        };
        assert_eq!(altered(&pending, vec![before]), 0, "it is about to be sent");
    }

    fn replayed(id: i64) -> Expected {
        Expected {
            unit: Some(1),
            repeat_unit: Some(2),
            ..row(id)
        }
    }

    fn repeat(id: i64, offset: i64) -> Arrived {
        Arrived {
            flagged: true,
            ..record(id, offset)
        }
    }

    #[test]
    fn a_replayed_row_must_arrive_once_more() {
        let missing = |row: Expected, records| judged(context(), vec![row], records).missing.count;
        assert_eq!(missing(replayed(5), vec![record(5, 1), repeat(5, 2)]), 0);
        assert_eq!(missing(replayed(5), vec![repeat(5, 2)]), 0, "the topic was made anew");
        assert_eq!(missing(replayed(5), vec![record(5, 1)]), 1);
        let pending = Expected {
            published: None,
            ..replayed(5)
        };
        let findings = judged(context(), vec![pending], vec![record(5, 1)]);
        assert_eq!((findings.missing.count, findings.counts.waiting), (0, 1));
        let unordered = Expected {
            unit: None,
            ..replayed(5)
        };
        assert_eq!(missing(unordered, vec![record(5, 1)]), 1);
    }

    #[test]
    fn repeats_are_judged_among_those_of_their_replay() {
        let disorder = |rows: &[Expected], records| judged(context(), rows.to_vec(), records).out_of_order.count;
        let newer = Expected {
            unit: Some(1),
            ..row(9)
        };
        let rows = [replayed(5), replayed(6), newer];
        let anew = vec![record(9, 1), repeat(5, 2), repeat(6, 3)];
        assert_eq!(disorder(&rows, anew), 0, "they follow a newer row of their key");
        let swapped = vec![record(9, 1), repeat(6, 2), repeat(5, 3)];
        assert_eq!(disorder(&rows, swapped), 1);
        let originals = vec![record(6, 1), record(5, 2), repeat(5, 3), repeat(6, 4), record(9, 5)];
        assert_eq!(
            disorder(&rows, originals),
            1,
            "the first copies were sent in order, too"
        );
        let twice = vec![repeat(6, 1), repeat(5, 2), repeat(6, 3), record(9, 4)];
        assert_eq!(disorder(&rows, twice), 0, "one of them is of another replay");
    }

    #[test]
    fn a_record_with_the_message_id_of_a_row_of_another_topic_is_foreign() {
        let mut two = context();
        two.topics.push(two.topics[0].clone());
        let copied = Arrived {
            topic: 1,
            ..record(1, 0)
        };
        let findings = judged(two, vec![row(1)], vec![record(1, 0), copied]);
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
    fn a_unit_that_is_completely_out_of_order_is_judged_in_bounded_time_and_stays_undecided() {
        let rows: Vec<Expected> = (0..20_000)
            .map(|id| Expected {
                unit: Some(1),
                ..row(id)
            })
            .collect();
        let records = (0..20_000).map(|id| record(id, 20_000 - id)).collect();
        let findings = judged(
            Context {
                serialized_keys: false,
                ..context()
            },
            rows,
            records,
        );
        assert_eq!(findings.may_overlap.count, 19_999);
    }
}
