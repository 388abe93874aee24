//! CheckedOutLane keys and parked topics, as stored.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::try_join4;

use super::mark::record_ids;
use super::param::{Param, Params};
use super::{Error, Outbox, Result, Transaction, row};
use crate::domain::decision::Refusal;
use crate::domain::hold::{Hold, HoldPostponement, HoldRelease, NewHold};
use crate::domain::in_flight::InFlightEntry;
use crate::domain::lease::{LoweredLane, Term};
use crate::domain::row::Row;

impl Outbox {
    pub async fn holds(&self, term: &Term, most: usize) -> Result<Vec<Hold>> {
        let rows = self
            .query(
                &self.statements.due_keys,
                &[&term.worker, &term.incarnation, &(most as i64)],
            )
            .await?;
        rows.iter().map(stored_hold).collect()
    }

    /// Of which topics rows of this lane are held back, be it until an operator acts.
    pub async fn held_topics(&self, lane: i16) -> Result<BTreeSet<String>> {
        let row = self.query_one(&self.statements.held_topics, &[&lane]).await?;
        held_topics(&row)
    }

    /// One hold of each topic or partition that is paused in lanes of ours, due first.
    pub async fn paused(&self, term: &Term, most: usize) -> Result<Vec<Hold>> {
        let params: Params<'_> = &[&term.worker, &term.incarnation, &(most as i64)];
        let rows = self.query(&self.statements.due_probes, params).await?;
        rows.iter().map(stored_hold).collect()
    }

    /// All holds of ours, and of the unordered rows, with these topics and units.
    pub async fn paused_as(&self, term: &Term, names: &[(String, String)]) -> Result<Vec<Hold>> {
        let (topics, units) = texts(names);
        let params: Params<'_> = &[&term.worker, &term.incarnation, &topics, &units];
        let rows = self.query(&self.statements.holds_of_units, params).await?;
        rows.iter().map(stored_hold).collect()
    }

    /// What is paused among unordered rows and due, reserved for us for `reserve`: but for what is tried already.
    pub async fn holds_unordered(
        &self,
        term: &Term,
        reserve: Duration,
        tried: &[(String, String)],
        most: usize,
    ) -> Result<Vec<Hold>> {
        let (topics, units) = texts(tried);
        let (reserve, most) = (reserve.as_secs_f64(), most as i64);
        let params: Params<'_> = &[&reserve, &term.incarnation, &topics, &units, &most];
        let rows = self.query(&self.statements.reserve_unordered_probes, params).await?;
        rows.iter().map(stored_hold).collect()
    }

    /// A probe failed: what we hold back of the same topic and unit, in any lane, waits so long.
    pub async fn postpone_paused(&self, term: &Term, hold: &Hold, reason: &str, wait: Duration) -> Result<()> {
        let wait = wait.as_secs_f64();
        let params: Params<'_> = &[&term.worker, &term.incarnation, &hold.topic, &hold.unit, &reason, &wait];
        self.execute(&self.statements.postpone_unit, params).await?;
        Ok(())
    }

    /// The row a hold waits for, which is none of `known` where it may be any; `None`: it is gone, published or dead, and the hold has no
    /// reason left.
    pub async fn hold_head(&self, hold: &Hold, known: &[i64]) -> Result<Option<Row>> {
        let rows = match hold.head_id {
            Some(head) => self.query(&self.statements.read_head, &[&hold.lane, &head]).await?,
            None => {
                let (partition, partitions) = hold.partition();
                let params: Params<'_> = &[&hold.lane, &hold.topic, &hold.unit, &partition, &partitions, &known];
                self.query(&self.statements.read_topic_head, params).await?
            }
        };
        let Some(mut head) = rows.first().map(row::head).transpose()? else {
            return Ok(None);
        };
        if !self.explain_row(&mut head).await? {
            return Err(Error::Unexpected("the row a hold waits for could not be read whole"));
        }
        Ok(Some(head))
    }

