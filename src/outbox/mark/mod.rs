//! Writes what is about to be sent, and the outcome of batches, behind a fence.

use std::time::Duration;

use futures_util::future::try_join4;
use serde_json::json;

use super::param::{Params, entry_ids, json_rows, lane_columns};
use super::{Outbox, Result, Transaction};
use crate::domain::decision::Refusal;
use crate::domain::hold::NewHold;
use crate::domain::in_flight::{InFlightEntry, InFlightRanges};
use crate::domain::lease::Term;

/// The outcome of a batch of lanes of which some rows were not acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct LaneOutcome<'a> {
    pub published: &'a [i64],
    pub refused: &'a [Refusal],
    /// New holds, each with the floor of its lane, from which it resumes.
    pub holds: &'a [(NewHold, i64)],
    /// The in-flight entries of the batch, which are deleted.
    pub entries: &'a [InFlightEntry],
    /// What may have been sent, for lanes in which that has changed.
    pub maybe_sent: &'a [(i16, Vec<i64>)],
}

/// The outcome of a claim of unordered rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnorderedOutcome<'a> {
    pub published: &'a [i64],
    /// Rows that are published but locked by another transaction. The claim is kept for them.
    pub unmarked: &'a [i64],
    pub refused: &'a [Refusal],
    /// Rows that are returned and may have been sent.
    pub maybe_sent: &'a [i64],
    pub holds: &'a [(NewHold, i64)],
}

impl Outbox {
    /// Marks rows of these lanes as published, deletes their in-flight entries, and returns the number of rows marked. If it is
    /// lower than the number of ids, a lane was lost or rows were changed by another session.
    pub async fn mark_lanes(
        &self,
        term: &Term,
        lanes: &[(i16, i64)],
        ids: &[i64],
        entries: &[InFlightEntry],
    ) -> Result<u64> {
        let (lanes, epochs) = lane_columns(lanes);
        let entries = entry_ids(entries);
        let params: Params<'_> = &[&term.worker, &lanes, &epochs, &term.incarnation, &ids, &entries];
        self.execute(&self.mark_lanes, params).await
    }

    /// The same in a transaction that has locked the lanes.
    pub(super) async fn mark_fenced(
        &self,
        transaction: &Transaction<'_>,
        term: &Term,
        lanes: &[(i16, i64)],
        ids: &[i64],
        entries: &[InFlightEntry],
    ) -> Result<u64> {
        let (lanes, epochs) = lane_columns(lanes);
        let entries = entry_ids(entries);
        let params: Params<'_> = &[&term.worker, &lanes, &epochs, &term.incarnation, &ids, &entries];
        transaction.execute(&self.mark_lanes, params).await
    }

    /// Marks rows of a claim of unordered rows as published, deletes the claim, and returns the number of rows marked, which is
    /// lower than the number of ids if rows were changed by another session. `None` if the claim is gone: it was taken over, or an
    /// earlier call whose answer was lost has marked its rows.
    pub async fn mark_unordered(&self, term: &Term, claim: i64, ids: &[i64]) -> Result<Option<u64>> {
        let params: Params<'_> = &[&ids, &claim, &term.worker, &term.incarnation];
        self.query_opt(&self.mark_unordered, params).await
    }

