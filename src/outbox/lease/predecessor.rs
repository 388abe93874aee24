//! Workers that ran where this process runs, and whether PostgreSQL still has sessions of theirs.

use uuid::Uuid;

use crate::outbox::param::Param;
use crate::outbox::{Outbox, Result};
use crate::process::Identity;

/// A worker with a live lease that ran in our pod or on our machine.
#[derive(Clone, Debug)]
pub struct Predecessor {
    pub worker: Uuid,
    pub name: String,
    pub identity: Identity,
    /// PostgreSQL has a session of it: it lives, or its end has not been noticed yet.
    pub has_session: bool,
}

impl Outbox {
    /// Workers that ran where we run. Behind a transaction pooler nothing could be proven: none.
    pub async fn predecessors(&self, identity: &Identity) -> Result<Vec<Predecessor>> {
        let Some(session_key) = self.pool.session_key() else {
            return Ok(Vec::new());
        };
        let pod_uid = identity.pod_uid.as_deref();
        let rows = self
            .query(
                &self.statements.predecessors,
                &[&session_key, &identity.machine, &pod_uid],
            )
            .await?;
        rows.iter().map(predecessor).collect()
    }

    /// Ends the lease of a process that is proven gone. False: a session of it is there after all, or it has ended already.
    pub async fn stop_predecessor(&self, worker: Uuid) -> Result<bool> {
        let rows = self.query(&self.statements.stop_predecessor, &[&worker]).await?;
        Ok(!rows.is_empty())
    }
}

fn predecessor(row: &tokio_postgres::Row) -> Result<Predecessor> {
    Ok(Predecessor {
        worker: row.try_get("id")?,
        name: row.try_get("name")?,
        identity: Identity {
            pod_uid: row.try_get("pod_uid")?,
            machine: row.try_get("machine")?,
            pid: row.try_get("pid")?,
            started: row.try_get("process_started")?,
        },
        has_session: row.try_get("has_session")?,
    })
}

/// What a worker writes about itself when it registers, as columns: NULL where nothing can be proven.
pub(super) struct IdentityColumns<'a> {
    pod_uid: Option<&'a str>,
    machine: Option<&'a str>,
    pid: Option<i64>,
    started: Option<i64>,
    session_key: Option<i64>,
}

impl<'a> IdentityColumns<'a> {
    pub(super) fn new(identity: Option<&'a Identity>, session_key: Option<i64>) -> Self {
        let identity = identity.filter(|_| session_key.is_some());
        IdentityColumns {
            pod_uid: identity.and_then(|identity| identity.pod_uid.as_deref()),
            machine: identity.map(|identity| identity.machine.as_str()),
            pid: identity.map(|identity| identity.pid),
            started: identity.map(|identity| identity.started),
            session_key: identity.and(session_key),
        }
    }

    pub(super) fn params(&self) -> [&dyn Param; 5] {
        [
            &self.pod_uid,
            &self.machine,
            &self.pid,
            &self.started,
            &self.session_key,
        ]
    }
}
