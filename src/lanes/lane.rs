//! What is remembered of one lane between two batches.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

use super::checkout::LaneReport;
use crate::domain::checkout::CheckedOutLane;
use crate::domain::floor::Floor;
use crate::domain::lease::{LoweredLane, ReturnedLane, TakenLane};
use crate::domain::maybe_sent::MaybeSent;
use crate::domain::scan_span::ScanSpan;
use crate::domain::watermark::WatermarkTracker;

/// The fewest rows to ask for in a lane that probably has some.
pub(super) const CLAIM_SIZE_MIN: usize = 32;
const CLAIM_SIZE_MAX: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) epoch: i64,
    pub(super) floor: Floor,
    pub(super) stored: Stored,
    /// How many rows the next claim asks for. It doubles while claims come back full.
    pub(super) claim_size: usize,
    pub(super) span: ScanSpan,
    /// The lane may have pending rows.
    pub(super) ready: bool,
    pub(super) usage: Usage,
    pub(super) held_topics: Arc<BTreeSet<String>>,
    pub(super) maybe_sent: MaybeSent,
    /// See [`CheckedOutLane::acknowledged`].
    pub(super) acknowledged: HashSet<i64>,
    pub(super) not_before: Instant,
    /// See [`State::served`](super::State::served).
    pub(super) served: u64,
}

/// What the database has of a lane.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) floor: i64,
    pub(super) maybe_sent: Vec<i64>,
}

#[derive(Debug, Default)]
pub(super) struct Usage {
    pub(super) checked_out: bool,
    /// How many heads of its holds are being sent, or have an outcome that is not written yet.
    pub(super) open_heads: usize,
    /// A change of its holds waits for the batch to end, so no new batch begins.
    pub(super) change_waiting: bool,
    /// The lane is to be returned as soon as it is not busy.
    pub(super) surplus: bool,
}

impl Usage {
    /// Is anything of the lane in progress? Then it cannot be returned.
    pub(super) fn is_busy(&self) -> bool {
        self.checked_out || self.open_heads > 0
    }
}

impl From<&TakenLane> for Lane {
    fn from(taken: &TakenLane) -> Self {
        Lane {
            epoch: taken.epoch,
            floor: Floor::at(taken.floor),
            stored: Stored {
                floor: taken.floor,
                maybe_sent: taken.stored_maybe_sent.clone(),
            },
            claim_size: CLAIM_SIZE_MIN,
            span: ScanSpan::default(),
            ready: true,
            usage: Usage::default(),
            held_topics: Arc::new(taken.held_topics.clone()),
            maybe_sent: taken.maybe_sent.clone(),
            acknowledged: HashSet::new(),
            not_before: Instant::now(),
            served: 0,
        }
    }
}

/// How many rows the claim after this one asks for: twice as many while claims are full, otherwise about as many as there were.
/// Rows that the byte budget leaves behind were read in vain, so the next claim asks for about as many as fit.
pub(super) fn next_claim_size(size: usize, report: &LaneReport) -> usize {
    if report.slow {
        (size / 2).max(1)
    } else if report.over_budget {
        (report.rows * 2).clamp(1, size)
    } else if report.hit_limit {
        (size * 2).min(CLAIM_SIZE_MAX)
    } else if report.span_end.is_some() {
        size
    } else {
        size.min(report.rows.next_power_of_two().max(CLAIM_SIZE_MIN))
    }
}

impl Lane {
    /// Can it be checked out?
    pub(super) fn is_free(&self, now: Instant) -> bool {
        let Usage {
            checked_out,
            change_waiting,
            surplus,
            ..
        } = self.usage;
        !checked_out && !change_waiting && !surplus && self.not_before <= now
    }

    /// Checks the lane out, for a claim of at most this many rows.
    pub(super) fn checkout(&mut self, lane: i16, most: usize, tracker: &WatermarkTracker) -> CheckedOutLane {
        self.usage.checked_out = true;
        let start = self.floor.start(tracker);
        CheckedOutLane {
            lane,
            epoch: self.epoch,
            floor: self.floor.hard(),
            start,
            scan_end: self.span.scan_end(start, tracker.watermark()),
            most,
            maybe_sent: self.maybe_sent.clone(),
            acknowledged: self.acknowledged.clone(),
            held_topics: self.held_topics.clone(),
        }
    }

