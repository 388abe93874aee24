//! What is remembered of one lane, and of the rows without one, between two batches.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{CheckedOutLane, LaneReport, LockedRows, TakenLane, UnorderedState};
use crate::domain::floor::Floor;
use crate::domain::id_ranges::IdRanges;
use crate::domain::scan_span::ScanSpan;
use crate::domain::watermark::WatermarkTracker;

/// The fewest rows asked of a lane that is believed to have some.
pub(super) const WINDOW_MIN: usize = 32;

/// After a claim of unordered rows that found none, and twice as long after each one more. Claimers take turns, which costs
/// the database a commit even where there is nothing; others may have been faster, or somebody has locked the rows.
const EMPTY_CLAIM_PAUSE: Duration = Duration::from_millis(20);
const EMPTY_CLAIM_DOUBLINGS: u32 = 3;

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) epoch: i64,
    pub(super) floor: Floor,
    pub(super) stored_floor: i64,
    /// How many rows the next claim asks for: doubles while claims come back full.
    pub(super) window: usize,
    pub(super) span: ScanSpan,
    pub(super) ready: bool,
    pub(super) busy: bool,
    /// Heads of its holds that are sent beside its batches and not yet written down: until then it stays ours.
    pub(super) open_heads: usize,
    /// A change of its holds waits for the batch to end: no new one before that.
    pub(super) change_waiting: bool,
    pub(super) surplus: bool,
    /// See [`CheckedOutLane::held_topics`].
    pub(super) held_topics: Arc<BTreeSet<String>>,
    /// See [`CheckedOutLane::suspects`].
    pub(super) maybe_sent: IdRanges,
    /// What is stored of them, those known by id included.
    pub(super) stored_maybe_sent: Vec<i64>,
    /// Up to this id any row may have been sent before a failover lost its mark.
    pub(super) maybe_sent_until: i64,
    /// Rows that may have been sent, by us or by the last owner, and are known by id.
    pub(super) maybe_sent_ids: HashSet<i64>,
    /// See [`CheckedOutLane::acknowledged`].
    pub(super) acknowledged: HashSet<i64>,
    pub(super) not_before: Instant,
    pub(super) served: u64,
}

#[derive(Debug, Default)]
pub(super) struct Unordered {
    pub(super) stored: UnorderedState,
    pub(super) floor: Floor,
    pub(super) ready: bool,
    pub(super) busy: usize,
    pub(super) window: usize,
    pub(super) not_before: Option<Instant>,
    /// So many claims in a row have found nothing.
    pub(super) empty_claims: u32,
    /// See [`super::Lanes::claims_from`].
    pub(super) claims_from: i64,
    pub(super) span: ScanSpan,
    /// Where the last claim was cut short: the next one goes on there. They promise no order, and one that comes to the end begins anew.
    pub(super) resume: i64,
    /// See [`super::Lanes::unordered_lag`].
    pub(super) lag: usize,
    /// What is left of claims whose rows could not all be marked.
    pub(super) unmarked: Vec<LockedRows>,
}

impl From<&TakenLane> for Lane {
    fn from(taken: &TakenLane) -> Self {
        Lane {
            epoch: taken.epoch,
            floor: Floor::at(taken.floor),
            stored_floor: taken.floor,
            window: WINDOW_MIN,
            span: ScanSpan::default(),
            ready: true,
            busy: false,
            open_heads: 0,
            change_waiting: false,
            surplus: false,
            held_topics: Arc::new(taken.held_topics.clone()),
            maybe_sent: taken.maybe_sent.clone(),
            stored_maybe_sent: taken.stored_maybe_sent.clone(),
            maybe_sent_until: taken.maybe_sent_until,
            maybe_sent_ids: HashSet::new(),
            acknowledged: HashSet::new(),
            not_before: Instant::now(),
            served: 0,
        }
    }
}

