//! The lease: workers, lanes, stored floors.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::hold::held_topics;
use super::param::Params;
use super::predecessor::IdentityColumns;
use super::{LEASE_SHARE, OnPublished, Outbox, Result};
use crate::lanes::keeper::Lease;
use crate::lanes::{KeylessStored, Taken, Term};

/// Another worker, or ourselves, as a renewal sees it.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub worker: Uuid,
    pub lease_left: f64,
    pub lanes: usize,
    /// The database's clock when it looked.
    pub now: SystemTime,
}

/// What a renewal answers.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// Who is here, ourselves among them.
    pub peers: Vec<Peer>,
    /// Of the rows without a lane: the stored floor and its epoch.
    pub keyless: (i64, i64),
}

impl Outbox {
    /// Registers a worker; answers the server incarnation its term belongs to, and the server's clock.
    pub async fn register(&self, worker: Uuid, lease: &Lease) -> Result<(SystemTime, SystemTime)> {
        let columns = IdentityColumns::new(lease.identity.as_ref(), self.pool.session_key());
        let [pod_uid, machine, pid, started, session_key] = columns.params();
        let row = self
            .query_one(
                &self.statements.register,
                &[
                    &worker,
                    &lease.worker_name,
                    &env!("CARGO_PKG_VERSION"),
                    &(lease.lane_batch as i32),
                    &lease.duration.as_secs_f64(),
                    pod_uid,
                    machine,
                    pid,
                    started,
                    session_key,
                ],
            )
            .await?;
        Ok((row.try_get("incarnation")?, row.try_get("now")?))
    }

    /// `None`: the lease was not renewed.
    pub async fn renew(&self, term: &Term, lease: Duration) -> Result<Option<Renewal>> {
        let rows = self
            .query_within(
                self.lease_patience(),
                &self.statements.renew,
                &[&term.worker, &lease.as_secs_f64(), &term.incarnation],
            )
            .await?;
        let Some(first) = rows.first() else { return Ok(None) };
        Ok(Some(Renewal {
            peers: rows.iter().map(peer).collect::<Result<_>>()?,
            keyless: (first.try_get("floor")?, first.try_get("epoch")?),
        }))
    }

    fn lease_patience(&self) -> Duration {
        self.patience / LEASE_SHARE
    }

    /// What the term's server has lost no write since: see `V2__lineage.sql`.
    pub async fn lineage(&self, incarnation: SystemTime) -> Result<String> {
        let row = self.query_one(&self.statements.lineage, &[&incarnation]).await?;
        Ok(row.try_get("name")?)
    }

    /// Which of these published rows the server does not know any more.
    pub async fn lost(&self, ids: Vec<i64>, message_ids: Vec<Uuid>) -> Result<Vec<i64>> {
        let sql = match self.on_published {
            OnPublished::Keep | OnPublished::Archive => &self.statements.lost_kept,
            OnPublished::Delete => &self.statements.lost_deleted,
        };
        let rows = self.query(sql, &[&ids, &message_ids]).await?;
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
    }

    /// Takes lanes, and then reads what they hold back: an owner that has expired may have been writing until they were locked.
    pub async fn take(&self, term: &Term, count: usize, lease: Duration) -> Result<Vec<Taken>> {
        let count = count as i64;
        let take: Params<'_> = &[&term.worker, &count, &term.incarnation, &lease.as_secs_f64()];
        self.on_connection_within(self.lease_patience(), async |session| {
            let transaction = session.transaction().await?;
            let rows = transaction.query(&self.statements.take, take).await?;
            let lanes: Vec<i16> = rows.iter().map(|row| Ok(row.try_get("lane")?)).collect::<Result<_>>()?;
            let inherited = if lanes.is_empty() {
                Vec::new()
            } else {
                transaction.query(&self.statements.inherit, &[&lanes]).await?
            };
            let mut held = inherited
                .iter()
                .map(|row| Ok((row.try_get("lane")?, held_topics(row)?)))
                .collect::<Result<BTreeMap<i16, _>>>()?;
            let taken = rows
                .iter()
                .map(|row| taken(row, &mut held))
                .collect::<Result<Vec<_>>>()?;
            transaction.commit().await?;
            Ok(taken)
        })
        .await
    }

    pub async fn give_up(&self, term: &Term, given: &[(i16, i64, i64, i32)]) -> Result<()> {
        let (lanes, epochs, floors, suspects) = unzip4(given);
        self.execute_within(
            self.lease_patience(),
            &self.statements.give_up,
            &[&term.worker, &lanes, &epochs, &floors, &suspects, &term.incarnation],
        )
        .await?;
        Ok(())
    }