    /// Records what is about to be sent of these lanes, and returns the id of the in-flight entry. Returns `None` if the worker
    /// does not own all of the lanes; then nothing may be sent.
    pub async fn insert_in_flight(
        &self,
        term: &Term,
        lanes: &[(i16, i64)],
        ranges: &InFlightRanges,
    ) -> Result<Option<i64>> {
        let (lanes, epochs) = lane_columns(lanes);
        let params: Params<'_> = &[
            &term.worker,
            &lanes,
            &epochs,
            &ranges.lanes,
            &ranges.first_ids,
            &ranges.last_ids,
            &term.incarnation,
        ];
        self.query_opt(&self.statements.insert_in_flight, params).await
    }

    /// Counts which of these lanes the worker still owns. This distinguishes a lost lease from rows that were removed by hand.
    pub async fn count_owned_lanes(&self, term: &Term, lanes: &[(i16, i64)]) -> Result<usize> {
        let (lanes, epochs) = lane_columns(lanes);
        let params: Params<'_> = &[&term.worker, &lanes, &epochs, &term.incarnation];
        let owned: Vec<i16> = self.query(&self.statements.fence_lanes, params).await?;
        Ok(owned.len())
    }

    /// Writes the outcome of a batch in one fenced transaction. Returns false, and writes nothing, if a lane was lost.
    pub async fn write_lane_outcome(
        &self,
        term: &Term,
        lanes: &[(i16, i64)],
        outcome: &LaneOutcome<'_>,
    ) -> Result<bool> {
        self.with_transaction(async |transaction| {
            if !self.fence_lanes(transaction, term, lanes).await? {
                return Ok(false);
            }
            let mark = self.mark_fenced(transaction, term, lanes, outcome.published, outcome.entries);
            let refuse = self.count_refusals(transaction, outcome.refused);
            let hold = self.insert_holds(transaction, outcome.holds);
            let maybe_sent = self.store_maybe_sent(transaction, outcome.maybe_sent);
            try_join4(mark, refuse, hold, maybe_sent).await?;
            Ok(true)
        })
        .await
    }

    /// Writes the outcome of a claim of unordered rows, and deletes the claim, or renews it by `lease` for its unmarked rows.
    /// Returns the number of rows marked, or `None`, and nothing is written, if the claim was taken over.
    pub async fn write_unordered_outcome(
        &self,
        term: &Term,
        claim: i64,
        outcome: &UnorderedOutcome<'_>,
        lease: Duration,
    ) -> Result<Option<u64>> {
        self.with_transaction(async |transaction| {
            let own: Params<'_> = &[&claim, &term.worker, &term.incarnation];
            let fenced: Vec<String> = transaction.query(&self.statements.fence_claim, own).await?;
            if fenced.is_empty() {
                return Ok(None);
            }
            self.count_refusals(transaction, outcome.refused).await?;
            let mark: Params<'_> = &[&outcome.published, &claim, &term.worker, &term.incarnation];
            let marked: Vec<u64> = transaction.query(&self.mark_unordered, mark).await?;
            self.insert_unordered_holds(transaction, outcome.holds).await?;
            // Last, because it may lock the claims. A release of a hold, too, locks the claims after the holds.
            self.keep_rest_of_claim(transaction, term, claim, outcome, lease)
                .await?;
            Ok(marked.first().copied())
        })
        .await
    }

    /// Inserts new claims for the unmarked rows and for those that may have been sent.
    async fn keep_rest_of_claim(
        &self,
        transaction: &Transaction<'_>,
        term: &Term,
        claim: i64,
        outcome: &UnorderedOutcome<'_>,
        lease: Duration,
    ) -> Result<()> {
        let UnorderedOutcome {
            unmarked, maybe_sent, ..
        } = outcome;
        if !unmarked.is_empty() {
            let renewed: Params<'_> = &[&claim, &term.worker, &lease.as_secs_f64(), unmarked];
            transaction.execute(&self.statements.renew_claim, renewed).await?;
        }
        if maybe_sent.is_empty() {
            return Ok(());
        }
        if unmarked.is_empty() {
            let returned: Params<'_> = &[&claim, maybe_sent];
            transaction
                .execute(&self.statements.return_maybe_sent, returned)
                .await?;
        } else {
            transaction.execute(&self.statements.lock_unordered_claims, &[]).await?;
            let sql = &self.statements.return_maybe_sent_as_new;
            transaction.execute(sql, &[maybe_sent]).await?;
        }
        Ok(())
    }

    /// Returns which of these rows another transaction has locked.
    pub async fn locked_rows(&self, ids: &[i64]) -> Result<Vec<i64>> {
        self.query(&self.statements.locked_rows, &[&ids]).await
    }

    /// Locks lanes for the rest of the transaction. Returns false if the worker no longer owns all of them.
    pub(super) async fn fence_lanes(
        &self,
        transaction: &Transaction<'_>,
        term: &Term,
        lanes: &[(i16, i64)],
    ) -> Result<bool> {
        let (numbers, epochs) = lane_columns(lanes);
        let params: Params<'_> = &[&term.worker, &numbers, &epochs, &term.incarnation];
        let fenced: Vec<i16> = transaction.query(&self.statements.fence_lanes, params).await?;
        Ok(fenced.len() == lanes.len())
    }

    pub(super) async fn count_refusals(
        &self,
        transaction: &Transaction<'_>,
        refused: impl IntoIterator<Item = &Refusal>,
    ) -> Result<()> {
        let refused: Vec<&Refusal> = refused.into_iter().collect();
        if refused.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = refused.iter().map(|refusal| refusal.id).collect();
        let reasons: Vec<&str> = refused.iter().map(|refusal| refusal.reason.as_str()).collect();
        let dead: Vec<bool> = refused.iter().map(|refusal| refusal.dead).collect();
        let attempts: Vec<i16> = refused.iter().map(|refusal| refusal.attempts).collect();
        let waits: Vec<f64> = refused.iter().map(|refusal| refusal.wait.as_secs_f64()).collect();
        let params: Params<'_> = &[&ids, &reasons, &dead, &attempts, &waits];
        transaction
            .execute(&self.statements.count_refusals, params)
            .await
            .map(drop)
    }

    /// Stores what may have been sent of lanes that this transaction has locked.
    pub(super) async fn store_maybe_sent(
        &self,
        transaction: &Transaction<'_>,
        maybe_sent: &[(i16, Vec<i64>)],
    ) -> Result<()> {
        if maybe_sent.is_empty() {
            return Ok(());
        }
        let known = json_rows(
            maybe_sent
                .iter()
                .map(|(lane, ranges)| json!({ "lane": lane, "maybe_sent": ranges })),
        );
        let sql = &self.statements.store_maybe_sent;
        transaction.execute(sql, &[&known]).await.map(drop)
    }
}
