//! Finds and stops earlier workers that ran where this process runs.

use uuid::Uuid;

use crate::outbox::{Outbox, Result};
use crate::process::Identity;

/// A worker with a live lease that ran in the pod or on the machine of this process.
#[derive(Clone, Debug)]
pub struct Predecessor {
    pub worker: Uuid,
    pub name: String,
    pub identity: Identity,
    /// PostgreSQL still has a session of it: it is alive, or PostgreSQL has not noticed its end.
    pub has_session: bool,
}

impl Outbox {
    /// Returns the predecessors of this process. There are none behind a transaction pooler, where nothing can be proven.
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

    /// Ends the lease of a process that is proven gone. Returns false if PostgreSQL has a session of it, or if it was stopped
    /// already.
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
