//! What is checked out for a claim: the lanes, where their claims start, and what is known of their rows.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::lease::Term;
use super::maybe_sent::MaybeSent;
use super::pause::Pauses;
use super::watermark::Watermark;

/// A lane that one batch works on.
#[derive(Clone, Debug)]
pub struct CheckedOutLane {
    pub lane: i16,
    pub epoch: i64,
    pub floor: i64,
    /// The id above which the claim reads: the floor, or a higher id while the bypassed writers of the checkout are in progress.
    pub start: i64,
    /// The last id that the claim reads, if there is much to scan. It is never above the watermark.
    pub scan_end: Option<i64>,
    /// The most rows to claim.
    pub most: usize,
    pub maybe_sent: MaybeSent,
    /// Rows that Kafka has and that could not be marked, because another session had locked them.
    pub acknowledged: HashSet<i64>,
    /// Topics with holds in this lane.
    pub held_topics: Arc<BTreeSet<String>>,
}

/// The unordered rows, of which every task may claim some.
#[derive(Clone, Copy, Debug)]
pub struct UnorderedCheckout {
    pub floor: i64,
    /// See [`CheckedOutLane::start`].
    pub start: i64,
    /// See [`CheckedOutLane::scan_end`].
    pub scan_end: Option<i64>,
    pub most: usize,
    /// See [`MaybeSent::until`].
    pub maybe_sent_until: i64,
    pub has_holds: bool,
    /// No claim of unordered rows has a lower number.
    pub claims_from: i64,
}

/// Every lane that is not known to have pending rows, checked out for a poll.
#[derive(Clone, Debug)]
pub struct PollCheckout {
    pub term: Term,
    /// Held until what the poll found is sent.
    pub pauses: Arc<Pauses>,
    /// The watermark before the poll.
    pub watermark: Watermark,
    /// The poll counts only if all of these transactions are still in progress after it.
    pub bypassed: Vec<i64>,
    pub lanes: Vec<CheckedOutLane>,
    /// The lowest start of these lanes, and of the unordered rows if the poll asks for those.
    pub start: i64,
    /// The most rows to claim. If there are more, the lanes are claimed one by one.
    pub most: usize,
    pub has_holds: bool,
    /// See [`UnorderedCheckout::claims_from`].
    pub claims_from: i64,
    /// The epoch of the unordered floor, if the poll may raise it.
    pub unordered_epoch: Option<i64>,
}
