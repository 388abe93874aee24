//! Connections: session settings and the pool.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, QueueMode, RecyclingMethod, Runtime};
use tokio_postgres::{Client, Config};

use super::connector::Connector;
use super::database::{Database, Pooler};
use super::session::Session;
use super::{Error, Result};
use crate::domain::sample::Connections;

/// Longest wait for a TCP connect, and for a session on it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for a lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(4);
/// No wait for a lock takes more than this part of a statement's timeout, since statements that are sent at once may wait twice:
/// first for their turn and then for the table.
const LOCK_TIMEOUT_SHARE: u32 = 3;

/// Settings of the planner. Without the first two, a plan may become a scan of the whole table because statistics were taken
/// while it was empty. The last one has each statement planned once in a session: for the few lanes of a small batch the planner
/// prefers a custom plan, and planning costs four times as much as running it.
pub const PLANNER_SETTINGS: [(&str, &str); 4] = [
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
];

/// The settings of every session, each formatted by `format`: [`PLANNER_SETTINGS`] and timeouts. The server cancels a statement
/// before `timeout`, when its connection is closed, so that none keeps running without a client.
fn settings(timeout: Duration, format: impl Fn(&str, &str) -> String) -> Vec<String> {
    let statement_ms = timeout.mul_f64(0.8).as_millis().to_string();
    let lock_ms = LOCK_TIMEOUT.min(timeout / LOCK_TIMEOUT_SHARE).as_millis().to_string();
    let waits = [
        ("lock_timeout", lock_ms.as_str()),
        ("statement_timeout", &statement_ms),
        ("idle_in_transaction_session_timeout", &statement_ms),
    ];
    waits
        .iter()
        .chain(&PLANNER_SETTINGS)
        .map(|(name, value)| format(name, value))
        .collect()
}

/// The settings as SQL, for one transaction.
fn local_settings(timeout: Duration) -> Arc<str> {
    let set = settings(timeout, |name, value| format!("SET LOCAL {name} = {value}"));
    set.join("; ").into()
}

/// The settings are sent as startup options. Behind a transaction pooler, each transaction sets them instead.
pub(super) fn add_session_settings(config: &mut Config, pooler: Pooler, timeout: Duration) {
    if pooler == Pooler::None {
        let settings = settings(timeout, |name, value| format!("-c {name}={value}")).join(" ");
        let options = match config.get_options() {
            Some(configured) => format!("{settings} {configured}"),
            None => settings,
        };
        config.options(options);
    }
}

pub(super) fn add_connection_settings(config: &mut Config, application: &str) {
    if config.get_application_name().is_none() {
        config.application_name(application);
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    config
        .keepalives_idle(Duration::from_secs(10))
        .keepalives_interval(Duration::from_secs(5))
        .keepalives_retries(3)
        .tcp_user_timeout(Duration::from_secs(20));
}

/// Connections for the daemon.
#[derive(Clone)]
pub struct Pool {
    connections: deadpool_postgres::Pool,
    connector: Connector,
    /// The settings that each transaction sets behind a transaction pooler.
    local_settings: Option<Arc<str>>,
    /// See [`worker_pool`].
    pub(super) session_key: Option<i64>,
}

impl Pool {
    pub(super) async fn session(&self) -> Result<Session> {
        let status = self.connections.status();
        if status.available == 0 && status.size < status.max_size {
            self.connector.may_connect()?;
        }
        Ok(Session::new(self.connections.get().await?, self.local_settings.clone()))
    }

    pub(super) fn database(&self) -> &Database {
        self.connector.database()
    }

    pub(super) fn usage(&self) -> Connections {
        let status = self.connections.status();
        Connections {
            max: status.max_size,
            used: status.size.saturating_sub(status.available),
            idle: status.available,
            waiting: status.waiting,
        }
    }

    /// Closes the connections that are not in use.
    pub(super) fn drop_idle(&self) {
        self.connections.retain(|_, _| false);
    }

    /// Closes the connections that nobody has used for this long.
    pub(super) fn drop_unused(&self, time: Duration) {
        self.connections.retain(|_, metrics| metrics.last_used() < time);
    }
}

/// A pool for a worker. Each session takes a shared advisory lock under a key of this process, by which a successor sees whether
/// PostgreSQL still has one of its sessions. Behind a transaction pooler, sessions are shared by processes, so there is no key.
pub async fn worker_pool(database: &Database, size: usize, timeout: Duration) -> Result<Pool> {
    let session_key = (database.pooler == Pooler::None).then(|| fastrand::i64(..));
    pool(database, size, timeout, session_key).await
}

/// A pool of sessions whose statements may take as long as `timeout`.
pub(super) async fn pool(
    database: &Database,
    size: usize,
    timeout: Duration,
    session_key: Option<i64>,
) -> Result<Pool> {
    let connector = Connector::new(database, Some(timeout)).await?;
    let recycling = ManagerConfig {
        recycling_method: RecyclingMethod::Fast,
    };
    // The connector has the settings of its own logins.
    let manager = Manager::from_connect(Config::new(), connector.clone(), recycling);
    let mut builder = deadpool_postgres::Pool::builder(manager);
    if let Some(key) = session_key {
        builder = builder.post_create(take_session_lock(key));
    }
    let connections = builder
        .max_size(size)
        // Prefer the connection used last, because its session has warm caches.
        .queue_mode(QueueMode::Lifo)
        .wait_timeout(Some(Duration::from_secs(10)))
        // If a server accepts connections and does not answer, this fails in time to try again under the same lease.
        .create_timeout(Some(SESSION_TIMEOUT.min(timeout / 2)))
        .recycle_timeout(Some(CONNECT_TIMEOUT))
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|error| Error::Setting(error.to_string()))?;
    Ok(Pool {
        connections,
        connector,
        local_settings: (database.pooler == Pooler::Transaction).then(|| local_settings(timeout)),
        session_key,
    })
}

/// A hook by which each new session takes the lock of the process.
fn take_session_lock(key: i64) -> Hook {
    Hook::async_fn(move |client, _| {
        Box::pin(async move {
            let lock = format!("SELECT pg_advisory_lock_shared('{key}'::bigint)");
            client.batch_execute(&lock).await.map_err(HookError::Backend)
        })
    })
}

/// Opens one connection without the daemon's session settings.
pub async fn connect(database: &Database) -> Result<Client> {
    let connector = Connector::new(database, None).await?;
    let connected = tokio::time::timeout(SESSION_TIMEOUT, connector.connect()).await;
    let (client, _) = connected.map_err(|_| Error::Timeout(SESSION_TIMEOUT))??;
    Ok(client)
}
