//! What operators do to dead letters and holds, through the functions that `outbox_operator` may call, and the audit of it.

pub mod audit;
pub mod dead;
pub mod hold;

use super::from_row::{FromRow, from_row};
use super::param::Params;
use super::{Error, Outbox, Result};

/// Most rows of one transaction.
pub const CHUNK_ROWS: usize = 1_000;

/// The limits of the audit.
pub const REASON_BYTES_MAX: usize = 1_000;
pub const FILTER_BYTES_MAX: usize = 65_536;

/// What one transaction of an operation changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// To be passed to the next transaction. `None` if nothing has been changed so far.
    pub operation: Option<i64>,
    pub changed: i32,
}

from_row!(Step: operation, changed);

/// What the audit keeps of an operation beside the rows it changed.
#[derive(Clone, Debug)]
pub struct Purpose {
    pub reason: Option<String>,
    /// The filter, as JSON.
    pub filter: String,
}

impl Outbox {
    /// Runs a statement that calls one of the functions, which return one row. A refused argument is a mistake of the caller, which no
    /// retry repairs.
    async fn step(&self, sql: &str, params: Params<'_>) -> Result<Step> {
        self.query_one(sql, params).await.map_err(refused_argument)
    }
}

/// Classes of SQLSTATE by which the server refuses a value: data exceptions, violated constraints, and the functions' own.
const REFUSED_VALUES: [&str; 3] = ["22", "23", "P4"];

fn refused_argument(error: Error) -> Error {
    let code = match &error {
        Error::Postgres(error) => error.code().map_or("", |code| code.code()),
        _ => "",
    };
    match REFUSED_VALUES.iter().any(|class| code.starts_with(class)) {
        true => Error::Setting(error.to_string()),
        false => error,
    }
}
