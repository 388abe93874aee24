//! All statements that the daemon runs: a folder for each subject, with a Rust file and its `.sql` files. No other module uses
//! SQL.
//!
//! Invariant: every statement that changes rows or lanes compares the incarnation of the server with that of the caller's term.
//! After a restart or a failover ids may be drawn again, and a late mark must not match a different row.

mod claim;
mod connect;
mod error;
mod hold;
mod lease;
mod maintenance;
mod mark;
mod param;
mod row;
pub mod schema;
mod session;
mod sslmode;
pub mod statement;
pub mod status;
pub mod verify;
mod watermark;

use std::time::Duration;

pub use claim::{ClaimedRows, DroppedRow, PollAnswer, UnorderedClaim, UnorderedFilter};
pub use connect::{Database, PLANNER_SETTINGS, Pool, Pooler, connect, pool, worker_pool};
pub use error::{Error, Kind, Result};
pub use lease::predecessor::Predecessor;
pub use lease::{Peer, Renewal};
pub use maintenance::{HistoryDays, Purge, PurgeResult};
pub use mark::{LaneOutcome, UnorderedOutcome};
pub use statement::MESSAGE_BYTES_MAX;
pub use watermark::WriterIdentity;

use param::Params;
use session::{Session, Transaction};
use statement::Statements;
pub(crate) use statement::in_schema;

/// What happens to a row once it is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnPublished {
    /// It stays, with published_at set, until its retention has passed.
    Keep,
    /// It moves to outbox.history, partitioned by day.
    Archive,
    /// It is deleted.
    Delete,
}

const ANOTHER_SERVER: Error = Error::Unexpected("the server is not the one on which the term began");

/// Runs the daemon's statements.
pub struct Outbox {
    pool: Pool,
    schema: String,
    statements: Statements,
    on_published: OnPublished,
    /// Larger messages are not read.
    message_bytes_max: usize,
    /// Longer than any healthy statement takes. A connection that does not answer for this long is closed.
    timeout: Duration,
}

/// Statements that keep the lease have this part of the timeout, so that one unresponsive connection does not cost the lease
/// while others would answer.
const LEASE_TIMEOUT_SHARE: u32 = 4;

impl Outbox {
    pub fn new(pool: Pool, schema: &str, on_published: OnPublished, timeout: Duration) -> Self {
        Outbox {
            pool,
            schema: schema.to_owned(),
            statements: Statements::new(schema, MESSAGE_BYTES_MAX),
            on_published,
            message_bytes_max: MESSAGE_BYTES_MAX,
            timeout,
        }
    }

    /// Limits messages to this many bytes.
    pub fn with_message_limit(self, schema: &str, bytes: usize) -> Self {
        Outbox {
            statements: Statements::new(schema, bytes),
            message_bytes_max: bytes,
            ..self
        }
    }

    /// Runs `work` on a connection from the pool, which is closed if it does not answer in time.
    async fn with_session<T>(&self, work: impl AsyncFnOnce(&mut Session) -> Result<T>) -> Result<T> {
        self.with_session_within(self.timeout, work).await
    }

    async fn with_session_within<T>(
        &self,
        timeout: Duration,
        work: impl AsyncFnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        let mut session = self.pool.session().await?;
        match tokio::time::timeout(timeout, work(&mut session)).await {
            Ok(result) => result,
            Err(_) => {
                session.close();
                // The cause has probably affected the idle connections too, and each would cost another timeout.
                self.pool.drop_idle();
                Err(Error::Timeout(timeout))
            }
        }
    }

    async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<tokio_postgres::Row>> {
        self.query_within(self.timeout, sql, params).await
    }

    async fn query_within(&self, timeout: Duration, sql: &str, params: Params<'_>) -> Result<Vec<tokio_postgres::Row>> {
        self.with_session_within(timeout, async |session| session.query(sql, params).await)
            .await
    }

    /// The timeout of statements that keep the lease. See [`LEASE_TIMEOUT_SHARE`].
    fn lease_timeout(&self) -> Duration {
        self.timeout / LEASE_TIMEOUT_SHARE
    }

    async fn query_one(&self, sql: &str, params: Params<'_>) -> Result<tokio_postgres::Row> {
        let mut rows = self.query(sql, params).await?;
        rows.pop().ok_or(Error::Unexpected("a statement returned no row"))
    }

    async fn execute(&self, sql: &str, params: Params<'_>) -> Result<u64> {
        self.execute_within(self.timeout, sql, params).await
    }

    async fn execute_within(&self, timeout: Duration, sql: &str, params: Params<'_>) -> Result<u64> {
        self.with_session_within(timeout, async |session| session.execute(sql, params).await)
            .await
    }
}
