//! Every query the daemon runs, one method per `.sql` file in `src/outbox/`. The only module that speaks SQL.
//!
//! Invariant: whatever acts on rows or lanes is tied to the server incarnation of the caller's term, inside the
//! statement: after a restart or a failover ids can come again, and a late mark must not hit a stranger.

mod connect;
mod error;
pub mod migrate;
mod row;
pub mod status;

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use deadpool_postgres::{Object, Pool};
use futures_util::TryStreamExt;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

pub use connect::{Database, connect, pool};
pub use error::{Error, Kind, Result};

use crate::lanes::keeper::Lease;
use crate::lanes::{Held, KeylessStored, Taken, Term};
use crate::message::Row;
use crate::verdict::{HoldOrder, Refusal};

/// What happens to a row once Kafka has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnPublished {
    /// It stays, with published_at set, until the retention is over.
    Keep,
    /// It moves to outbox.history, partitioned by day.
    Archive,
    /// It is deleted.
    Delete,
}

/// Another worker, or ourselves, as the survey sees it.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub worker: Uuid,
    pub lease_left: f64,
    pub lanes: usize,
    /// The database's clock when it looked.
    pub now: SystemTime,
}

/// A hold as stored.
#[derive(Clone, Debug)]
pub struct StoredHold {
    pub lane: i16,
    pub topic: String,
    pub unit: String,
    pub head_id: Option<i64>,
    pub resume_floor: i64,
    pub failures: i32,
    /// Seconds until it is to be tried again; negative when due.
    pub wait: f64,
}

/// The backlog as sampled.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub pending: i64,
    pub capped: bool,
    pub oldest_seconds: f64,
    pub dead: i64,
    pub delayed: i64,
    pub held_keys: i64,
    pub parked_topics: i64,
    pub horizon_age: i64,
    pub dead_tuples: i64,
}

/// Rows claimed, and those left behind because the byte budget was full.
#[derive(Debug, Default)]
pub struct Claim {
    pub rows: Vec<Row>,
    pub dropped: Vec<(Option<i16>, i64)>,
}

macro_rules! statements {
    ($($name:ident),* $(,)?) => {
        /// The text of every statement, in the configured schema.
        struct Statements { $($name: String),* }

        impl Statements {
            fn in_schema(schema: &str) -> Self {
                Self { $($name: in_schema(include_str!(concat!("outbox/", stringify!($name), ".sql")), schema)),* }
            }
        }
    };
}

statements!(
    claim_keyless,
    claim_lanes,
    fence,
    forget_workers,
    give_up,
    history_drop,
    history_prepare,
    hold,
    hold_head,
    holds,
    holds_keyless,
    horizon,
    keyless,
    keyless_lowest,
    lane_holds,
    lower_floor,
    lower_floor_keyless,
    mark_keyless_archive,
    mark_keyless_delete,
    mark_keyless_keep,
    mark_lanes_archive,
    mark_lanes_delete,
    mark_lanes_keep,
    permissions,
    postpone,
    probe,
    purge,
    refuse,
    refuse_keyless,
    register,
    release_keyless,
    renew,
    rescan,
    sample,
    schema_history,
    schema_version,
    sequence_cache,
    status_dead,
    status_free_lanes,
    status_holds,
    status_workers,
    status_writer,
    stop_worker,
    store_floor_keyless,
    store_floors,
    survey,
    take,
    topic_head,
    topic_head_keyless,
    unhold,
    writers,
);

/// The files are written for the schema `outbox`; another name is put in its place. Names are checked at start-up
/// to be plain identifiers, so no quoting is needed.
pub(crate) fn in_schema(sql: &str, schema: &str) -> String {
    if schema == "outbox" {
        return sql.to_owned();
    }
    sql.replace("outbox.", &format!("{schema}."))
        .replace("SCHEMA outbox", &format!("SCHEMA {schema}"))
}

type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The database, as the daemon uses it.
pub struct Outbox {
    pool: Pool,
    statements: Statements,
    on_published: OnPublished,
    /// Longer than any healthy statement: a silent connection is given up after this.
    patience: Duration,
}

