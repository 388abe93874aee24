//! How to reach PostgreSQL, and how to log in.

use std::env;
use std::path::{Path, PathBuf};

use clap::Args;
use secrecy::{ExposeSecret, SecretString};

use super::Check;
use crate::credentials::command::CommandLine;
use crate::credentials::password::{COMMAND_FLAG, FILE_FLAG, Source};
use crate::outbox::{APPLICATION, ConnectionString, Database, PAGE_APPLICATION, Pooler, TlsFiles};

/// How to reach the database. Every subcommand but `healthcheck` has these flags.
#[derive(Args, Clone, Debug)]
pub struct DatabaseArgs {
    /// PostgreSQL connection string, e.g. postgres://relay@db:5432/app?sslmode=verify-full
    #[arg(long, env = "OUTBOXD_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<SecretString>,

    /// File with the connection string; read again when the server refuses the login
    #[arg(long, env = "OUTBOXD_DATABASE_URL_FILE", hide_env_values = true, value_name = "FILE")]
    pub database_url_file: Option<PathBuf>,

    /// File with the password; read again when the server refuses it. Without any password, PGPASSWORD and PGPASSFILE are asked
    #[arg(
        long,
        env = "OUTBOXD_DATABASE_PASSWORD_FILE",
        hide_env_values = true,
        value_name = "FILE"
    )]
    pub database_password_file: Option<PathBuf>,

    /// Command that prints the password, run without a shell; run again when the password expires or is refused
    #[arg(
        long,
        env = "OUTBOXD_DATABASE_PASSWORD_COMMAND",
        hide_env_values = true,
        value_name = "COMMAND"
    )]
    pub database_password_command: Option<SecretString>,

    /// CA certificate (PEM) the server must be signed by, as sslrootcert; implies sslmode=verify-full
    #[arg(long, env = "OUTBOXD_DATABASE_TLS_CA", hide_env_values = true, value_name = "FILE")]
    pub database_tls_ca: Option<PathBuf>,

    /// Client certificate (PEM) to log in with, as sslcert; read again for each connection, like its key and the CA
    #[arg(long, env = "OUTBOXD_DATABASE_TLS_CERT", hide_env_values = true, value_name = "FILE")]
    pub database_tls_cert: Option<PathBuf>,

    /// Private key (PEM, without a passphrase) of the client certificate, as sslkey
    #[arg(long, env = "OUTBOXD_DATABASE_TLS_KEY", hide_env_values = true, value_name = "FILE")]
    pub database_tls_key: Option<PathBuf>,

    /// The connection pooler between outboxd and PostgreSQL
    #[arg(long, env = "OUTBOXD_DATABASE_POOLER", value_enum, default_value = "none")]
    pub database_pooler: Pooler,

    /// PostgreSQL schema the outbox lives in
    #[arg(long, env = "OUTBOXD_SCHEMA", default_value = "outbox", value_name = "NAME")]
    pub schema: String,
}

impl DatabaseArgs {
    /// A migration holds a lock from statement to statement, so it needs a session of its own.
    pub fn check_migration(&self, check: &mut Check) {
        check.ensure(
            self.database_pooler == Pooler::None,
            "a migration does not pass a transaction pooler: run `outboxd migrate` with the server's own --database-url \
             and --database-pooler none",
        );
    }

    /// The database. It has the schema named by `schema`, which is checked as well.
    pub fn database(&self, check: &mut Check) -> Option<Database> {
        self.check_schema(check);
        let (url, password) = (self.url(), self.password());
        let (url, password) = (check.ok(url), check.ok(password));
        let database = Database {
            url: url?,
            tls: TlsFiles {
                ca: self.database_tls_ca.clone(),
                certificate: self.database_tls_cert.clone(),
                key: self.database_tls_key.clone(),
            },
            password: password?,
            pooler: self.database_pooler,
            application: APPLICATION,
        };
        check.ok(database.check())?;
        Some(database)
    }

    /// The same database by the login of the connection string in this file, for the page. The client certificate and the sources of
    /// passwords are those of the relay's own login, so only libpq's are asked.
    pub fn operator(&self, check: &mut Check, flag: &'static str, path: &Path) -> Option<Database> {
        let database = Database {
            url: ConnectionString::File {
                flag,
                path: path.to_owned(),
            },
            tls: TlsFiles {
                ca: self.database_tls_ca.clone(),
                ..TlsFiles::default()
            },
            password: libpq_password(),
            pooler: self.database_pooler,
            application: PAGE_APPLICATION,
        };
        check.ok(database.check())?;
        Some(database)
    }

    fn check_schema(&self, check: &mut Check) {
        let schema = &self.schema;
        let plain = (1..=63).contains(&schema.len())
            && !schema.starts_with(|c: char| c.is_ascii_digit())
            && schema
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        check.ensure(
            plain,
            format!("--schema {schema:?} is not a plain lower-case identifier"),
        );
    }

    fn url(&self) -> Result<ConnectionString, String> {
        match (&self.database_url, &self.database_url_file) {
            (Some(url), None) => Ok(ConnectionString::Text(url.clone())),
            (None, Some(file)) => Ok(ConnectionString::File {
                flag: "--database-url-file",
                path: file.clone(),
            }),
            (Some(_), Some(_)) => Err(both("--database-url", "--database-url-file")),
            (None, None) => Err(
                "--database-url (OUTBOXD_DATABASE_URL) or --database-url-file is missing: where is \
                                 PostgreSQL?"
                    .to_owned(),
            ),
        }
    }

    /// The environment is asked where no flag says anything, as libpq does.
    fn password(&self) -> Result<Source, String> {
        match (&self.database_password_command, &self.database_password_file) {
            (Some(_), Some(_)) => Err(both(COMMAND_FLAG, FILE_FLAG)),
            (Some(command), None) => CommandLine::parse(COMMAND_FLAG, command.expose_secret()).map(Source::Command),
            (None, Some(file)) => Ok(Source::File(file.clone())),
            (None, None) => Ok(libpq_password()),
        }
    }
}

fn both(one: &str, other: &str) -> String {
    format!("{one} and {other} are both given; remove one (each may also come from its environment variable)")
}

/// Where libpq looks for a password.
fn libpq_password() -> Source {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(password) = variable("PGPASSWORD").and_then(|password| password.into_string().ok()) {
        return Source::Fixed(password.into());
    }
    let file = variable("PGPASSFILE").map(PathBuf::from);
    let home = variable("HOME").map(|home| Path::new(&home).join(".pgpass"));
    // Nobody has named that one, so nobody misses it.
    let home = home.filter(|file| file.is_file());
    file.or(home).map_or(Source::Nowhere, Source::Pgpass)
}
