//! Reads what `outboxd doctor` judges. No statement here writes, locks a row or scans without a limit.

mod pooler;

use std::time::SystemTime;

use deadpool_postgres::PoolError;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;

use super::connector::BadTlsFiles;
use super::from_row::{FromRow, from_row};
use super::{Database, Error, Outbox, Params, Result};

pub use pooler::{Backends, backends};

use crate::tls::{Verify, certificate_problem, is_loopback};

/// How many rows are read of each part of the outbox to find the topics in use.
const SCAN_MAX: i64 = 10_000;

/// How a session travels to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The hosts and their ports.
    pub address: String,
    /// It does not leave this machine.
    pub is_local: bool,
    /// What the server's certificate must prove.
    pub verify: Verify,
}

impl Database {
    /// How sessions travel, or why the settings cannot be read.
    pub fn transport(&self) -> std::result::Result<Transport, String> {
        let server = self.server()?;
        let (hosts, ports) = (server.config.get_hosts(), server.config.get_ports());
        let port = |index: usize| ports.get(index).or(ports.first()).copied().unwrap_or(5432);
        let addresses = hosts.iter().enumerate().map(|(index, host)| match host {
            Host::Tcp(name) => format!("{name}:{}", port(index)),
            Host::Unix(folder) => format!("{}:{}", folder.display(), port(index)),
        });
        Ok(Transport {
            address: addresses.collect::<Vec<_>>().join(","),
            is_local: hosts.iter().all(is_local),
            verify: server.tls.verify,
        })
    }
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => is_loopback(name),
        Host::Unix(_) => true,
    }
}

/// What a session is connected to.
#[derive(Clone, Debug)]
pub struct Server {
    pub version: String,
    /// Such as 150018.
    pub version_number: i32,
    pub database: String,
    pub login: String,
    pub is_standby: bool,
    pub is_read_only: bool,
}

#[derive(Clone, Debug)]
pub struct SessionTls {
    pub is_encrypted: bool,
    pub protocol: Option<String>,
    pub cipher: Option<String>,
    /// The name in the certificate that this side has shown.
    pub client_certificate: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub struct LoginRights {
    pub is_superuser: bool,
    /// It owns the outbox, by itself or as a member of the owner, and is no superuser.
    pub is_owner: bool,
    /// Row security hides messages from it.
    pub is_filtered: bool,
    pub sees_all_sessions: bool,
}

/// How many sessions there may be, and how many there are.
#[derive(Clone, Copy, Debug)]
pub struct Connections {
    pub server_max: i64,
    pub server_used: i64,
    pub database_max: Option<i64>,
    pub database_used: i64,
    pub login_max: Option<i64>,
    pub login_used: i64,
}

#[derive(Clone, Debug)]
pub struct Autovacuum {
    pub is_on: bool,
    /// The tables of the outbox for which it is switched off.
    pub switched_off: Vec<String>,
    pub dead_rows: i64,
    pub live_rows: i64,
}

/// A session that has a transaction open and does nothing.
#[derive(Clone, Debug)]
pub struct IdleSession {
    pub pid: i32,
    pub login: String,
    pub application: String,
    pub seconds: f64,
}

/// What keeps vacuum from removing rows: the snapshot of a session, or of a replication slot.
#[derive(Clone, Debug)]
pub struct OldSnapshot {
    pub pid: Option<i32>,
    pub slot: Option<String>,
    pub application: String,
    /// How many transactions have begun to write since.
    pub transactions: i64,
    /// `None` if this login may not see it, and for slots.
    pub seconds: Option<f64>,
}

#[derive(Clone, Debug)]
pub struct PreparedTransaction {
    pub gid: String,
    pub owner: String,
    pub seconds: f64,
}

#[derive(Clone, Debug)]
pub struct Slot {
    pub name: String,
    pub is_active: bool,
    pub wal_status: String,
    pub kept_bytes: i64,
}

#[derive(Clone, Copy, Debug)]
pub struct IdSequence {
    pub cache: i64,
    pub increment: i64,
    pub cycles: bool,
    pub ids_left: i64,
}

#[derive(Clone, Debug)]
pub struct Trigger {
    pub name: String,
    /// As in `pg_trigger.tgenabled`; `None` if the trigger is missing.
    pub fires: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Durability {
    pub fsync: bool,
    pub full_page_writes: bool,
    pub synchronous_commit: String,
    pub asynchronous_logins: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
pub struct HistoryToday {
    pub has_today: bool,
    pub default_bytes: i64,
    /// A relay runs.
    pub is_running: bool,
}

/// A topic that rows name, and what is pending of it among the rows that were read.
#[derive(Clone, Debug, Default)]
pub struct UsedTopic {
    pub topic: String,
    pub pending: i64,
    pub largest_bytes: Option<i64>,
    /// The highest partition that a pending row asks for.
    pub highest_partition: Option<i32>,
}

struct ServerTime {
    now: SystemTime,
}

from_row!(Server: version, version_number, database, login, is_standby, is_read_only);
from_row!(SessionTls: is_encrypted, protocol, cipher, client_certificate);
from_row!(LoginRights: is_superuser, is_owner, is_filtered, sees_all_sessions);
from_row!(Connections: server_max, server_used, database_max, database_used, login_max, login_used);
from_row!(Autovacuum: is_on, switched_off, dead_rows, live_rows);
from_row!(IdleSession: pid, login, application, seconds);
from_row!(OldSnapshot: pid, slot, application, transactions, seconds);
from_row!(PreparedTransaction: gid, owner, seconds);
from_row!(Slot: name, is_active, wal_status, kept_bytes);
from_row!(IdSequence: cache, increment, cycles, ids_left);
from_row!(Trigger: name, fires);
from_row!(Durability: fsync, full_page_writes, synchronous_commit, asynchronous_logins);
from_row!(HistoryToday: has_today, default_bytes, is_running);
from_row!(UsedTopic: topic, pending, largest_bytes, highest_partition);
from_row!(ServerTime: now);

impl Error {
    /// Did what answers refuse a session that begins with options? Transaction poolers do.
    pub fn is_refusal_of_options(&self) -> bool {
        let refusal = Some(&SqlState::PROTOCOL_VIOLATION);
        matches!(self, Error::Pool(PoolError::Backend(error)) if error.code() == refusal)
    }

    /// Is nobody there to answer the next question either?
    pub fn is_silence(&self) -> bool {
        matches!(self, Error::Timeout(_) | Error::Pool(_) | Error::Refused(_))
    }

    /// Is it about a certificate, the server's or ours, or about the files that we have of them?
    pub fn is_about_certificates(&self) -> bool {
        let Error::Pool(PoolError::Backend(error)) = self else {
            return false;
        };
        let is_of_files = std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<BadTlsFiles>);
        is_of_files || certificate_problem(error).is_some()
    }
}

impl Outbox {
    pub async fn server(&self) -> Result<Server> {
        self.query_one(&self.statements.server, &[]).await
    }