    /// Releases holds of a lane we have checked out: the stored floor is lowered, the heads marked or refused and
    /// the holds deleted in one transaction. Answers where the lane stands now; `None`: fenced, or released already by a
    /// call whose answer was lost.
    pub async fn release_holds(
        &self,
        term: &Term,
        lane: i16,
        epoch: i64,
        released: &[HoldRelease],
        records: &[InFlightEntry],
    ) -> Result<Option<LoweredLane>> {
        let records = record_ids(records);
        let (topics, units) = names(released.iter().map(|released| &released.hold));
        let published: Vec<i64> = released.iter().filter_map(|released| released.published).collect();
        let refused: Vec<Refusal> = released
            .iter()
            .filter_map(|released| released.refused.clone())
            .collect();
        self.on_connection(async |session| {
            let transaction = session.transaction().await?;
            let lower: Params<'_> = &[&lane, &epoch, &term.worker, &topics, &units, &term.incarnation];
            let lowered = transaction.query(&self.statements.lower_floor, lower).await?;
            let Some(lowered) = lowered.first() else {
                return Ok(None);
            };
            let lowered = LoweredLane {
                epoch: lowered.try_get("epoch")?,
                floor: lowered.try_get("floor")?,
            };
            let (lanes, epochs) = (vec![lane], vec![lowered.epoch]);
            let mark: Params<'_> = &[&term.worker, &lanes, &epochs, &term.incarnation, &published, &records];
            transaction.execute(self.mark_lanes_statement(), mark).await?;
            self.refuse(&transaction, &refused).await?;
            let unhold: Params<'_> = &[&lane, &topics, &units, &lowered.floor];
            transaction.execute(&self.statements.delete_holds, unhold).await?;
            transaction.commit().await?;
            Ok(Some(lowered))
        })
        .await
    }

    /// Holds of a lane we have checked out, still refused or sick: counts it, and puts their next tries away. `false`: fenced.
    /// Heads of which a copy may be there are among the lane's `suspects`, where those are not stored yet.
    pub async fn postpone_holds(
        &self,
        term: &Term,
        held: (i16, i64),
        postponed: &[HoldPostponement],
        records: &[InFlightEntry],
        maybe_sent: &[(i16, Vec<i64>)],
    ) -> Result<bool> {
        let (lanes, epochs) = (vec![held.0], vec![held.1]);
        let records = record_ids(records);
        let refused: Vec<Refusal> = postponed.iter().filter_map(|later| later.refused.clone()).collect();
        let columns = PostponedColumns::from(postponed);
        self.on_connection(async |session| {
            let transaction = session.transaction().await?;
            if !self.fence(&transaction, term, &lanes, &epochs).await? {
                return Ok(false);
            }
            let refuse = self.refuse(&transaction, &refused);
            let params = columns.params(&held.0);
            let postpone = transaction.execute(&self.statements.postpone_keys, &params);
            let nothing: &[i64] = &[];
            let settle: Params<'_> = &[&term.worker, &lanes, &epochs, &term.incarnation, &nothing, &records];
            let settle = transaction.execute(self.mark_lanes_statement(), settle);
            let maybe_sent = self.store_suspects(&transaction, maybe_sent);
            try_join4(refuse, postpone, settle, maybe_sent).await?;
            transaction.commit().await?;
            Ok(true)
        })
        .await
    }

    /// What was paused among unordered rows takes records again; its head was `published` under the claim named first.
    pub async fn release_hold_unordered(&self, term: &Term, hold: &Hold, published: Option<(i64, i64)>) -> Result<()> {
        self.on_connection(async |session| {
            let transaction = session.transaction().await?;
            let resume: Params<'_> = &[&hold.topic, &hold.unit];
            let resume = transaction.query(&self.statements.lock_unordered_holds, resume).await?;
            let resume_floor: i64 = resume
                .first()
                .map_or(Ok(hold.resume_floor), |row| row.try_get("resume_floor"))?;
            if let Some((claim, id)) = published {
                transaction
                    .execute(
                        self.mark_keyless_statement(),
                        &[&vec![id], &claim, &term.worker, &term.incarnation],
                    )
                    .await?;
            }
            let (topics, units) = names(std::iter::once(hold));
            let unhold: Params<'_> = &[&hold.lane, &topics, &units, &resume_floor];
            transaction.execute(&self.statements.delete_holds, unhold).await?;
            // Last: while it is locked, nobody else has a turn to claim.
            transaction
                .execute(
                    &self.statements.lower_unordered_floor,
                    &[&resume_floor, &term.incarnation],
                )
                .await?;
            transaction.commit().await
        })
        .await
    }
}

