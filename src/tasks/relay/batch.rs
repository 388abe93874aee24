//! What a batch means for its lanes, before it is sent and after. Pure, so that all of it has unit tests.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::domain::batch_outcome::BatchOutcome;
use crate::domain::checkout::{CheckedOutLane, UnorderedCheckout};
use crate::domain::floor::ScanResult;
use crate::domain::hold::NewHold;
use crate::domain::pause::Pauses;
use crate::domain::retry::RetryPolicy;
use crate::domain::row::{LANE_COUNT, Row, UNORDERED_LANE};
use crate::domain::watermark::Watermark;
use crate::lanes::{LaneReport, SentRows};
use crate::outbox::{ClaimedRows, DroppedRow};
use crate::tasks::fenced::short_backoff;

/// The rows of each lane, in order. Built in one pass, because a batch has dozens of lanes and thousands of rows.
pub struct RowsByLane<'a>(Vec<Vec<&'a Row>>);

impl<'a> RowsByLane<'a> {
    pub fn new(rows: &'a [Row]) -> Self {
        let mut lanes = vec![Vec::new(); LANE_COUNT];
        for row in rows {
            let lane = row.lane.and_then(|lane| lanes.get_mut(usize::try_from(lane).ok()?));
            if let Some(lane) = lane {
                lane.push(row);
            }
        }
        RowsByLane(lanes)
    }

    pub fn of(&self, lane: i16) -> &[&'a Row] {
        let lane = usize::try_from(lane).ok().and_then(|lane| self.0.get(lane));
        lane.map_or(&[], Vec::as_slice)
    }
}

/// Sorts a claim by id, because SQL promises no order of a joined result, and cuts each lane where the byte budget cut it. Returns
/// the rows, and for each cut lane the id after which nothing is known.
pub fn in_order(claim: ClaimedRows, lanes: &[CheckedOutLane]) -> (Vec<Row>, HashMap<i16, i64>) {
    let mut cuts: HashMap<i16, i64> = HashMap::new();
    // A delayed row cuts nothing: rows of its key do not wait for it, and it is found again by its due time.
    for row in claim.dropped.iter().filter(|row| !row.delayed) {
        let cut = cuts.entry(row.lane.unwrap_or(UNORDERED_LANE)).or_insert(i64::MAX);
        *cut = (*cut).min(row.id - 1);
    }
    let mut rows = claim.rows;
    rows.retain(|row| {
        let cut = row.lane.and_then(|lane| cuts.get(&lane));
        row.delayed || cut.is_none_or(|cut| row.id <= *cut)
    });
    // Rows are large. This moves each of them once.
    rows.sort_by_cached_key(|row| row.id);
    let by_lane = RowsByLane::new(&rows);
    for lane in lanes {
        let mut count = 0;
        let mut last = 0;
        for row in by_lane.of(lane.lane).iter().filter(|row| !row.delayed) {
            count += 1;
            last = row.id;
        }
        if count >= lane.most {
            let cut = cuts.entry(lane.lane).or_insert(last);
            *cut = (*cut).min(last);
        } else if let Some(scan_end) = lane.scan_end {
            cuts.entry(lane.lane).or_insert(scan_end);
        }
    }
    (rows, cuts)
}

pub fn flag_possible_duplicates(rows: &mut [Row], lanes: &[CheckedOutLane]) {
    for lane in lanes {
        if lane.maybe_sent.is_empty() && lane.maybe_sent.until == 0 {
            continue;
        }
        let of_lane = rows.iter_mut().filter(|row| row.lane == Some(lane.lane));
        of_lane.for_each(|row| row.possible_duplicate = lane.maybe_sent.contains(row.id));
    }
}

/// Takes out the rows that Kafka has already: see [`CheckedOutLane::acknowledged`].
pub fn take_acknowledged(rows: &mut Vec<Row>, lanes: &[CheckedOutLane]) -> Vec<Row> {
    let is_acknowledged = |row: &mut Row| lanes.iter().any(|lane| lane.acknowledged.contains(&row.id));
    if lanes.iter().all(|lane| lane.acknowledged.is_empty()) {
        return Vec::new();
    }
    rows.extract_if(.., is_acknowledged).collect()
}

/// Puts them back, because no floor may pass them while they wait for their marks.
pub fn put_acknowledged_back(rows: &mut Vec<Row>, acknowledged: Vec<Row>, outcome: &mut BatchOutcome) {
    if acknowledged.is_empty() {
        return;
    }
    let ids: Vec<i64> = acknowledged.iter().map(|row| row.id).collect();
    outcome.leave_unmarked(&ids);
    rows.extend(acknowledged);
    rows.sort_by_cached_key(|row| row.id);
}

