//! Workers, their leases and lanes.

pub mod predecessor;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde_json::json;
use uuid::Uuid;

use super::param::{Params, json_rows};
use super::{Outbox, Result, Transaction, known_version};
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
    /// The version of the pauses that are stored.
    pub pauses: i64,
}

/// What `read_taken_lanes.sql` returns: the lane, what may have been sent of it, its topics with holds, whether its in-flight
/// entries were lost, and the last id drawn.
type LastOwner = (i16, Vec<i64>, Vec<String>, bool, i64);

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
        let session_key = self.pool.session_key;
        let identity = identity.filter(|_| session_key.is_some());
        let params: Params<'_> = &[
            &worker,
            &name,
            &env!("CARGO_PKG_VERSION"),
            &lease.as_secs_f64(),
            &identity.and_then(|identity| identity.pod_uid.as_deref()),
            &identity.map(|identity| identity.machine.as_str()),
            &identity.map(|identity| identity.pid),
            &identity.map(|identity| identity.started),
            &identity.and(session_key),
            &known_version(),
        ];
        self.query_one(&self.statements.register, params).await
    }

    /// Renews the lease. Returns `None` if it could not be renewed. No in-flight entry of this worker has a lower id than
    /// `oldest_entry`, and everything that it sends obeys the pauses of version `pauses_seen` or later ones.
    pub async fn renew(
        &self,
        term: &Term,
        lease: Duration,
        oldest_entry: i64,
        pauses_seen: i64,
    ) -> Result<Option<Renewal>> {
        let lease = lease.as_secs_f64();
        let params: Params<'_> = &[&term.worker, &lease, &term.incarnation, &oldest_entry, &pauses_seen];
        let rows: Vec<(Uuid, f64, i64, SystemTime, i64, i64, i64)> =
            self.for_lease().query(&self.statements.renew, params).await?;
        let Some(&(.., floor, epoch, pauses)) = rows.first() else {
            return Ok(None);
        };
        let peers = rows.iter().map(|&(worker, lease_left, lanes, now, ..)| Peer {
            worker,
            lease_left,
            lanes: lanes as usize,
            now,
        });
        Ok(Some(Renewal {
            peers: peers.collect(),
            unordered: (floor, epoch),
            pauses,
        }))
    }

    /// Returns the lineage of the server, which changes whenever writes may have been lost. See `outbox.lineage`.
    pub async fn lineage(&self, incarnation: SystemTime) -> Result<String> {
        self.query_one(&self.statements.lineage, &[&incarnation]).await
    }

    /// Takes lanes, and then reads their holds and what their last owners had in flight, because an expired owner may have been
    /// writing until the lanes were locked. What may have been sent is stored at once, because this worker may die before it is
    /// sent again.
    pub async fn take_lanes(&self, term: &Term, count: usize, lease: Duration) -> Result<Vec<TakenLane>> {
        let count = count as i64;
        let take: Params<'_> = &[&term.worker, &count, &term.incarnation, &lease.as_secs_f64()];
        let lease = self.for_lease();
        lease
            .with_transaction(async |transaction| {
                let rows = transaction.query(&self.statements.take_lanes, take).await?;
                let mut taken: Vec<TakenLane> = rows.into_iter().map(taken_lane).collect();
                if !taken.is_empty() {
                    self.read_taken_lanes(transaction, &mut taken).await?;
                    self.read_in_flight(transaction, &mut taken).await?;
                    self.store_inherited(transaction, &mut taken).await?;
                }
                Ok(taken)
            })
            .await
    }

    async fn read_taken_lanes(&self, transaction: &Transaction<'_>, taken: &mut [TakenLane]) -> Result<()> {
        let lanes: Vec<i16> = taken.iter().map(|lane| lane.lane).collect();
        let owners: Vec<Option<Uuid>> = taken.iter().map(|lane| lane.last_owner).collect();
        let rows: Vec<LastOwner> = transaction
            .query(&self.statements.read_taken_lanes, &[&lanes, &owners])
            .await?;
        for (number, stored, held_topics, entries_lost, last_id) in rows {
            let Some(lane) = taken.iter_mut().find(|lane| lane.lane == number) else {
                continue;
            };
            lane.held_topics = BTreeSet::from_iter(held_topics);
            lane.maybe_sent.ranges = IdRanges::from_flat(&stored);
            lane.stored_maybe_sent = stored;
            if entries_lost {
                lane.maybe_sent.ranges.insert(1, last_id);
            }
        }
        Ok(())
    }

    async fn read_in_flight(&self, transaction: &Transaction<'_>, taken: &mut [TakenLane]) -> Result<()> {
        let owners: Vec<Uuid> = taken.iter().filter_map(|lane| lane.last_owner).collect();
        if owners.is_empty() {
            return Ok(());
        }
        let rows: Vec<(Uuid, i16, i64, i64)> = transaction.query(&self.statements.read_in_flight, &[&owners]).await?;
        for (worker, number, first_id, last_id) in rows {
            let lane = taken.iter_mut().find(|lane| lane.lane == number);
            if let Some(lane) = lane.filter(|lane| lane.last_owner == Some(worker)) {
                lane.maybe_sent.ranges.insert(first_id, last_id);
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
        let returned = returned_rows(returned);
        let params: Params<'_> = &[&term.worker, &returned, &term.incarnation];
        self.for_lease()
            .execute(&self.statements.return_lanes, params)
            .await
            .map(drop)
    }

    /// Stamps the worker stopped and then returns its lanes, in one transaction.
    pub async fn stop_and_return_lanes(&self, term: &Term, returned: &[ReturnedLane]) -> Result<()> {
        let returned = returned_rows(returned);
        let params: Params<'_> = &[&term.worker, &returned, &term.incarnation];
        self.with_transaction(async |transaction| {
            transaction
                .execute(&self.statements.stop_worker, &[&term.worker])
                .await?;
            transaction
                .execute(&self.statements.return_lanes, params)
                .await
                .map(drop)
        })
        .await
    }

    /// Ends a finished term of this process before its lease expires. `ranges` are the rows that it had in flight and whose
    /// outcome it could not write.
    pub async fn stop_worker_in_flight(&self, worker: Uuid, ranges: &InFlightRanges) -> Result<()> {
        let params: Params<'_> = &[&worker, &ranges.lanes, &ranges.first_ids, &ranges.last_ids];
        self.execute(&self.statements.stop_worker_in_flight, params)
            .await
            .map(drop)
    }
}

fn taken_lane((lane, epoch, floor, until, last_owner): (i16, i64, i64, i64, Option<Uuid>)) -> TakenLane {
    TakenLane {
        lane,
        epoch,
        floor,
        maybe_sent: MaybeSent {
            until,
            ..MaybeSent::default()
        },
        stored_maybe_sent: Vec::new(),
        last_owner,
        held_topics: BTreeSet::new(),
    }
}

/// The parameter of `return_lanes.sql`.
fn returned_rows(returned: &[ReturnedLane]) -> String {
    json_rows(returned.iter().map(
        |lane| json!({ "lane": lane.lane, "epoch": lane.epoch, "floor": lane.floor, "maybe_sent": lane.maybe_sent }),
    ))
}
