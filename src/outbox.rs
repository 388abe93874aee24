//! All statements that the daemon runs: a folder for each subject, with a Rust file and its `.sql` files. No other module uses
//! SQL.
//!
//! Invariant: every statement that changes rows or lanes compares the incarnation of the server with that of the caller's term.
//! After a restart or a failover ids may be drawn again, and a late mark must not match a different row.

mod certificates;
mod claim;
mod connect;
mod connector;
mod database;
pub mod doctor;
mod error;
mod from_row;
mod hold;
mod lease;
mod maintenance;
mod mark;
pub mod operator;
mod param;
mod pause;
mod replay;
mod row;
pub mod schema;
mod session;
mod sslmode;
pub mod statement;
pub mod status;
mod url_params;
pub mod verify;
mod watermark;

use std::sync::Arc;
use std::time::Duration;

pub use claim::{ClaimedRows, DroppedRow, PollAnswer, UnorderedClaim, UnorderedFilter};
pub use connect::{PLANNER_SETTINGS, Pool, connect, worker_pool};
pub use database::{APPLICATION, ConnectionString, Database, PAGE_APPLICATION, Pooler};
pub use error::{Error, Kind, Result};
pub use lease::predecessor::Predecessor;
pub use lease::{Peer, Renewal};
pub use maintenance::{HistoryDays, Purge, PurgeResult};
pub use mark::{LaneOutcome, UnorderedOutcome};
pub use operator::hold::HeldUnit;
pub use pause::{PauseChange, PauseScope, PauseStatus, PendingRows, WorkerAndPauses};
pub use replay::{ReplayStep, ReplayableTopic, UnfinishedReplay};
pub use schema::known_version;
pub use sslmode::TlsFiles;
pub use statement::MESSAGE_BYTES_MAX;
pub use watermark::WriterIdentity;

use crate::domain::sample::Connections;
use from_row::FromRow;
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
#[derive(Clone)]
pub struct Outbox {
    pool: Pool,
    schema: Arc<str>,
    statements: Arc<Statements>,
    // The statements that depend on what happens to published rows.
    mark_lanes: Arc<str>,
    mark_unordered: Arc<str>,
    lost_rows: Arc<str>,
    on_published: OnPublished,
    /// Larger messages are not read.
    message_bytes_max: usize,
    /// Longer than any healthy statement takes. A connection that does not answer for this long is closed.
    timeout: Duration,
}

/// Statements that keep the lease have this part of the timeout.
const LEASE_TIMEOUT_SHARE: u32 = 4;

impl Outbox {
    pub fn new(
        pool: Pool,
        schema: &str,
        on_published: OnPublished,
        message_bytes_max: usize,
        timeout: Duration,
    ) -> Self {
        let all = Statements::new(schema, message_bytes_max);
        let (mark_lanes, mark_unordered, lost_rows) = match on_published {
            OnPublished::Keep => (&all.mark_lanes_keep, &all.mark_unordered_keep, &all.lost_kept),
            OnPublished::Archive => (&all.mark_lanes_archive, &all.mark_unordered_archive, &all.lost_kept),
            OnPublished::Delete => (&all.mark_lanes_delete, &all.mark_unordered_delete, &all.lost_deleted),
        };
        Outbox {
            pool,
            schema: schema.into(),
            mark_lanes: mark_lanes.as_str().into(),
            mark_unordered: mark_unordered.as_str().into(),
            lost_rows: lost_rows.as_str().into(),
            statements: Arc::new(all),
            on_published,
            message_bytes_max,
            timeout,
        }
    }

    /// Opens the outbox for a command: with one connection, and on a schema that this binary may use.
    pub async fn open(database: &Database, schema: &str, timeout: Duration) -> Result<Self> {
        let outbox = Outbox::unverified(database, schema, timeout).await?;
        outbox.verify_schema().await?;
        Ok(outbox)
    }

    /// The same on whatever is there. It connects with the first statement.
    pub async fn unverified(database: &Database, schema: &str, timeout: Duration) -> Result<Self> {
        let pool = connect::pool(database, 1, timeout, None).await?;
        let on_published = OnPublished::Keep;
        Ok(Outbox::new(pool, schema, on_published, MESSAGE_BYTES_MAX, timeout))
    }

    /// The same for many who ask at once, with so many connections, each opened when it is needed. Larger messages are not read.
    pub async fn shared(
        database: &Database,
        schema: &str,
        connections: usize,
        message_bytes_max: usize,
        timeout: Duration,
    ) -> Result<Self> {
        let pool = connect::pool(database, connections, timeout, None).await?;
        Ok(Outbox::new(pool, schema, OnPublished::Keep, message_bytes_max, timeout))
    }

    /// The same for statements that keep the lease, with a shorter timeout, so that one unresponsive connection does not cost the
    /// lease while others would answer.
    fn for_lease(&self) -> Self {
        Outbox {
            timeout: self.timeout / LEASE_TIMEOUT_SHARE,
            ..self.clone()
        }
    }

    /// Closes the connections that nobody has used for this long.
    pub fn close_unused(&self, time: Duration) {
        self.pool.drop_unused(time);
    }

    /// How the connections of the pool are used at this moment.
    pub fn connections(&self) -> Connections {
        self.pool.usage()
    }

    /// Runs `work` on a connection from the pool, which is closed if it does not answer in time.
    async fn with_session<T>(&self, work: impl AsyncFnOnce(&mut Session) -> Result<T>) -> Result<T> {
        let mut session = self.pool.session().await?;
        match tokio::time::timeout(self.timeout, work(&mut session)).await {
            Ok(result) => result,
            Err(_) => {
                session.close();
                // The cause has probably affected the idle connections too, and each would cost another timeout.
                self.pool.drop_idle();
                Err(Error::Timeout(self.timeout))
            }
        }
    }

    /// Runs `work` in a transaction, which is committed unless `work` fails.
    async fn with_transaction<T>(&self, work: impl AsyncFnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.with_session(async |session| {
            let transaction = session.transaction().await?;
            let result = work(&transaction).await?;
            transaction.commit().await?;
            Ok(result)
        })
        .await
    }

    async fn query<T: FromRow>(&self, sql: &str, params: Params<'_>) -> Result<Vec<T>> {
        self.with_session(async |session| session.query(sql, params).await)
            .await
    }

    /// The first row of the answer, if it has any.
    async fn query_opt<T: FromRow>(&self, sql: &str, params: Params<'_>) -> Result<Option<T>> {
        Ok(self.query(sql, params).await?.into_iter().next())
    }

    async fn query_one<T: FromRow>(&self, sql: &str, params: Params<'_>) -> Result<T> {
        let row = self.query_opt(sql, params).await?;
        row.ok_or(Error::Unexpected("a statement returned no row"))
    }

    /// Returns the number of rows affected.
    async fn execute(&self, sql: &str, params: Params<'_>) -> Result<u64> {
        self.with_session(async |session| session.execute(sql, params).await)
            .await
    }
}