/// The next window after a claim: twice as much while claims are full, what was there otherwise. Rows that the byte
/// budget leaves behind were read in vain: ask for about as many as fit.
fn next_window(window: usize, report: &LaneReport) -> usize {
    if report.slow {
        (window / 2).max(1)
    } else if report.over_budget {
        (report.rows * 2).clamp(1, window)
    } else if report.hit_limit {
        (window * 2).min(1 << 16)
    } else if report.span_ended {
        window
    } else {
        window.min(report.rows.next_power_of_two().max(WINDOW_MIN))
    }
}

impl Lane {
    /// May it be checked out?
    pub(super) fn is_free(&self, now: Instant) -> bool {
        !self.busy && !self.change_waiting && !self.surplus && self.not_before <= now
    }

    /// Is anything of it under way? Then it is nobody else's yet.
    pub(super) fn is_in_use(&self) -> bool {
        self.busy || self.open_heads > 0
    }

    pub(super) fn held(&self, lane: i16, most: usize, tracker: &WatermarkTracker) -> CheckedOutLane {
        let start = self.floor.start(tracker);
        CheckedOutLane {
            lane,
            epoch: self.epoch,
            floor: self.floor.hard(),
            start,
            scan_end: self.span.scan_end(start, tracker.watermark()),
            most,
            maybe_sent: self.maybe_sent.clone(),
            maybe_sent_until: self.maybe_sent_until,
            maybe_sent_ids: self.maybe_sent_ids.clone(),
            acknowledged: self.acknowledged.clone(),
            held_topics: self.held_topics.clone(),
        }
    }

    /// What may have been sent of it, and of these rows, as it is stored.
    pub(super) fn all_maybe_sent(&self, unknown: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let mut all_maybe_sent = IdRanges::of_ids(self.maybe_sent_ids.iter().copied().chain(unknown));
        all_maybe_sent.extend(&self.maybe_sent);
        all_maybe_sent.to_stored()
    }

    /// Nothing of this row is in doubt any more.
    pub(super) fn forget(&mut self, id: i64) {
        self.maybe_sent_ids.remove(&id);
        self.acknowledged.remove(&id);
    }

    pub(super) fn checkin(&mut self, report: &LaneReport, now: Instant) {
        self.busy = false;
        if !report.held_topics.is_empty() {
            Arc::make_mut(&mut self.held_topics).extend(report.held_topics.iter().cloned());
        }
        report.published.iter().for_each(|id| self.forget(*id));
        self.maybe_sent_ids.extend(&report.maybe_sent_ids);
        self.acknowledged.extend(&report.acknowledged);
        self.not_before = now + report.pause.unwrap_or_default();
        let Some(scan) = report.scan else {
            // The claim failed: nothing was learned, so look again, and for less if a pause says that it hurt.
            self.ready = true;
            if report.pause.is_some() {
                self.window = (self.window / 2).max(1);
                self.span.failed();
            }
            return;
        };
        if report.over_budget && report.rows == 0 {
            // The lanes before it took the whole byte budget: now it is first.
            self.served = 0;
        }
        self.floor.advance(scan);
        self.window = next_window(self.window, report);
        if report.span_ended {
            self.span
                .ended_early(report.rows == 0, report.took, scan.lowest_pending.is_some());
        } else if scan.lowest_pending.is_none() {
            self.span.completed();
        }
        self.ready = report.hit_limit || report.over_budget || report.span_ended || scan.lowest_pending.is_some();
        let all_done = !self.ready;
        // What a hold keeps back was not in this claim, and may have been sent by the last owner as well as the rest.
        if all_done && self.held_topics.is_empty() {
            self.maybe_sent.clear();
        }
    }
}