/// Takes out the rows that a pause keeps back.
pub fn take_paused(rows: &mut Vec<Row>, pauses: &Pauses) -> Vec<Row> {
    if pauses.is_empty() {
        return Vec::new();
    }
    rows.extract_if(.., |row| pauses.covering(row).is_some()).collect()
}

/// Puts them back. They are held, so that floors may pass them.
pub fn put_paused_back(
    rows: &mut Vec<Row>,
    paused: Vec<Row>,
    pauses: &Pauses,
    policy: &RetryPolicy,
    outcome: &mut BatchOutcome,
) {
    if paused.is_empty() {
        return;
    }
    outcome.keep_back(&paused, pauses, policy);
    rows.extend(paused);
    rows.sort_by_cached_key(|row| row.id);
}

/// Rows that are returned unpublished although this attempt or an earlier one may have left a copy.
pub fn returned_maybe_sent(dropped: &[DroppedRow], outcome: &BatchOutcome) -> Vec<i64> {
    let dropped = dropped.iter().filter(|row| row.possible_duplicate).map(|row| row.id);
    outcome.returned_maybe_sent().chain(dropped).collect()
}

/// The lanes that have rows in the batch, with their epochs.
pub fn with_epochs(lanes: &[CheckedOutLane], rows: &[Row]) -> Vec<(i16, i64)> {
    let has_rows: HashSet<i16> = rows.iter().filter_map(|row| row.lane).collect();
    let lanes = lanes.iter().filter(|lane| has_rows.contains(&lane.lane));
    lanes.map(|lane| (lane.lane, lane.epoch)).collect()
}

/// Rows that may have been sent, each with its lane.
pub fn maybe_sent_by_lane(rows: &[Row], outcome: &BatchOutcome) -> Vec<(i16, i64)> {
    let maybe_sent = rows.iter().filter(|row| outcome.maybe_sent.contains(&row.id));
    maybe_sent.filter_map(|row| Some((row.lane?, row.id))).collect()
}

/// New holds with the floors of their lanes.
pub fn with_floors(holds: &[NewHold], lanes: &[CheckedOutLane]) -> Vec<(NewHold, i64)> {
    let floor_of = |number| {
        lanes
            .iter()
            .find(|lane| lane.lane == number)
            .map_or(0, |lane| lane.floor)
    };
    holds.iter().map(|hold| (hold.clone(), floor_of(hold.lane))).collect()
}

/// Nothing was found out about the lane. It is claimed from again after a moment.
pub fn failed_report(lane: i16) -> LaneReport {
    LaneReport {
        lane,
        pause: Some(short_backoff()),
        ..LaneReport::default()
    }
}

/// Nothing was found out about the lane, and nothing is wrong. It is claimed from again at once.
pub fn discarded_report(lane: i16) -> LaneReport {
    LaneReport {
        lane,
        ..LaneReport::default()
    }
}

/// The lane has nothing to publish.
pub fn empty_report(lane: i16, watermark: Watermark) -> LaneReport {
    LaneReport {
        lane,
        scan: Some(ScanResult::of_everything(watermark)),
        ..LaneReport::default()
    }
}

/// The lanes that have something in this claim, and the numbers of those that have nothing.
pub fn with_rows(lanes: Vec<CheckedOutLane>, claim: &ClaimedRows) -> (Vec<CheckedOutLane>, Vec<i16>) {
    let rows = claim.rows.iter().filter_map(|row| row.lane);
    let found: HashSet<i16> = rows.chain(claim.dropped.iter().filter_map(|row| row.lane)).collect();
    let (lanes, empty): (Vec<CheckedOutLane>, Vec<CheckedOutLane>) =
        lanes.into_iter().partition(|lane| found.contains(&lane.lane));
    (lanes, empty.iter().map(|lane| lane.lane).collect())
}

