//! `outboxd hold release`.

use clap::Args;

use crate::cli::Failure;
use crate::cli::operation::{Operation, OperationArgs, failure, open};
use crate::config::{Check, DatabaseArgs, HoldFilterArgs};
use crate::outbox::HeldUnit;
use crate::outbox::operator::hold::{by_topic, chunks};
use crate::words::operation::{Matched, RELEASE};

#[derive(Args, Debug)]
pub struct ReleaseArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    filter: HoldFilterArgs,

    #[command(flatten)]
    operation: OperationArgs,
}

pub async fn release(args: &ReleaseArgs) -> Result<(), Failure> {
    let (database, filter, purpose) = Check::run(|check| {
        let filter = args.filter.filter(check);
        let purpose = args.operation.purpose(check, &filter);
        Some((args.database.database(check)?, filter, purpose))
    })?;
    let outbox = open(&database, &args.database.schema).await?;
    let held = outbox.hold_list(&filter).await.map_err(failure)?;
    let matched = Matched {
        topics: by_topic(&held),
    };
    let operation = Operation::new(&RELEASE, &args.operation, matched);
    let change =
        async |held: &[HeldUnit], operation: Option<i64>| outbox.holds_release(held, &purpose, operation).await;
    operation.run(chunks(&held), change).await
}
