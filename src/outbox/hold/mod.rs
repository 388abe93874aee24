//! Reads and writes holds.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::try_join4;
use serde_json::json;

use super::from_row::{FromRow, from_row};
use super::param::{Params, json_rows};
use super::{Error, Outbox, Result, Transaction};
use crate::domain::decision::Refusal;
use crate::domain::hold::{Hold, HoldChange, NewHold};
use crate::domain::in_flight::InFlightEntry;
use crate::domain::lease::{LoweredLane, Term};
use crate::domain::pause::Pauses;
use crate::domain::row::Row;

from_row!(Hold: lane, topic, unit, head_id, resume_floor, failures, wait);
from_row!(LoweredLane: epoch, floor);

impl Outbox {
    /// Returns held keys in lanes of this worker that are not paused, those due first.
    pub async fn due_keys(&self, term: &Term, most: usize, pauses: &Pauses) -> Result<Vec<Hold>> {
        let (topics, (key_topics, key_units)) = (pauses.topics(), pauses.key_units());
        let params: Params<'_> = &[
            &term.worker,
            &term.incarnation,
            &(most as i64),
            &topics,
            &key_topics,
            &key_units,
        ];
        self.query(&self.statements.due_keys, params).await
    }

    /// Returns the topics of which rows of this lane are held, including holds that wait for an operator.
    pub async fn held_topics(&self, lane: i16) -> Result<BTreeSet<String>> {
        let topics: Vec<String> = self.query_one(&self.statements.held_topics, &[&lane]).await?;
        Ok(BTreeSet::from_iter(topics))
    }

    /// Returns one hold of each topic and partition that accepts nothing, in lanes of this worker, those due first. Topics that an
    /// operator has paused are left out.
    pub async fn due_probes(&self, term: &Term, most: usize, pauses: &Pauses) -> Result<Vec<Hold>> {
        let params: Params<'_> = &[&term.worker, &term.incarnation, &(most as i64), &pauses.topics()];
        self.query(&self.statements.due_probes, params).await
    }

    /// Returns all holds with these topics and units, in lanes of this worker and of unordered rows.
    pub async fn holds_of_units(&self, term: &Term, units: &[(String, String)]) -> Result<Vec<Hold>> {
        let (topics, units) = unit_columns(units.iter().map(|(topic, unit)| (topic, unit)));
        let params: Params<'_> = &[&term.worker, &term.incarnation, &topics, &units];
        self.query(&self.statements.holds_of_units, params).await
    }

    /// Returns holds of unordered rows that are due, except those being probed and those of paused topics, and reserves them for the
    /// duration of `reserve`.
    pub async fn reserve_unordered_probes(
        &self,
        term: &Term,
        reserve: Duration,
        under_way: &[(String, String)],
        most: usize,
        pauses: &Pauses,
    ) -> Result<Vec<Hold>> {
        let (topics, units) = unit_columns(under_way.iter().map(|(topic, unit)| (topic, unit)));
        let (reserve, most) = (reserve.as_secs_f64(), most as i64);
        let params: Params<'_> = &[&reserve, &term.incarnation, &topics, &units, &most, &pauses.topics()];
        self.query(&self.statements.reserve_unordered_probes, params).await
    }

    /// Postpones all holds with the topic and unit of this one by `wait`, in lanes of this worker and of unordered rows.
    pub async fn postpone_unit(&self, term: &Term, hold: &Hold, reason: &str, wait: Duration) -> Result<()> {
        let wait = wait.as_secs_f64();
        let params: Params<'_> = &[&term.worker, &term.incarnation, &hold.topic, &hold.unit, &reason, &wait];
        self.execute(&self.statements.postpone_unit, params).await.map(drop)
    }

    /// Reads the head of a hold. If any row may be the head, it is none of `acknowledged`, and its key is none of `paused_keys`.
    /// Returns `None` if there is no such pending row, so that the hold has no reason any more.
    pub async fn read_head(&self, hold: &Hold, acknowledged: &[i64], paused_keys: &[&str]) -> Result<Option<Row>> {
        let Hold { lane, topic, unit, .. } = hold;
        let head: Option<Row> = match hold.head_id {
            Some(head) => self.query_opt(&self.statements.read_head, &[lane, &head]).await?,
            None => {
                let (partition, partitions) = hold.partition();
                let params: Params<'_> = &[lane, topic, unit, &partition, &partitions, &acknowledged, &paused_keys];
                self.query_opt(&self.statements.read_topic_head, params).await?
            }
        };
        let Some(mut head) = head else { return Ok(None) };
        if !self.explain_row(&mut head).await? {
            return Err(Error::Unexpected("the head of a hold could not be read whole"));
        }
        Ok(Some(head))
    }

    /// Releases holds of a checked-out lane: lowers its stored floor, marks or refuses the heads, and deletes the holds, in one
    /// transaction. Returns the lane's new epoch and floor, or `None` if the lane was lost, or if an earlier call whose answer
    /// was lost has released the holds.
    pub async fn release_holds(
        &self,
        term: &Term,
        lane: i16,
        epoch: i64,
        released: &[HoldChange],
        entries: &[InFlightEntry],
    ) -> Result<Option<LoweredLane>> {
        let holds = released.iter().map(|released| &released.hold);
        let (topics, units) = unit_columns(holds.map(|hold| (&hold.topic, &hold.unit)));
        let published: Vec<i64> = released.iter().filter_map(|released| released.published).collect();
        let refused: Vec<&Refusal> = released
            .iter()
            .filter_map(|released| released.refused.as_ref())
            .collect();
        self.with_transaction(async |transaction| {
            let lower: Params<'_> = &[&lane, &epoch, &term.worker, &topics, &units, &term.incarnation];
            let lowered = transaction.query(&self.statements.lower_floor, lower).await?;
            let Some(LoweredLane { epoch, floor }) = lowered.into_iter().next() else {
                return Ok(None);
            };
            self.mark_fenced(transaction, term, &[(lane, epoch)], &published, entries)
                .await?;
            self.count_refusals(transaction, refused).await?;
            let delete: Params<'_> = &[&lane, &topics, &units, &floor];
            transaction.execute(&self.statements.delete_holds, delete).await?;
            Ok(Some(LoweredLane { epoch, floor }))
        })
        .await
    }

    /// Postpones holds of a checked-out lane whose retry failed, and counts refusals. Returns false if the lane was lost.
    /// `maybe_sent` names the heads that may have been sent, unless that is stored already.
    pub async fn postpone_holds(
        &self,
        term: &Term,
        lane: (i16, i64),
        postponed: &[HoldChange],
        entries: &[InFlightEntry],
        maybe_sent: &[(i16, Vec<i64>)],
    ) -> Result<bool> {
        let refused = postponed.iter().filter_map(|hold| hold.refused.as_ref());
        let holds = postponed.iter().map(|postponed| &postponed.hold);
        let (topics, units) = unit_columns(holds.map(|hold| (&hold.topic, &hold.unit)));
        let reasons: Vec<&str> = postponed.iter().map(|hold| hold.reason.as_str()).collect();
        let waits: Vec<Option<f64>> = postponed
            .iter()
            .map(|hold| hold.wait.map(|wait| wait.as_secs_f64()))
            .collect();
        self.with_transaction(async |transaction| {
            let lanes = &[lane];
            if !self.fence_lanes(transaction, term, lanes).await? {
                return Ok(false);
            }
            let refuse = self.count_refusals(transaction, refused);
            let postpone: Params<'_> = &[&lane.0, &topics, &units, &reasons, &waits];
            let postpone = transaction.execute(&self.statements.postpone_keys, postpone);
            let mark = self.mark_fenced(transaction, term, lanes, &[], entries);
            let maybe_sent = self.store_maybe_sent(transaction, maybe_sent);
            try_join4(refuse, postpone, mark, maybe_sent).await?;
            Ok(true)
        })
        .await
    }

    /// Releases a hold of unordered rows. `published` is its head, if that was published, behind the claim of it. Returns the number of
    /// rows marked.
    pub async fn release_unordered_hold(&self, term: &Term, hold: &Hold, published: Option<(i64, i64)>) -> Result<u64> {
        let Hold { lane, topic, unit, .. } = hold;
        self.with_transaction(async |transaction| {
            let locked = transaction
                .query(&self.statements.lock_unordered_holds, &[topic, unit])
                .await?;
            let resume_floor: i64 = locked.first().copied().unwrap_or(hold.resume_floor);
            let mut marked: Vec<u64> = Vec::new();
            if let Some((claim, id)) = published {
                let mark: Params<'_> = &[&vec![id], &claim, &term.worker, &term.incarnation];
                marked = transaction.query(&self.mark_unordered, mark).await?;
            }
            let delete: Params<'_> = &[lane, &vec![topic.as_str()], &vec![unit.as_str()], &resume_floor];
            transaction.execute(&self.statements.delete_holds, delete).await?;
            // Last, because no worker can claim unordered rows while this row is locked.
            let lower: Params<'_> = &[&resume_floor, &term.incarnation];
            transaction
                .execute(&self.statements.lower_unordered_floor, lower)
                .await?;
            Ok(marked.first().copied().unwrap_or(0))
        })
        .await
    }

    /// Inserts holds, each with its resume floor.
    pub(super) async fn insert_holds(&self, transaction: &Transaction<'_>, holds: &[(NewHold, i64)]) -> Result<()> {
        if holds.is_empty() {
            return Ok(());
        }
        let rows = json_rows(holds.iter().map(|(hold, resume_floor)| {
            json!({
                "lane": hold.lane, "topic": hold.topic, "unit": hold.unit, "head_id": hold.head_id, "resume_floor": resume_floor,
                "reason": hold.reason, "failures": hold.failures, "wait": hold.wait.map(|wait| wait.as_secs_f64()),
            })
        }));
        let sql = &self.statements.insert_holds;
        transaction.execute(sql, &[&rows]).await.map(drop)
    }

    /// The same for holds of unordered rows, which then resume no higher than the stored floor.
    pub(super) async fn insert_unordered_holds(
        &self,
        transaction: &Transaction<'_>,
        holds: &[(NewHold, i64)],
    ) -> Result<()> {
        self.insert_holds(transaction, holds).await?;
        if !holds.is_empty() {
            let (topics, units) = unit_columns(holds.iter().map(|(hold, _)| (&hold.topic, &hold.unit)));
            let sql = &self.statements.lower_resume_floors;
            transaction.execute(sql, &[&topics, &units]).await?;
        }
        Ok(())
    }
}

/// Topics and units, as the arrays that the statements take.
fn unit_columns<'a>(units: impl Iterator<Item = (&'a String, &'a String)>) -> (Vec<&'a str>, Vec<&'a str>) {
    units.map(|(topic, unit)| (topic.as_str(), unit.as_str())).unzip()
}
