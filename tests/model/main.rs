//! The protocol, checked in every state within bounds: leases, floors and holds, unordered rows.
//!
//! See `docs/model.md`. Needs no database.

mod check;
mod floor;
mod lease;
mod rules;
mod unordered;

use floor::Floor;
use lease::Lease;
use rules::{Rule, Rules};
use unordered::Unordered;

fn bound(variable: &str, default: usize) -> usize {
    std::env::var(variable)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

fn lease(rules: Rules, rows: u8, events: usize) -> Lease {
    Lease {
        rules,
        rows,
        processes: bound("OUTBOXD_MODEL_WORKERS", 2),
        expiring: bound("OUTBOXD_MODEL_EXPIRING", 1),
        events: bound("OUTBOXD_MODEL_EVENTS", events) as u8,
    }
}

fn floor(rules: Rules, events: usize) -> Floor {
    Floor {
        rules,
        writers: bound("OUTBOXD_MODEL_WRITERS", 2),
        events: bound("OUTBOXD_MODEL_EVENTS", events) as u8,
    }
}

fn unordered(rules: Rules) -> Unordered {
    Unordered {
        rules,
        workers: bound("OUTBOXD_MODEL_WORKERS", 2),
        rows: 2,
        events: bound("OUTBOXD_MODEL_EVENTS", 2) as u8,
    }
}

#[test]
fn the_lease_keeps_its_promises() {
    check::holds("lease", lease(Rules::all(), 2, 1));
    check::holds("lease, one row", lease(Rules::all(), 1, 2));
}

#[test]
fn floors_and_holds_keep_their_promises() {
    check::holds("floor", floor(Rules::all(), 2));
}

#[test]
fn unordered_rows_keep_their_promises() {
    check::holds("unordered", unordered(Rules::all()));
}

/// Each rule is needed: without it alone, this promise breaks.
#[test]
fn without_a_rule_a_promise_breaks() {
    use Rule::*;
    let mut needless = Vec::new();
    let mut lacks = |rule, promise, steps: Option<usize>| match steps {
        Some(steps) => println!("without {rule:?}: \"{promise}\" breaks in {steps} steps"),
        None => needless.push((rule, promise)),
    };
    for (rule, promise, events) in [
        (TakeLocksTheWorker, lease::SENDS, 1),
        (TakeStampsTheWorker, lease::SENDS, 1),
        (RenewalRevivesNobody, lease::SENDS, 1),
        (LeaseCountsFromTheCall, lease::SENDS, 1),
        (SendsStopBeforeTheEnd, lease::SENDS, 1),
        (MarkLocksTheLane, lease::MARKS, 1),
        (MarkChecksTheEpoch, lease::MARKS, 2),
        (BusyLaneStays, lease::SENDS, 1),
        (MarkComesBeforeLeaving, lease::DUPLICATES, 1),
        (LeavingStamps, lease::LEFT, 2),
        (SendsAreRecorded, lease::FLAGGED, 1),
        (UnknownStaysMaybeSent, lease::FLAGGED, 1),
    ] {
        lacks(
            rule,
            promise,
            check::breaks(lease(Rules::without(&[rule]), 1, events), promise),
        );
    }
    for (rule, promise, events) in [
        (FloorWaitsForWriters, floor::LOSS, 1),
        (WritersAreLockHolders, floor::LOSS, 1),
        (HighestIdFirst, floor::LOSS, 1),
        (WatermarkBeforeTheClaim, floor::LOSS, 1),
        (SoftClaimsAreProven, floor::ORDER, 1),
        (SoftFloorsFall, floor::LOSS, 1),
        (FloorStaysBelowTheLeft, floor::LOSS, 1),
        (HoldComesBeforeTheFloor, floor::LOSS, 2),
        (HoldRemembersTheFloor, floor::LOSS, 1),
        (ClaimsLeaveOutTheHeld, floor::ORDER, 1),
        (NothingOvertakesTheRefused, floor::ORDER, 1),
        (ReleaseLowersTheStoredFloor, floor::LOSS, 2),
        (ReleaseRaisesTheEpoch, floor::LOSS, 2),
        (FloorsEndWithTheServer, floor::LOSS, 1),
    ] {
        lacks(
            rule,
            promise,
            check::breaks(floor(Rules::without(&[rule]), events), promise),
        );
    }
    for (rule, promise) in [
        (MarkCarriesTheToken, unordered::MARKS),
        (FloorComesFromAPoll, unordered::LOSS),
        (LoweringRaisesTheEpoch, unordered::LOSS),
        (AnotherEpochIsReadAgain, unordered::LOSS),
    ] {
        lacks(
            rule,
            promise,
            check::breaks(unordered(Rules::without(&[rule])), promise),
        );
    }
    assert!(needless.is_empty(), "nothing breaks without {needless:?}");
}

/// A second safeguard: what is left of a lease is counted from before the call, so a late answer grants nothing anyway.
#[test]
fn a_late_answer_would_do_no_harm() {
    let model = || lease(Rules::without(&[Rule::LateAnswerIsNoOwnership]), 1, 1);
    for promise in [lease::SENDS, lease::MARKS, lease::DUPLICATES, lease::LEFT] {
        assert_eq!(check::breaks(model(), promise), None, "{promise}");
    }
}
