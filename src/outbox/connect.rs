//! Connections: session settings, TLS, the pool.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, QueueMode, RecyclingMethod, Runtime};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::session::Session;
use super::{Error, Result, sslmode};
use crate::domain::sample::Connections;

/// Where the database is and how to connect to it.
#[derive(Clone, Debug)]
pub struct Database {
    pub config: Config,
    /// With `sslmode=verify-ca`, `verify-full` or a CA file the server must prove its identity, and nothing is sent in plain
    /// text.
    pub verify_server: bool,
    pub ca_file: Option<PathBuf>,
    pub pooler: Pooler,
}

/// What is between this process and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pooler {
    /// Nothing
    None,
    /// PgBouncer or its like, in transaction mode
    Transaction,
}

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

impl Database {
    /// Reads a libpq-style URL or key=value string.
    pub fn parse(url: &str, ca_file: Option<PathBuf>, pooler: Pooler) -> std::result::Result<Self, String> {
        let (parsable, modes) = sslmode::extract(url);
        let mut config: Config = parsable.parse().map_err(|error: tokio_postgres::Error| {
            // The message may quote the string, which may contain a password.
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            cause.unwrap_or_else(|| "it is not a connection string".to_owned())
        })?;
        if config.get_hosts().is_empty() {
            return Err("it names no host".to_owned());
        }
        let verify_server = ca_file.is_some() || modes.iter().any(|mode| sslmode::verifies(mode));
        if verify_server {
            require_tls(&mut config, &modes)?;
        }
        // Without a password the client library fails by itself when the server asks for one. With an empty one the server
        // refuses it like any wrong password.
        if config.get_password().is_none() {
            config.password("");
        }
        Ok(Database {
            config,
            verify_server,
            ca_file,
            pooler,
        })
    }

    /// The settings are sent as startup options. Behind a transaction pooler, each transaction sets them instead.
    fn session_config(&self, timeout: Duration) -> Config {
        let mut config = self.config.clone();
        if self.pooler == Pooler::None {
            let settings = settings(timeout, |name, value| format!("-c {name}={value}")).join(" ");
            config.options(match self.config.get_options() {
                Some(configured) => format!("{settings} {configured}"),
                None => settings,
            });
        }
        with_connection_timeouts(config)
    }
}

/// A server can prove its identity only over TLS.
fn require_tls(config: &mut Config, modes: &[&str]) -> std::result::Result<(), String> {
    let plain = modes
        .iter()
        .find(|mode| matches!(**mode, "disable" | "allow" | "prefer"));
    if let Some(mode) = plain {
        return Err(format!(
            "sslmode={mode} permits plain text, but the server is to prove who it is (--database-tls-ca, verify-ca or \
             verify-full), which needs TLS; write sslmode=verify-full, or leave sslmode out beside a CA"
        ));
    }
    if config.get_hosts().iter().any(|host| matches!(host, Host::Unix(_))) {
        return Err(
            "there is no TLS on a Unix socket, so the server cannot prove there who it is; \
                    name its host, or give no CA and no verify mode"
                .to_owned(),
        );
    }
    config.ssl_mode(SslMode::Require);
    Ok(())
}

