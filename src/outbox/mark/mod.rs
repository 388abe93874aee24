//! What became of a batch, written behind the fence.

use std::time::Duration;

use futures_util::future::try_join4;

use super::hold::insert_holds;
use super::param::Params;
use super::{OnPublished, Outbox, Result, Transaction};
use crate::domain::decision::Refusal;
use crate::domain::hold::NewHold;
use crate::domain::in_flight::InFlightEntry;
use crate::domain::lease::Term;

/// What is written of a batch that was not all acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct LaneOutcome<'a> {
    pub published: &'a [i64],
    pub refused: &'a [Refusal],
    pub holds: &'a [(NewHold, i64)],
    /// Of what was in flight: they go.
    pub records: &'a [InFlightEntry],
    /// Of lanes of which more may have been sent than was known.
    pub maybe_sent: &'a [(i16, Vec<i64>)],
}

/// The same of a claim without a lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnorderedOutcome<'a> {
    pub published: &'a [i64],
    /// Published too, but somebody else has locked them: the claim goes on with them.
    pub unmarked: &'a [i64],
    pub refused: &'a [Refusal],
    /// ReturnedLane back, though a copy may be there.
    pub maybe_sent: &'a [i64],
    pub holds: &'a [(NewHold, i64)],
}

impl Outbox {
    /// Marks rows of our lanes as published; answers how many. Fewer than asked: a fence, or somebody else's hand.
    /// With them go the records of what was in flight.
    pub async fn mark_lanes(
        &self,
        term: &Term,
        held: &[(i16, i64)],
        ids: &[i64],
        records: &[InFlightEntry],
    ) -> Result<u64> {
        let (lanes, epochs) = unzip2(held);
        let records = record_ids(records);
        self.execute(
            self.mark_lanes_statement(),
            &[&term.worker, &lanes, &epochs, &term.incarnation, &ids, &records],
        )
        .await
    }

    pub(super) fn mark_lanes_statement(&self) -> &str {
        match self.on_published {
            OnPublished::Keep => &self.statements.mark_lanes_keep,
            OnPublished::Archive => &self.statements.mark_lanes_archive,
            OnPublished::Delete => &self.statements.mark_lanes_delete,
        }
    }

    /// The same for rows of a claim without a lane, which ends with it.
    pub async fn mark_unordered(&self, term: &Term, claim: i64, ids: &[i64]) -> Result<u64> {
        self.execute(
            self.mark_keyless_statement(),
            &[&ids, &claim, &term.worker, &term.incarnation],
        )
        .await
    }

    pub(super) fn mark_keyless_statement(&self) -> &str {
        match self.on_published {
            OnPublished::Keep => &self.statements.mark_unordered_keep,
            OnPublished::Archive => &self.statements.mark_unordered_archive,
            OnPublished::Delete => &self.statements.mark_unordered_delete,
        }
    }

    /// Which of our lanes are still ours. Used to tell a lost lease from rows that were removed by hand.
    pub async fn still_ours(&self, term: &Term, held: &[(i16, i64)]) -> Result<usize> {
        let (lanes, epochs) = unzip2(held);
        let rows = self
            .query(
                &self.statements.fence_lanes,
                &[&term.worker, &lanes, &epochs, &term.incarnation],
            )
            .await?;
        Ok(rows.len())
    }

    /// The verdict on a batch that was not all acknowledged: refusals and holds in one fenced transaction.
    /// Beside each hold the lane's floor, where its release resumes. False: fenced, nothing was written.
    pub async fn settle_lanes(&self, term: &Term, held: &[(i16, i64)], settled: &LaneOutcome<'_>) -> Result<bool> {
        let (lanes, epochs) = unzip2(held);
        let LaneOutcome {
            published,
            refused,
            holds,
            ..
        } = settled;
        let records = record_ids(settled.records);
        self.on_connection(async |session| {
            let transaction = session.transaction().await?;
            if !self.fence(&transaction, term, &lanes, &epochs).await? {
                return Ok(false);
            }
            let mark_params: Params<'_> = &[&term.worker, &lanes, &epochs, &term.incarnation, published, &records];
            let mark = transaction.execute(self.mark_lanes_statement(), mark_params);
            let refuse = self.refuse(&transaction, refused);
            let hold = insert_holds(&transaction, &self.statements.insert_holds, holds);
            let maybe_sent = self.store_suspects(&transaction, settled.maybe_sent);
            try_join4(mark, refuse, hold, maybe_sent).await?;
            transaction.commit().await?;
            Ok(true)
        })
        .await
    }

