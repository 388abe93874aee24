//! Workers, their leases and lanes.

pub mod predecessor;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::hold::held_topics;
use super::param::{Param, Params, array};
use super::{Outbox, Result, Transaction};
use crate::domain::id_ranges::IdRanges;
use crate::domain::in_flight::InFlightRanges;
use crate::domain::lease::{ReturnedLane, TakenLane, Term};
use crate::domain::maybe_sent::MaybeSent;
use crate::process::Identity;

/// A live worker as a renewal sees it. This worker is one of them.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub worker: Uuid,
    pub lease_left: f64,
    pub lanes: usize,
    /// The server's time.
    pub now: SystemTime,
}

/// The answer to a renewal.
#[derive(Clone, Debug)]
pub struct Renewal {
    pub peers: Vec<Peer>,
    /// The stored floor of the unordered rows, and its epoch.
    pub unordered: (i64, i64),
}

impl Outbox {
    /// Registers a worker. Returns the incarnation of the server, to which its term belongs, and the server's time.
    pub async fn register(
        &self,
        worker: Uuid,
        name: &str,
        identity: Option<&Identity>,
        lease: Duration,
    ) -> Result<(SystemTime, SystemTime)> {
        // Without a session key nothing can be proven about the process.
        let session_key = self.pool.session_key();
        let identity = identity.filter(|_| session_key.is_some());
        let row = self
            .query_one(
                &self.statements.register,
                &[
                    &worker,
                    &name,
                    &env!("CARGO_PKG_VERSION"),
                    &lease.as_secs_f64(),
                    &identity.and_then(|identity| identity.pod_uid.as_deref()),
                    &identity.map(|identity| identity.machine.as_str()),
                    &identity.map(|identity| identity.pid),
                    &identity.map(|identity| identity.started),
                    &identity.and(session_key),
                ],
            )
            .await?;
        Ok((row.try_get("incarnation")?, row.try_get("now")?))
    }

    /// Renews the lease. Returns `None` if it could not be renewed. No in-flight entry of this worker has a lower id than
    /// `oldest_entry`.
    pub async fn renew(&self, term: &Term, lease: Duration, oldest_entry: i64) -> Result<Option<Renewal>> {
        let rows = self
            .query_within(
                self.lease_timeout(),
                &self.statements.renew,
                &[&term.worker, &lease.as_secs_f64(), &term.incarnation, &oldest_entry],
            )
            .await?;
        let Some(first) = rows.first() else { return Ok(None) };
        Ok(Some(Renewal {
            peers: rows.iter().map(peer).collect::<Result<_>>()?,
            unordered: (first.try_get("floor")?, first.try_get("epoch")?),
        }))
    }

    /// Returns the lineage of the server, which changes whenever writes may have been lost. See `outbox.lineage`.
    pub async fn lineage(&self, incarnation: SystemTime) -> Result<String> {
        let row = self.query_one(&self.statements.lineage, &[&incarnation]).await?;
        Ok(row.try_get("name")?)
    }

    /// Takes lanes, and then reads their holds and what their last owners had in flight, because an expired owner may have been
    /// writing until the lanes were locked. What may have been sent is stored at once, because this worker may die before it is
    /// sent again.
    pub async fn take_lanes(&self, term: &Term, count: usize, lease: Duration) -> Result<Vec<TakenLane>> {
        let count = count as i64;
        let take: Params<'_> = &[&term.worker, &count, &term.incarnation, &lease.as_secs_f64()];
        self.with_session_within(self.lease_timeout(), async |session| {
            let transaction = session.transaction().await?;
            let rows = transaction.query(&self.statements.take_lanes, take).await?;
            let mut taken: Vec<TakenLane> = rows.iter().map(taken_lane).collect::<Result<_>>()?;
            if !taken.is_empty() {
                self.read_taken_lanes(&transaction, &mut taken).await?;
                self.read_in_flight(&transaction, &mut taken).await?;
                self.store_inherited(&transaction, &mut taken).await?;
            }
            transaction.commit().await?;
            Ok(taken)
        })
        .await
    }

    async fn read_taken_lanes(&self, transaction: &Transaction<'_>, taken: &mut [TakenLane]) -> Result<()> {
        let lanes: Vec<i16> = taken.iter().map(|lane| lane.lane).collect();
        let owners: Vec<Option<Uuid>> = taken.iter().map(|lane| lane.last_owner).collect();
        for row in &transaction
            .query(&self.statements.read_taken_lanes, &[&lanes, &owners])
            .await?
        {
            let number: i16 = row.try_get("lane")?;
            let stored: Vec<i64> = row.try_get("maybe_sent")?;
            let Some(lane) = taken.iter_mut().find(|lane| lane.lane == number) else {
                continue;
            };
            lane.held_topics = held_topics(row)?;
            lane.stored_maybe_sent = stored;
            lane.maybe_sent.ranges = IdRanges::from_flat(&lane.stored_maybe_sent);
            if row.try_get("entries_lost")? {
                lane.maybe_sent.ranges.insert(1, row.try_get("last_id")?);
            }
        }
        Ok(())
    }

