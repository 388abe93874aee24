//! What can go wrong with the database, sorted by what to do about it.

use std::time::Duration;

use tokio_postgres::error::SqlState;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}", describe(.0))]
    Postgres(#[from] tokio_postgres::Error),
    #[error("no database connection: {}", describe_pool(.0))]
    Pool(#[from] deadpool_postgres::PoolError),
    #[error("the database did not answer within {0:?}")]
    Silent(Duration),
    #[error("migration failed: {}", with_causes(.0))]
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
    /// It should pass: wait and try again.
    Passing,
    /// A setting is wrong, such as a file that cannot be read.
    Setting,
    /// Wrong user or password, or not allowed to connect.
    Login,
    /// A privilege is missing.
    Permission,
    /// The schema is missing, or of a version this binary does not know.
    Schema,
}

impl Error {
    /// Did it wait for a lock as long as it may?
    pub fn is_locked(&self) -> bool {
        matches!(self, Error::Postgres(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
    }

    pub fn kind(&self) -> Kind {
        match self {
            Error::Setting(_) => Kind::Setting,
            Error::Schema(_) => Kind::Schema,
            Error::Permission(_) => Kind::Permission,
            Error::Postgres(error) => kind_of(error),
            Error::Pool(deadpool_postgres::PoolError::Backend(error)) => kind_of(error),
            Error::Migration(error) => kind_of_migration(error),
            Error::Pool(_) | Error::Silent(_) | Error::Busy(_) | Error::Unexpected(_) => Kind::Passing,
        }
    }
}

fn kind_of(error: &tokio_postgres::Error) -> Kind {
    match error.code() {
        Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => Kind::Login,
        // The database itself does not exist: no waiting will make it.
        Some(&SqlState::INVALID_CATALOG_NAME) => Kind::Login,
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Kind::Permission,
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN | &SqlState::INVALID_SCHEMA_NAME) => Kind::Schema,
        _ => Kind::Passing,
    }
}

/// A migration that the server refuses for what it says is refused next time too.
fn kind_of_migration(error: &refinery::Error) -> Kind {
    let refinery::error::Kind::Connection(_, source) = error.kind() else {
        return Kind::Schema;
    };
    let Some(error) = source.downcast_ref::<tokio_postgres::Error>() else {
        return Kind::Passing;
    };
    let wrong_statement = error.code().is_some_and(|code| code.code().starts_with("42"));
    match kind_of(error) {
        Kind::Passing if wrong_statement => Kind::Schema,
        kind => kind,
    }
}

/// The whole chain: the client's own message ("db error") says nothing without its cause.
fn describe(error: &tokio_postgres::Error) -> String {
    if let Some(db) = error.as_db_error() {
        let hint = db.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
        return format!("PostgreSQL says {}: {}{hint}", db.code().code(), db.message());
    }
    with_causes(error)
}

fn describe_pool(error: &deadpool_postgres::PoolError) -> String {
    match error {
        deadpool_postgres::PoolError::Backend(error) => describe(error),
        other => with_causes(other),
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