    /// The same for rows of a claim without a lane, which ends with it, or is kept for another `lease` where some could not be marked.
    /// Answers how many were marked; none, and nothing was written, if the claim had been taken over.
    pub async fn settle_unordered(
        &self,
        term: &Term,
        claim: i64,
        settled: &UnorderedOutcome<'_>,
        lease: Duration,
    ) -> Result<u64> {
        let UnorderedOutcome {
            published,
            refused,
            holds,
            ..
        } = settled;
        self.on_connection(async |session| {
            let transaction = session.transaction().await?;
            let fence = transaction
                .query(&self.statements.fence_claim, &[&claim, &term.worker, &term.incarnation])
                .await?;
            if fence.is_empty() {
                return Ok(0);
            }
            self.refuse_unordered(&transaction, refused).await?;
            let marked = transaction
                .execute(
                    self.mark_keyless_statement(),
                    &[published, &claim, &term.worker, &term.incarnation],
                )
                .await?;
            insert_holds(&transaction, &self.statements.insert_holds, holds).await?;
            if !holds.is_empty() {
                let names = holds.iter().map(|(hold, _)| (hold.topic.as_str(), hold.unit.as_str()));
                let (topics, units): (Vec<&str>, Vec<&str>) = names.unzip();
                let resume: Params<'_> = &[&topics, &units];
                transaction
                    .execute(&self.statements.lower_resume_floors, resume)
                    .await?;
            }
            // It may wait for the turn of claims, which whoever releases a hold takes behind the holds.
            self.keep_of_claim(&transaction, term, claim, settled, lease).await?;
            transaction.commit().await?;
            Ok(marked)
        })
        .await
    }

    /// What is left of a claim that has ended, under the same number.
    async fn keep_of_claim(
        &self,
        transaction: &Transaction<'_>,
        term: &Term,
        claim: i64,
        settled: &UnorderedOutcome<'_>,
        lease: Duration,
    ) -> Result<()> {
        let UnorderedOutcome {
            unmarked, maybe_sent, ..
        } = settled;
        if !unmarked.is_empty() {
            let kept: Params<'_> = &[&claim, &term.worker, &lease.as_secs_f64(), unmarked];
            transaction.execute(&self.statements.renew_claim, kept).await?;
        }
        match (maybe_sent.is_empty(), unmarked.is_empty()) {
            (true, _) => {}
            (false, true) => {
                let left: Params<'_> = &[&claim, maybe_sent];
                transaction.execute(&self.statements.return_maybe_sent, left).await?;
            }
            (false, false) => {
                transaction.query(&self.statements.lock_unordered_claims, &[]).await?;
                transaction
                    .execute(&self.statements.return_maybe_sent_as_new, &[maybe_sent])
                    .await?;
            }
        }
        Ok(())
    }

    /// Which of these rows somebody else has locked.
    pub async fn locked(&self, ids: &[i64]) -> Result<Vec<i64>> {
        let rows = self.query(&self.statements.locked_rows, &[&ids]).await?;
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
    }

    /// Locks lanes of ours for what is written behind it; false: not all of them are ours any more.
    pub(super) async fn fence(
        &self,
        transaction: &Transaction<'_>,
        term: &Term,
        lanes: &[i16],
        epochs: &[i64],
    ) -> Result<bool> {
        let params: Params<'_> = &[&term.worker, &lanes, &epochs, &term.incarnation];
        let fenced = transaction.query(&self.statements.fence_lanes, params).await?;
        Ok(fenced.len() == lanes.len())
    }

    async fn refuse_unordered(&self, transaction: &Transaction<'_>, refused: &[Refusal]) -> Result<()> {
        if refused.is_empty() {
            return Ok(());
        }
        let RefusalColumns {
            ids,
            reasons,
            dead,
            attempts,
            waits,
        } = refused.into();
        let params: Params<'_> = &[&ids, &reasons, &dead, &waits, &attempts];
        transaction
            .execute(&self.statements.count_refusals_unordered, params)
            .await?;
        Ok(())
    }

    pub(super) async fn refuse(&self, transaction: &Transaction<'_>, refused: &[Refusal]) -> Result<()> {
        if refused.is_empty() {
            return Ok(());
        }
        let RefusalColumns {
            ids,
            reasons,
            dead,
            attempts,
            ..
        } = refused.into();
        transaction
            .execute(&self.statements.count_refusals, &[&ids, &reasons, &dead, &attempts])
            .await?;
        Ok(())
    }
}

pub(super) fn record_ids(records: &[InFlightEntry]) -> Vec<i64> {
    records.iter().map(|record| record.id).collect()
}

fn unzip2(held: &[(i16, i64)]) -> (Vec<i16>, Vec<i64>) {
    held.iter().copied().unzip()
}

/// Refusals as the arrays the statements take.
struct RefusalColumns<'a> {
    ids: Vec<i64>,
    reasons: Vec<&'a str>,
    dead: Vec<bool>,
    attempts: Vec<i16>,
    waits: Vec<f64>,
}

impl<'a> From<&'a [Refusal]> for RefusalColumns<'a> {
    fn from(refused: &'a [Refusal]) -> Self {
        RefusalColumns {
            ids: refused.iter().map(|r| r.id).collect(),
            reasons: refused.iter().map(|r| r.reason.as_str()).collect(),
            dead: refused.iter().map(|r| r.dead).collect(),
            attempts: refused.iter().map(|r| r.attempts).collect(),
            waits: refused.iter().map(|r| r.wait.as_secs_f64()).collect(),
        }
    }
}
