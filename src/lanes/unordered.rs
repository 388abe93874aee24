//! The unordered rows. They belong to no worker, so their floor is shared with all other workers.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::Lanes;
use super::checkout::LaneReport;
use super::lane::{CLAIM_SIZE_MIN, next_claim_size};
use crate::domain::checkout::PollCheckout;
use crate::domain::floor::{Floor, ScanResult};
use crate::domain::lease::UnorderedState;
use crate::domain::scan_span::ScanSpan;
use crate::domain::watermark::Watermark;

/// The pause after a claim of unordered rows that found none. It doubles with each further one. Claims of unordered rows are
/// serialized, so each of them costs the database a commit, even if it finds nothing because other workers were faster or the rows
/// are locked.
const EMPTY_CLAIM_PAUSE: Duration = Duration::from_millis(20);
const EMPTY_CLAIM_DOUBLINGS_MAX: u32 = 3;

/// Unordered rows that Kafka has and that could not be marked, because another session had locked them.
#[derive(Clone, Debug, PartialEq)]
pub struct LockedRows {
    pub claim: i64,
    pub ids: Vec<i64>,
    /// When the claim was last written, which is when its lease began.
    pub claimed: Instant,
}

/// What a query needs that is to raise the floor of the unordered rows.
#[derive(Clone, Debug)]
pub struct UnorderedScan {
    pub start: i64,
    /// See [`CheckedOutLane::scan_end`](crate::domain::checkout::CheckedOutLane::scan_end).
    pub scan_end: Option<i64>,
    pub watermark: Watermark,
    /// The answer counts only if all of these transactions are still in progress after the query.
    pub bypassed: Vec<i64>,
    /// The epoch of the floor.
    pub epoch: i64,
}

/// What is remembered of the unordered rows between two batches.
#[derive(Debug, Default)]
pub(super) struct UnorderedLane {
    pub(super) stored: UnorderedState,
    pub(super) floor: Floor,
    /// There may be pending rows.
    pub(super) ready: bool,
    /// How many batches are checked out.
    pub(super) checked_out: usize,
    pub(super) claim_size: usize,
    pub(super) not_before: Option<Instant>,
    /// How many claims in a row have found nothing.
    pub(super) empty_claims: u32,
    /// See [`Unordered::claims_from`].
    pub(super) claims_from: i64,
    pub(super) span: ScanSpan,
    /// Where the last claim was cut short and the next one continues. A claim that is not cut starts from the floor again.
    pub(super) resume: i64,
    /// See [`Unordered::lag`].
    pub(super) lag: usize,
    pub(super) locked: Vec<LockedRows>,
}

impl From<UnorderedState> for UnorderedLane {
    fn from(stored: UnorderedState) -> Self {
        UnorderedLane {
            stored,
            floor: Floor::at(stored.floor),
            ready: true,
            claim_size: CLAIM_SIZE_MIN,
            ..UnorderedLane::default()
        }
    }
}

impl UnorderedLane {
    /// Notes the stored floor. False: the answer is older than what is known.
    fn note_stored(&mut self, floor: i64, epoch: i64) -> bool {
        if epoch < self.stored.epoch {
            return false;
        }
        if epoch > self.stored.epoch {
            self.floor = Floor::at(floor);
            self.ready = true;
        }
        (self.stored.floor, self.stored.epoch) = (floor, epoch);
        true
    }

    /// Raises the floor by what a query found out, unless another worker has lowered it since, which changes its epoch.
    fn raise_floor(&mut self, epoch: i64, scan: ScanResult) {
        if self.stored.epoch == epoch {
            self.floor.advance(scan);
        }
    }

    pub(super) fn checkin(&mut self, report: &LaneReport, now: Instant) {
        self.checked_out = self.checked_out.saturating_sub(1);
        self.lag += report.rows;
        self.stored.has_holds |= !report.held_topics.is_empty();
        let is_cut = report.span_end.is_some();
        if report.scan.is_none() && report.pause.is_some() {
            self.span.failed();
        } else if is_cut {
            self.span.ended_early(report.rows == 0, report.took, false);
        } else {
            self.span.completed();
        }
        self.resume = report.span_end.unwrap_or(0);
        let is_empty = report.rows == 0 && !report.hit_limit && !is_cut && report.scan.is_some();
        let doublings = self.empty_claims.min(EMPTY_CLAIM_DOUBLINGS_MAX);
        let pause = is_empty.then(|| EMPTY_CLAIM_PAUSE * 2u32.pow(doublings));
        self.empty_claims = if is_empty {
            self.empty_claims.saturating_add(1)
        } else {
            0
        };
        self.not_before = report.pause.or(pause).map(|pause| now + pause);
        self.claim_size = next_claim_size(self.claim_size, report);
        self.ready = report.hit_limit || is_cut || report.scan.is_none() || report.pause.is_some();
    }
}

