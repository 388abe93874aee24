//! `outboxd dead discard`.

use clap::Args;

use super::matched;
use crate::cli::Failure;
use crate::cli::operation::{Operation, OperationArgs, failure, open};
use crate::config::{Check, DatabaseArgs, DeadFilterArgs};
use crate::outbox::operator::CHUNK_ROWS;
use crate::words::operation::DISCARD;

#[derive(Args, Debug)]
pub struct DiscardArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    filter: DeadFilterArgs,

    #[command(flatten)]
    operation: OperationArgs,
}

pub async fn discard(args: &DiscardArgs) -> Result<(), Failure> {
    let (database, filter, purpose) = Check::run(|check| {
        let filter = args.filter.filter(check);
        let purpose = args.operation.purpose(check, &filter);
        Some((args.database.database(check)?, filter, purpose))
    })?;
    let outbox = open(&database, &args.database.schema).await?;
    let dead = outbox.dead_ids(&filter).await.map_err(failure)?;
    let operation = Operation::new(&DISCARD, &args.operation, matched(&dead));
    let change = async |ids: &[i64], operation: Option<i64>| outbox.dead_discard(ids, &purpose, operation).await;
    operation.run(dead.ids.chunks(CHUNK_ROWS), change).await
}
