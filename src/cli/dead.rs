//! `outboxd dead`: messages that Kafka refused for good.

mod discard;
mod list;
mod redrive;
mod show;

use clap::{Args, Subcommand};

use super::Failure;
use crate::outbox::operator::dead::DeadIds;
use crate::words::operation::Matched;

#[derive(Args, Debug)]
pub struct DeadArgs {
    #[command(subcommand)]
    command: DeadCommand,
}

#[derive(Subcommand, Debug)]
enum DeadCommand {
    /// List dead letters, the newest first
    List(list::ListArgs),
    /// Show one dead letter with its content
    Show(show::ShowArgs),
    /// Send dead letters again, once the cause of their refusal is fixed
    ///
    /// Rows of a key are sent in the order of their ids, after those of the key that were sent meanwhile. It changes at most 1,000
    /// rows in one transaction, may be stopped, and run again for the rest.
    Redrive(redrive::RedriveArgs),
    /// Remove dead letters for good
    Discard(discard::DiscardArgs),
}

pub async fn dead(args: &DeadArgs) -> Result<(), Failure> {
    match &args.command {
        DeadCommand::List(args) => list::list(args).await,
        DeadCommand::Show(args) => show::show(args).await,
        DeadCommand::Redrive(args) => redrive::redrive(args).await,
        DeadCommand::Discard(args) => discard::discard(args).await,
    }
}

fn matched(dead: &DeadIds) -> Matched {
    Matched {
        topics: dead.topics.clone(),
    }
}
