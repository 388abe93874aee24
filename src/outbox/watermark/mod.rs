//! Open writers, and the stored floors that follow the watermark.

use std::time::SystemTime;

use serde::Serialize;
use tokio_postgres::Row;

use super::param::{Params, array};
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

impl WriterIdentity {
    pub fn of(row: &Row) -> Result<Self> {
        Ok(match row.try_get("gid")? {
            Some(gid) => Self::Prepared { gid },
            None => Self::Session {
                pid: row.try_get("pid")?,
                application: row.try_get("application")?,
            },
        })
    }
}

impl Outbox {
    /// Reads the highest id drawn, and then the open writers. The order matters: see `domain::watermark`.
    pub async fn open_writers(&self, term: &Term) -> Result<WriterSnapshot> {
        let highest = self
            .query_one(&self.statements.highest_id, &[&term.incarnation])
            .await?;
        let open = self
            .query_one(&self.statements.open_writers, &[&term.incarnation])
            .await?;
        if !open.try_get::<_, bool>("same_server")? {
            return Err(ANOTHER_SERVER);
        }
        let (names, ids): (Vec<String>, Vec<Option<i64>>) = (open.try_get("writers")?, open.try_get("ids")?);
        Ok(WriterSnapshot {
            highest_id: highest.try_get("id")?,
            writers: names.into_iter().zip(ids).collect(),
            sequence: Sequence {
                cache: open.try_get("cache")?,
                increment: open.try_get("increment")?,
                file: open.try_get("file")?,
            },
        })
    }

    /// Returns which of these bypassed writers have ended. If one has, an earlier claim that relied on all of them is void.
    pub async fn ended_writers(&self, bypassed: &[i64]) -> Result<Vec<i64>> {
        if bypassed.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.query(&self.statements.ended_writers, &[&bypassed]).await?;
        rows.iter().map(|row| Ok(row.try_get("writer")?)).collect()
    }

    /// Returns who runs this transaction, or `None` if it has ended.
    pub async fn writer_identity(&self, transaction: i64) -> Result<Option<WriterIdentity>> {
        let rows = self.query(&self.statements.writer_identity, &[&transaction]).await?;
        rows.first().map(WriterIdentity::of).transpose()
    }

    /// Stores floors. Returns lane, epoch and floor of those that were stored.
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

    /// Resets stored floors that lie above every id drawn, or all of them if the id sequence is known to have been restarted.
    /// Returns how many were reset.
    pub async fn rebuild_floors(&self, term: &Term, restarted: bool) -> Result<usize> {
        let params: Params<'_> = &[&restarted, &term.incarnation];
        Ok(self.query(&self.statements.rebuild_floors, params).await?.len())
    }

    /// Reads the state of the unordered rows. Returns `None` on another incarnation of the server.
    pub async fn read_unordered(&self, incarnation: SystemTime) -> Result<Option<UnorderedState>> {
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

    pub async fn store_unordered_floor(&self, term: &Term, floor: i64, epoch: i64) -> Result<()> {
        self.execute_within(
            self.lease_timeout(),
            &self.statements.store_unordered_floor,
            &[&floor, &epoch, &term.incarnation],
        )
        .await?;
        Ok(())
    }

    /// Returns the lowest id above `floor`, and not above `scan_end`, that the floor of the unordered rows must not pass.
    pub async fn lowest_unordered(&self, term: &Term, floor: i64, scan_end: Option<i64>) -> Result<Option<i64>> {
        let params: Params<'_> = &[&floor, &term.incarnation, &scan_end.unwrap_or(i64::MAX)];
        let rows = self.query(&self.statements.lowest_unordered, params).await?;
        rows.first().map(|row| Ok(row.try_get("id")?)).transpose()
    }
}