impl Unordered {
    pub(super) fn checkin(&mut self, report: &LaneReport, now: Instant) {
        self.busy = self.busy.saturating_sub(1);
        self.lag += report.rows;
        self.stored.has_holds |= !report.held_topics.is_empty();
        match (report.span_ended, report.scan.is_none() && report.pause.is_some()) {
            (_, true) => self.span.failed(),
            (true, _) => self.span.ended_early(report.rows == 0, report.took, false),
            _ => self.span.completed(),
        }
        self.resume = if report.span_ended { report.resume_at } else { 0 };
        let empty_claims = report.rows == 0 && !report.hit_limit && !report.span_ended && report.scan.is_some();
        let rest = empty_claims.then(|| EMPTY_CLAIM_PAUSE * 2u32.pow(self.empty_claims.min(EMPTY_CLAIM_DOUBLINGS)));
        self.empty_claims = if empty_claims {
            self.empty_claims.saturating_add(1)
        } else {
            0
        };
        self.not_before = report.pause.or(rest).map(|pause| now + pause);
        self.window = next_window(self.window, report);
        self.ready = report.hit_limit || report.span_ended || report.scan.is_none() || report.pause.is_some();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::floor::ScanResult;
    use crate::domain::watermark::{Watermark, Writers};

    /// With no holder that has ended.
    fn tracker() -> WatermarkTracker {
        WatermarkTracker::default()
    }

    const SETTLED: Watermark = Watermark {
        hard: 50,
        soft: 70,
        generation: 1,
    };

    /// Everything there was is published.
    fn all_done() -> LaneReport {
        LaneReport {
            scan: Some(ScanResult::of_everything(SETTLED)),
            ..LaneReport::default()
        }
    }

    fn with_left(id: i64) -> LaneReport {
        LaneReport {
            scan: Some(ScanResult {
                lowest_pending: Some(id),
                ..ScanResult::of_everything(SETTLED)
            }),
            ..LaneReport::default()
        }
    }

    /// Checked out, and suspect in every way.
    fn busy_lane() -> Lane {
        let mut lane = Lane::from(&TakenLane {
            lane: 0,
            epoch: 3,
            floor: 10,
            maybe_sent: IdRanges::from_flat(&[15, 19]),
            stored_maybe_sent: vec![15, 19],
            maybe_sent_until: 20,
            last_owner: None,
            held_topics: BTreeSet::new(),
        });
        lane.busy = true;
        lane.maybe_sent_ids = HashSet::from([11, 12]);
        lane
    }

    fn one_topic() -> BTreeSet<String> {
        BTreeSet::from(["orders".to_owned()])
    }

    fn after(report: LaneReport) -> Lane {
        let mut lane = busy_lane();
        lane.checkin(&report, Instant::now());
        lane
    }

    #[test]
    fn the_next_window_follows_what_was_there() {
        let next = |window, rows, report: &LaneReport| next_window(window, &LaneReport { rows, ..report.clone() });
        let plain = LaneReport::default();
        assert_eq!(next(1024, 100, &plain), 128);
        assert_eq!(next(1024, 3, &plain), WINDOW_MIN);
        assert_eq!(next(8, 3, &plain), 8, "it grows by full claims only");
        let span_ended = LaneReport {
            span_ended: true,
            ..LaneReport::default()
        };
        assert_eq!(next(1024, 3, &span_ended), 1024, "there may be more further on");
        let hit_limit = LaneReport {
            hit_limit: true,
            ..LaneReport::default()
        };
        assert_eq!(next(100, 100, &hit_limit), 200);
        assert_eq!(next(1 << 16, 1 << 16, &hit_limit), 1 << 16, "enough is enough");
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
        fn a_window_is_never_empty_nor_beyond_its_bound(
            window in 1..=1usize << 16, rows in 0..100_000usize, hit_limit: bool, over_budget: bool, slow: bool,
        ) {
            let report = LaneReport { rows, hit_limit, over_budget, slow, ..LaneReport::default() };
            prop_assert!((1..=1 << 16).contains(&next_window(window, &report)));
        }
    }

    #[test]
    fn rows_without_a_lane_are_asked_for_less_often_the_longer_there_are_none() {
        let now = Instant::now();
        let mut unordered = Unordered::default();
        let mut rests = Vec::new();
        for _ in 0..6 {
            unordered.checkin(&all_done(), now);
            rests.push((unordered.not_before.expect("a rest") - now).as_millis());
        }
        assert_eq!(rests, [20, 40, 80, 160, 160, 160]);
        unordered.checkin(&LaneReport { rows: 1, ..all_done() }, now);
        assert_eq!(unordered.not_before, None, "there were some");
        unordered.checkin(&all_done(), now);
        assert_eq!(
            unordered.not_before,
            Some(now + EMPTY_CLAIM_PAUSE),
            "as if for the first time"
        );
    }

    #[test]
    fn a_lane_is_held_from_its_floor_and_with_all_its_doubts() {
        let held = busy_lane().held(7, 40, &tracker());
        assert_eq!(
            (held.lane, held.epoch, held.floor, held.start, held.most),
            (7, 3, 10, 10, 40)
        );
        assert_eq!((held.maybe_sent.to_flat(), held.maybe_sent_until), (vec![15, 19], 20));
        assert_eq!(held.maybe_sent_ids, HashSet::from([11, 12]));
        assert!(held.held_topics.is_empty());
        let held = after(all_done()).held(7, 40, &tracker());
        assert_eq!((held.floor, held.start), (50, 70), "soft while its holders live");
    }

    #[test]
    fn a_lane_with_nothing_left_rests_and_is_beyond_doubt() {
        let lane = after(all_done());
        assert!(!lane.busy && !lane.ready);
        assert!(lane.maybe_sent.is_empty());
        assert_eq!(lane.floor.hard(), 50);
        assert_eq!(lane.all_maybe_sent([14]), [11, 12, 14, 14], "what is known by id");
    }

    #[test]
    fn a_lane_with_rows_left_is_ready_and_its_doubt_goes_on() {
        let doubt = |lane: &Lane| lane.maybe_sent.to_flat();
        let left = after(with_left(30));
        assert!(left.ready && !left.busy);
        assert_eq!((doubt(&left), left.floor.hard()), (vec![15, 19], 29));
        let hit_limit = after(LaneReport {
            hit_limit: true,
            ..all_done()
        });
        assert!(hit_limit.ready);
        assert_eq!((doubt(&hit_limit), hit_limit.window), (vec![15, 19], 2 * WINDOW_MIN));
        let over_budget = after(LaneReport {
            over_budget: true,
            ..all_done()
        });
        assert!(over_budget.ready, "what was left behind is due");
        assert_eq!(doubt(&over_budget), [15, 19]);
    }

    #[test]
    fn a_hold_keeps_the_doubt_about_what_it_keeps_back() {
        let lane = after(LaneReport {
            held_topics: one_topic(),
            ..all_done()
        });
        assert_eq!(*lane.held(7, 40, &tracker()).held_topics, one_topic());
        assert_eq!(lane.maybe_sent.to_flat(), [15, 19]);
        let mut lane = lane;
        lane.checkin(&all_done(), Instant::now());
        assert_eq!(*lane.held_topics, one_topic(), "only a release ends it");
        assert_eq!(lane.maybe_sent.to_flat(), [15, 19]);
    }

    #[test]
    fn a_row_that_waits_for_its_mark_is_remembered_until_it_has_it() {
        let mut lane = after(LaneReport {
            acknowledged: vec![30],
            maybe_sent_ids: vec![30],
            ..with_left(30)
        });
        assert!(lane.held(7, 40, &tracker()).acknowledged.contains(&30) && lane.maybe_sent_ids.contains(&30));
        assert!(lane.ready && lane.floor.hard() < 30);
        lane.checkin(
            &LaneReport {
                published: vec![30],
                ..all_done()
            },
            Instant::now(),
        );
        assert!(lane.acknowledged.is_empty() && !lane.maybe_sent_ids.contains(&30));
    }

    #[test]
    fn an_unknown_row_is_forgotten_when_it_is_published() {
        let lane = after(LaneReport {
            published: vec![11, 13],
            maybe_sent_ids: vec![14],
            ..all_done()
        });
        assert_eq!(lane.maybe_sent_ids, HashSet::from([12, 14]));
    }

    #[test]
    fn a_claim_that_failed_teaches_nothing_but_patience() {
        let now = Instant::now();
        let pause = Duration::from_secs(1);
        let mut lane = busy_lane();
        lane.ready = false;
        lane.checkin(
            &LaneReport {
                pause: Some(pause),
                ..LaneReport::default()
            },
            now,
        );
        assert!(lane.ready && !lane.busy);
        assert_eq!((lane.window, lane.not_before), (WINDOW_MIN / 2, now + pause));
        assert_eq!((lane.maybe_sent.to_flat(), lane.floor.hard()), (vec![15, 19], 10));
        lane.checkin(&LaneReport::default(), now);
        assert_eq!(
            (lane.window, lane.not_before),
            (WINDOW_MIN / 2, now),
            "one that was discarded did not hurt"
        );
    }

    #[test]
    fn a_lane_that_was_cut_short_goes_on_from_there_with_the_same_window() {
        let deep = Watermark {
            hard: 10_000_000,
            soft: 10_000_000,
            generation: 0,
        };
        let mut tracker = tracker();
        tracker.observe(deep.hard, &Writers::new());
        let mut lane = busy_lane();
        lane.window = 512;
        let scan_end = lane.held(0, 40, &tracker).scan_end.expect("it is long");
        let span_ended = LaneReport {
            span_ended: true,
            scan: Some(ScanResult {
                scanned_to: Some(scan_end),
                ..ScanResult::of_everything(deep)
            }),
            ..LaneReport::default()
        };
        lane.checkin(&span_ended, Instant::now());
        assert!(lane.ready);
        assert_eq!((lane.floor.hard(), lane.window), (scan_end, 512));
        let next = lane.held(0, 40, &tracker).scan_end.expect("it is long still") - scan_end;
        assert_eq!(next, 2 * (scan_end - 10), "there was nothing for long");
        lane.checkin(
            &LaneReport {
                pause: Some(Duration::ZERO),
                ..LaneReport::default()
            },
            Instant::now(),
        );
        assert_eq!(
            lane.held(0, 40, &tracker).scan_end,
            Some(scan_end + next / 2),
            "it was too much"
        );
        lane.checkin(&all_done(), Instant::now());
        assert_eq!(
            lane.held(0, 40, &tracker).scan_end,
            Some(scan_end + (scan_end - 10)),
            "as at first"
        );
    }

    #[test]
    fn rows_without_a_lane_are_claimed_on_from_where_the_last_claim_was_cut_short_and_then_anew() {
        let now = Instant::now();
        let mut unordered = Unordered::default();
        let span_ended = LaneReport {
            span_ended: true,
            resume_at: 50,
            ..all_done()
        };
        unordered.checkin(&span_ended, now);
        assert!(
            unordered.ready && unordered.not_before.is_none(),
            "there may be more behind"
        );
        assert_eq!(unordered.resume, 50);
        unordered.checkin(&all_done(), now);
        assert_eq!(unordered.resume, 0);
    }

    #[test]
    fn a_lane_that_got_none_of_the_byte_budget_is_first_next_time() {
        let served_after = |rows, over_budget| {
            let mut lane = busy_lane();
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

    #[test]
    fn rows_without_a_lane_are_looked_for_again_while_there_may_be_some() {
        let now = Instant::now();
        let checked_in = |report: LaneReport| {
            let mut unordered = Unordered {
                busy: 2,
                window: 64,
                ready: true,
                ..Unordered::default()
            };
            unordered.checkin(&report, now);
            unordered
        };
        let pause = Some(Duration::from_secs(1));
        let rested = checked_in(LaneReport { rows: 1, ..all_done() });
        assert!(!rested.ready && !rested.stored.has_holds);
        assert_eq!((rested.busy, rested.window, rested.not_before), (1, WINDOW_MIN, None));
        assert!(
            checked_in(LaneReport {
                hit_limit: true,
                ..all_done()
            })
            .ready
        );
        assert!(checked_in(LaneReport::default()).ready, "nothing was learned");
        let paused = checked_in(LaneReport { pause, ..all_done() });
        assert!(paused.ready);
        assert_eq!(paused.not_before, Some(now + Duration::from_secs(1)));
        let mut held = checked_in(LaneReport {
            held_topics: one_topic(),
            ..all_done()
        });
        held.checkin(&all_done(), now);
        assert!(held.stored.has_holds);
    }
}