/// What a batch found out about a lane. `cuts` is the second result of [`in_order`].
pub fn lane_report(
    lane: &CheckedOutLane,
    rows: &RowsByLane<'_>,
    cuts: &HashMap<i16, i64>,
    watermark: Watermark,
    outcome: &BatchOutcome,
) -> LaneReport {
    let of_lane = rows.of(lane.lane);
    let is_published = |row: &Row| outcome.has_published(row.id);
    let is_dead = |row: &Row| {
        outcome
            .refused
            .iter()
            .any(|refusal| refusal.dead && refusal.id == row.id)
    };
    // The row was flagged before, perhaps as one of a range. From now on it is known by its id.
    let still_maybe_sent = |row: &Row| row.possible_duplicate && !is_published(row) && !is_dead(row);
    let ids_where = |is: &dyn Fn(&Row) -> bool| {
        of_lane
            .iter()
            .filter(|row| is(row))
            .map(|row| row.id)
            .collect::<Vec<i64>>()
    };
    let sent = SentRows {
        published: ids_where(&is_published),
        maybe_sent: ids_where(&|row| outcome.maybe_sent.contains(&row.id) || still_maybe_sent(row)),
        acknowledged: ids_where(&|row| outcome.unmarked.contains(&row.id)),
    };
    let is_pending = |row: &Row| !row.delayed && !is_published(row) && !is_dead(row) && !outcome.holds_back(row);
    let lowest_pending = if outcome.is_clean() {
        None
    } else {
        of_lane.iter().find(|row| is_pending(row)).map(|row| row.id)
    };
    let scanned_to = cuts.get(&lane.lane).copied();
    let span_end = lane.scan_end.filter(|end| scanned_to == Some(*end));
    let is_left = lowest_pending.is_some() || !sent.acknowledged.is_empty();
    // A lane whose claim was cut short because it had scanned enough continues at once.
    let is_stuck = sent.published.is_empty() && is_left && span_end.is_none();
    LaneReport {
        lane: lane.lane,
        rows: of_lane.len(),
        hit_limit: scanned_to.is_some() && span_end.is_none(),
        span_end,
        scan: Some(ScanResult {
            watermark,
            scanned_to,
            lowest_pending,
        }),
        highest_id: of_lane.last().map_or(0, |row| row.id),
        sent,
        held_topics: topics(outcome.holds.iter().filter(|hold| hold.lane == lane.lane)),
        pause: is_stuck.then(short_backoff),
        ..LaneReport::default()
    }
}

fn topics<'a>(holds: impl IntoIterator<Item = &'a NewHold>) -> BTreeSet<String> {
    holds.into_iter().map(|hold| hold.topic.clone()).collect()
}