    /// The lane as its next owner gets it.
    pub(super) fn returned(&self, lane: i16) -> ReturnedLane {
        ReturnedLane {
            lane,
            epoch: self.epoch,
            floor: self.floor.hard(),
            maybe_sent: self.maybe_sent.to_stored([]),
        }
    }

    /// Notes that this row is published or cannot have been sent.
    pub(super) fn forget(&mut self, id: i64) {
        self.maybe_sent.ids.remove(&id);
        self.acknowledged.remove(&id);
    }

    /// A hold was released, so the next claim starts where the hold began.
    pub(super) fn lower(&mut self, lowered: LoweredLane) {
        self.epoch = lowered.epoch;
        self.floor.lower(lowered.floor);
        self.stored.floor = self.stored.floor.min(lowered.floor);
        self.ready = true;
    }

    pub(super) fn checkin(&mut self, report: &LaneReport, now: Instant) {
        self.usage.checked_out = false;
        if !report.held_topics.is_empty() {
            Arc::make_mut(&mut self.held_topics).extend(report.held_topics.iter().cloned());
        }
        report.sent.published.iter().for_each(|id| self.forget(*id));
        self.maybe_sent.ids.extend(&report.sent.maybe_sent);
        self.acknowledged.extend(&report.sent.acknowledged);
        self.not_before = now + report.pause.unwrap_or_default();
        let Some(scan) = report.scan else {
            // The claim failed and found out nothing. If a pause says that it was too heavy, the next one asks for less.
            self.ready = true;
            if report.pause.is_some() {
                self.claim_size = (self.claim_size / 2).max(1);
                self.span.failed();
            }
            return;
        };
        if report.over_budget && report.rows == 0 {
            // The lanes before it used up the byte budget, so this one comes first in the next batch.
            self.served = 0;
        }
        self.floor.advance(scan);
        self.claim_size = next_claim_size(self.claim_size, report);
        let is_cut = report.span_end.is_some();
        if is_cut {
            self.span
                .ended_early(report.rows == 0, report.took, scan.lowest_pending.is_some());
        } else if scan.lowest_pending.is_none() {
            self.span.completed();
        }
        self.ready = report.hit_limit || report.over_budget || is_cut || scan.lowest_pending.is_some();
        // The claim did not read rows that a hold keeps back, and the last owner may have sent those, too.
        if !self.ready && self.held_topics.is_empty() {
            self.maybe_sent.ranges.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::domain::floor::ScanResult;
    use crate::domain::id_ranges::IdRanges;
    use crate::domain::watermark::{Watermark, Writers};
    use crate::lanes::SentRows;

    /// No bypassed writer has ended.
    fn tracker() -> WatermarkTracker {
        WatermarkTracker::default()
    }

    const WATERMARK: Watermark = Watermark {
        hard: 50,
        soft: 70,
        generation: 1,
    };

    /// The report of a lane whose rows are all published.
    fn all_done() -> LaneReport {
        LaneReport {
            scan: Some(ScanResult::of_everything(WATERMARK)),
            ..LaneReport::default()
        }
    }

    /// The report of a lane whose lowest pending row is this one.
    fn with_left(id: i64) -> LaneReport {
        LaneReport {
            scan: Some(ScanResult {
                lowest_pending: Some(id),
                ..ScanResult::of_everything(WATERMARK)
            }),
            ..LaneReport::default()
        }
    }

    /// A lane that is checked out and has rows of each kind that may have been sent.
    fn checked_out_lane() -> Lane {
        let mut lane = Lane::from(&TakenLane {
            lane: 0,
            epoch: 3,
            floor: 10,
            maybe_sent: MaybeSent {
                ranges: IdRanges::from_flat(&[15, 19]),
                until: 20,
                ids: HashSet::from([11, 12]),
            },
            stored_maybe_sent: vec![15, 19],
            last_owner: None,
            held_topics: BTreeSet::new(),
        });
        lane.usage.checked_out = true;
        lane
    }

    fn one_topic() -> BTreeSet<String> {
        BTreeSet::from(["orders".to_owned()])
    }

    fn after(report: LaneReport) -> Lane {
        let mut lane = checked_out_lane();
        lane.checkin(&report, Instant::now());
        lane
    }

    #[test]
    fn the_next_claim_size_follows_what_was_there() {
        let next = |size, rows, report: &LaneReport| next_claim_size(size, &LaneReport { rows, ..report.clone() });
        let plain = LaneReport::default();
        assert_eq!(next(1024, 100, &plain), 128);
        assert_eq!(next(1024, 3, &plain), CLAIM_SIZE_MIN);
        assert_eq!(next(8, 3, &plain), 8, "it grows by full claims only");
        let cut = LaneReport {
            span_end: Some(500),
            ..LaneReport::default()
        };
        assert_eq!(next(1024, 3, &cut), 1024, "there may be more beyond the cut");
        let hit_limit = LaneReport {
            hit_limit: true,
            ..LaneReport::default()
        };
        assert_eq!(next(100, 100, &hit_limit), 200);
        assert_eq!(next(1 << 16, 1 << 16, &hit_limit), 1 << 16, "no claim asks for more");
        let over_budget = LaneReport {
            over_budget: true,
            ..hit_limit
        };
        assert_eq!(next(1024, 5, &over_budget), 10);
        assert_eq!(next(1024, 1000, &over_budget), 1024);
        assert_eq!(next(1024, 0, &over_budget), 1);
        let slow = LaneReport {
            slow: true,
            ..over_budget
        };
        assert_eq!(next(100, 100, &slow), 50);
        assert_eq!(next(1, 1, &slow), 1);
    }

    proptest! {
        #[test]
        fn a_claim_size_is_never_zero_nor_beyond_its_bound(
            size in 1..=1usize << 16, rows in 0..100_000usize, hit_limit: bool, over_budget: bool, slow: bool,
        ) {
            let report = LaneReport { rows, hit_limit, over_budget, slow, ..LaneReport::default() };
            prop_assert!((1..=1 << 16).contains(&next_claim_size(size, &report)));
        }
    }

    #[test]
    fn a_lane_is_checked_out_from_its_floor_with_all_that_may_have_been_sent() {
        let checked_out = checked_out_lane().checkout(7, 40, &tracker());
        assert_eq!(
            (
                checked_out.lane,
                checked_out.epoch,
                checked_out.floor,
                checked_out.start,
                checked_out.most
            ),
            (7, 3, 10, 10, 40)
        );
        assert_eq!(
            (checked_out.maybe_sent.ranges.to_flat(), checked_out.maybe_sent.until),
            (vec![15, 19], 20)
        );
        assert_eq!(checked_out.maybe_sent.ids, HashSet::from([11, 12]));
        assert!(checked_out.held_topics.is_empty());
        let checked_out = after(all_done()).checkout(7, 40, &tracker());
        assert_eq!(
            (checked_out.floor, checked_out.start),
            (50, 70),
            "the soft floor, while the bypassed writers are open"
        );
    }

    #[test]
    fn a_lane_with_nothing_left_is_not_ready_and_its_ranges_are_cleared() {
        let lane = after(all_done());
        assert!(!lane.usage.checked_out && !lane.ready);
        assert!(lane.maybe_sent.ranges.is_empty());
        assert_eq!(lane.floor.hard(), 50);
        assert_eq!(lane.maybe_sent.to_stored([14]), [11, 12, 14, 14], "what is known by id");
    }

    #[test]
    fn a_lane_with_rows_left_is_ready_and_keeps_its_ranges() {
        let ranges = |lane: &Lane| lane.maybe_sent.ranges.to_flat();
        let left = after(with_left(30));
        assert!(left.ready && !left.usage.checked_out);
        assert_eq!((ranges(&left), left.floor.hard()), (vec![15, 19], 29));
        let hit_limit = after(LaneReport {
            hit_limit: true,
            ..all_done()
        });
        assert!(hit_limit.ready);
        assert_eq!(
            (ranges(&hit_limit), hit_limit.claim_size),
            (vec![15, 19], 2 * CLAIM_SIZE_MIN)
        );
        let over_budget = after(LaneReport {
            over_budget: true,
            ..all_done()
        });
        assert!(over_budget.ready, "rows were left behind");
        assert_eq!(ranges(&over_budget), [15, 19]);
    }

    #[test]
    fn a_hold_keeps_the_ranges_of_rows_that_it_keeps_back() {
        let mut lane = after(LaneReport {
            held_topics: one_topic(),
            ..all_done()
        });
        assert_eq!(*lane.checkout(7, 40, &tracker()).held_topics, one_topic());
        assert_eq!(lane.maybe_sent.ranges.to_flat(), [15, 19]);
        lane.checkin(&all_done(), Instant::now());
        assert_eq!(*lane.held_topics, one_topic(), "only a release ends it");
        assert_eq!(lane.maybe_sent.ranges.to_flat(), [15, 19]);
    }

    #[test]
    fn a_row_that_waits_for_its_mark_is_remembered_until_it_has_it() {
        let mut lane = after(LaneReport {
            sent: SentRows {
                acknowledged: vec![30],
                maybe_sent: vec![30],
                published: Vec::new(),
            },
            ..with_left(30)
        });
        assert!(lane.checkout(7, 40, &tracker()).acknowledged.contains(&30) && lane.maybe_sent.ids.contains(&30));
        assert!(lane.ready && lane.floor.hard() < 30);
        lane.checkin(
            &LaneReport {
                sent: SentRows {
                    published: vec![30],
                    ..SentRows::default()
                },
                ..all_done()
            },
            Instant::now(),
        );
        assert!(lane.acknowledged.is_empty() && !lane.maybe_sent.ids.contains(&30));
    }

    #[test]
    fn a_row_that_may_have_been_sent_is_forgotten_when_it_is_published() {
        let lane = after(LaneReport {
            sent: SentRows {
                published: vec![11, 13],
                maybe_sent: vec![14],
                acknowledged: Vec::new(),
            },
            ..all_done()
        });
        assert_eq!(lane.maybe_sent.ids, HashSet::from([12, 14]));
    }

    #[test]
    fn a_claim_that_failed_changes_nothing_but_the_next_size_and_time() {
        let now = Instant::now();
        let pause = Duration::from_secs(1);
        let mut lane = checked_out_lane();
        lane.ready = false;
        lane.checkin(
            &LaneReport {
                pause: Some(pause),
                ..LaneReport::default()
            },
            now,
        );
        assert!(lane.ready && !lane.usage.checked_out);
        assert_eq!((lane.claim_size, lane.not_before), (CLAIM_SIZE_MIN / 2, now + pause));
        assert_eq!(
            (lane.maybe_sent.ranges.to_flat(), lane.floor.hard()),
            (vec![15, 19], 10)
        );
        lane.checkin(&LaneReport::default(), now);
        assert_eq!(
            (lane.claim_size, lane.not_before),
            (CLAIM_SIZE_MIN / 2, now),
            "one that was discarded was not too heavy"
        );
    }

    #[test]
    fn a_lane_that_was_cut_short_continues_from_there_with_the_same_size() {
        let deep = Watermark {
            hard: 10_000_000,
            soft: 10_000_000,
            generation: 0,
        };
        let mut tracker = tracker();
        tracker.observe(deep.hard, &Writers::new());
        let mut lane = checked_out_lane();
        lane.claim_size = 512;
        let scan_end = lane.checkout(0, 40, &tracker).scan_end.expect("there is much to scan");
        let cut = LaneReport {
            span_end: Some(scan_end),
            scan: Some(ScanResult {
                scanned_to: Some(scan_end),
                ..ScanResult::of_everything(deep)
            }),
            ..LaneReport::default()
        };
        lane.checkin(&cut, Instant::now());
        assert!(lane.ready);
        assert_eq!((lane.floor.hard(), lane.claim_size), (scan_end, 512));
        let next = lane.checkout(0, 40, &tracker).scan_end.expect("there is much to scan") - scan_end;
        assert_eq!(
            next,
            2 * (scan_end - 10),
            "the scan found nothing, so the next one reads twice as far"
        );
        lane.checkin(
            &LaneReport {
                pause: Some(Duration::ZERO),
                ..LaneReport::default()
            },
            Instant::now(),
        );
        assert_eq!(
            lane.checkout(0, 40, &tracker).scan_end,
            Some(scan_end + next / 2),
            "the claim failed, so the next one reads half as far"
        );
        lane.checkin(&all_done(), Instant::now());
        assert_eq!(
            lane.checkout(0, 40, &tracker).scan_end,
            Some(scan_end + (scan_end - 10)),
            "after a claim that was not cut, the span is the first one again"
        );
    }

    #[test]
    fn a_lane_that_got_none_of_the_byte_budget_is_first_next_time() {
        let served_after = |rows, over_budget| {
            let mut lane = checked_out_lane();
            lane.served = 9;
            let report = LaneReport {
                rows,
                over_budget,
                ..all_done()
            };
            lane.checkin(&report, Instant::now());
            lane.served
        };
        assert_eq!(served_after(0, true), 0);
        assert_eq!(served_after(1, true), 9);
        assert_eq!(served_after(0, false), 9);
    }
}
