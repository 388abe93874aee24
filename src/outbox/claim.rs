//! What is there to publish, and the horizon that decides where to look for it.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::TryStreamExt;
use tokio_postgres::RowStream;
use uuid::Uuid;

use super::{Error, Outbox, Params, Result, row};
use crate::lanes::{Held, Term};
use crate::message::Row;

/// Rows claimed, and those left behind because the byte budget was full.
#[derive(Debug, Default)]
pub struct Claim {
    pub rows: Vec<Row>,
    pub dropped: Vec<(Option<i16>, i64)>,
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
        let keep = async |rows: RowStream| {
            futures_util::pin_mut!(rows);
            let mut claim = Claim::default();
            let mut budget = bytes;
            while let Some(row) = rows.try_next().await? {
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
        };
        self.on_connection(async |session| session.run(sql, params, keep).await)
            .await
    }

    /// The highest id drawn, and then who was writing. In this order: see `floor`.
    pub async fn note(&self, term: &Term) -> Result<(i64, HashSet<String>)> {
        let row = self.query_one(&self.statements.horizon, &[&term.incarnation]).await?;
        Ok((row.try_get("id")?, self.writers(term).await?))
    }

    pub async fn writers(&self, term: &Term) -> Result<HashSet<String>> {
        let row = self.query_one(&self.statements.writers, &[&term.incarnation]).await?;
        if !row.try_get::<_, bool>("same_server")? {
            return Err(Error::Unexpected("the server is another one than the term began on"));
        }
        Ok(row.try_get::<_, Vec<String>>("writers")?.into_iter().collect())
    }
}