pub struct Unordered<'a>(pub(super) &'a Lanes);

impl Unordered<'_> {
    /// Notes that there may be unordered rows.
    pub fn set_ready(&self) {
        self.0.lock().unordered.ready = true;
        self.0.notify_all();
    }

    /// The floor of the unordered rows and its epoch, as this process knows them.
    pub fn floor(&self) -> (Floor, i64) {
        let state = self.0.lock();
        (state.unordered.floor, state.unordered.stored.epoch)
    }

    /// Has the floor moved since it was stored?
    pub fn floor_has_moved(&self) -> bool {
        let state = self.0.lock();
        state.unordered.floor.hard() > state.unordered.stored.floor
    }

    /// What to ask the database in order to raise the floor.
    pub fn begin_scan(&self) -> UnorderedScan {
        let mut state = self.0.lock();
        state.unordered.lag = 0;
        let start = state.unordered.floor.start(&state.tracker);
        let watermark = state.tracker.watermark();
        UnorderedScan {
            start,
            scan_end: state.unordered.span.scan_end(start, watermark),
            watermark,
            bypassed: state.tracker.bypassed_below(start),
            epoch: state.unordered.stored.epoch,
        }
    }

    /// How many unordered rows have been claimed since the last [`Unordered::begin_scan`]. Every claim reads them again.
    pub fn lag(&self) -> usize {
        self.0.lock().unordered.lag
    }

    /// Raises the floor by the answer to a scan.
    pub fn raise_floor(&self, worker: Uuid, epoch: i64, scan: ScanResult) {
        if let Some(mut state) = self.0.of_term(worker) {
            state.unordered.raise_floor(epoch, scan);
        }
    }

    /// Raises the floor by the answer to a poll: `lowest` is the lowest unordered row that is neither published, dead, held nor
    /// delayed, claimed or not.
    pub fn polled(&self, poll: &PollCheckout, lowest: Option<i64>) {
        if let Some(epoch) = poll.unordered_epoch {
            let scan = ScanResult {
                lowest_pending: lowest,
                ..ScanResult::of_everything(poll.watermark)
            };
            self.raise_floor(poll.term.worker, epoch, scan);
        }
    }

    /// Notes the stored state. Another process may have lowered the floor.
    pub fn note_stored(&self, worker: Uuid, stored: UnorderedState) {
        if let Some(mut state) = self.0.of_term(worker)
            && state.unordered.note_stored(stored.floor, stored.epoch)
        {
            state.unordered.stored = stored;
        }
    }

    /// Notes the stored floor alone.
    pub fn note_stored_floor(&self, worker: Uuid, floor: i64, epoch: i64) {
        if let Some(mut state) = self.0.of_term(worker) {
            state.unordered.note_stored(floor, epoch);
        }
    }

    /// Remembers rows that are to be marked later, if there are any.
    pub fn remember_locked(&self, worker: Uuid, locked: LockedRows) {
        if let Some(mut state) = self.0.of_term(worker)
            && !locked.ids.is_empty()
        {
            state.unordered.locked.push(locked);
        }
    }

    /// Takes out all rows that are to be marked later.
    pub fn take_locked(&self, worker: Uuid) -> Vec<LockedRows> {
        let state = self.0.of_term(worker);
        state.map_or_else(Vec::new, |mut state| std::mem::take(&mut state.unordered.locked))
    }

    /// No claim of unordered rows has a lower number, or ever will: claims are numbered in order.
    pub fn claims_from(&self) -> i64 {
        self.0.lock().unordered.claims_from
    }

    /// Notes the lowest number of all claims, as one of ours has read it.
    pub fn note_claims(&self, worker: Uuid, lowest: i64) {
        if let Some(mut state) = self.0.of_term(worker) {
            state.unordered.claims_from = state.unordered.claims_from.max(lowest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::domain::row::UNORDERED_LANE;
    use crate::lanes::tests::{CLAIM_LIMITS, owning_maybe_sent};

    /// The report of a claim after which no unordered row is left.
    fn all_done() -> LaneReport {
        LaneReport {
            scan: Some(ScanResult::of_everything(Watermark::default())),
            ..LaneReport::default()
        }
    }

    #[test]
    fn what_is_stored_of_the_unordered_rows_is_never_replaced_by_an_older_answer() {
        let (lanes, term) = owning_maybe_sent(1, &[]);
        let stored = |epoch, floor| UnorderedState {
            epoch,
            floor,
            ..UnorderedState::default()
        };
        lanes.unordered().note_stored(term.worker, stored(2, 10));
        assert_eq!(
            lanes.unordered().floor(),
            (Floor::at(10), 2),
            "lowered by another worker"
        );
        lanes.unordered().note_stored(term.worker, stored(1, 90));
        assert_eq!(
            lanes.unordered().floor(),
            (Floor::at(10), 2),
            "an older answer that comes late"
        );
        lanes.unordered().note_stored_floor(term.worker, 90, 1);
        lanes.unordered().note_stored(Uuid::from_u128(2), stored(3, 0));
        lanes.unordered().note_stored_floor(Uuid::from_u128(2), 0, 3);
        assert_eq!(lanes.unordered().floor(), (Floor::at(10), 2), "nor of another term");
        lanes.unordered().note_stored_floor(term.worker, 5, 3);
        assert_eq!(lanes.unordered().floor(), (Floor::at(5), 3), "lowered again");
    }

    #[test]
    fn claimed_unordered_rows_are_counted_until_their_floor_is_raised() {
        let (lanes, term) = owning_maybe_sent(0, &[]);
        let claim = |rows| {
            lanes.checkouts().next(&CLAIM_LIMITS).expect("ready");
            let report = LaneReport {
                lane: UNORDERED_LANE,
                rows,
                hit_limit: true,
                ..LaneReport::default()
            };
            lanes.checkouts().checkin(&term, vec![report]);
        };
        claim(600);
        claim(500);
        assert_eq!(lanes.unordered().lag(), 1100);
        lanes.unordered().begin_scan();
        assert_eq!(lanes.unordered().lag(), 0);
    }

    #[test]
    fn unordered_rows_are_claimed_less_often_the_longer_there_are_none() {
        let now = Instant::now();
        let mut unordered = UnorderedLane::default();
        let mut pauses = Vec::new();
        for _ in 0..6 {
            unordered.checkin(&all_done(), now);
            pauses.push((unordered.not_before.expect("a pause") - now).as_millis());
        }
        assert_eq!(pauses, [20, 40, 80, 160, 160, 160]);
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
    fn claims_of_unordered_rows_continue_where_the_last_was_cut_short_and_then_start_again() {
        let now = Instant::now();
        let mut unordered = UnorderedLane::default();
        let cut = LaneReport {
            span_end: Some(50),
            ..all_done()
        };
        unordered.checkin(&cut, now);
        assert!(
            unordered.ready && unordered.not_before.is_none(),
            "there may be more beyond the cut"
        );
        assert_eq!(unordered.resume, 50);
        unordered.checkin(&all_done(), now);
        assert_eq!(unordered.resume, 0);
    }

    #[test]
    fn unordered_rows_are_claimed_again_while_there_may_be_some() {
        let now = Instant::now();
        let checked_in = |report: LaneReport| {
            let mut unordered = UnorderedLane {
                checked_out: 2,
                claim_size: 64,
                ready: true,
                ..UnorderedLane::default()
            };
            unordered.checkin(&report, now);
            unordered
        };
        let pause = Some(Duration::from_secs(1));
        let found = checked_in(LaneReport { rows: 1, ..all_done() });
        assert!(!found.ready && !found.stored.has_holds);
        assert_eq!(
            (found.checked_out, found.claim_size, found.not_before),
            (1, CLAIM_SIZE_MIN, None)
        );
        assert!(
            checked_in(LaneReport {
                hit_limit: true,
                ..all_done()
            })
            .ready
        );
        assert!(checked_in(LaneReport::default()).ready, "nothing was found out");
        let paused = checked_in(LaneReport { pause, ..all_done() });
        assert!(paused.ready);
        assert_eq!(paused.not_before, Some(now + Duration::from_secs(1)));
        let mut with_hold = checked_in(LaneReport {
            held_topics: BTreeSet::from(["orders".to_owned()]),
            ..all_done()
        });
        with_hold.checkin(&all_done(), now);
        assert!(with_hold.stored.has_holds);
    }
}