/// What a claim of unordered rows found out. It says nothing about floors, because other workers claim such rows, too.
pub fn unordered_report(
    checked_out: &UnorderedCheckout,
    rows: &[Row],
    dropped: &[DroppedRow],
    outcome: &BatchOutcome,
) -> LaneReport {
    let all_done = outcome.is_clean() && dropped.is_empty();
    let is_stuck = outcome.published.is_empty() && !outcome.is_clean();
    let hit_limit = rows.len() + dropped.len() >= checked_out.most;
    LaneReport {
        lane: UNORDERED_LANE,
        rows: rows.len(),
        hit_limit,
        span_end: checked_out.scan_end.filter(|_| !hit_limit),
        over_budget: !dropped.is_empty(),
        scan: all_done.then_some(ScanResult::of_everything(Watermark::default())),
        highest_id: rows.last().map_or(0, |row| row.id),
        held_topics: topics(&outcome.holds),
        pause: is_stuck.then(short_backoff),
        ..LaneReport::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::domain::decision::Refusal;
    use crate::domain::id_ranges::IdRanges;
    use crate::domain::lease::Term;
    use crate::domain::maybe_sent::MaybeSent;
    use crate::domain::pause::Pause;
    use crate::domain::retry::OnDead;
    use crate::domain::row::tests::row;
    use crate::lanes::tests::owning_maybe_sent;
    use crate::lanes::{ClaimLimits, Lanes, Work};

    const POLICY: RetryPolicy = RetryPolicy {
        max_attempts: 3,
        backoff_min: Duration::from_secs(1),
        backoff_max: Duration::from_secs(60),
        on_dead: OnDead::Continue,
    };

    fn of_lane(lane: i16, ids: impl IntoIterator<Item = i64>) -> Vec<Row> {
        let lane = Some(lane);
        ids.into_iter().map(|id| Row { lane, ..row(id) }).collect()
    }

    fn delayed(mut row: Row) -> Row {
        row.delayed = true;
        row
    }

    fn dropped(id: i64, lane: i16) -> DroppedRow {
        DroppedRow {
            id,
            lane: Some(lane),
            possible_duplicate: false,
            delayed: false,
        }
    }

    fn checked_out(lane: i16) -> CheckedOutLane {
        CheckedOutLane {
            lane,
            epoch: 1,
            floor: 0,
            start: 0,
            scan_end: None,
            most: 100,
            maybe_sent: MaybeSent::default(),
            acknowledged: HashSet::new(),
            held_topics: Arc::default(),
        }
    }

    fn refusal(id: i64, dead: bool) -> Refusal {
        Refusal {
            id,
            attempts: 0,
            possible_duplicate: false,
            reason: "too large".into(),
            dead,
            wait: Duration::ZERO,
        }
    }

    fn hold(lane: i16, unit: &str) -> NewHold {
        NewHold {
            lane,
            topic: "orders".into(),
            unit: unit.into(),
            head_id: None,
            reason: "sick".into(),
            failures: 1,
            wait: None,
        }
    }

    fn ids(rows: &[Row]) -> Vec<i64> {
        rows.iter().map(|row| row.id).collect()
    }

    fn maybe_sent(rows: &[Row]) -> Vec<i64> {
        rows.iter()
            .filter(|row| row.possible_duplicate)
            .map(|row| row.id)
            .collect()
    }

    fn reported(checked_out: &CheckedOutLane, rows: &[Row], outcome: &BatchOutcome) -> LaneReport {
        lane_report(
            checked_out,
            &RowsByLane::new(rows),
            &HashMap::new(),
            Watermark::default(),
            outcome,
        )
    }

    #[test]
    fn a_claim_that_failed_is_repeated_after_a_pause_and_one_discarded_at_once() {
        let (failed, discarded) = (failed_report(7), discarded_report(7));
        assert_eq!((failed.lane, discarded.lane), (7, 7));
        assert!(failed.pause.is_some() && discarded.pause.is_none());
        assert!(
            failed.scan.is_none() && discarded.scan.is_none(),
            "nothing was found out"
        );
    }

    // ── in_order ──────────────────────────────────────────────────────────────────────────────────

    #[test]
    fn a_lane_that_got_all_it_asked_for_is_cut_at_its_last_fresh_row() {
        let claim = |most| {
            let mut rows = of_lane(0, [3, 2]);
            rows.extend([delayed(row(1)), delayed(row(9))]);
            rows.extend(of_lane(1, [4]));
            let claim = ClaimedRows {
                rows,
                dropped: Vec::new(),
            };
            in_order(claim, &[CheckedOutLane { most, ..checked_out(0) }, checked_out(1)])
        };
        let (rows, cuts) = claim(2);
        assert_eq!(ids(&rows), [1, 2, 3, 4, 9]);
        assert_eq!(cuts, HashMap::from([(0, 3)]), "delayed rows cut nothing");
        assert!(claim(3).1.is_empty());
    }

    #[test]
    fn a_lane_is_cut_before_the_first_row_left_behind_and_others_are_not() {
        let due = DroppedRow {
            delayed: true,
            ..dropped(1, 1)
        };
        let claim = ClaimedRows {
            rows: [of_lane(0, [1, 4, 6]), of_lane(1, [2, 7]), vec![delayed(row(9))]].concat(),
            dropped: vec![dropped(5, 0), dropped(3, 0), dropped(8, 2), due],
        };
        let (rows, cuts) = in_order(claim, &[checked_out(0), checked_out(1), checked_out(2)]);
        assert_eq!(ids(&rows), [1, 2, 7, 9]);
        assert_eq!(
            cuts,
            HashMap::from([(0, 2), (2, 7)]),
            "a delayed row is found again by its due time"
        );
    }

    #[test]
    fn a_lane_that_was_scanned_far_enough_is_cut_there_unless_it_was_cut_before() {
        let cut_of = |most, dropped| {
            let claim = ClaimedRows {
                rows: of_lane(0, [10, 20]),
                dropped,
            };
            let checked_out = CheckedOutLane {
                most,
                scan_end: Some(50),
                ..checked_out(0)
            };
            let (rows, cuts) = in_order(claim, std::slice::from_ref(&checked_out));
            let report = lane_report(
                &checked_out,
                &RowsByLane::new(&rows),
                &cuts,
                Watermark::default(),
                &BatchOutcome::default(),
            );
            (cuts[&0], report.span_end.is_some(), report.hit_limit)
        };
        assert_eq!(cut_of(100, Vec::new()), (50, true, false));
        assert_eq!(cut_of(2, Vec::new()), (20, false, true), "by its limit");
        assert_eq!(
            cut_of(100, vec![dropped(15, 0)]),
            (14, false, true),
            "by the byte budget"
        );
    }

    proptest! {
        #[test]
        fn nothing_overtakes_a_row_left_behind_and_nothing_else_is_left_out(
            claimed in prop::collection::btree_map(0..40i64, (0..3i16, any::<bool>()), 0..40),
        ) {
            let mut claim = ClaimedRows::default();
            for (id, (lane, is_dropped)) in &claimed {
                if *is_dropped {
                    claim.dropped.push(dropped(*id, *lane));
                } else {
                    claim.rows.extend(of_lane(*lane, [*id]));
                }
            }
            claim.rows.reverse();
            let (rows, cuts) = in_order(claim, &[checked_out(0), checked_out(1), checked_out(2)]);
            let first_left_behind = |lane| claimed.iter().find(|(_, fate)| **fate == (lane, true)).map(|(id, _)| *id);
            let expected = claimed.iter().filter(|(id, (lane, is_dropped))| {
                !is_dropped && first_left_behind(*lane).is_none_or(|first| **id < first)
            });
            prop_assert_eq!(ids(&rows), expected.map(|(id, _)| *id).collect::<Vec<_>>());
            for lane in 0..3 {
                prop_assert_eq!(cuts.get(&lane).map(|cut| cut + 1), first_left_behind(lane));
            }
        }
    }

    // ── flag_possible_duplicates ──────────────────────────────────────────────────────────────────

    #[test]
    fn rows_that_an_earlier_owner_or_this_process_may_have_sent_are_flagged() {
        let flagged = |checked_out: CheckedOutLane| {
            let mut rows = [of_lane(0, [1, 3, 5, 7]), of_lane(1, [2])].concat();
            rows.sort_by_key(|row| row.id);
            flag_possible_duplicates(&mut rows, &[checked_out]);
            maybe_sent(&rows)
        };
        let with = |lane, maybe_sent| CheckedOutLane {
            maybe_sent,
            ..checked_out(lane)
        };
        let in_ranges = MaybeSent {
            ranges: IdRanges::from_flat(&[2, 5]),
            ..MaybeSent::default()
        };
        let below = MaybeSent {
            until: 5,
            ..MaybeSent::default()
        };
        let by_id = MaybeSent {
            ids: HashSet::from([3, 7]),
            ..MaybeSent::default()
        };
        let both = MaybeSent {
            ranges: IdRanges::of_ids([1]),
            ..by_id.clone()
        };
        assert!(flagged(checked_out(0)).is_empty());
        assert_eq!(flagged(with(0, in_ranges.clone())), [3, 5]);
        assert_eq!(flagged(with(1, in_ranges)), [2]);
        assert_eq!(flagged(with(0, below)), [1, 3, 5]);
        assert_eq!(flagged(with(0, by_id)), [3, 7]);
        assert_eq!(flagged(with(0, both)), [1, 3, 7]);
    }

    // ── rows that are locked ──────────────────────────────────────────────────────────────────────

    #[test]
    fn a_row_that_could_not_be_marked_is_not_sent_again_and_no_floor_passes_it() {
        let batch = of_lane(0, [1, 2, 3]);
        let mut outcome = BatchOutcome {
            published: vec![1, 2, 3],
            ..BatchOutcome::default()
        };
        outcome.leave_locked(&[2], &POLICY);
        assert_eq!(maybe_sent_by_lane(&batch, &outcome), [(0, 2)], "a successor is told");
        assert!(returned_maybe_sent(&[], &outcome).is_empty(), "it is not returned");
        let report = reported(&checked_out(0), &batch, &outcome);
        assert_eq!(
            (report.sent.published, report.sent.acknowledged, report.sent.maybe_sent),
            (vec![1, 3], vec![2], vec![2])
        );
        let lowest_pending = report.scan.and_then(|scan| scan.lowest_pending);
        assert_eq!(lowest_pending, Some(2), "no floor passes it");
        let next = CheckedOutLane {
            acknowledged: HashSet::from([2]),
            ..checked_out(0)
        };
        let mut rows = of_lane(0, [2, 4]);
        let acknowledged = take_acknowledged(&mut rows, std::slice::from_ref(&next));
        assert_eq!((ids(&rows), ids(&acknowledged)), (vec![4], vec![2]));
        let mut outcome = BatchOutcome {
            published: vec![4],
            ..BatchOutcome::default()
        };
        put_acknowledged_back(&mut rows, acknowledged, &mut outcome);
        let report = reported(&next, &rows, &outcome);
        assert_eq!((report.sent.published, report.sent.acknowledged), (vec![4], vec![2]));
        let lowest_pending = report.scan.and_then(|scan| scan.lowest_pending);
        assert_eq!(lowest_pending, Some(2), "still none passes it");
    }

    // ── rows that are paused ──────────────────────────────────────────────────────────────────────

    #[test]
    fn paused_rows_are_not_sent_and_the_floor_passes_them_because_they_are_held() {
        let mut rows = of_lane(0, [1, 2, 3, 4]);
        rows[1].key = Some("other".into());
        rows[3].key = Some("other".into());
        let pauses = |key: Option<&str>| {
            let pause = Pause {
                topic: Some("orders".to_owned()),
                key: key.map(str::to_owned),
                reason: "broken consumer".to_owned(),
            };
            Pauses::new(1, [pause])
        };
        assert!(take_paused(&mut rows, &Pauses::default()).is_empty());
        let key = pauses(Some("k"));
        let paused = take_paused(&mut rows, &key);
        assert_eq!((ids(&rows), ids(&paused)), (vec![2, 4], vec![1, 3]));
        let mut outcome = BatchOutcome {
            published: vec![2, 4],
            ..BatchOutcome::default()
        };
        put_paused_back(&mut rows, paused, &key, &POLICY, &mut outcome);
        assert_eq!(ids(&rows), [1, 2, 3, 4]);
        assert_eq!((outcome.unsent.as_slice(), outcome.holds.len()), (&[1, 3][..], 1));
        assert_eq!(outcome.holds[0].head_id, Some(1), "the first row of the key");
        let report = reported(&checked_out(0), &rows, &outcome);
        assert_eq!(report.scan, Some(ScanResult::of_everything(Watermark::default())));
        assert_eq!(report.sent.published, [2, 4]);
        assert_eq!(report.held_topics, BTreeSet::from(["orders".to_owned()]));

        let topic = pauses(None);
        let paused = take_paused(&mut rows, &topic);
        assert!(rows.is_empty());
        let mut outcome = BatchOutcome::default();
        put_paused_back(&mut rows, paused, &topic, &POLICY, &mut outcome);
        let report = reported(&checked_out(0), &rows, &outcome);
        assert!(report.sent.published.is_empty() && report.pause.is_none());
        assert_eq!(report.scan, Some(ScanResult::of_everything(Watermark::default())));
    }

    // ── returned_maybe_sent, with_floors ──────────────────────────────────────────────────────────

    #[test]
    fn rows_that_are_returned_keep_their_flag() {
        let flagged = |refusal: Refusal| Refusal {
            possible_duplicate: true,
            ..refusal
        };
        let outcome = BatchOutcome {
            published: vec![3],
            unsent: vec![1],
            maybe_sent: vec![2, 4, 10],
            unmarked: vec![10],
            refused: vec![refusal(7, false), flagged(refusal(8, false)), flagged(refusal(9, true))],
            ..BatchOutcome::default()
        };
        let left_behind = [
            dropped(5, 0),
            DroppedRow {
                possible_duplicate: true,
                ..dropped(6, 0)
            },
        ];
        assert_eq!(returned_maybe_sent(&left_behind, &outcome), [8, 2, 4, 6]);
    }

    #[test]
    fn a_delayed_row_left_behind_cuts_no_lane_and_one_in_the_batch_is_not_cut() {
        let left = DroppedRow {
            delayed: true,
            ..dropped(2, 7)
        };
        let mut rows = of_lane(7, 10..=12);
        rows.push(delayed(of_lane(7, [30]).remove(0)));
        let claim = ClaimedRows {
            rows: rows.clone(),
            dropped: vec![left],
        };
        let (sent, cuts) = in_order(claim, &[checked_out(7)]);
        assert_eq!((ids(&sent), cuts.get(&7)), (vec![10, 11, 12, 30], None));
        let claim = ClaimedRows {
            rows,
            dropped: vec![left, dropped(12, 7)],
        };
        let (sent, cuts) = in_order(claim, &[checked_out(7)]);
        assert_eq!((ids(&sent), cuts.get(&7)), (vec![10, 11, 30], Some(&11)));
    }

    #[test]
    fn a_hold_remembers_the_floor_of_its_own_lane() {
        let holds = [hold(1, ""), hold(0, "k:k"), hold(7, "")];
        let floors = [
            CheckedOutLane {
                floor: 10,
                ..checked_out(0)
            },
            CheckedOutLane {
                floor: 20,
                ..checked_out(1)
            },
        ];
        let [one, two, stray] = holds.clone();
        assert_eq!(with_floors(&holds, &floors), [(one, 20), (two, 10), (stray, 0)]);
    }

    // ── lane_report ───────────────────────────────────────────────────────────────────────────────

    #[test]
    fn a_lane_whose_rows_are_all_published_has_nothing_left() {
        let rows = [of_lane(0, [1, 2]), of_lane(1, [3])].concat();
        let outcome = BatchOutcome {
            published: vec![1, 2, 3],
            ..BatchOutcome::default()
        };
        let watermark = Watermark {
            hard: 4,
            soft: 5,
            generation: 6,
        };
        let rows = RowsByLane::new(&rows);
        let report = lane_report(&checked_out(0), &rows, &HashMap::from([(1, 3)]), watermark, &outcome);
        assert_eq!(report.scan, Some(ScanResult::of_everything(watermark)));
        assert_eq!((report.lane, report.rows, report.highest_id), (0, 2, 2));
        assert_eq!(report.sent.published, [1, 2]);
        assert!(
            !report.hit_limit
                && report.held_topics.is_empty()
                && report.pause.is_none()
                && report.sent.maybe_sent.is_empty()
        );
        let cut = lane_report(&checked_out(1), &rows, &HashMap::from([(1, 3)]), watermark, &outcome);
        assert!(cut.hit_limit);
        assert_eq!((cut.lane, cut.sent.published), (1, vec![3]));
        assert_eq!(cut.scan.and_then(|scan| scan.scanned_to), Some(3));
    }

    #[test]
    fn the_lowest_row_left_is_one_that_no_hold_no_due_time_and_no_dead_letter_accounts_for() {
        let mut rows = of_lane(0, 1..=7);
        rows[2] = delayed(row(3));
        rows[3].key = Some("held".into());
        let outcome = BatchOutcome {
            published: vec![1],
            refused: vec![refusal(2, true), refusal(5, false)],
            unsent: vec![3, 4, 6, 7],
            holds: vec![hold(0, "k:held")],
            ..BatchOutcome::default()
        };
        let report = reported(&checked_out(0), &rows, &outcome);
        assert_eq!(report.scan.and_then(|scan| scan.lowest_pending), Some(5));
        assert_eq!(report.held_topics, topics(&outcome.holds));
        assert_eq!(report.pause, None, "something got through");
        assert!(reported(&checked_out(1), &rows, &outcome).held_topics.is_empty());
    }

    #[test]
    fn only_a_lane_that_published_nothing_and_has_rows_left_pauses() {
        let rows = of_lane(0, [1]);
        let unsent = BatchOutcome {
            unsent: vec![1],
            ..BatchOutcome::default()
        };
        assert!(reported(&checked_out(0), &rows, &unsent).pause.is_some());
        assert_eq!(reported(&checked_out(1), &rows, &unsent).pause, None, "it had no rows");
    }

    #[test]
    fn what_may_have_been_sent_is_remembered_by_id() {
        let mut rows = of_lane(0, 1..=5);
        rows.iter_mut().take(3).for_each(|row| row.possible_duplicate = true);
        let outcome = BatchOutcome {
            published: vec![1],
            refused: vec![refusal(2, true)],
            unsent: vec![3, 5],
            maybe_sent: vec![4],
            ..BatchOutcome::default()
        };
        assert_eq!(reported(&checked_out(0), &rows, &outcome).sent.maybe_sent, [3, 4]);
    }

    // ── unordered_report ──────────────────────────────────────────────────────────────────────────

    #[test]
    fn unordered_rows_are_done_when_none_is_left_and_none_was_left_behind() {
        let checked_out = UnorderedCheckout {
            floor: 0,
            start: 0,
            scan_end: None,
            most: 3,
            maybe_sent_until: 0,
            has_holds: false,
            claims_from: 0,
        };
        let rows = [row(4), row(9)];
        let published = BatchOutcome {
            published: vec![4, 9],
            ..BatchOutcome::default()
        };
        let done = unordered_report(&checked_out, &rows, &[], &published);
        assert_eq!((done.lane, done.rows, done.highest_id), (UNORDERED_LANE, 2, 9));
        assert!(done.scan.is_some() && done.pause.is_none());
        assert!(!done.hit_limit && !done.over_budget && done.held_topics.is_empty());
        let heavy = unordered_report(&checked_out, &rows, &[dropped(10, UNORDERED_LANE)], &published);
        assert!(heavy.hit_limit && heavy.over_budget && heavy.scan.is_none() && heavy.pause.is_none());
        let parked = BatchOutcome {
            unsent: vec![4, 9],
            holds: vec![hold(UNORDERED_LANE, "")],
            ..BatchOutcome::default()
        };
        let stuck = unordered_report(&checked_out, &rows, &[], &parked);
        assert!(!stuck.held_topics.is_empty() && stuck.scan.is_none() && stuck.pause.is_some());
        let partly = BatchOutcome {
            published: vec![4],
            unsent: vec![9],
            ..BatchOutcome::default()
        };
        let partly = unordered_report(&checked_out, &rows, &[], &partly);
        assert!(partly.scan.is_none() && partly.pause.is_none());
        assert_eq!(
            unordered_report(&checked_out, &[], &[], &BatchOutcome::default()).highest_id,
            0
        );
        let far = UnorderedCheckout {
            scan_end: Some(50),
            ..checked_out
        };
        let cut = unordered_report(&far, &rows, &[], &published);
        assert_eq!((cut.span_end, done.span_end), (Some(50), None));
        let hit_limit = unordered_report(&UnorderedCheckout { most: 2, ..far }, &rows, &[], &published);
        assert!(hit_limit.hit_limit && hit_limit.span_end.is_none(), "by its limit");
    }

    #[test]
    fn a_lane_that_is_returned_after_everything_was_published_has_no_ranges() {
        let lane = Inherited::with(3);
        assert_eq!(lane.relay(&[1, 2, 3, 4], &[]), [1, 2, 3]);
        let done = lane.lanes.floors().to_store();
        assert_eq!(
            done[0].done.as_deref(),
            Some([1, 3].as_slice()),
            "what is stored of it is done with"
        );
        lane.lanes.floors().stored(&done, &[(0, 1, 0)]);
        assert!(lane.lanes.floors().to_store().is_empty());
        assert!(lane.lanes.ownership().remove_idle().0[0].maybe_sent.is_empty());
    }

    #[test]
    fn what_a_batch_stores_meanwhile_is_not_taken_for_done() {
        let lane = Inherited::with(3);
        lane.relay(&[1, 2, 3], &[]);
        let done = lane.lanes.floors().to_store();
        let more = lane.lanes.maybe_sent().to_store(&[(0, 9)]);
        assert_eq!(more, [(0, vec![9, 9])]);
        lane.lanes.maybe_sent().stored(lane.term.worker, more);
        lane.lanes.floors().stored(&done, &[(0, 1, 0)]);
        let now = lane.lanes.floors().to_store();
        assert_eq!(now[0].done.as_deref(), Some([9, 9].as_slice()));
    }

    // ── a lane from batch to batch ────────────────────────────────────────────────────────────────

    /// A lane taken from a worker that died with rows in flight.
    struct Inherited {
        lanes: Lanes,
        term: Term,
    }

    impl Inherited {
        /// The worker that died had this many first rows in flight.
        fn with(rows: i64) -> Self {
            let maybe_sent = if rows > 0 { vec![1, rows] } else { Vec::new() };
            let (lanes, term) = owning_maybe_sent(1, &maybe_sent);
            Inherited { lanes, term }
        }

        fn checkout(&self) -> CheckedOutLane {
            let claim_limits = ClaimLimits {
                rows: 1000,
                tasks: 1,
                lease_left: Duration::ZERO,
            };
            let work = std::iter::repeat_with(|| self.lanes.checkouts().next(&claim_limits).expect("ready").work);
            let mut checked_out = work.filter_map(|work| match work {
                Work::Lanes(lanes) => lanes.into_iter().next(),
                Work::Unordered(_) => None,
            });
            checked_out.next().expect("the lane")
        }

        /// Relays one batch of these rows, of which these are not sent. Returns the flagged ones.
        fn relay(&self, ids: &[i64], unsent: &[i64]) -> Vec<i64> {
            let checked_out = self.checkout();
            let mut rows = of_lane(0, ids.iter().copied());
            flag_possible_duplicates(&mut rows, std::slice::from_ref(&checked_out));
            let (unsent, published) = ids.iter().partition(|id| unsent.contains(id));
            let outcome = BatchOutcome {
                published,
                unsent,
                ..BatchOutcome::default()
            };
            let report = LaneReport {
                pause: None,
                ..reported(&checked_out, &rows, &outcome)
            };
            self.lanes.checkouts().checkin(&self.term, vec![report]);
            maybe_sent(&rows)
        }
    }

    #[test]
    fn a_row_that_may_have_been_sent_is_still_flagged_when_later_ones_are_published() {
        let lane = Inherited::with(3);
        assert_eq!(lane.relay(&[1, 2, 3, 4, 5, 6], &[1]), [1, 2, 3]);
        assert_eq!(lane.relay(&[1, 7], &[1]), [1]);
        assert_eq!(lane.relay(&[1, 8], &[]), [1]);
    }

    #[test]
    fn a_lane_is_returned_with_the_ranges_it_was_taken_with() {
        let lane = Inherited::with(40);
        assert_eq!(lane.relay(&[1, 2, 3], &[1, 2, 3]), [1, 2, 3]);
        let (given, _) = lane.lanes.ownership().remove_idle();
        assert_eq!(given[0].maybe_sent, [1, 40]);
    }

    #[test]
    fn however_often_flagged_rows_are_tried_no_others_are_flagged() {
        let lane = Inherited::with(4);
        for _ in 0..5 {
            assert_eq!(lane.relay(&[1, 2], &[1, 2]), [1, 2]);
        }
        assert_eq!(lane.relay(&[1, 2, 3], &[1]), [1, 2, 3]);
        assert_eq!(lane.relay(&[1, 4, 5], &[1]), [1, 4]);
    }

    proptest! {
        /// Claims grow and shrink, and rows are sent or not. The rows that the last owner may have sent, its oldest ones, are
        /// flagged each time, and no other row ever is.
        #[test]
        fn the_rows_of_the_last_owner_are_flagged_until_they_are_published(
            maybe_sent_rows in 0..12i64,
            batches in prop::collection::vec((1..8usize, prop::collection::vec(any::<bool>(), 8)), 1..20),
        ) {
            let lane = Inherited::with(maybe_sent_rows);
            let mut pending: Vec<i64> = (1..=200).collect();
            for (size, sent) in batches {
                let claimed = pending[..size].to_vec();
                // Something is left in any case: a lane that has nothing is not claimed from again.
                let unsent: Vec<i64> = claimed.iter().zip(sent).filter(|(id, sent)| !sent || **id == 1).map(|(id, _)| *id).collect();
                let flagged = lane.relay(&claimed, &unsent);
                let expected: Vec<i64> = claimed.iter().copied().filter(|id| *id <= maybe_sent_rows).collect();
                prop_assert_eq!(flagged, expected);
                pending.retain(|id| !claimed.contains(id) || unsent.contains(id));
            }
        }
    }
}