    /// Stamps the worker stopped and frees its lanes, in that order and in one transaction.
    pub async fn leave(&self, term: &Term, given: &[(i16, i64, i64, i32)]) -> Result<()> {
        let (lanes, epochs, floors, suspects) = unzip4(given);
        self.on_connection(async |session| {
            let transaction = session.transaction().await?;
            transaction
                .execute(&self.statements.stop_worker, &[&term.worker])
                .await?;
            transaction
                .execute(
                    &self.statements.give_up,
                    &[&term.worker, &lanes, &epochs, &floors, &suspects, &term.incarnation],
                )
                .await?;
            transaction.commit().await
        })
        .await
    }

    /// Ends a term of this process that nothing is done under any more, without waiting for its lease to run out.
    pub async fn stop_worker(&self, worker: Uuid) -> Result<()> {
        self.execute(&self.statements.stop_worker, &[&worker]).await?;
        Ok(())
    }

    /// Stores floors; answers those it could.
    pub async fn store_floors(&self, term: &Term, floors: &[(i16, i64, i64)]) -> Result<Vec<(i16, i64, i64)>> {
        let lanes: Vec<i16> = floors.iter().map(|f| f.0).collect();
        let epochs: Vec<i64> = floors.iter().map(|f| f.1).collect();
        let values: Vec<i64> = floors.iter().map(|f| f.2).collect();
        let rows = self
            .query_within(
                self.lease_patience(),
                &self.statements.store_floors,
                &[&term.worker, &lanes, &epochs, &values, &term.incarnation],
            )
            .await?;
        rows.iter()
            .map(|row| Ok((row.try_get("lane")?, row.try_get("epoch")?, row.try_get("floor")?)))
            .collect()
    }

    /// Builds stored floors anew that lie above every id drawn, or all that may be used by nobody else if the sequence is known to
    /// have been restarted. Answers how many.
    pub async fn rebuild_floors(&self, term: &Term, restarted: bool) -> Result<usize> {
        let params: Params<'_> = &[&restarted, &term.incarnation];
        Ok(self.query(&self.statements.rebuild_floors, params).await?.len())
    }

    /// `None`: the server is another one.
    pub async fn keyless(&self, incarnation: SystemTime) -> Result<Option<KeylessStored>> {
        let rows = self
            .query_within(self.lease_patience(), &self.statements.keyless, &[&incarnation])
            .await?;
        rows.first()
            .map(|row| {
                Ok(KeylessStored {
                    floor: row.try_get("floor")?,
                    epoch: row.try_get("epoch")?,
                    suspect_until: row.try_get("suspect_until")?,
                    has_holds: row.try_get::<_, i64>("holds")? > 0,
                })
            })
            .transpose()
    }

    pub async fn store_floor_keyless(&self, term: &Term, floor: i64, epoch: i64) -> Result<()> {
        self.execute_within(
            self.lease_patience(),
            &self.statements.store_floor_keyless,
            &[&floor, &epoch, &term.incarnation],
        )
        .await?;
        Ok(())
    }

    /// The lowest id above `floor` that the keyless floor must not pass, as far as it is not above `upto`.
    pub async fn keyless_lowest(&self, term: &Term, floor: i64, upto: Option<i64>) -> Result<Option<i64>> {
        let params: Params<'_> = &[&floor, &term.incarnation, &upto.unwrap_or(i64::MAX)];
        let rows = self.query(&self.statements.keyless_lowest, params).await?;
        rows.first().map(|row| Ok(row.try_get("id")?)).transpose()
    }
}

fn taken(row: &tokio_postgres::Row, held: &mut BTreeMap<i16, BTreeSet<String>>) -> Result<Taken> {
    let lane = row.try_get("lane")?;
    Ok(Taken {
        lane,
        epoch: row.try_get("epoch")?,
        floor: row.try_get("floor")?,
        suspect_rows: row.try_get("suspect_rows")?,
        suspect_until: row.try_get("suspect_until")?,
        recovered: row.try_get("recovered")?,
        held_topics: held.remove(&lane).unwrap_or_default(),
    })
}

fn peer(row: &tokio_postgres::Row) -> Result<Peer> {
    Ok(Peer {
        worker: row.try_get("id")?,
        lease_left: row.try_get("lease_left")?,
        lanes: row.try_get::<_, i64>("lanes")? as usize,
        now: row.try_get("now")?,
    })
}

fn unzip4(given: &[(i16, i64, i64, i32)]) -> (Vec<i16>, Vec<i64>, Vec<i64>, Vec<i32>) {
    let lanes = given.iter().map(|g| g.0).collect();
    let epochs = given.iter().map(|g| g.1).collect();
    let floors = given.iter().map(|g| g.2).collect();
    let suspects = given.iter().map(|g| g.3).collect();
    (lanes, epochs, floors, suspects)
}
