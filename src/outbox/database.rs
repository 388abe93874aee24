//! Where the database is and how to log in to it, as the settings say.

use std::path::PathBuf;

use secrecy::{ExposeSecret, SecretString};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::sslmode::{self, TlsFiles};
use super::url_params;
use crate::credentials::file;
use crate::credentials::password::{FILE_FLAG, Source};
use crate::tls;

#[derive(Clone, Debug)]
pub struct Database {
    pub url: ConnectionString,
    pub tls: TlsFiles,
    /// Where the password is, unless the connection string has it.
    pub password: Source,
    pub pooler: Pooler,
    /// As `pg_stat_activity` names its sessions, unless the connection string says otherwise.
    pub application: &'static str,
}

/// The application that a session of the relay and of a command is.
pub const APPLICATION: &str = "outboxd";
/// The same of the page.
pub const PAGE_APPLICATION: &str = "outboxd page";

/// A libpq-style URL or key=value string.
#[derive(Clone, Debug)]
pub enum ConnectionString {
    Text(SecretString),
    /// The file that has it, which is read for each login.
    File {
        /// The flag that names it.
        flag: &'static str,
        path: PathBuf,
    },
}

/// What is between this process and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pooler {
    /// Nothing
    None,
    /// PgBouncer or its like, in transaction mode
    Transaction,
}

/// What the connection string and the flags say.
#[derive(Debug)]
pub(super) struct Server {
    /// It has a password only if the connection string has one.
    pub config: Config,
    pub tls: tls::Settings,
}

impl Database {
    /// A database of which the connection string says everything.
    pub fn at(url: &str) -> Self {
        Database {
            url: ConnectionString::Text(url.into()),
            tls: TlsFiles::default(),
            password: Source::Nowhere,
            pooler: Pooler::None,
            application: APPLICATION,
        }
    }

    /// Checks everything that can be checked without a connection. A password command is not run.
    pub fn check(&self) -> Result<(), String> {
        let server = self.server()?;
        server.tls.client_config()?;
        if let Source::File(path) = &self.password {
            file::read(FILE_FLAG, path)?;
        }
        match self.password.flag() {
            Some(flag) if server.config.get_password().is_some() => Err(format!(
                "{} has a password, and {flag} gives another; remove one",
                self.url.flag()
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn server(&self) -> Result<Server, String> {
        let text = match &self.url {
            ConnectionString::Text(text) => text.clone(),
            ConnectionString::File { flag, path } => file::read(flag, path)?,
        };
        let server = parse(text.expose_secret(), &self.tls);
        server.map_err(|problem| format!("{} cannot be used: {problem}", self.url.flag()))
    }
}

impl ConnectionString {
    fn flag(&self) -> &'static str {
        match self {
            ConnectionString::Text(_) => "--database-url",
            ConnectionString::File { flag, .. } => flag,
        }
    }
}

fn parse(url: &str, files: &TlsFiles) -> Result<Server, String> {
    let (parsable, params) = url_params::take(url)?;
    let mut config: Config = parsable.parse().map_err(|error: tokio_postgres::Error| {
        // The message may quote the string, which may contain a password.
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        cause.unwrap_or_else(|| "it is not a connection string".to_owned())
    })?;
    if config.get_hosts().is_empty() {
        return Err("it names no host".to_owned());
    }
    let (mode, tls) = sslmode::read(params, files)?;
    if let Some(mode) = mode {
        config.ssl_mode(mode);
    }
    if tls.verify != tls::Verify::Nothing && config.get_hosts().iter().any(|host| matches!(host, Host::Unix(_))) {
        return Err(
            "there is no TLS on a Unix socket, so the server cannot prove there who it is; name its host, or give no CA \
             and no verify mode"
                .to_owned(),
        );
    }
    Ok(Server { config, tls })
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::SslMode;

    use super::*;
    use crate::tls::Verify;

    fn with_ca(url: &str, ca: bool) -> Result<Server, String> {
        let mut database = Database::at(url);
        database.tls.ca = ca.then(|| "ca.pem".into());
        database.server()
    }

    #[test]
    fn a_server_that_must_prove_who_it_is_is_spoken_to_over_tls_only() {
        for (url, ca) in [
            ("postgres://u@h/db", true),
            ("postgres://u@h/db?sslmode=require", true),
            ("postgres://u@h/db?sslmode=verify-ca&sslrootcert=ca.pem", false),
            ("host=h user=u sslmode='verify-full'", false),
        ] {
            let server = with_ca(url, ca).expect(url);
            assert_ne!(server.tls.verify, Verify::Nothing, "{url}");
            assert_eq!(server.config.get_ssl_mode(), SslMode::Require, "{url}");
        }
        for (url, ca) in [
            ("postgres://u@h/db?sslmode=disable", true),
            ("host=h user=u sslmode = prefer", true),
            ("host=/run/postgresql user=u", true),
        ] {
            let problem = with_ca(url, ca).expect_err(url);
            assert!(problem.contains("TLS"), "{url}: {problem}");
        }
        let plain = with_ca("postgres://u:sslmode=verify-full@h/db", false).expect("valid");
        assert_eq!(plain.tls.verify, Verify::Nothing, "that is its password");
        assert_eq!(plain.config.get_password(), Some(&b"sslmode=verify-full"[..]));
    }

    #[test]
    fn a_mode_that_hides_behind_an_escape_is_not_weakened() {
        let server = with_ca("postgres://u@h/db?%73slmode=require", false).expect("valid");
        assert_eq!(server.config.get_ssl_mode(), SslMode::Require);
        let server = with_ca("postgres://u@h/db?%73slmode=disable", true).expect("valid");
        assert_eq!(server.config.get_ssl_mode(), SslMode::Require);
    }

    #[test]
    fn no_password_is_repeated() {
        let database = Database::at("postgres://u:s3cret@h:notaport/db");
        assert!(!format!("{database:?}").contains("s3cret"));
        let problem = database.check().expect_err("bad port");
        assert!(
            problem.starts_with("--database-url") && !problem.contains("s3cret"),
            "{problem}"
        );
    }

    #[test]
    fn a_connection_string_in_a_file_is_read_each_time() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("url");
        let mut database = Database::at("");
        database.url = ConnectionString::File {
            flag: "--database-url-file",
            path: file.clone(),
        };
        assert!(
            database
                .check()
                .expect_err("missing")
                .starts_with("--database-url-file")
        );
        for user in ["first", "second"] {
            std::fs::write(&file, format!("postgres://{user}@h/db\n")).expect("writable");
            let server = database.server().expect("valid");
            assert_eq!(server.config.get_user(), Some(user));
            assert_eq!(server.config.get_dbname(), Some("db"), "without the newline");
        }
    }

    #[test]
    fn two_passwords_are_a_problem() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("password");
        std::fs::write(&file, "s3cret").expect("writable");
        let mut database = Database::at("postgres://u@h/db");
        database.password = Source::File(file.clone());
        database.check().expect("one");
        database.url = ConnectionString::Text("postgres://u:other@h/db".into());
        let problem = database.check().expect_err("two");
        assert!(
            problem.contains("--database-url has a password, and --database-password-file"),
            "{problem}"
        );
        database.password = Source::Fixed("s3cret".into());
        database.check().expect("the connection string goes before PGPASSWORD");
    }
}