impl Outbox {
    pub fn new(pool: Pool, schema: &str, on_published: OnPublished, patience: Duration) -> Self {
        Outbox {
            pool,
            statements: Statements::in_schema(schema),
            on_published,
            patience,
        }
    }

    async fn client(&self) -> Result<Object> {
        Ok(self.pool.get().await?)
    }

    /// Runs `work` on a connection; one that does not answer in time is closed, not reused.
    async fn on_connection<T>(&self, work: impl AsyncFnOnce(&mut Object) -> Result<T>) -> Result<T> {
        self.on_connection_within(self.patience, work).await
    }

    async fn on_connection_within<T>(
        &self,
        patience: Duration,
        work: impl AsyncFnOnce(&mut Object) -> Result<T>,
    ) -> Result<T> {
        let mut client = self.client().await?;
        match tokio::time::timeout(patience, work(&mut client)).await {
            Ok(done) => done,
            Err(_) => {
                drop(Object::take(client));
                Err(Error::Silent(patience))
            }
        }
    }

    async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<tokio_postgres::Row>> {
        self.on_connection(async |client| {
            let statement = client.prepare_cached(sql).await?;
            Ok(client.query(&statement, params).await?)
        })
        .await
    }

    async fn query_one(&self, sql: &str, params: Params<'_>) -> Result<tokio_postgres::Row> {
        let mut rows = self.query(sql, params).await?;
        rows.pop().ok_or(Error::Unexpected("a statement answered no row"))
    }

    async fn execute(&self, sql: &str, params: Params<'_>) -> Result<u64> {
        self.on_connection(async |client| {
            let statement = client.prepare_cached(sql).await?;
            Ok(client.execute(&statement, params).await?)
        })
        .await
    }

    // ── the lease ──────────────────────────────────────────────────────────────────────────────

    /// Registers a worker; answers the server incarnation its term belongs to.
    pub async fn register(&self, worker: Uuid, lease: &Lease) -> Result<SystemTime> {
        let row = self
            .query_one(
                &self.statements.register,
                &[
                    &worker,
                    &lease.worker_name,
                    &env!("CARGO_PKG_VERSION"),
                    &(lease.lane_batch as i32),
                    &lease.duration.as_secs_f64(),
                ],
            )
            .await?;
        Ok(row.try_get("incarnation")?)
    }

    /// With little patience: one silent connection must not cost the lease while others would answer.
    pub async fn renew(&self, term: &Term, lease: Duration) -> Result<bool> {
        self.on_connection_within(lease / 4, async |client| {
            let statement = client.prepare_cached(&self.statements.renew).await?;
            let renewed = client
                .execute(&statement, &[&term.worker, &lease.as_secs_f64(), &term.incarnation])
                .await?;
            Ok(renewed == 1)
        })
        .await
    }

    pub async fn survey(&self) -> Result<Vec<Peer>> {
        let rows = self.query(&self.statements.survey, &[]).await?;
        rows.iter()
            .map(|row| {
                Ok(Peer {
                    worker: row.try_get("id")?,
                    lease_left: row.try_get("lease_left")?,
                    lanes: row.try_get::<_, i64>("lanes")? as usize,
                    now: row.try_get("now")?,
                })
            })
            .collect()
    }

    pub async fn take(&self, term: &Term, count: usize) -> Result<Vec<Taken>> {
        let rows = self
            .query(
                &self.statements.take,
                &[&term.worker, &(count as i64), &term.incarnation],
            )
            .await?;
        rows.iter()
            .map(|row| {
                Ok(Taken {
                    lane: row.try_get("lane")?,
                    epoch: row.try_get("epoch")?,
                    floor: row.try_get("floor")?,
                    suspect_rows: row.try_get("suspect_rows")?,
                    recovered: row.try_get("recovered")?,
                    has_holds: row.try_get::<_, i64>("holds")? > 0,
                })
            })
            .collect()
    }

    pub async fn give_up(&self, term: &Term, given: &[(i16, i64, i64, i32)]) -> Result<()> {
        let (lanes, epochs, floors, suspects) = unzip4(given);
        self.execute(
            &self.statements.give_up,
            &[&term.worker, &lanes, &epochs, &floors, &suspects, &term.incarnation],
        )
        .await?;
        Ok(())
    }

