//! The watermark: the highest id up to which no open transaction can still commit a row, so that floors may pass it.
//!
//! Ids commit out of order, so neither the highest id read nor a snapshot's xmin tells which ids may still be committed. The lock
//! that every writer takes before it draws an id does. A check reads the highest id drawn, *then* the holders of that lock. A
//! writer that is missing in one check and present in the next has drawn no id up to the highest one of the first check. So each
//! open writer is remembered together with an id that is below all of its own. The watermark is the lowest of these ids, or the
//! highest id drawn if no writer is open.
//!
//! A writer that stays open after its INSERT stops the watermark, and every claim reads again what has been published since. So
//! there is also a *soft* watermark, in memory only, which bypasses writers that stay open. Nothing that they have written is
//! visible while they are in progress. So a claim may start at the soft floor if every bypassed writer with ids below that was
//! still in progress in a snapshot taken after the claim's own. Otherwise the claim is discarded. When a bypassed writer ends,
//! soft floors drop to the id that is remembered with it, and no further, because it has drawn no lower one.

use std::collections::BTreeMap;

/// The transactions that may still commit an id already drawn: their names in `pg_locks`, which they keep when they are prepared,
/// and their transaction ids once they have one.
pub type Writers = BTreeMap<String, Option<i64>>;

/// How the sequence draws ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// How many ids a session draws at once and hands out in later transactions.
    pub cache: i64,
    pub increment: i64,
    /// It changes when the sequence is restarted or altered, but not by `setval`.
    pub file: i64,
}

impl Sequence {
    /// Does each draw give one id, higher than the last? If not, the highest id drawn says nothing about lower ones.
    pub fn is_in_order(&self) -> bool {
        self.cache == 1 && self.increment > 0
    }

    /// Has the sequence been restarted since it was as in `last`? A change of its cache or increment is not a restart.
    pub fn is_restart_of(&self, last: &Sequence) -> bool {
        self.file != last.file && (self.cache, self.increment) == (last.cache, last.increment)
    }
}

/// A check of the database. Its parts are read in this order.
#[derive(Clone, Debug)]
pub struct WriterSnapshot {
    /// The highest id drawn.
    pub highest_id: i64,
    pub writers: Writers,
    pub sequence: Sequence,
}

/// How many drops of soft floors are kept. If there are more, the oldest two become one, with the lower id of both.
const SOFT_DROPS_MAX: usize = 8;

/// Tracks the watermark as far as this process knows it. There is one tracker for each incarnation of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct WatermarkTracker {
    watermark: Watermark,
    /// The highest id drawn, as read by the last check.
    highest_id: i64,
    /// The writers of the last check, by name, except those that are known to have ended since.
    open: BTreeMap<String, OpenWriter>,
    /// The drops of soft floors, oldest first, each to a lower id than the next.
    soft_drops: Vec<SoftDrop>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct OpenWriter {
    /// It has drawn only ids above this one.
    from: i64,
    transaction: Option<i64>,
    /// Was it already open at the last [`WatermarkTracker::bypass_old_writers`]?
    is_old: bool,
    /// Does the soft watermark bypass it?
    is_bypassed: bool,
}

impl OpenWriter {
    /// Bypasses the writer from now on, if it is old. It needs a transaction id, by which its end is noticed.
    fn bypass_if_old(&mut self) {
        self.is_bypassed |= self.is_old && self.transaction.is_some();
        self.is_old = true;
    }
}

/// The drop of soft floors after a bypassed writer has ended: those of earlier generations drop to this id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SoftDrop {
    generation: u64,
    to: i64,
}

/// The watermark at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Watermark {
    /// No open transaction can still commit an id up to here.
    pub hard: i64,
    /// No open transaction except bypassed writers can still commit an id up to here. It is never below `hard`.
    pub soft: i64,
    /// How often a bypassed writer has ended.
    pub generation: u64,
}

impl WatermarkTracker {
    /// The highest id that is known to have been drawn.
    pub fn highest_id(&self) -> i64 {
        self.highest_id
    }

    pub fn watermark(&self) -> Watermark {
        self.watermark
    }

