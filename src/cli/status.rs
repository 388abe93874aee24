//! `outboxd status`: what is stuck, why, and what to do next.

mod advice;
mod pauses;
mod render;

use std::time::Duration;

use clap::Args;

pub use self::render::{age, plain};
use self::render::render;
use super::Failure;
use crate::config::{Check, DatabaseArgs};
use crate::outbox::Outbox;

#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    /// Print one JSON object, for programs
    #[arg(long)]
    json: bool,
}

/// An operator should not wait longer than this for an answer.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(25);

pub async fn status(args: &StatusArgs) -> Result<(), Failure> {
    let database = Check::run(|check| args.database.database(check))?;
    let schema = &args.database.schema;
    let status = Outbox::open(&database, schema, STATEMENT_TIMEOUT)
        .await?
        .status()
        .await?;
    if args.json {
        let json = serde_json::to_string_pretty(&status).map_err(|error| Failure::Broken(error.to_string()))?;
        println!("{json}");
    } else {
        print!("{}", render(&status, schema));
    }
    Ok(())
}
