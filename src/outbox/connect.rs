//! Connections: settings every session gets, TLS, the pool.

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

/// Where the database is and how to speak to it.
#[derive(Clone, Debug)]
pub struct Database {
    pub config: Config,
    /// `sslmode=verify-full`, or a CA was given: the server must prove who it is, and nothing is sent in plain text.
    pub verify_server: bool,
    pub ca_file: Option<PathBuf>,
    pub pooler: Pooler,
}

/// What stands between us and the server.
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
/// Longest wait for a lock; less where a statement has less: of its patience this share, since what is sent at once may wait twice,
/// first for its turn and then for the table.
const LOCK_TIMEOUT: Duration = Duration::from_secs(4);
const LOCK_SHARE: u32 = 3;

/// Plans do not flip to a walk over the whole table because statistics were taken while it was empty. A statement is planned
/// once a session: for the few lanes of a small batch the planner expects a plan of its own to be the cheaper one, and making it
/// costs four times what it runs.
pub const PLANS: [(&str, &str); 4] = [
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
];

/// What every statement runs under, each setting put as `write` says: beside [`PLANS`], nothing waits for ever. The server gives
/// a statement up before we do (`patience`), so that none runs on for nobody.
fn settings(timeout: Duration, write: impl Fn(&str, &str) -> String) -> Vec<String> {
    let statement_ms = timeout.mul_f64(0.8).as_millis().to_string();
    let lock_ms = LOCK_TIMEOUT.min(timeout / LOCK_SHARE).as_millis().to_string();
    let waits = [
        ("lock_timeout", lock_ms.as_str()),
        ("statement_timeout", &statement_ms),
        ("idle_in_transaction_session_timeout", &statement_ms),
    ];
    waits
        .iter()
        .chain(&PLANS)
        .map(|(name, value)| write(name, value))
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
        let (readable, modes) = sslmode::read(url);
        let mut config: Config = readable.parse().map_err(|error: tokio_postgres::Error| {
            // The message may quote the string, and the string may hold a password.
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
        // Without a password the client library gives up on its own when it is asked for one. With an empty one the server
        // says that it is wrong, like any other.
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

    /// The settings go with the session, which a transaction pooler does not have: there each transaction brings them.
    fn session(&self, timeout: Duration) -> Config {
        let mut config = self.config.clone();
        if self.pooler == Pooler::None {
            let own = settings(timeout, |name, value| format!("-c {name}={value}"));
            let own = own.join(" ");
            config.options(match self.config.get_options() {
                Some(users) => format!("{own} {users}"),
                None => own,
            });
        }
        with_patience(config)
    }
}

/// A server that must prove who it is can do so over TLS only.
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

fn with_patience(mut config: Config) -> Config {
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
pub struct Pool {
    connections: deadpool_postgres::Pool,
    /// Behind a transaction pooler, what each transaction brings along.
    local_settings: Option<Arc<str>>,
    /// See [`pool_of_worker`].
    session_key: Option<i64>,
}

impl Pool {
    pub(super) async fn session(&self) -> Result<Session> {
        Ok(Session::new(self.connections.get().await?, self.local_settings.clone()))
    }

    pub(super) fn session_key(&self) -> Option<i64> {
        self.session_key
    }

    /// Closes the connections that nobody uses now.
    pub(super) fn drop_idle(&self) {
        self.connections.retain(|_, _| false);
    }
}

/// A pool of sessions whose statements may take as long as `patience`.
pub fn pool(database: &Database, size: usize, timeout: Duration) -> Result<Pool> {
    build_pool(database, size, timeout, None)
}

/// The same for a worker: each session holds a shared advisory lock under a key of this process, by which a successor sees whether
/// PostgreSQL still has one of them. A transaction pooler lends sessions to anybody: none behind it.
pub fn pool_of_worker(database: &Database, size: usize, timeout: Duration) -> Result<Pool> {
    let session_key = (database.pooler == Pooler::None).then(|| fastrand::i64(..));
    build_pool(database, size, timeout, session_key)
}

fn build_pool(database: &Database, size: usize, timeout: Duration, session_key: Option<i64>) -> Result<Pool> {
    let manager = Manager::from_config(
        database.session(timeout),
        tls(database)?,
        ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        },
    );
    let mut builder = deadpool_postgres::Pool::builder(manager);
    if let Some(key) = session_key {
        builder = builder.post_create(hold_lock(key));
    }
    let connections = builder
        .max_size(size)
        // The one used last first: its session has everything at hand, where a turn of all finds each one cold.
        .queue_mode(QueueMode::Lifo)
        .wait_timeout(Some(Duration::from_secs(10)))
        // A server that accepts and then says nothing is given up in time to try again under the same lease.
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

/// What a new session does first.
fn hold_lock(key: i64) -> Hook {
    Hook::async_fn(move |client, _| {
        Box::pin(async move {
            let lock = format!("SELECT pg_advisory_lock_shared('{key}'::bigint)");
            client.batch_execute(&lock).await.map_err(HookError::Backend)
        })
    })
}

/// One plain connection, without the daemon's session settings: for migrations.
pub async fn connect(database: &Database) -> Result<Client> {
    let tls = tls(database)?;
    let config = with_patience(database.config.clone());
    let connected = tokio::time::timeout(SESSION_TIMEOUT, config.connect(tls)).await;
    let (client, connection) = connected.map_err(|_| super::Error::Silent(SESSION_TIMEOUT))??;
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
        // What libpq does for sslmode prefer and require: encrypt, ask for no proof.
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TakeAnyCertificate(provider)))
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

/// Checks signatures, not names: see [`tls`].
#[derive(Debug)]
struct TakeAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for TakeAnyCertificate {
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