    /// Stamps the worker stopped and frees its lanes, in that order and in one transaction.
    pub async fn leave(&self, term: &Term, given: &[(i16, i64, i64, i32)]) -> Result<()> {
        let (lanes, epochs, floors, suspects) = unzip4(given);
        self.on_connection(async |client| {
            let transaction = client.transaction().await?;
            transaction
                .execute(&self.statements.stop_worker, &[&term.worker])
                .await?;
            transaction
                .execute(
                    &self.statements.give_up,
                    &[&term.worker, &lanes, &epochs, &floors, &suspects, &term.incarnation],
                )
                .await?;
            Ok(transaction.commit().await?)
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
            .query(
                &self.statements.store_floors,
                &[&term.worker, &lanes, &epochs, &values, &term.incarnation],
            )
            .await?;
        rows.iter()
            .map(|row| Ok((row.try_get("lane")?, row.try_get("epoch")?, row.try_get("floor")?)))
            .collect()
    }

    // ── rows without a lane ────────────────────────────────────────────────────────────────────

    /// `None`: the server is another one.
    pub async fn keyless(&self, incarnation: SystemTime) -> Result<Option<KeylessStored>> {
        let rows = self.query(&self.statements.keyless, &[&incarnation]).await?;
        rows.first()
            .map(|row| {
                Ok(KeylessStored {
                    floor: row.try_get("floor")?,
                    epoch: row.try_get("epoch")?,
                    has_holds: row.try_get::<_, i64>("holds")? > 0,
                })
            })
            .transpose()
    }

    pub async fn store_floor_keyless(&self, term: &Term, floor: i64, epoch: i64) -> Result<()> {
        self.execute(
            &self.statements.store_floor_keyless,
            &[&floor, &epoch, &term.incarnation],
        )
        .await?;
        Ok(())
    }

    /// The lowest id above `floor` that the keyless floor must not pass.
    pub async fn keyless_lowest(&self, term: &Term, floor: i64) -> Result<Option<i64>> {
        let rows = self
            .query(&self.statements.keyless_lowest, &[&floor, &term.incarnation])
            .await?;
        rows.first().map(|row| Ok(row.try_get("id")?)).transpose()
    }

    // ── claim ──────────────────────────────────────────────────────────────────────────────────

    /// The lanes with something pending; -2 among them says that nothing is known about the others.
    pub async fn probe(&self, floor: i64, lanes: &[i16], walk: usize, has_holds: bool) -> Result<HashSet<i16>> {
        let rows = self
            .query(&self.statements.probe, &[&floor, &lanes, &(walk as i64), &has_holds])
            .await?;
        rows.iter().map(|row| Ok(row.try_get("lane")?)).collect()
    }

    pub async fn claim_lanes(&self, term: &Term, held: &[Held], most: usize, bytes: usize) -> Result<Claim> {
        let lanes: Vec<i16> = held.iter().map(|h| h.lane).collect();
        let floors: Vec<i64> = held.iter().map(|h| h.floor).collect();
        let limits: Vec<i32> = held.iter().map(|h| h.most as i32).collect();
        let has_holds = held.iter().any(|h| h.has_holds);
        self.claim(
            &self.statements.claim_lanes,
            &[&lanes, &floors, &limits, &has_holds, &(most as i64), &term.incarnation],
            bytes,
            row::of_lane,
        )
        .await
    }

    /// Claims rows without a lane under `token`. All of them come back: those beyond the budget are the caller's
    /// to release.
    #[allow(clippy::too_many_arguments)] // One per parameter of the statement.
    pub async fn claim_keyless(
        &self,
        term: &Term,
        floor: i64,
        most: usize,
        has_holds: bool,
        token: Uuid,
        lease: Duration,
        bytes: usize,
    ) -> Result<Claim> {
        self.claim(
            &self.statements.claim_keyless,
            &[
                &floor,
                &(most as i64),
                &token,
                &lease.as_secs_f64(),
                &has_holds,
                &term.incarnation,
            ],
            bytes,
            row::keyless,
        )
        .await
    }

    /// Reads rows as they come and stops keeping them once the byte budget is full, so that memory stays bounded
    /// whatever the rows weigh. The first row is always kept.
    async fn claim(
        &self,
        sql: &str,
        params: Params<'_>,
        bytes: usize,
        read: fn(&tokio_postgres::Row) -> Result<Row>,
    ) -> Result<Claim> {
        self.on_connection(async |client| {
            let statement = client.prepare_cached(sql).await?;
            let stream = client.query_raw(&statement, params.iter().copied()).await?;
            futures_util::pin_mut!(stream);
            let mut claim = Claim::default();
            let mut budget = bytes;
            while let Some(row) = stream.try_next().await? {
                let row = read(&row)?;
                let size = row.size();
                if !claim.dropped.is_empty() || (size > budget && !claim.rows.is_empty()) {
                    claim.dropped.push((row.lane, row.id));
                    continue;
                }
                budget = budget.saturating_sub(size);
                claim.rows.push(row);
            }
            Ok(claim)
        })
        .await
    }

    // ── mark ───────────────────────────────────────────────────────────────────────────────────

    /// Marks rows of our lanes as published; answers how many. Fewer than asked: a fence, or somebody else's hand.
    pub async fn mark_lanes(&self, term: &Term, held: &[(i16, i64)], ids: &[i64]) -> Result<u64> {
        let (lanes, epochs) = unzip2(held);
        self.execute(
            self.mark_lanes_statement(),
            &[&term.worker, &lanes, &epochs, &term.incarnation, &ids],
        )
        .await
    }

    fn mark_lanes_statement(&self) -> &str {
        match self.on_published {
            OnPublished::Keep => &self.statements.mark_lanes_keep,
            OnPublished::Archive => &self.statements.mark_lanes_archive,
            OnPublished::Delete => &self.statements.mark_lanes_delete,
        }
    }

    pub async fn mark_keyless(&self, term: &Term, token: Uuid, ids: &[i64]) -> Result<u64> {
        self.execute(self.mark_keyless_statement(), &[&ids, &token, &term.incarnation])
            .await
    }

    fn mark_keyless_statement(&self) -> &str {
        match self.on_published {
            OnPublished::Keep => &self.statements.mark_keyless_keep,
            OnPublished::Archive => &self.statements.mark_keyless_archive,
            OnPublished::Delete => &self.statements.mark_keyless_delete,
        }
    }

    /// Which of our lanes are still ours. Used to tell a lost lease from rows that were removed by hand.
    pub async fn still_ours(&self, term: &Term, held: &[(i16, i64)]) -> Result<usize> {
        let (lanes, epochs) = unzip2(held);
        let rows = self
            .query(
                &self.statements.fence,
                &[&term.worker, &lanes, &epochs, &term.incarnation],
            )
            .await?;
        Ok(rows.len())
    }

    /// The verdict on a batch that was not all acknowledged: refusals and holds in one fenced transaction.
    /// `floors` are the lanes' floors, where a later release resumes. False: fenced, nothing was written.
    pub async fn settle_lanes(
        &self,
        term: &Term,
        held: &[(i16, i64)],
        published: &[i64],
        refused: &[Refusal],
        holds: &[(HoldOrder, i64)],
    ) -> Result<bool> {
        let (lanes, epochs) = unzip2(held);
        self.on_connection(async |client| {
            let transaction = client.transaction().await?;
            let fence = transaction
                .query(
                    &self.statements.fence,
                    &[&term.worker, &lanes, &epochs, &term.incarnation],
                )
                .await?;
            if fence.len() < lanes.len() {
                return Ok(false);
            }
            if !published.is_empty() {
                transaction
                    .execute(
                        self.mark_lanes_statement(),
                        &[&term.worker, &lanes, &epochs, &term.incarnation, &published],
                    )
                    .await?;
            }
            self.refuse(&transaction, refused).await?;
            insert_holds(&transaction, &self.statements.hold, holds).await?;
            transaction.commit().await?;
            Ok(true)
        })
        .await
    }

    /// The same for rows without a lane: refusals, releases and parked topics, each guarded by the claim's token.
    pub async fn settle_keyless(
        &self,
        term: &Term,
        token: Uuid,
        refused: &[Refusal],
        released: &[(i64, bool)],
        holds: &[(HoldOrder, i64)],
    ) -> Result<()> {
        self.on_connection(async |client| {
            let transaction = client.transaction().await?;
            let RefusalColumns {
                ids,
                reasons,
                dead,
                waits,
                ..
            } = refused.into();
            transaction
                .execute(
                    &self.statements.refuse_keyless,
                    &[&ids, &reasons, &dead, &waits, &token, &term.incarnation],
                )
                .await?;
            let ids: Vec<i64> = released.iter().map(|r| r.0).collect();
            let sent: Vec<bool> = released.iter().map(|r| r.1).collect();
            transaction
                .execute(
                    &self.statements.release_keyless,
                    &[&ids, &sent, &token, &term.incarnation],
                )
                .await?;
            insert_holds(&transaction, &self.statements.hold, holds).await?;
            Ok(transaction.commit().await?)
        })
        .await
    }

    // ── holds ──────────────────────────────────────────────────────────────────────────────────

    pub async fn holds(&self, term: &Term, most: usize) -> Result<Vec<StoredHold>> {
        let rows = self
            .query(
                &self.statements.holds,
                &[&term.worker, &term.incarnation, &(most as i64)],
            )
            .await?;
        rows.iter().map(stored_hold).collect()
    }

    /// Does anything hold rows of this lane back, be it until an operator acts?
    pub async fn lane_has_holds(&self, lane: i16) -> Result<bool> {
        let row = self.query_one(&self.statements.lane_holds, &[&lane]).await?;
        Ok(row.try_get("held")?)
    }

    /// Parked topics of keyless rows that are due, reserved for us for `reserve`.
    pub async fn holds_keyless(&self, term: &Term, reserve: Duration) -> Result<Vec<StoredHold>> {
        let rows = self
            .query(
                &self.statements.holds_keyless,
                &[&reserve.as_secs_f64(), &term.incarnation],
            )
            .await?;
        rows.iter().map(stored_hold).collect()
    }

    /// The row a hold waits for; `None`: it is gone, published or dead, and the hold has no reason left.
    pub async fn hold_head(&self, hold: &StoredHold) -> Result<Option<Row>> {
        let rows = match hold.head_id {
            Some(head) => self.query(&self.statements.hold_head, &[&hold.lane, &head]).await?,
            None => {
                self.query(
                    &self.statements.topic_head,
                    &[&hold.lane, &hold.topic, &hold.resume_floor],
                )
                .await?
            }
        };
        rows.first().map(row::head).transpose()
    }

    pub async fn topic_head_keyless(
        &self,
        term: &Term,
        hold: &StoredHold,
        token: Uuid,
        lease: Duration,
    ) -> Result<Option<Row>> {
        let rows = self
            .query(
                &self.statements.topic_head_keyless,
                &[
                    &hold.topic,
                    &hold.resume_floor,
                    &token,
                    &lease.as_secs_f64(),
                    &term.incarnation,
                ],
            )
            .await?;
        rows.first().map(row::keyless).transpose()
    }

    /// Releases a hold of a lane we have checked out: the stored floor is lowered, the head marked or refused and
    /// the hold deleted in one transaction. Answers the lane's floor; `None`: fenced.
    pub async fn release_hold(
        &self,
        term: &Term,
        epoch: i64,
        hold: &StoredHold,
        published: Option<i64>,
        refused: &[Refusal],
    ) -> Result<Option<i64>> {
        self.on_connection(async |client| {
            let transaction = client.transaction().await?;
            let lowered = transaction
                .query_opt(
                    &self.statements.lower_floor,
                    &[
                        &hold.lane,
                        &epoch,
                        &term.worker,
                        &hold.topic,
                        &hold.unit,
                        &term.incarnation,
                    ],
                )
                .await?;
            let Some(lowered) = lowered else { return Ok(None) };
            let floor: i64 = lowered.try_get("floor")?;
            if let Some(id) = published {
                transaction
                    .execute(
                        self.mark_lanes_statement(),
                        &[
                            &term.worker,
                            &vec![hold.lane],
                            &vec![epoch],
                            &term.incarnation,
                            &vec![id],
                        ],
                    )
                    .await?;
            }
            self.refuse(&transaction, refused).await?;
            transaction
                .execute(&self.statements.unhold, &[&hold.lane, &hold.topic, &hold.unit, &floor])
                .await?;
            transaction.commit().await?;
            Ok(Some(floor))
        })
        .await
    }

    /// Still refused or sick: counts it, and puts the next try `wait` away (`None`: until an operator acts).
    pub async fn postpone_hold(
        &self,
        term: &Term,
        epoch: i64,
        hold: &StoredHold,
        reason: &str,
        wait: Option<Duration>,
        refused: &[Refusal],
    ) -> Result<bool> {
        self.on_connection(async |client| {
            let transaction = client.transaction().await?;
            let fence = transaction
                .query(
                    &self.statements.fence,
                    &[&term.worker, &vec![hold.lane], &vec![epoch], &term.incarnation],
                )
                .await?;
            if fence.is_empty() {
                return Ok(false);
            }
            self.refuse(&transaction, refused).await?;
            transaction
                .execute(
                    &self.statements.postpone,
                    &[&hold.lane, &hold.topic, &hold.unit, &reason, &seconds_or_never(wait)],
                )
                .await?;
            transaction.commit().await?;
            Ok(true)
        })
        .await
    }

    /// A topic parked among keyless rows takes records again.
    pub async fn release_hold_keyless(
        &self,
        term: &Term,
        hold: &StoredHold,
        token: Uuid,
        published: Option<i64>,
    ) -> Result<()> {
        self.on_connection(async |client| {
            let transaction = client.transaction().await?;
            transaction
                .execute(
                    &self.statements.lower_floor_keyless,
                    &[&hold.resume_floor, &term.incarnation],
                )
                .await?;
            if let Some(id) = published {
                transaction
                    .execute(self.mark_keyless_statement(), &[&vec![id], &token, &term.incarnation])
                    .await?;
            }
            transaction
                .execute(
                    &self.statements.unhold,
                    &[&hold.lane, &hold.topic, &hold.unit, &hold.resume_floor],
                )
                .await?;
            Ok(transaction.commit().await?)
        })
        .await
    }

    pub async fn postpone_hold_keyless(&self, hold: &StoredHold, reason: &str, wait: Duration) -> Result<()> {
        self.execute(
            &self.statements.postpone,
            &[&hold.lane, &hold.topic, &hold.unit, &reason, &wait.as_secs_f64()],
        )
        .await?;
        Ok(())
    }

    // ── the horizon ────────────────────────────────────────────────────────────────────────────

    /// The highest id drawn, and then who was writing. In this order, on one connection: see `floor`.
    pub async fn note(&self) -> Result<(i64, HashSet<String>)> {
        self.on_connection(async |client| {
            let horizon = client.prepare_cached(&self.statements.horizon).await?;
            let writers = client.prepare_cached(&self.statements.writers).await?;
            let highest = client.query_one(&horizon, &[]).await?.try_get("id")?;
            let rows = client.query(&writers, &[]).await?;
            Ok((highest, rows.iter().map(|row| row.get("writer")).collect()))
        })
        .await
    }

    pub async fn writers(&self) -> Result<HashSet<String>> {
        let rows = self.query(&self.statements.writers, &[]).await?;
        Ok(rows.iter().map(|row| row.get("writer")).collect())
    }

    // ── the janitor ────────────────────────────────────────────────────────────────────────────

    /// One step of retention above `cursor`: (where it got, how many rows went, whether the rest is too young).
    pub async fn purge(&self, cursor: i64, most: i64, retention: Duration) -> Result<(Option<i64>, i64, bool)> {
        let row = self
            .query_one(&self.statements.purge, &[&cursor, &most, &retention.as_secs_f64()])
            .await?;
        Ok((row.try_get("reached")?, row.try_get("purged")?, row.try_get("young")?))
    }

    /// One step of the safety net above `cursor`: (where it got, how many forgotten rows it found).
    pub async fn rescan(&self, cursor: i64, most: i64) -> Result<(Option<i64>, i64)> {
        let row = self.query_one(&self.statements.rescan, &[&cursor, &most]).await?;
        Ok((row.try_get("reached")?, row.try_get("found")?))
    }

    pub async fn history_prepare(&self) -> Result<()> {
        self.execute(&self.statements.history_prepare, &[]).await?;
        Ok(())
    }

    pub async fn history_drop(&self, retention: Duration) -> Result<()> {
        self.execute(&self.statements.history_drop, &[&retention.as_secs_f64()])
            .await?;
        Ok(())
    }

    pub async fn forget_workers(&self) -> Result<()> {
        self.execute(&self.statements.forget_workers, &[]).await?;
        Ok(())
    }

    pub async fn sample(&self, walk: i64) -> Result<Sample> {
        let row = self.query_one(&self.statements.sample, &[&walk]).await?;
        Ok(Sample {
            pending: row.try_get("pending")?,
            capped: row.try_get("capped")?,
            oldest_seconds: row.try_get("oldest_seconds")?,
            dead: row.try_get("dead")?,
            delayed: row.try_get("delayed")?,
            held_keys: row.try_get("held_keys")?,
            parked_topics: row.try_get("parked_topics")?,
            horizon_age: row.try_get("horizon_age")?,
            dead_tuples: row.try_get::<_, Option<i64>>("dead_tuples")?.unwrap_or(0),
        })
    }
}

impl Outbox {
    async fn refuse(&self, transaction: &deadpool_postgres::Transaction<'_>, refused: &[Refusal]) -> Result<()> {
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
            .execute(&self.statements.refuse, &[&ids, &reasons, &dead, &attempts])
            .await?;
        Ok(())
    }
}

async fn insert_holds(
    transaction: &deadpool_postgres::Transaction<'_>,
    sql: &str,
    holds: &[(HoldOrder, i64)],
) -> Result<()> {
    if holds.is_empty() {
        return Ok(());
    }
    let lanes: Vec<i16> = holds.iter().map(|(h, _)| h.lane).collect();
    let topics: Vec<&str> = holds.iter().map(|(h, _)| h.topic.as_str()).collect();
    let units: Vec<&str> = holds.iter().map(|(h, _)| h.unit.as_str()).collect();
    let heads: Vec<Option<i64>> = holds.iter().map(|(h, _)| h.head_id).collect();
    let floors: Vec<i64> = holds.iter().map(|(_, floor)| *floor).collect();
    let reasons: Vec<&str> = holds.iter().map(|(h, _)| h.reason.as_str()).collect();
    let waits: Vec<f64> = holds.iter().map(|(h, _)| seconds_or_never(h.wait)).collect();
    transaction
        .execute(sql, &[&lanes, &topics, &units, &heads, &floors, &reasons, &waits])
        .await?;
    Ok(())
}

/// How the statements spell "until an operator acts".
fn seconds_or_never(wait: Option<Duration>) -> f64 {
    wait.map_or(-1.0, |wait| wait.as_secs_f64())
}

fn stored_hold(row: &tokio_postgres::Row) -> Result<StoredHold> {
    Ok(StoredHold {
        lane: row.try_get("lane")?,
        topic: row.try_get("topic")?,
        unit: row.try_get("unit")?,
        head_id: row.try_get("head_id")?,
        resume_floor: row.try_get("resume_floor")?,
        failures: row.try_get("failures")?,
        wait: row.try_get("wait")?,
    })
}

fn unzip2(held: &[(i16, i64)]) -> (Vec<i16>, Vec<i64>) {
    held.iter().copied().unzip()
}

fn unzip4(given: &[(i16, i64, i64, i32)]) -> (Vec<i16>, Vec<i64>, Vec<i64>, Vec<i32>) {
    let lanes = given.iter().map(|g| g.0).collect();
    let epochs = given.iter().map(|g| g.1).collect();
    let floors = given.iter().map(|g| g.2).collect();
    let suspects = given.iter().map(|g| g.3).collect();
    (lanes, epochs, floors, suspects)
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
