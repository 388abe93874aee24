//! Every query the daemon runs, one method per `.sql` file in `src/outbox/`. The only module that speaks SQL.
//!
//! Invariant: whatever acts on rows or lanes is tied to the server incarnation of the caller's term, inside the
//! statement: after a restart or a failover ids can come again, and a late mark must not hit a stranger.

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

pub use claim::{Claim, Found, LeftBehind, Recorded, UnorderedFilter};
pub use connect::{Database, PLANS, Pool, Pooler, connect, pool, pool_of_worker};
pub use error::{Error, Kind, Result};
pub use lease::predecessor::Predecessor;
pub use lease::{Peer, Renewal};
pub use maintenance::{HistoryDays, Purge, PurgeResult};
pub use mark::{LaneOutcome, UnorderedOutcome};
pub use statement::MESSAGE_BYTES_MAX;
pub use watermark::writer::WriterIdentity;

use param::Params;
use session::{Session, Transaction};
use statement::Statements;
pub(crate) use statement::in_schema;

/// What happens to a row once Kafka has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnPublished {
    /// It stays, with published_at set, until the retention is over.
    Keep,
    /// It moves to outbox.history, partitioned by day.
    Archive,
    /// It is deleted.
    Delete,
}

/// The database, as the daemon uses it.
pub struct Outbox {
    pool: Pool,
    schema: String,
    statements: Statements,
    on_published: OnPublished,
    /// A larger message is not read.
    message_bytes_max: usize,
    /// Longer than any healthy statement: a silent connection is given up after this.
    timeout: Duration,
}

/// The lease's own statements have this part of the patience: one silent connection must not cost the lease while others
/// would answer.
const LEASE_SHARE: u32 = 4;

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

    /// The same for messages of at most so many bytes.
    pub fn with_message_limit(self, schema: &str, bytes: usize) -> Self {
        Outbox {
            statements: Statements::new(schema, bytes),
            message_bytes_max: bytes,
            ..self
        }
    }

    /// Runs `work` on a connection; one that does not answer in time is closed, not reused.
    async fn on_connection<T>(&self, work: impl AsyncFnOnce(&mut Session) -> Result<T>) -> Result<T> {
        self.on_connection_within(self.timeout, work).await
    }

    async fn on_connection_within<T>(
        &self,
        timeout: Duration,
        work: impl AsyncFnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        let mut session = self.pool.session().await?;
        match tokio::time::timeout(timeout, work(&mut session)).await {
            Ok(done) => done,
            Err(_) => {
                session.close();
                // Whatever silenced it has silenced those beside it: nobody should have to find out one by one.
                self.pool.drop_idle();
                Err(Error::Silent(timeout))
            }
        }
    }

    async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<tokio_postgres::Row>> {
        self.query_within(self.timeout, sql, params).await
    }

    async fn query_within(&self, timeout: Duration, sql: &str, params: Params<'_>) -> Result<Vec<tokio_postgres::Row>> {
        self.on_connection_within(timeout, async |session| session.query(sql, params).await)
            .await
    }

    async fn query_one(&self, sql: &str, params: Params<'_>) -> Result<tokio_postgres::Row> {
        let mut rows = self.query(sql, params).await?;
        rows.pop().ok_or(Error::Unexpected("a statement answered no row"))
    }

    async fn execute(&self, sql: &str, params: Params<'_>) -> Result<u64> {
        self.execute_within(self.timeout, sql, params).await
    }

    async fn execute_within(&self, timeout: Duration, sql: &str, params: Params<'_>) -> Result<u64> {
        self.on_connection_within(timeout, async |session| session.execute(sql, params).await)
            .await
    }
}
