//! Parameters of statements. Each knows its PostgreSQL type, so that an unprepared statement can be sent without asking the
//! server for the types first.

use std::time::SystemTime;

use serde_json::Value;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::domain::id_ranges::IdRanges;
use crate::domain::in_flight::InFlightEntry;

pub trait Param: ToSql + Sync {
    fn sql_type(&self) -> Type;
}

pub type Params<'a> = &'a [&'a dyn Param];

/// The parameters, each with its PostgreSQL type.
pub fn typed<'a>(params: Params<'a>) -> impl Iterator<Item = (&'a (dyn ToSql + Sync), Type)> {
    params
        .iter()
        .map(|param| (*param as &(dyn ToSql + Sync), param.sql_type()))
}

macro_rules! params {
    ($($rust:ty => $sql:ident),* $(,)?) => {
        $(impl Param for $rust {
            fn sql_type(&self) -> Type {
                Type::$sql
            }
        })*
    };
}

params!(
    bool => BOOL,
    i16 => INT2,
    i32 => INT4,
    i64 => INT8,
    f64 => FLOAT8,
    &str => TEXT,
    String => TEXT,
    Uuid => UUID,
    SystemTime => TIMESTAMPTZ,
    Option<SystemTime> => TIMESTAMPTZ,
    Option<f64> => FLOAT8,
    Option<i32> => INT4,
    Option<i64> => INT8,
    Option<&str> => TEXT,
    Option<String> => TEXT,
    Vec<bool> => BOOL_ARRAY,
    Vec<i16> => INT2_ARRAY,
    Vec<i32> => INT4_ARRAY,
    Vec<i64> => INT8_ARRAY,
    Vec<f64> => FLOAT8_ARRAY,
    Vec<Option<f64>> => FLOAT8_ARRAY,
    Vec<Uuid> => UUID_ARRAY,
    Vec<Option<Uuid>> => UUID_ARRAY,
    Vec<&str> => TEXT_ARRAY,
    Vec<String> => TEXT_ARRAY,
    &[i16] => INT2_ARRAY,
    &[i64] => INT8_ARRAY,
    &[u8] => BYTEA,
    &[&str] => TEXT_ARRAY,
);

pub(super) fn entry_ids(entries: &[InFlightEntry]) -> Vec<i64> {
    entries.iter().map(|entry| entry.id).collect()
}

/// Lanes and their epochs, as the arrays that the statements take.
pub(super) fn lane_columns(lanes: &[(i16, i64)]) -> (Vec<i16>, Vec<i64>) {
    lanes.iter().copied().unzip()
}

/// Rows as one parameter, which `json_to_recordset` reads. For rare statements on small tables only: the planner expects 100
/// rows of it, for which it may read a whole index.
pub(super) fn json_rows(rows: impl Iterator<Item = Value>) -> String {
    Value::from_iter(rows).to_string()
}

/// The ids as PostgreSQL writes a multirange. `None` if they restrict nothing.
pub(super) fn multirange(ids: &IdRanges) -> Option<String> {
    let ranges: Vec<String> = ids.iter().map(|(first, last)| format!("[{first},{last}]")).collect();
    (!ranges.is_empty()).then(|| format!("{{{}}}", ranges.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_passed_as_one_multirange() {
        assert_eq!(multirange(&IdRanges::default()), None);
        let ids = IdRanges::of_ids([1, 5, 6, 7]);
        assert_eq!(multirange(&ids).as_deref(), Some("{[1,1],[5,7]}"));
    }
}
