//! `outboxd dead redrive`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::matched;
use crate::cli::Failure;
use crate::cli::operation::{Operation, OperationArgs, failure, open};
use crate::config::{Check, DatabaseArgs, DeadFilterArgs};
use crate::outbox::Outbox;
use crate::outbox::operator::dead::DeadIds;
use crate::outbox::operator::{CHUNK_ROWS, Purpose};
use crate::words::operation::{CORRECT, REDRIVE};

#[derive(Args, Debug)]
pub struct RedriveArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    filter: DeadFilterArgs,

    /// Replace the payload of one message by what this file holds, and send it; the audit keeps the old one
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,

    #[command(flatten)]
    operation: OperationArgs,
}

pub async fn redrive(args: &RedriveArgs) -> Result<(), Failure> {
    let (database, filter, purpose, payload) = Check::run(|check| {
        let filter = args.filter.filter(check);
        let purpose = args.operation.purpose(check, &filter);
        let payload = args.payload_file.as_deref();
        let payload = payload.and_then(|file| check.ok(read_payload(file)));
        Some((args.database.database(check)?, filter, purpose, payload))
    })?;
    let outbox = open(&database, &args.database.schema).await?;
    let dead = outbox.dead_ids(&filter).await.map_err(failure)?;
    match payload {
        Some(payload) => correct(&outbox, args, &dead, &purpose, &payload).await,
        None => {
            let operation = Operation::new(&REDRIVE, &args.operation, matched(&dead));
            let change =
                async |ids: &[i64], operation: Option<i64>| outbox.dead_redrive(ids, &purpose, operation).await;
            operation.run(dead.ids.chunks(CHUNK_ROWS), change).await
        }
    }
}

async fn correct(
    outbox: &Outbox,
    args: &RedriveArgs,
    dead: &DeadIds,
    purpose: &Purpose,
    payload: &[u8],
) -> Result<(), Failure> {
    if dead.ids.len() > 1 {
        let many = dead.ids.len();
        return Err(Failure::Usage(format!(
            "--payload-file corrects one message, and {many} match: name it with --id"
        )));
    }
    let operation = Operation::new(&CORRECT, &args.operation, matched(dead));
    let change = async |id: i64, _: Option<i64>| outbox.dead_correct(id, payload, purpose).await;
    operation.run(dead.ids.iter().copied(), change).await
}

/// Larger than any message that Kafka takes with its default settings, and that the relay sends with its own.
const PAYLOAD_BYTES_MAX: u64 = 64 << 20;

fn read_payload(file: &Path) -> Result<Vec<u8>, String> {
    let problem = |error: std::io::Error| format!("--payload-file {} cannot be read: {error}", file.display());
    let bytes = std::fs::metadata(file).map_err(problem)?.len();
    if bytes > PAYLOAD_BYTES_MAX {
        return Err(format!("--payload-file {} is larger than 64 MiB", file.display()));
    }
    std::fs::read(file).map_err(problem)
}
