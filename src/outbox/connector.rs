//! Opens connections. Certificates are read for each of them, and the password again when the server refuses it, so neither needs
//! a restart.

use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use deadpool_postgres::Connect;
use futures_util::future::BoxFuture;
use secrecy::ExposeSecret;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;
use tracing::{debug, info, warn};

use super::database::{Database, Server};
use super::error::{describe, is_refusal};
use super::{Error, Result, connect};
use crate::credentials::password::has_expired;
use crate::credentials::pgpass;
use crate::tls;

/// After a refused login the next one waits this long, in all tasks: servers lock out a login that fails often.
const REFUSAL_PAUSE: Duration = Duration::from_secs(1);

/// A client, and the task that serves its connection.
type Connected = (Client, JoinHandle<()>);

/// Opens connections with the login that is valid now. Clones share it.
#[derive(Clone)]
pub(super) struct Connector {
    source: Arc<Source>,
    login: Arc<Mutex<Arc<Login>>>,
    refusal: Arc<StdMutex<Option<Refusal>>>,
}

/// Where logins are read from.
struct Source {
    database: Database,
    /// Longest run of a statement. Without it a session has the settings of the server.
    timeout: Option<Duration>,
}

/// What a connection is opened with.
struct Login {
    config: Config,
    tls: tls::Settings,
    expires: Option<SystemTime>,
}

/// The last login was refused.
struct Refusal {
    reason: String,
    retry_at: Instant,
}

impl Connector {
    /// Reads the first login.
    pub async fn new(database: &Database, timeout: Option<Duration>) -> Result<Self> {
        let source = Source {
            database: database.clone(),
            timeout,
        };
        let login = source.read().await.map_err(Error::Credentials)?;
        if let Some(identity) = &login.tls.identity {
            identity.warn_of_open_key();
        }
        Ok(Connector {
            source: Arc::new(source),
            login: Arc::new(Mutex::new(Arc::new(login))),
            refusal: Arc::default(),
        })
    }

    pub fn database(&self) -> &Database {
        &self.source.database
    }

    /// Opens a connection. After a refusal the login is read again, and a different one is tried at once.
    pub async fn connect(&self) -> std::result::Result<Connected, tokio_postgres::Error> {
        let login = self.current().await;
        let mut connected = login.connect().await;
        if connected.as_ref().is_err_and(is_refusal)
            && let Some(renewed) = self.renewed(&login).await
        {
            connected = renewed.connect().await;
            if connected.is_ok() {
                info!("the database refused the login, and accepted the one that was read again");
            }
        }
        let refused = connected.as_ref().err().filter(|error| is_refusal(error));
        *self.refusal() = refused.map(|error| Refusal {
            reason: describe(error),
            retry_at: Instant::now() + REFUSAL_PAUSE,
        });
        connected
    }

