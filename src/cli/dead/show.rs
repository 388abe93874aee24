//! `outboxd dead show`.

use std::io::{self, Write as _};

use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::cli::Failure;
use crate::cli::operation::{failure, open};
use crate::config::{Check, DatabaseArgs};
use crate::domain::row::Body;
use crate::outbox::operator::dead::DeadMessage;
use crate::words::{age, bytea, plain};

#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Its id, as `dead list` shows it
    #[arg(value_name = "ID")]
    id: i64,

    #[command(flatten)]
    database: DatabaseArgs,

    /// Print the payload and nothing else, to correct it and send it with `dead redrive --payload-file`
    #[arg(long, conflicts_with = "json")]
    payload: bool,

    /// Print one JSON object, for programs
    #[arg(long)]
    json: bool,
}

pub async fn show(args: &ShowArgs) -> Result<(), Failure> {
    let database = Check::run(|check| args.database.database(check))?;
    let outbox = open(&database, &args.database.schema).await?;
    let found = outbox.dead_message(args.id).await.map_err(failure)?;
    let dead = found.ok_or_else(|| {
        Failure::Usage(format!(
            "message {} is no dead letter; see `outboxd dead list`",
            args.id
        ))
    })?;
    let output = match (args.payload, args.json) {
        (true, _) => payload(&dead)?.to_vec(),
        (_, true) => as_json(&dead)?.into_bytes(),
        _ => as_text(&dead).into_bytes(),
    };
    let written = io::stdout().write_all(&output);
    written.map_err(|error| Failure::Unavailable(format!("cannot write to stdout: {error}")))
}

/// The bytes that would be sent.
fn payload(dead: &DeadMessage) -> Result<&[u8], Failure> {
    if dead.row.unreadable.is_some() {
        return Err(Failure::Usage(format!("message {} {TOO_LARGE}", dead.row.id)));
    }
    Ok(dead.row.body.as_bytes().unwrap_or_default())
}

const TOO_LARGE: &str = "is larger than the 6 MiB that are read, or damaged: read its columns with psql";

/// As the columns are named.
#[derive(Serialize)]
struct Metadata<'a> {
    id: i64,
    message_id: String,
    topic: &'a str,
    key: Option<&'a str>,
    partition: Option<i32>,
    event_type: Option<&'a str>,
    aggregate_type: Option<&'a str>,
    aggregate_id: Option<&'a str>,
    aggregate_version: Option<i64>,
    attempts: i16,
}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    metadata: Metadata<'a>,
    error: Option<&'a str>,
    age_seconds: f64,
    requeued_by: Option<i64>,
    headers: Option<Box<RawValue>>,
    payload: Option<Box<RawValue>>,
    /// In hexadecimal, as PostgreSQL writes bytes.
    payload_bytes: Option<String>,
    /// False if a column is too large or damaged; such a column is shown as null.
    complete: bool,
}

fn metadata(dead: &DeadMessage) -> Metadata<'_> {
    let row = &dead.row;
    Metadata {
        id: row.id,
        message_id: row.message_id.to_string(),
        topic: &row.topic,
        key: row.key.as_deref(),
        partition: row.partition,
        event_type: row.event_type.as_deref(),
        aggregate_type: row.aggregate_type.as_deref(),
        aggregate_id: row.aggregate_id.as_deref(),
        aggregate_version: row.aggregate_version,
        attempts: row.attempts,
    }
}

fn as_json(dead: &DeadMessage) -> Result<String, Failure> {
    let (json, bytes) = match &dead.row.body {
        Body::Json(json) => (raw(json), None),
        Body::Bytes(bytes) => (None, Some(bytea(bytes))),
        Body::Tombstone => (None, None),
    };
    let shown = Shown {
        metadata: metadata(dead),
        error: dead.error.as_deref(),
        age_seconds: dead.age_seconds,
        requeued_by: dead.requeued_by,
        headers: dead.row.headers.as_deref().and_then(raw),
        payload: json,
        payload_bytes: bytes,
        complete: dead.row.unreadable.is_none(),
    };
    let json = serde_json::to_string(&shown).map_err(|error| Failure::Broken(error.to_string()))?;
    Ok(json + "\n")
}

/// The document as it is stored: a number keeps all its digits.
fn raw(json: &[u8]) -> Option<Box<RawValue>> {
    RawValue::from_string(String::from_utf8_lossy(json).into_owned()).ok()
}

fn as_text(dead: &DeadMessage) -> String {
    let row = &dead.row;
    let body = match &row.body {
        _ if row.unreadable.is_some() => format!("(the message {TOO_LARGE})"),
        Body::Json(json) => String::from_utf8_lossy(json).into_owned(),
        Body::Bytes(bytes) => std::str::from_utf8(bytes).map_or_else(|_| bytea(bytes), str::to_owned),
        Body::Tombstone => "(none: a tombstone)".to_owned(),
    };
    let lines = [
        ("id", Some(row.id.to_string())),
        ("message id", Some(row.message_id.to_string())),
        ("topic", Some(row.topic.clone())),
        ("key", row.key.clone()),
        ("partition", row.partition.map(|partition| partition.to_string())),
        ("event type", row.event_type.clone()),
        ("aggregate type", row.aggregate_type.clone()),
        ("aggregate id", row.aggregate_id.clone()),
        ("version", row.aggregate_version.map(|version| version.to_string())),
        ("attempts", Some(row.attempts.to_string())),
        ("dead for", Some(age(dead.age_seconds))),
        ("error", dead.error.clone()),
        (
            "redriven by",
            dead.requeued_by
                .map(|operation| format!("operation {operation}, in vain")),
        ),
        (
            "headers",
            row.headers
                .as_ref()
                .map(|json| String::from_utf8_lossy(json).into_owned()),
        ),
        ("payload", Some(body)),
    ];
    let lines = lines.into_iter().filter_map(|(name, value)| Some((name, value?)));
    lines
        .map(|(name, value)| format!("{name:<14}  {}\n", plain(&value)))
        .collect()
}