    pub async fn server_time(&self) -> Result<SystemTime> {
        let time: ServerTime = self.query_one(&self.statements.server_time, &[]).await?;
        Ok(time.now)
    }

    pub async fn session_tls(&self) -> Result<SessionTls> {
        self.query_one(&self.statements.session_tls, &[]).await
    }

    pub async fn login_rights(&self) -> Result<LoginRights> {
        let schema: Params<'_> = &[&&*self.schema];
        self.query_one(&self.statements.login, schema).await
    }

    /// The login of this session, and whether it is an operator's.
    pub async fn operator_login(&self) -> Result<(String, bool)> {
        self.query_one(&self.statements.operator_login, &[]).await
    }

    /// The privileges that the relay needs and this login lacks.
    pub async fn missing_privileges(&self) -> Result<Vec<String>> {
        self.query(&self.statements.permissions, &[]).await
    }

    /// How many sessions there may be, and are.
    pub async fn sessions_allowed(&self) -> Result<Connections> {
        self.query_one(&self.statements.connections, &[]).await
    }

    pub async fn autovacuum(&self) -> Result<Autovacuum> {
        self.query_one(&self.statements.autovacuum, &[]).await
    }

    pub async fn idle_sessions(&self) -> Result<Vec<IdleSession>> {
        self.query(&self.statements.idle_sessions, &[]).await
    }

    pub async fn old_snapshots(&self) -> Result<Vec<OldSnapshot>> {
        self.query(&self.statements.old_snapshots, &[]).await
    }

    pub async fn prepared_transactions(&self) -> Result<Vec<PreparedTransaction>> {
        self.query(&self.statements.prepared_transactions, &[]).await
    }

    pub async fn slots(&self) -> Result<Vec<Slot>> {
        self.query(&self.statements.slots, &[]).await
    }

    pub async fn id_sequence(&self) -> Result<IdSequence> {
        self.query_one(&self.statements.sequence, &[]).await
    }

    pub async fn triggers(&self) -> Result<Vec<Trigger>> {
        self.query(&self.statements.triggers, &[]).await
    }

    /// `None` if the server does not tell.
    pub async fn timeline(&self) -> Result<Option<String>> {
        self.query_one(&self.statements.timeline, &[]).await
    }

    pub async fn durability(&self) -> Result<Durability> {
        self.query_one(&self.statements.durability, &[]).await
    }

    pub async fn history_today(&self) -> Result<HistoryToday> {
        self.query_one(&self.statements.history_days, &[]).await
    }

    /// The topics in use, at most `most`.
    pub async fn used_topics(&self, most: usize) -> Result<Vec<UsedTopic>> {
        let params: Params<'_> = &[&SCAN_MAX, &(most as i64)];
        self.query(&self.statements.used_topics, params).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_no_secret_and_says_whether_it_is_this_machine() {
        let transport = |url: &str| {
            let transport = Database::at(url).transport().expect(url);
            (transport.address, transport.is_local)
        };
        assert_eq!(
            transport("postgres://u:hunter2@127.0.0.1:6000/db"),
            ("127.0.0.1:6000".to_owned(), true)
        );
        assert_eq!(
            transport("postgres://u@a,b:6001/db"),
            ("a:5432,b:6001".to_owned(), false)
        );
        assert_eq!(
            transport("host=/run/postgresql user=u"),
            ("/run/postgresql:5432".to_owned(), true)
        );
        assert!(!transport("postgres://u@localhost,db/x").1);
    }
}