    /// Fails while a refused login may not be tried again. Of those who ask after that, one may try.
    pub fn may_connect(&self) -> Result<()> {
        let now = Instant::now();
        match &mut *self.refusal() {
            Some(refusal) if now < refusal.retry_at => Err(Error::Refused(refusal.reason.clone())),
            Some(refusal) => {
                refusal.retry_at = now + REFUSAL_PAUSE;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn refusal(&self) -> MutexGuard<'_, Option<Refusal>> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn current(&self) -> Arc<Login> {
        let login = self.login.clone().lock_owned().await;
        if has_expired(login.expires) {
            return self.read_again(login).await;
        }
        login.clone()
    }

    /// Another login than the refused one, if there is one by now.
    async fn renewed(&self, refused: &Arc<Login>) -> Option<Arc<Login>> {
        let login = self.login.clone().lock_owned().await;
        let renewed = if Arc::ptr_eq(&login, refused) {
            self.read_again(login).await
        } else {
            login.clone()
        };
        (renewed.config != refused.config).then_some(renewed)
    }

    /// Reads the login in a task of its own, for all who wait. So a connection that is given up does not end a password command
    /// halfway, and the next one finds its answer.
    async fn read_again(&self, mut login: OwnedMutexGuard<Arc<Login>>) -> Arc<Login> {
        let source = self.source.clone();
        let reading = tokio::spawn(async move {
            match source.read().await {
                Ok(read) => *login = Arc::new(read),
                Err(reason) => warn!(%reason, "the login to the database cannot be read again; the last one is used"),
            }
        });
        if let Err(error) = reading.await {
            warn!(%error, "the login to the database was not read again");
        }
        self.login.lock().await.clone()
    }
}

impl Connect for Connector {
    /// The pool's own configuration is that of the start, and may have been replaced since.
    fn connect(&self, _: &Config) -> BoxFuture<'_, std::result::Result<Connected, tokio_postgres::Error>> {
        Box::pin(self.connect())
    }
}

impl Source {
    async fn read(&self) -> std::result::Result<Login, String> {
        let Server { mut config, tls } = self.database.server()?;
        let mut expires = None;
        if config.get_password().is_none() {
            let password = self.database.password.read(&logins(&config)).await?;
            // Without a password the client library fails by itself when the server asks for one. With an empty one the server
            // refuses it like any wrong password.
            config.password(password.as_ref().map_or("", |password| password.text.expose_secret()));
            expires = password.and_then(|password| password.expires);
        }
        if let Some(timeout) = self.timeout {
            connect::add_session_settings(&mut config, self.database.pooler, timeout);
        }
        connect::add_connection_settings(&mut config, self.database.application);
        Ok(Login { config, tls, expires })
    }
}

/// Who logs in where: one for each host, and a second one for a Unix socket, which a password file may call localhost.
fn logins(config: &Config) -> Vec<pgpass::Login> {
    let user = config.get_user().unwrap_or_default();
    let ports = config.get_ports();
    let mut logins = Vec::new();
    for (at, host) in config.get_hosts().iter().enumerate() {
        let names = match host {
            Host::Tcp(name) => vec![name.clone()],
            Host::Unix(path) => vec![path.display().to_string(), "localhost".to_owned()],
        };
        logins.extend(names.into_iter().map(|host| pgpass::Login {
            host,
            port: ports.get(at).or(ports.first()).copied().unwrap_or(5432),
            database: config.get_dbname().unwrap_or(user).to_owned(),
            user: user.to_owned(),
        }));
    }
    logins
}

impl Login {
    async fn connect(&self) -> std::result::Result<Connected, tokio_postgres::Error> {
        let (client, connection) = self.config.connect(ReadCertificates(self.tls.clone())).await?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "connection closed");
            }
        });
        Ok((client, task))
    }
}

/// The TLS files cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct BadTlsFiles(String);

/// Reads the TLS files for each connection.
struct ReadCertificates(tls::Settings);

impl MakeTlsConnect<Socket> for ReadCertificates {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type TlsConnect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
    type Error = BadTlsFiles;

    fn make_tls_connect(&mut self, host: &str) -> std::result::Result<Self::TlsConnect, BadTlsFiles> {
        let mut connect = MakeRustlsConnect::new(self.0.client_config().map_err(BadTlsFiles)?);
        let Ok(connect) = MakeTlsConnect::<Socket>::make_tls_connect(&mut connect, host);
        Ok(connect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn connector(url: &str) -> Connector {
        Connector::new(&Database::at(url), None).await.expect("valid")
    }

    #[tokio::test]
    async fn of_many_who_ask_after_a_refusal_one_may_try() {
        let connector = connector("postgres://u@h/db").await;
        assert!(connector.may_connect().is_ok() && connector.may_connect().is_ok());
        *connector.refusal() = Some(Refusal {
            reason: "wrong".to_owned(),
            retry_at: Instant::now(),
        });
        assert!(connector.may_connect().is_ok());
        let refused = connector.may_connect().expect_err("a moment later");
        assert!(refused.to_string().contains("wrong"), "{refused}");
    }

    #[tokio::test]
    async fn a_login_is_read_again_once_and_only_another_one_is_tried() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("password");
        std::fs::write(&file, "old").expect("writable");
        let mut database = Database::at("postgres://u@h/db");
        database.password = crate::credentials::password::Source::File(file.clone());
        let connector = Connector::new(&database, None).await.expect("valid");
        let refused = connector.current().await;
        assert!(connector.renewed(&refused).await.is_none(), "the same password");
        std::fs::write(&file, "new").expect("writable");
        assert!(
            connector.renewed(&refused).await.is_none(),
            "read again once for a refused login"
        );
        let refused = connector.current().await;
        let renewed = connector.renewed(&refused).await.expect("another password");
        assert_eq!(renewed.config.get_password(), Some(&b"new"[..]));
        std::fs::remove_file(&file).expect("there");
        assert!(connector.renewed(&renewed).await.is_none(), "the last one is used");
        assert_eq!(connector.current().await.config.get_password(), Some(&b"new"[..]));
    }

    #[test]
    fn a_password_file_is_asked_for_each_host() {
        let config: Config = "postgres://u@a:1,b:2/".parse().expect("valid");
        let logins: Vec<_> = logins(&config)
            .into_iter()
            .map(|login| (login.host, login.port, login.database))
            .collect();
        let expected = [("a", 1), ("b", 2)].map(|(host, port)| (host.to_owned(), port, "u".to_owned()));
        assert_eq!(logins, expected);
    }
}