    /// The transactions that the soft watermark bypasses.
    pub fn bypassed(&self) -> Vec<i64> {
        self.bypassed_below(i64::MAX)
    }

    /// The bypassed transactions that must still be in progress for a claim that starts here: they may have ids at or below
    /// `start`.
    pub fn bypassed_below(&self, start: i64) -> Vec<i64> {
        let bypassed = self
            .open
            .values()
            .filter(|writer| writer.is_bypassed && writer.from < start);
        bypassed.filter_map(|writer| writer.transaction).collect()
    }

    /// Notes a check of the database: the highest id drawn, read *before* the writers.
    pub fn observe(&mut self, highest_id: i64, writers: &Writers) {
        let came_after = self.highest_id;
        let known = std::mem::take(&mut self.open);
        let open = |(name, transaction): (&String, &Option<i64>)| {
            let writer = known.get(name).copied().unwrap_or(OpenWriter {
                from: came_after,
                transaction: None,
                is_old: false,
                is_bypassed: false,
            });
            let transaction = writer.transaction.or(*transaction);
            (name.clone(), OpenWriter { transaction, ..writer })
        };
        self.open = writers.iter().map(open).collect();
        self.highest_id = self.highest_id.max(highest_id);
        let ended = known.iter().filter(|(name, _)| !writers.contains_key(*name));
        self.drop_soft_floors(ended.map(|(_, writer)| *writer).collect());
        self.advance();
    }

    /// Bypasses the writers that were already open at the previous call, because they are likely to stay open.
    pub fn bypass_old_writers(&mut self) {
        self.open.values_mut().for_each(OpenWriter::bypass_if_old);
        self.advance();
    }

    /// Notes that these transactions have ended.
    pub fn end(&mut self, transactions: &[i64]) {
        let has_ended = |writer: &OpenWriter| writer.transaction.is_some_and(|id| transactions.contains(&id));
        let ended = self.open.values().filter(|writer| has_ended(writer)).copied().collect();
        self.open.retain(|_, writer| !has_ended(writer));
        self.drop_soft_floors(ended);
        self.advance();
    }

    /// Drops soft floors below the ids that bypassed writers among these may have committed.
    fn drop_soft_floors(&mut self, ended: Vec<OpenWriter>) {
        let bypassed = ended.iter().filter(|writer| writer.is_bypassed);
        let Some(to) = bypassed.map(|writer| writer.from).min() else {
            return;
        };
        self.watermark.generation += 1;
        self.soft_drops.retain(|drop| drop.to < to);
        self.soft_drops.push(SoftDrop {
            generation: self.watermark.generation,
            to,
        });
        if self.soft_drops.len() > SOFT_DROPS_MAX {
            let oldest = self.soft_drops.remove(0);
            self.soft_drops[0].to = oldest.to;
        }
    }

    /// The id to which a soft floor of this generation has dropped since, if it was higher.
    pub(super) fn dropped_since(&self, generation: u64) -> i64 {
        let drop = self.soft_drops.iter().find(|drop| drop.generation > generation);
        drop.map_or(i64::MAX, |drop| drop.to)
    }

