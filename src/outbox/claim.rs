//! What is there to publish, and the horizon that decides where to look for it.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::TryStreamExt;
use uuid::Uuid;

use super::{Outbox, Params, Result, row};
use crate::lanes::{Held, Term};
use crate::message::Row;

/// Rows claimed, and those left behind because the byte budget was full.
#[derive(Debug, Default)]
pub struct Claim {
    pub rows: Vec<Row>,
    pub dropped: Vec<Dropped>,
}

/// A row left behind.
#[derive(Clone, Copy, Debug)]
pub struct Dropped {
    pub lane: Option<i16>,
    pub id: i64,
    /// It may have been sent before.
    pub suspect: bool,
}

impl Outbox {
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
                    claim.dropped.push(Dropped {
                        lane: row.lane,
                        id: row.id,
                        suspect: row.suspect,
                    });
                    continue;
                }
                budget = budget.saturating_sub(size);
                claim.rows.push(row);
            }
            Ok(claim)
        })
        .await
    }

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
}
