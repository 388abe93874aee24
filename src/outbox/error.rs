//! Database errors, sorted by what the caller can do about them.

use std::time::Duration;

use tokio_postgres::error::SqlState;

use super::connector::BadTlsFiles;
use crate::tls::certificate_problem;
use crate::words::causes;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}", describe(.0))]
    Postgres(#[from] tokio_postgres::Error),
    #[error("no database connection: {}", describe_pool(.0))]
    Pool(#[from] deadpool_postgres::PoolError),
    #[error("there is no login to the database: {0}")]
    Credentials(String),
    #[error("no database connection: {0}; the login is tried again once a second")]
    Refused(String),
    #[error("the database did not answer within {0:?}")]
    Timeout(Duration),
    #[error("migration failed: {}", causes(.0))]
    Migration(#[from] refinery::Error),
    #[error("{0}")]
    Setting(String),
    #[error("{0}")]
    Schema(String),
    #[error("{0}")]
    Busy(String),
    #[error("the database user lacks: {0}. Grant it the role outbox_relay")]
    Permission(String),
    #[error("{0}")]
    Unexpected(&'static str),
}

/// What the caller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Wait and try again.
    Transient,
    /// A setting is wrong, such as a file that cannot be read.
    Setting,
    /// A wrong user, password or certificate, on either side, or not allowed to connect.
    Login,
    /// A privilege is missing.
    Permission,
    /// The schema is missing, or of a version this binary does not know.
    Schema,
}

impl Error {
    /// Did the statement wait for a lock until its `lock_timeout`?
    pub fn is_lock_timeout(&self) -> bool {
        matches!(self, Error::Postgres(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
    }

    pub fn kind(&self) -> Kind {
        match self {
            Error::Setting(_) => Kind::Setting,
            Error::Schema(_) => Kind::Schema,
            Error::Permission(_) => Kind::Permission,
            Error::Credentials(_) | Error::Refused(_) => Kind::Login,
            Error::Postgres(error) => kind_of(error),
            Error::Pool(deadpool_postgres::PoolError::Backend(error)) => kind_of(error),
            Error::Migration(error) => kind_of_migration(error),
            Error::Pool(_) | Error::Timeout(_) | Error::Busy(_) | Error::Unexpected(_) => Kind::Transient,
        }
    }
}

/// Did the server refuse the login, rather than the connection?
pub(super) fn is_refusal(error: &tokio_postgres::Error) -> bool {
    matches!(
        error.code(),
        Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
    )
}

fn kind_of(error: &tokio_postgres::Error) -> Kind {
    let cause = std::error::Error::source(error);
    match error.code() {
        None if cause.is_some_and(<dyn std::error::Error>::is::<BadTlsFiles>) => Kind::Setting,
        // Waiting will not make a certificate valid.
        None if certificate_problem(error).is_some() => Kind::Login,
        _ if is_refusal(error) => Kind::Login,
        // The database does not exist, and waiting will not create it.
        Some(&SqlState::INVALID_CATALOG_NAME) => Kind::Login,
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Kind::Permission,
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN | &SqlState::INVALID_SCHEMA_NAME) => Kind::Schema,
        _ => Kind::Transient,
    }
}

/// A syntax error or an access rule violation (class 42) in a migration is not transient.
fn kind_of_migration(error: &refinery::Error) -> Kind {
    let refinery::error::Kind::Connection(_, source) = error.kind() else {
        return Kind::Schema;
    };
    let Some(error) = source.downcast_ref::<tokio_postgres::Error>() else {
        return Kind::Transient;
    };
    let wrong_statement = error.code().is_some_and(|code| code.code().starts_with("42"));
    match kind_of(error) {
        Kind::Transient if wrong_statement => Kind::Schema,
        kind => kind,
    }
}

/// The error with its causes, because the client's own message ("db error") says nothing without them.
pub(super) fn describe(error: &tokio_postgres::Error) -> String {
    if let Some(problem) = certificate_problem(error) {
        return problem;
    }
    if let Some(db) = error.as_db_error() {
        let hint = db.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
        return format!("PostgreSQL says {}: {}{hint}", db.code().code(), db.message());
    }
    causes(error)
}

fn describe_pool(error: &deadpool_postgres::PoolError) -> String {
    match error {
        deadpool_postgres::PoolError::Backend(error) => describe(error),
        other => causes(other),
    }
}
