//! Finds and stops earlier workers that ran where this process runs.

use uuid::Uuid;

use crate::outbox::from_row::{FromRow, from_row};
use crate::outbox::{Outbox, Params, Result};
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

from_row!(Identity: pod_uid, machine, pid, started);
from_row!(Predecessor: worker, name, has_session; identity);

impl Outbox {
    /// Returns the predecessors of this process. There are none behind a transaction pooler, where nothing can be proven.
    pub async fn predecessors(&self, identity: &Identity) -> Result<Vec<Predecessor>> {
        let Some(session_key) = self.pool.session_key else {
            return Ok(Vec::new());
        };
        let pod_uid = identity.pod_uid.as_deref();
        let params: Params<'_> = &[&session_key, &identity.machine, &pod_uid];
        self.query(&self.statements.predecessors, params).await
    }

    /// Ends the lease of a process that is proven gone. Returns false if PostgreSQL has a session of it, or if it was stopped
    /// already.
    pub async fn stop_predecessor(&self, worker: Uuid) -> Result<bool> {
        let stopped: Option<Uuid> = self.query_opt(&self.statements.stop_predecessor, &[&worker]).await?;
        Ok(stopped.is_some())
    }
}