    /// Moves the watermark as far as the open writers allow.
    fn advance(&mut self) {
        let from = |without_bypassed: bool| {
            let open = self.open.values();
            let counted = open.filter(|writer| !(without_bypassed && writer.is_bypassed));
            counted.map(|writer| writer.from).fold(self.highest_id, i64::min)
        };
        let (hard, soft) = (from(false), from(true));
        self.watermark.hard = self.watermark.hard.max(hard);
        self.watermark.soft = self.watermark.soft.max(soft);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::floor::{Floor, ScanResult};

    /// Writers by name; their transaction ids are made of it.
    fn writers(names: &[&str]) -> Writers {
        names
            .iter()
            .map(|name| ((*name).to_owned(), Some(i64::from(name.as_bytes()[0]))))
            .collect()
    }

    fn hard(tracker: &WatermarkTracker) -> i64 {
        tracker.watermark().hard
    }

    fn watermark(hard: i64, soft: i64, generation: u64) -> Watermark {
        Watermark { hard, soft, generation }
    }

    /// Bypasses every writer that is open now.
    fn bypass_all(tracker: &mut WatermarkTracker) {
        tracker.bypass_old_writers();
        tracker.bypass_old_writers();
    }

    #[test]
    fn the_watermark_passes_no_id_that_an_open_writer_may_have_drawn() {
        let mut tracker = WatermarkTracker::default();
        tracker.observe(100, &writers(&["a", "b"]));
        assert_eq!(hard(&tracker), 0, "both may have drawn any id");
        tracker.observe(110, &writers(&["b", "c"]));
        assert_eq!(hard(&tracker), 0, "b has not ended");
        tracker.observe(120, &writers(&["c"]));
        assert_eq!(
            hard(&tracker),
            100,
            "c was not open at the first check, so it has drawn no lower id"
        );
        tracker.observe(130, &writers(&["c", "d"]));
        assert_eq!(hard(&tracker), 100, "c has not ended");
        tracker.observe(140, &writers(&["d"]));
        assert_eq!(hard(&tracker), 120, "d was not open at that check");
    }

    #[test]
    fn a_sequence_with_a_cache_or_downwards_is_out_of_order_and_a_new_file_is_a_restart() {
        let sequence = |cache, increment, file| Sequence { cache, increment, file };
        assert!(sequence(1, 1, 7).is_in_order() && sequence(1, 10, 7).is_in_order());
        assert!(!sequence(50, 1, 7).is_in_order() && !sequence(1, -1, 7).is_in_order());
        assert!(sequence(1, 1, 8).is_restart_of(&sequence(1, 1, 7)));
        assert!(!sequence(1, 1, 7).is_restart_of(&sequence(1, 1, 7)));
        assert!(!sequence(50, 1, 8).is_restart_of(&sequence(1, 1, 7)), "it was altered");
    }

    #[test]
    fn without_writers_a_check_moves_the_watermark_at_once() {
        let mut tracker = WatermarkTracker::default();
        tracker.observe(7, &Writers::new());
        assert_eq!(tracker.watermark(), watermark(7, 7, 0));
    }

    #[test]
    fn the_soft_watermark_bypasses_a_writer_until_it_ends_and_then_the_hard_one_follows() {
        let mut tracker = WatermarkTracker::default();
        tracker.observe(100, &writers(&["a"]));
        tracker.bypass_old_writers();
        assert!(tracker.bypassed().is_empty(), "it was not open before");
        tracker.bypass_old_writers();
        assert_eq!(tracker.watermark(), watermark(0, 100, 0));
        tracker.observe(200, &writers(&["a", "b"]));
        assert_eq!(tracker.watermark().soft, 100, "b may still commit");
        tracker.observe(300, &writers(&["a"]));
        assert_eq!(tracker.watermark(), watermark(0, 300, 0));
        assert_eq!(tracker.bypassed(), [i64::from(b'a')]);
        tracker.observe(400, &writers(&["c"]));
        assert_eq!(tracker.watermark(), watermark(300, 300, 1));
        assert!(tracker.bypassed().is_empty());
    }

    /// A writer that stays open, and a job that began after the check at 200. Both are bypassed.
    fn tracker_with_a_job() -> WatermarkTracker {
        let mut tracker = WatermarkTracker::default();
        tracker.observe(100, &writers(&["a"]));
        bypass_all(&mut tracker);
        tracker.observe(200, &writers(&["a"]));
        tracker.observe(210, &writers(&["a", "job"]));
        bypass_all(&mut tracker);
        tracker.observe(300, &writers(&["a", "job"]));
        tracker
    }

    #[test]
    fn when_one_bypassed_writer_ends_soft_floors_drop_below_its_ids_and_no_further() {
        let noticed_by_claim = |tracker: &mut WatermarkTracker| tracker.end(&[i64::from(b'j')]);
        let noticed_by_check = |tracker: &mut WatermarkTracker| tracker.observe(300, &writers(&["a"]));
        for job_ends in [noticed_by_claim, noticed_by_check] {
            let mut tracker = tracker_with_a_job();
            assert_eq!(tracker.watermark(), watermark(0, 300, 0));
            let mut floor = Floor::at(0);
            floor.advance(ScanResult::of_everything(tracker.watermark()));
            assert_eq!(floor.start(&tracker), 300);
            job_ends(&mut tracker);
            assert_eq!(
                tracker.watermark(),
                watermark(0, 300, 1),
                "no other writer may commit ids of the job"
            );
            assert_eq!(floor.start(&tracker), 200);
            assert_eq!(tracker.bypassed(), [i64::from(b'a')]);
            floor.advance(ScanResult::of_everything(tracker.watermark()));
            assert_eq!(
                (floor.hard(), floor.start(&tracker)),
                (0, 300),
                "the rows of the job have been read"
            );
        }
    }

    #[test]
    fn when_the_oldest_writer_ends_the_hard_watermark_moves_up_to_the_next() {
        let mut tracker = tracker_with_a_job();
        tracker.end(&[i64::from(b'a')]);
        assert_eq!(tracker.watermark(), watermark(200, 300, 1));
        tracker.end(&[i64::from(b'a')]);
        assert_eq!(tracker.watermark(), watermark(200, 300, 1), "a writer ends once");
        tracker.end(&[i64::from(b'j')]);
        assert_eq!(tracker.watermark(), watermark(300, 300, 2));
    }

    #[test]
    fn a_claim_relies_only_on_bypassed_writers_that_may_have_lower_ids() {
        let tracker = tracker_with_a_job();
        assert!(tracker.bypassed_below(0).is_empty());
        assert_eq!(tracker.bypassed_below(200), [i64::from(b'a')]);
        assert_eq!(tracker.bypassed_below(201), [i64::from(b'a'), i64::from(b'j')]);
    }

    #[test]
    fn a_floor_drops_to_the_lowest_drop_since_its_generation() {
        let mut tracker = WatermarkTracker::default();
        let mut drop_to = |to| {
            let is_bypassed = OpenWriter {
                from: to,
                transaction: Some(1),
                is_old: true,
                is_bypassed: true,
            };
            tracker.drop_soft_floors(vec![is_bypassed]);
            tracker.clone()
        };
        let floor_of = |generation| {
            let mut floor = Floor::at(5);
            floor.advance(ScanResult::of_everything(watermark(5, 1000, generation)));
            floor
        };
        let floor = floor_of(1);
        assert_eq!(
            floor.start(&drop_to(10)),
            1000,
            "the floor is of that generation already"
        );
        assert_eq!(floor.start(&drop_to(300)), 300);
        assert_eq!(floor.start(&drop_to(400)), 300);
        assert_eq!(floor.start(&drop_to(200)), 200);
        assert_eq!(floor.start(&drop_to(1)), 5, "not below the hard floor");
        let missed_one = |tracker: &WatermarkTracker| floor_of(tracker.watermark().generation - 1).start(tracker);
        for to in 500..520 {
            assert_eq!(missed_one(&drop_to(to)), to, "the last drops are kept apart");
        }
        assert_eq!(tracker.soft_drops.len(), SOFT_DROPS_MAX);
    }

    #[test]
    fn a_young_writer_is_not_bypassed_beside_an_old_one() {
        let mut tracker = WatermarkTracker::default();
        tracker.observe(100, &writers(&["a"]));
        bypass_all(&mut tracker);
        tracker.observe(200, &writers(&["a", "b"]));
        tracker.bypass_old_writers();
        assert_eq!(tracker.bypassed(), [i64::from(b'a')]);
        tracker.observe(300, &writers(&["a"]));
        assert_eq!(
            tracker.watermark(),
            watermark(0, 300, 0),
            "the end of a writer that was not bypassed drops no floor"
        );
    }

    #[test]
    fn no_writer_without_a_transaction_id_is_bypassed() {
        let mut tracker = WatermarkTracker::default();
        let copying = Writers::from([("copy".to_owned(), None)]);
        tracker.observe(100, &copying);
        bypass_all(&mut tracker);
        tracker.observe(200, &copying);
        assert!(tracker.bypassed().is_empty());
        assert_eq!(tracker.watermark().soft, 0);
    }
}