pub(super) async fn insert_holds(transaction: &Transaction<'_>, sql: &str, holds: &[(NewHold, i64)]) -> Result<()> {
    if holds.is_empty() {
        return Ok(());
    }
    let lanes: Vec<i16> = holds.iter().map(|(h, _)| h.lane).collect();
    let topics: Vec<&str> = holds.iter().map(|(h, _)| h.topic.as_str()).collect();
    let units: Vec<&str> = holds.iter().map(|(h, _)| h.unit.as_str()).collect();
    let heads: Vec<Option<i64>> = holds.iter().map(|(h, _)| h.head_id).collect();
    let floors: Vec<i64> = holds.iter().map(|(_, floor)| *floor).collect();
    let reasons: Vec<&str> = holds.iter().map(|(h, _)| h.reason.as_str()).collect();
    let failures: Vec<i32> = holds.iter().map(|(h, _)| h.failures).collect();
    let waits: Vec<f64> = holds.iter().map(|(h, _)| seconds_or_never(h.wait)).collect();
    transaction
        .execute(
            sql,
            &[&lanes, &topics, &units, &heads, &floors, &reasons, &failures, &waits],
        )
        .await?;
    Ok(())
}

fn texts(names: &[(String, String)]) -> (Vec<&str>, Vec<&str>) {
    names
        .iter()
        .map(|(topic, unit)| (topic.as_str(), unit.as_str()))
        .unzip()
}

fn names<'a>(holds: impl Iterator<Item = &'a Hold>) -> (Vec<&'a str>, Vec<&'a str>) {
    holds.map(|hold| (hold.topic.as_str(), hold.unit.as_str())).unzip()
}

/// Holds of one lane put away, as the arrays the statement takes.
struct PostponedColumns<'a> {
    topics: Vec<&'a str>,
    units: Vec<&'a str>,
    reasons: Vec<&'a str>,
    waits: Vec<f64>,
}

impl<'a> From<&'a [HoldPostponement]> for PostponedColumns<'a> {
    fn from(postponed: &'a [HoldPostponement]) -> Self {
        let (topics, units) = names(postponed.iter().map(|later| &later.hold));
        PostponedColumns {
            topics,
            units,
            reasons: postponed.iter().map(|later| later.reason.as_str()).collect(),
            waits: postponed.iter().map(|later| seconds_or_never(later.wait)).collect(),
        }
    }
}

impl PostponedColumns<'_> {
    fn params<'a>(&'a self, lane: &'a i16) -> [&'a dyn Param; 5] {
        [lane, &self.topics, &self.units, &self.reasons, &self.waits]
    }
}

/// How the statements spell "until an operator acts".
fn seconds_or_never(wait: Option<Duration>) -> f64 {
    wait.map_or(-1.0, |wait| wait.as_secs_f64())
}

pub(super) fn held_topics(row: &tokio_postgres::Row) -> Result<BTreeSet<String>> {
    let topics: Vec<String> = row.try_get("held_topics")?;
    Ok(topics.into_iter().collect())
}

fn stored_hold(row: &tokio_postgres::Row) -> Result<Hold> {
    Ok(Hold {
        lane: row.try_get("lane")?,
        topic: row.try_get("topic")?,
        unit: row.try_get("unit")?,
        head_id: row.try_get("head_id")?,
        resume_floor: row.try_get("resume_floor")?,
        failures: row.try_get("failures")?,
        wait: row.try_get("wait")?,
    })
}
