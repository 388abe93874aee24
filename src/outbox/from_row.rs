//! Reads the rows of answers.

use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use tokio_postgres::types::FromSqlOwned;
use uuid::Uuid;

use super::{Error, Result};

/// What can be read from one row of an answer: a column, a tuple of all columns in their order, or a struct.
pub trait FromRow: Sized {
    fn from_row(row: &Row) -> Result<Self>;
}

/// Reads a struct from columns that are named like its fields. Fields after a semicolon are structs of other columns of the same
/// row, and those that are not named come from the struct after `..`.
macro_rules! from_row {
    ($type:ident: $($column:ident),* $(; $part:ident)? $(.. $rest:expr)?) => {
        impl FromRow for $type {
            fn from_row(row: &tokio_postgres::Row) -> Result<Self> {
                Ok($type {
                    $($column: row.try_get(stringify!($column))?,)*
                    $($part: FromRow::from_row(row)?,)?
                    $(..$rest)?
                })
            }
        }
    };
}
pub(super) use from_row;

/// Reads a column that has JSON as its text.
pub(super) fn json<T: DeserializeOwned>(row: &Row, column: &str) -> Result<T> {
    let text: &str = row.try_get(column)?;
    serde_json::from_str(text).map_err(|_| Error::Unexpected("a statement returned JSON of another form"))
}

macro_rules! columns {
    ($($type:ty),*) => {
        $(impl FromRow for $type {
            fn from_row(row: &Row) -> Result<Self> {
                Ok(row.try_get(0)?)
            }
        })*
    };
}

columns!(i16, i32, i64, Option<i64>, Uuid, String, Option<String>, Vec<String>);

/// A `count(*)`.
impl FromRow for u64 {
    fn from_row(row: &Row) -> Result<Self> {
        Ok(row.try_get::<_, i64>(0)?.unsigned_abs())
    }
}

macro_rules! tuple {
    ($($type:ident $at:literal),*) => {
        impl<$($type: FromSqlOwned),*> FromRow for ($($type),*) {
            fn from_row(row: &Row) -> Result<Self> {
                Ok(($(row.try_get($at)?),*))
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