    async fn read_in_flight(&self, transaction: &Transaction<'_>, taken: &mut [TakenLane]) -> Result<()> {
        let owners: Vec<Uuid> = taken.iter().filter_map(|lane| lane.last_owner).collect();
        if owners.is_empty() {
            return Ok(());
        }
        for row in &transaction.query(&self.statements.read_in_flight, &[&owners]).await? {
            let (worker, number): (Uuid, i16) = (row.try_get("worker")?, row.try_get("lane")?);
            let lane = taken.iter_mut().find(|lane| lane.lane == number);
            if let Some(lane) = lane.filter(|lane| lane.last_owner == Some(worker)) {
                lane.maybe_sent
                    .ranges
                    .insert(row.try_get("first_id")?, row.try_get("last_id")?);
            }
        }
        Ok(())
    }

    async fn store_inherited(&self, transaction: &Transaction<'_>, taken: &mut [TakenLane]) -> Result<()> {
        let mut maybe_sent = Vec::new();
        for lane in taken {
            let known = lane.maybe_sent.to_stored([]);
            if known != lane.stored_maybe_sent {
                maybe_sent.push((lane.lane, known.clone()));
                lane.stored_maybe_sent = known;
            }
        }
        self.store_maybe_sent(transaction, &maybe_sent).await
    }

    pub async fn return_lanes(&self, term: &Term, returned: &[ReturnedLane]) -> Result<()> {
        let columns = ReturnedColumns::from(returned);
        let params = columns.params(term);
        self.execute_within(self.lease_timeout(), &self.statements.return_lanes, &params)
            .await?;
        Ok(())
    }

    /// Stamps the worker stopped and then returns its lanes, in one transaction.
    pub async fn stop_and_return_lanes(&self, term: &Term, returned: &[ReturnedLane]) -> Result<()> {
        let columns = ReturnedColumns::from(returned);
        let params = columns.params(term);
        self.with_session(async |session| {
            let transaction = session.transaction().await?;
            transaction
                .execute(&self.statements.stop_worker, &[&term.worker])
                .await?;
            transaction.execute(&self.statements.return_lanes, &params).await?;
            transaction.commit().await
        })
        .await
    }

    /// Ends a finished term of this process before its lease expires. `ranges` are the rows that it had in flight and whose
    /// outcome it could not write.
    pub async fn stop_worker_in_flight(&self, worker: Uuid, ranges: &InFlightRanges) -> Result<()> {
        let params: Params<'_> = &[&worker, &ranges.lanes, &ranges.first_ids, &ranges.last_ids];
        self.execute(&self.statements.stop_worker_in_flight, params).await?;
        Ok(())
    }

    /// Ends a term of this process that has sent nothing, before its lease expires.
    pub async fn stop_worker(&self, worker: Uuid) -> Result<()> {
        self.execute(&self.statements.stop_worker, &[&worker]).await?;
        Ok(())
    }
}

fn taken_lane(row: &tokio_postgres::Row) -> Result<TakenLane> {
    Ok(TakenLane {
        lane: row.try_get("lane")?,
        epoch: row.try_get("epoch")?,
        floor: row.try_get("floor")?,
        maybe_sent: MaybeSent {
            until: row.try_get("maybe_sent_until")?,
            ..MaybeSent::default()
        },
        stored_maybe_sent: Vec::new(),
        last_owner: row.try_get("owner")?,
        held_topics: BTreeSet::new(),
    })
}

/// Returned lanes, as the arrays that the statement takes.
struct ReturnedColumns {
    lanes: Vec<i16>,
    epochs: Vec<i64>,
    floors: Vec<i64>,
    maybe_sent: Vec<String>,
}

impl From<&[ReturnedLane]> for ReturnedColumns {
    fn from(returned: &[ReturnedLane]) -> Self {
        ReturnedColumns {
            lanes: returned.iter().map(|lane| lane.lane).collect(),
            epochs: returned.iter().map(|lane| lane.epoch).collect(),
            floors: returned.iter().map(|lane| lane.floor).collect(),
            maybe_sent: returned.iter().map(|lane| array(&lane.maybe_sent)).collect(),
        }
    }
}

impl ReturnedColumns {
    fn params<'a>(&'a self, term: &'a Term) -> [&'a dyn Param; 6] {
        let ReturnedColumns {
            lanes,
            epochs,
            floors,
            maybe_sent,
        } = self;
        [&term.worker, lanes, epochs, floors, maybe_sent, &term.incarnation]
    }
}

fn peer(row: &tokio_postgres::Row) -> Result<Peer> {
    Ok(Peer {
        worker: row.try_get("id")?,
        lease_left: row.try_get("lease_left")?,
        lanes: row.try_get::<_, i64>("lanes")? as usize,
        now: row.try_get("now")?,
    })
}
