//! The lease: workers, lanes, stored floors.

pub mod predecessor;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use self::predecessor::IdentityColumns;
use super::hold::held_topics;
use super::param::{Param, Params};
use super::{LEASE_SHARE, OnPublished, Outbox, Result, Transaction};
use crate::domain::id_ranges::IdRanges;
use crate::domain::in_flight::InFlightRanges;
use crate::domain::lease::{FloorUpdate, ReturnedLane, TakenLane, Term, UnorderedState};
use crate::domain::maybe_sent::MaybeSent;
use crate::process::Identity;

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
    /// Of the unordered rows: the stored floor and its epoch.
    pub unordered: (i64, i64),
}

impl Outbox {
    /// Registers a worker; answers the server incarnation its term belongs to, and the server's clock.
    pub async fn register(
        &self,
        worker: Uuid,
        name: &str,
        identity: Option<&Identity>,
        lease: Duration,
    ) -> Result<(SystemTime, SystemTime)> {
        let columns = IdentityColumns::new(identity, self.pool.session_key());
        let [pod_uid, machine, pid, started, session_key] = columns.params();
        let row = self
            .query_one(
                &self.statements.register,
                &[
                    &worker,
                    &name,
                    &env!("CARGO_PKG_VERSION"),
                    &lease.as_secs_f64(),
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

    /// `None`: the lease was not renewed. No record of what we have in flight has a lower id than `oldest_entry`.
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

    fn lease_timeout(&self) -> Duration {
        self.timeout / LEASE_SHARE
    }

    /// What the term's server has lost no write since: see `outbox.lineage`.
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

    /// Takes lanes, and then reads what they hold back and what their last owners had in flight: one that has expired may have been writing
    /// until they were locked. What is in doubt is written down at once: the new owner may die before it has seen to it.
    pub async fn take(&self, term: &Term, count: usize, lease: Duration) -> Result<Vec<TakenLane>> {
        let count = count as i64;
        let take: Params<'_> = &[&term.worker, &count, &term.incarnation, &lease.as_secs_f64()];
        self.on_connection_within(self.lease_timeout(), async |session| {
            let transaction = session.transaction().await?;
            let rows = transaction.query(&self.statements.take_lanes, take).await?;
            let mut taken: Vec<TakenLane> = rows.iter().map(taken).collect::<Result<_>>()?;
            if !taken.is_empty() {
                self.inherit(&transaction, &mut taken).await?;
                self.inherit_records(&transaction, &mut taken).await?;
                self.store_inherited(&transaction, &mut taken).await?;
            }
            transaction.commit().await?;
            Ok(taken)
        })
        .await
    }

    async fn inherit(&self, transaction: &Transaction<'_>, taken: &mut [TakenLane]) -> Result<()> {
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
            if row.try_get("unrecorded")? {
                lane.maybe_sent.ranges.insert(1, row.try_get("last_id")?);
            }
        }
        Ok(())
    }

    async fn inherit_records(&self, transaction: &Transaction<'_>, taken: &mut [TakenLane]) -> Result<()> {
        let owners: Vec<Uuid> = taken.iter().filter_map(|lane| lane.last_owner).collect();
        if owners.is_empty() {
            return Ok(());
        }
        for row in &transaction.query(&self.statements.read_in_flight, &[&owners]).await? {
            let (worker, number): (Uuid, i16) = (row.try_get("worker")?, row.try_get("lane")?);
            let of_lane = taken.iter_mut().find(|lane| lane.lane == number);
            if let Some(lane) = of_lane.filter(|lane| lane.last_owner == Some(worker)) {
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
        self.store_suspects(transaction, &maybe_sent).await
    }

    /// Behind the fence.
    pub(super) async fn store_suspects(
        &self,
        transaction: &Transaction<'_>,
        maybe_sent: &[(i16, Vec<i64>)],
    ) -> Result<()> {
        if maybe_sent.is_empty() {
            return Ok(());
        }
        let lanes: Vec<i16> = maybe_sent.iter().map(|(lane, _)| *lane).collect();
        let ranges: Vec<String> = maybe_sent.iter().map(|(_, ranges)| array(ranges)).collect();
        let sql = &self.statements.store_maybe_sent;
        transaction.execute(sql, &[&lanes, &ranges]).await?;
        Ok(())
    }

    pub async fn give_up(&self, term: &Term, given: &[ReturnedLane]) -> Result<()> {
        let columns = ReturnedColumns::from(given);
        let params = columns.params(term);
        self.execute_within(self.lease_timeout(), &self.statements.return_lanes, &params)
            .await?;
        Ok(())
    }

    /// Stamps the worker stopped and frees its lanes, in that order and in one transaction.
    pub async fn leave(&self, term: &Term, given: &[ReturnedLane]) -> Result<()> {
        let columns = ReturnedColumns::from(given);
        let params = columns.params(term);
        self.on_connection(async |session| {
            let transaction = session.transaction().await?;
            transaction
                .execute(&self.statements.stop_worker, &[&term.worker])
                .await?;
            transaction.execute(&self.statements.return_lanes, &params).await?;
            transaction.commit().await
        })
        .await
    }

    /// Ends a term of this process that nothing is done under any more, without waiting for its lease to run out; `unsettled` is what it had in
    /// flight and could not write the outcome of.
    pub async fn stop_recorded(&self, worker: Uuid, open_entries: &InFlightRanges) -> Result<()> {
        let InFlightRanges {
            lanes,
            first_ids,
            last_ids,
        } = open_entries;
        self.execute(
            &self.statements.stop_worker_in_flight,
            &[&worker, lanes, first_ids, last_ids],
        )
        .await?;
        Ok(())
    }

    /// Writes down what is about to be sent of these lanes. `None`: they are not ours any more, and nothing may be sent.
    pub async fn record(&self, term: &Term, held: &[(i16, i64)], ranges: &InFlightRanges) -> Result<Option<i64>> {
        let (lanes, epochs): (Vec<i16>, Vec<i64>) = held.iter().copied().unzip();
        let params: Params<'_> = &[
            &term.worker,
            &lanes,
            &epochs,
            &ranges.lanes,
            &ranges.first_ids,
            &ranges.last_ids,
            &term.incarnation,
        ];
        let rows = self.query(&self.statements.insert_in_flight, params).await?;
        rows.first().map(|row| Ok(row.try_get("id")?)).transpose()
    }

    /// Ends a term of this process that has sent nothing, without waiting for its lease to run out.
    pub async fn stop_worker(&self, worker: Uuid) -> Result<()> {
        self.execute(&self.statements.stop_worker, &[&worker]).await?;
        Ok(())
    }

    /// Stores floors; answers which it could: lane, epoch, floor.
    pub async fn store_floors(&self, term: &Term, moved: &[FloorUpdate]) -> Result<Vec<(i16, i64, i64)>> {
        let lanes: Vec<i16> = moved.iter().map(|lane| lane.lane).collect();
        let epochs: Vec<i64> = moved.iter().map(|lane| lane.epoch).collect();
        let floors: Vec<i64> = moved.iter().map(|lane| lane.floor).collect();
        let done: Vec<Option<String>> = moved.iter().map(|lane| lane.done.as_deref().map(array)).collect();
        let rows = self
            .query_within(
                self.lease_timeout(),
                &self.statements.store_floors,
                &[&term.worker, &lanes, &epochs, &floors, &done, &term.incarnation],
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
    pub async fn unordered(&self, incarnation: SystemTime) -> Result<Option<UnorderedState>> {
        let rows = self
            .query_within(self.lease_timeout(), &self.statements.read_unordered, &[&incarnation])
            .await?;
        rows.first()
            .map(|row| {
                Ok(UnorderedState {
                    floor: row.try_get("floor")?,
                    epoch: row.try_get("epoch")?,
                    maybe_sent_until: row.try_get("maybe_sent_until")?,
                    has_holds: row.try_get::<_, i64>("holds")? > 0,
                })
            })
            .transpose()
    }

    pub async fn store_floor_unordered(&self, term: &Term, floor: i64, epoch: i64) -> Result<()> {
        self.execute_within(
            self.lease_timeout(),
            &self.statements.store_unordered_floor,
            &[&floor, &epoch, &term.incarnation],
        )
        .await?;
        Ok(())
    }

    /// The lowest id above `floor` that the unordered floor must not pass, as far as it is not above `scan_end`.
    pub async fn lowest_unordered(&self, term: &Term, floor: i64, scan_end: Option<i64>) -> Result<Option<i64>> {
        let params: Params<'_> = &[&floor, &term.incarnation, &scan_end.unwrap_or(i64::MAX)];
        let rows = self.query(&self.statements.lowest_unordered, params).await?;
        rows.first().map(|row| Ok(row.try_get("id")?)).transpose()
    }
}

fn taken(row: &tokio_postgres::Row) -> Result<TakenLane> {
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

/// As PostgreSQL writes an array: several of different lengths fit into one parameter only as text.
fn array(ids: &[i64]) -> String {
    let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
    format!("{{{}}}", ids.join(","))
}

/// Lanes handed back, as the arrays the statement takes.
struct ReturnedColumns {
    lanes: Vec<i16>,
    epochs: Vec<i64>,
    floors: Vec<i64>,
    maybe_sent: Vec<String>,
}

impl From<&[ReturnedLane]> for ReturnedColumns {
    fn from(given: &[ReturnedLane]) -> Self {
        ReturnedColumns {
            lanes: given.iter().map(|lane| lane.lane).collect(),
            epochs: given.iter().map(|lane| lane.epoch).collect(),
            floors: given.iter().map(|lane| lane.floor).collect(),
            maybe_sent: given.iter().map(|lane| array(&lane.maybe_sent)).collect(),
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