fn with_connection_timeouts(mut config: Config) -> Config {
    if config.get_application_name().is_none() {
        config.application_name("outboxd");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    config
        .keepalives_idle(Duration::from_secs(10))
        .keepalives_interval(Duration::from_secs(5))
        .keepalives_retries(3)
        .tcp_user_timeout(Duration::from_secs(20));
    config
}

/// Connections for the daemon.
#[derive(Clone)]
pub struct Pool {
    connections: deadpool_postgres::Pool,
    /// The settings that each transaction sets behind a transaction pooler.
    local_settings: Option<Arc<str>>,
    /// See [`worker_pool`].
    pub(super) session_key: Option<i64>,
}

impl Pool {
    pub(super) async fn session(&self) -> Result<Session> {
        Ok(Session::new(self.connections.get().await?, self.local_settings.clone()))
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
}

/// A pool for a worker. Each session takes a shared advisory lock under a key of this process, by which a successor sees whether
/// PostgreSQL still has one of its sessions. Behind a transaction pooler, sessions are shared by processes, so there is no key.
pub fn worker_pool(database: &Database, size: usize, timeout: Duration) -> Result<Pool> {
    let session_key = (database.pooler == Pooler::None).then(|| fastrand::i64(..));
    pool(database, size, timeout, session_key)
}

/// A pool of sessions whose statements may take as long as `timeout`.
pub(super) fn pool(database: &Database, size: usize, timeout: Duration, session_key: Option<i64>) -> Result<Pool> {
    let manager = Manager::from_config(
        database.session_config(timeout),
        tls(database)?,
        ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        },
    );
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
    let tls = tls(database)?;
    let config = with_connection_timeouts(database.config.clone());
    let connected = tokio::time::timeout(SESSION_TIMEOUT, config.connect(tls)).await;
    let (client, connection) = connected.map_err(|_| Error::Timeout(SESSION_TIMEOUT))??;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection closed");
        }
    });
    Ok(client)
}

fn tls(database: &Database) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Setting(error.to_string()))?;
    let config = if database.verify_server {
        builder.with_root_certificates(roots(database)?).with_no_client_auth()
    } else {
        // Like libpq with sslmode prefer and require: encrypt, but verify no certificate.
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)))
            .with_no_client_auth()
    };
    Ok(MakeRustlsConnect::new(config))
}

fn roots(database: &Database) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let certificates = match &database.ca_file {
        Some(path) => CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
            .map_err(|error| Error::Setting(format!("cannot read the CA file {}: {error}", path.display())))?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    roots.add_parsable_certificates(certificates);
    if roots.is_empty() {
        let problem = "no usable CA certificate found; give one with --database-tls-ca";
        return Err(Error::Setting(problem.to_owned()));
    }
    Ok(roots)
}

/// Accepts any certificate, and checks only the handshake signatures. See [`tls`].
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, ca: bool) -> std::result::Result<Database, String> {
        Database::parse(url, ca.then(|| "ca.pem".into()), Pooler::None)
    }

    #[test]
    fn a_server_that_must_prove_who_it_is_is_spoken_to_over_tls_only() {
        for (url, ca) in [
            ("postgres://u@h/db", true),
            ("postgres://u@h/db?sslmode=require", true),
            ("postgres://u@h/db?sslmode=verify-ca", false),
            ("host=h user=u sslmode='verify-full'", false),
        ] {
            let database = parse(url, ca).expect(url);
            assert!(database.verify_server, "{url}");
            assert_eq!(database.config.get_ssl_mode(), SslMode::Require, "{url}");
        }
        for (url, ca) in [
            ("postgres://u@h/db?sslmode=disable", true),
            ("host=h user=u sslmode = prefer", true),
            ("postgres://u@h/db?sslmode=disable&sslmode=verify-full", false),
            ("host=/run/postgresql user=u", true),
        ] {
            let problem = parse(url, ca).map(drop).expect_err(url);
            assert!(problem.contains("TLS"), "{url}: {problem}");
        }
        let plain = parse("postgres://u:sslmode=verify-full@h/db", false).expect("valid");
        assert!(!plain.verify_server, "that is its password");
        assert_eq!(plain.config.get_password(), Some(&b"sslmode=verify-full"[..]));
    }

    #[test]
    fn verify_full_is_understood_and_a_password_is_not_repeated() {
        let database =
            Database::parse("postgres://u:s3cret@h/db?sslmode=verify-full", None, Pooler::None).expect("valid");
        assert!(database.verify_server);
        let error = Database::parse("postgres://u:s3cret@h:notaport/db", None, Pooler::None).expect_err("bad port");
        assert!(!error.contains("s3cret"), "{error}");
    }
}
