//! Every query the daemon runs, one method per `.sql` file in `src/outbox/`. The only module that speaks SQL.
//!
//! Invariant: whatever acts on rows or lanes is tied to the server incarnation of the caller's term, inside the
//! statement: after a restart or a failover ids can come again, and a late mark must not hit a stranger.

mod claim;
mod connect;
mod error;
mod hold;
mod holder;
mod lease;
mod mark;
pub mod migrate;
mod param;
mod predecessor;
mod row;
mod session;
pub mod snapshot;
mod sslmode;
pub mod status;
mod sweep;

use std::time::Duration;

pub use claim::{Claim, Dropped, Found, Free, Recorded, Writing};
pub use connect::{Database, PLANS, Pool, Pooler, connect, pool, pool_of_worker};
pub use error::{Error, Kind, Result};
pub use hold::{Postponed, Released, StoredHold};
pub use holder::Holder;
pub use lease::{Peer, Renewal};
pub use mark::{KeylessSettlement, Settlement};
pub use predecessor::Predecessor;
pub use sweep::{Commands, Counted, HistoryDays, InboxSample, Purge, Purged, Retention, Sample, Table};

use param::Params;
use session::{Session, Transaction};

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

macro_rules! statements {
    ($($name:ident),* $(,)?) => {
        /// The text of every statement, for the configured schema and the largest message we take.
        struct Statements { $($name: String),* }

        impl Statements {
            fn new(schema: &str, message_bytes_max: usize) -> Self {
                let text = |sql: &str| in_schema(&with_bound(sql, message_bytes_max), schema);
                Self { $($name: text(include_str!(concat!("outbox/", stringify!($name), ".sql")))),* }
            }
        }
    };
}

statements!(
    claim_fence,
    claim_kept,
    claim_keyless,
    claim_lanes,
    claim_turn,
    claimed,
    compatibility,
    end_orphaned,
    fence,
    forget_claims,
    forget_records,
    forget_workers,
    give_up,
    glance,
    held_topics,
    history_expire,
    history_prepare,
    hold,
    hold_head,
    hold_resume,
    holder,
    holders_ended,
    holds,
    holds_keyless,
    horizon,
    inherit,
    keyless,
    keyless_lowest,
    lineage,
    locked,
    look,
    lost_deleted,
    lost_kept,
    lower_floor,
    lower_floor_keyless,
    mark_keyless_archive,
    mark_keyless_delete,
    mark_keyless_keep,
    mark_lanes_archive,
    mark_lanes_delete,
    mark_lanes_keep,
    paused,
    paused_as,
    permissions,
    postpone,
    postpone_paused,
    predecessors,
    purge,
    purge_idempotency,
    purge_inbox,
    purge_processed,
    purgeable,
    rebuild_floors,
    record,
    recorded,
    refuse,
    refuse_keyless,
    register,
    release_keyless,
    renew,
    rescan,
    sample,
    sample_commands,
    sample_counted,
    sample_duplicates,
    sample_inbox,
    schema_history,
    schema_version,
    sequence_cache,
    status_dead,
    status_free_lanes,
    status_holds,
    status_workers,
    status_writer,
    stop_predecessor,
    stop_recorded,
    stop_worker,
    store_floor_keyless,
    store_floors,
    store_suspects,
    suspect,
    suspect_in_turn,
    take,
    timeline,
    topic_head,
    unhold,
    withheld,
    writers,
);

/// The files are written for the schema `outbox`; another name is put in its place. Names are checked at start-up
/// to be plain identifiers, so no quoting is needed.
pub(crate) fn in_schema(sql: &str, schema: &str) -> String {
    if schema == "outbox" {
        return sql.to_owned();
    }
    sql.replace("outbox.", &format!("{schema}."))
        .replace("SCHEMA outbox", &format!("SCHEMA {schema}"))
}

/// The largest message the files take.
pub const MESSAGE_BYTES_MAX: usize = 6 << 20;

/// The files are written for messages of at most [`MESSAGE_BYTES_MAX`]; another bound is put in its place.
fn with_bound(sql: &str, message_bytes_max: usize) -> String {
    sql.replace(&MESSAGE_BYTES_MAX.to_string(), &message_bytes_max.to_string())
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
    patience: Duration,
}

/// The lease's own statements have this part of the patience: one silent connection must not cost the lease while others
/// would answer.
const LEASE_SHARE: u32 = 4;

impl Outbox {
    pub fn new(pool: Pool, schema: &str, on_published: OnPublished, patience: Duration) -> Self {
        Outbox {
            pool,
            schema: schema.to_owned(),
            statements: Statements::new(schema, MESSAGE_BYTES_MAX),
            on_published,
            message_bytes_max: MESSAGE_BYTES_MAX,
            patience,
        }
    }

    /// The same for messages of at most so many bytes.
    pub fn with_messages_of(self, schema: &str, bytes: usize) -> Self {
        Outbox {
            statements: Statements::new(schema, bytes),
            message_bytes_max: bytes,
            ..self
        }
    }

    /// Runs `work` on a connection; one that does not answer in time is closed, not reused.
    async fn on_connection<T>(&self, work: impl AsyncFnOnce(&mut Session) -> Result<T>) -> Result<T> {
        self.on_connection_within(self.patience, work).await
    }

    async fn on_connection_within<T>(
        &self,
        patience: Duration,
        work: impl AsyncFnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        let mut session = self.pool.session().await?;
        match tokio::time::timeout(patience, work(&mut session)).await {
            Ok(done) => done,
            Err(_) => {
                session.close();
                // Whatever silenced it has silenced those beside it: nobody should have to find out one by one.
                self.pool.drop_idle();
                Err(Error::Silent(patience))
            }
        }
    }

    async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<tokio_postgres::Row>> {
        self.query_within(self.patience, sql, params).await
    }

    async fn query_within(
        &self,
        patience: Duration,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<tokio_postgres::Row>> {
        self.on_connection_within(patience, async |session| session.query(sql, params).await)
            .await
    }

    async fn query_one(&self, sql: &str, params: Params<'_>) -> Result<tokio_postgres::Row> {
        let mut rows = self.query(sql, params).await?;
        rows.pop().ok_or(Error::Unexpected("a statement answered no row"))
    }

    async fn execute(&self, sql: &str, params: Params<'_>) -> Result<u64> {
        self.execute_within(self.patience, sql, params).await
    }

    async fn execute_within(&self, patience: Duration, sql: &str, params: Params<'_>) -> Result<u64> {
        self.on_connection_within(patience, async |session| session.execute(sql, params).await)
            .await
    }
}
