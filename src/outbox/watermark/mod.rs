//! Open writers, and the stored floors that follow the watermark.

use std::time::SystemTime;

use serde::Serialize;
use serde_json::json;
use tokio_postgres::Row;

use super::from_row::{FromRow, from_row};
use super::param::{Params, json_rows};
use super::{ANOTHER_SERVER, Outbox, Result};
use crate::domain::lease::{FloorUpdate, Term, UnorderedState};
use crate::domain::watermark::{Sequence, WriterSnapshot};

/// Who runs an open writer, for the operator, who alone can end it. A prepared transaction survives its session and a restart of
/// the server.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum WriterIdentity {
    Session { pid: i32, application: String },
    Prepared { gid: String },
}

impl FromRow for WriterIdentity {
    fn from_row(row: &Row) -> Result<Self> {
        Ok(match row.try_get("gid")? {
            Some(gid) => Self::Prepared { gid },
            None => Self::Session {
                pid: row.try_get("pid")?,
                application: row.try_get("application")?,
            },
        })
    }
}

from_row!(UnorderedState: floor, epoch, maybe_sent_until, has_holds);

impl Outbox {
    /// Reads the highest id drawn, and then the open writers. The order matters: see `domain::watermark`.
    pub async fn open_writers(&self, term: &Term) -> Result<WriterSnapshot> {
        let incarnation: Params<'_> = &[&term.incarnation];
        let highest_id = self.query_one(&self.statements.highest_id, incarnation).await?;
        let (same_server, writers, ids, cache, increment, file): (bool, Vec<String>, Vec<Option<i64>>, i64, i64, i64) =
            self.query_one(&self.statements.open_writers, incarnation).await?;
        if !same_server {
            return Err(ANOTHER_SERVER);
        }
        Ok(WriterSnapshot {
            highest_id,
            writers: writers.into_iter().zip(ids).collect(),
            sequence: Sequence { cache, increment, file },
        })
    }

    /// Returns which of these bypassed writers have ended. If one has, an earlier claim that relied on all of them is void.
    pub async fn ended_writers(&self, bypassed: &[i64]) -> Result<Vec<i64>> {
        if bypassed.is_empty() {
            return Ok(Vec::new());
        }
        self.query(&self.statements.ended_writers, &[&bypassed]).await
    }

    /// Returns who runs this transaction, or `None` if it has ended.
    pub async fn writer_identity(&self, transaction: i64) -> Result<Option<WriterIdentity>> {
        self.query_opt(&self.statements.writer_identity, &[&transaction]).await
    }

    /// Stores floors. Returns lane, epoch and floor of those that were stored.
    pub async fn store_floors(&self, term: &Term, moved: &[FloorUpdate]) -> Result<Vec<(i16, i64, i64)>> {
        let moved = json_rows(
            moved
                .iter()
                .map(|lane| json!({ "lane": lane.lane, "epoch": lane.epoch, "floor": lane.floor, "done": lane.done })),
        );
        let params: Params<'_> = &[&term.worker, &moved, &term.incarnation];
        self.for_lease().query(&self.statements.store_floors, params).await
    }

    /// Resets stored floors that lie above every id drawn, or all of them if the id sequence is known to have been restarted.
    /// Returns how many were reset.
    pub async fn rebuild_floors(&self, term: &Term, restarted: bool) -> Result<usize> {
        let params: Params<'_> = &[&restarted, &term.incarnation];
        let lanes: Vec<i16> = self.query(&self.statements.rebuild_floors, params).await?;
        Ok(lanes.len())
    }

    /// Reads the state of the unordered rows. Returns `None` on another incarnation of the server.
    pub async fn read_unordered(&self, incarnation: SystemTime) -> Result<Option<UnorderedState>> {
        let sql = &self.statements.read_unordered;
        self.for_lease().query_opt(sql, &[&incarnation]).await
    }

    pub async fn store_unordered_floor(&self, term: &Term, floor: i64, epoch: i64) -> Result<()> {
        let params: Params<'_> = &[&floor, &epoch, &term.incarnation];
        let sql = &self.statements.store_unordered_floor;
        self.for_lease().execute(sql, params).await.map(drop)
    }

    /// Returns the lowest id above `floor`, and not above `scan_end`, that the floor of the unordered rows must not pass.
    pub async fn lowest_unordered(&self, term: &Term, floor: i64, scan_end: Option<i64>) -> Result<Option<i64>> {
        let params: Params<'_> = &[&floor, &term.incarnation, &scan_end.unwrap_or(i64::MAX)];
        self.query_opt(&self.statements.lowest_unordered, params).await
    }
}
