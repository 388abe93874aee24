//! Pauses: what operators have paused, and which workers obey it.

use serde::Serialize;

use super::from_row::{FromRow, from_row};
use super::{Outbox, Params, Result};
use crate::domain::pause::{Pause, Pauses};

/// What an operator pauses or resumes: everything without a topic, a whole topic without a key.
#[derive(Clone, Copy, Debug)]
pub struct PauseScope<'a> {
    pub topic: Option<&'a str>,
    pub key: Option<&'a str>,
}

/// What a pause or resume has changed.
#[derive(Clone, Copy, Debug)]
pub struct PauseChange {
    /// It is in effect when every live worker obeys the pauses of this version.
    pub version: i64,
    /// How many pauses were added or removed.
    pub changed: i32,
}

/// How many rows a pause or resume is about.
#[derive(Clone, Copy, Debug)]
pub struct PendingRows {
    pub rows: i64,
    /// There may be more if this is false: not all rows were read.
    pub is_all: bool,
}

/// A live worker.
#[derive(Clone, Debug)]
pub struct WorkerAndPauses {
    pub name: String,
    /// Does all that it sends obey the pauses of the version that was asked for?
    pub obeys: bool,
}

/// A pause as `outboxd status` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct PauseStatus {
    /// `None` if everything is paused.
    pub topic: Option<String>,
    /// `None` if the whole topic is paused.
    pub key: Option<String>,
    pub reason: String,
    pub login: String,
    pub age_seconds: f64,
}

from_row!(PauseChange: version, changed);
from_row!(PendingRows: rows, is_all);
from_row!(WorkerAndPauses: name, obeys);
from_row!(PauseStatus: topic, key, reason, login, age_seconds);

/// A row of `read_pauses.sql`.
type StoredPause = (i64, Option<String>, Option<String>, Option<String>);

impl Outbox {
    /// Reads what is paused.
    pub async fn read_pauses(&self) -> Result<Pauses> {
        let rows: Vec<StoredPause> = self.for_lease().query(&self.statements.read_pauses, &[]).await?;
        let version = rows.first().map_or(0, |row| row.0);
        let pauses = rows
            .into_iter()
            .filter_map(|(_, topic, key, reason)| reason.map(|reason| Pause { topic, key, reason }));
        Ok(Pauses::new(version, pauses))
    }

    /// Counts the pending rows of this scope, at most about this many.
    pub async fn pending_rows(&self, scope: PauseScope<'_>, scan_max: i64) -> Result<PendingRows> {
        let params: Params<'_> = &[&scope.topic, &scope.key, &scan_max];
        self.query_one(&self.statements.pending_rows, params).await
    }

    pub async fn pause(&self, scope: PauseScope<'_>, reason: &str) -> Result<PauseChange> {
        let params: Params<'_> = &[&scope.topic, &scope.key, &reason];
        self.query_one(&self.statements.pause, params).await
    }

    /// Ends the pause of exactly this scope.
    pub async fn resume(&self, scope: PauseScope<'_>, reason: Option<&str>) -> Result<PauseChange> {
        let params: Params<'_> = &[&scope.topic, &scope.key, &reason];
        self.query_one(&self.statements.resume, params).await
    }

    /// Returns the live workers, and whether each obeys the pauses of this version.
    pub async fn workers_and_pauses(&self, version: i64) -> Result<Vec<WorkerAndPauses>> {
        self.query(&self.statements.workers_and_pauses, &[&version]).await
    }

    /// Returns at most this many pauses, those that cover most first.
    pub async fn list_pauses(&self, most: i64) -> Result<Vec<PauseStatus>> {
        self.query(&self.statements.list_pauses, &[&most]).await
    }
}
