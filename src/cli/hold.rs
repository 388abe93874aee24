//! `outboxd hold`: keys, partitions and topics that are held back.

mod list;
mod release;

use clap::{Args, Subcommand};

use super::Failure;

#[derive(Args, Debug)]
pub struct HoldArgs {
    #[command(subcommand)]
    command: HoldCommand,
}

#[derive(Subcommand, Debug)]
enum HoldCommand {
    /// List what is held back and why, the oldest first
    List(list::ListArgs),
    /// Have what is held back tried now
    ///
    /// A key that waits behind a dead letter continues without it. What is still being retried is tried at once. A topic that is
    /// parked as a whole has a hold in each lane, and all of them are counted.
    Release(release::ReleaseArgs),
}

pub async fn hold(args: &HoldArgs) -> Result<(), Failure> {
    match &args.command {
        HoldCommand::List(args) => list::list(args).await,
        HoldCommand::Release(args) => release::release(args).await,
    }
}
