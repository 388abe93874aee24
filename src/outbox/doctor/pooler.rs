//! Finds out whether sessions share the processes of the server, as they do behind a transaction pooler.

use tokio_postgres::Client;

use super::super::from_row::{FromRow, from_row};
use super::super::{Database, Error, Result, connect};

/// What two sessions see of the server.
#[derive(Clone, Copy, Debug)]
pub struct Backends {
    /// The processes that serve the first session, before and while the second one is in a transaction.
    pub first: [i32; 2],
    pub second: i32,
    /// After how many milliseconds the server ends a session that is idle in a transaction; 0: never.
    pub idle_timeout_ms: i64,
}

struct Backend {
    pid: i32,
    idle_timeout_ms: i64,
}

from_row!(Backend: pid, idle_timeout_ms);

impl Backends {
    /// No process serves two sessions unless something shares it among them.
    pub fn are_shared(&self) -> bool {
        self.first[0] != self.first[1] || self.first.contains(&self.second)
    }
}

/// Opens two sessions that have none of the relay's settings. A pooler gives a transaction the process that was used last, so the
/// transaction of the second session gets that of the first.
pub async fn backends(database: &Database) -> Result<Backends> {
    let (one, other) = (connect(database).await?, connect(database).await?);
    let before = backend(&one).await?;
    other.batch_execute("BEGIN READ ONLY").await?;
    let second = backend(&other).await?.pid;
    // A pooler with one process would keep this one waiting, and what is asked is known by then.
    let meanwhile = if second == before.pid {
        second
    } else {
        backend(&one).await?.pid
    };
    other.batch_execute("ROLLBACK").await?;
    Ok(Backends {
        first: [before.pid, meanwhile],
        second,
        idle_timeout_ms: before.idle_timeout_ms,
    })
}

async fn backend(client: &Client) -> Result<Backend> {
    let rows = client.query_typed(include_str!("backend.sql"), &[]).await?;
    let row = rows.first().ok_or(Error::Unexpected("a statement returned no row"))?;
    Backend::from_row(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_change_or_serve_both_sessions_are_shared() {
        let are_shared = |before, meanwhile, second| {
            let backends = Backends {
                first: [before, meanwhile],
                second,
                idle_timeout_ms: 0,
            };
            backends.are_shared()
        };
        assert!(!are_shared(1, 1, 2), "two sessions, two processes");
        assert!(are_shared(1, 2, 1), "the process that was used last");
        assert!(are_shared(1, 1, 1) && are_shared(1, 3, 2));
    }
}
