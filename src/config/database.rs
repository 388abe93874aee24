//! How to reach PostgreSQL.

use std::path::PathBuf;

use clap::Args;

use super::Check;
use crate::outbox::{Database, Pooler};

/// How to reach the database. Every subcommand but `healthcheck` has these flags.
#[derive(Args, Clone, Debug)]
pub struct DatabaseArgs {
    /// PostgreSQL connection string, e.g. postgres://relay:secret@db:5432/app?sslmode=verify-full
    #[arg(long, env = "OUTBOXD_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,

    /// CA certificate (PEM) the server must be signed by; implies TLS and verification
    #[arg(long, env = "OUTBOXD_DATABASE_TLS_CA", value_name = "FILE")]
    pub database_tls_ca: Option<PathBuf>,

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
        if let Some(ca) = &self.database_tls_ca {
            check.ensure(
                ca.is_file(),
                format!("--database-tls-ca {} is not a file", ca.display()),
            );
        }
        let missing = || "--database-url (OUTBOXD_DATABASE_URL) is missing: where is PostgreSQL?".to_owned();
        let url = check.ok(self.database_url.as_ref().ok_or_else(missing))?;
        let database = Database::parse(url, self.database_tls_ca.clone(), self.database_pooler);
        check.ok(database.map_err(|error| format!("--database-url cannot be used: {error}")))
    }
}
