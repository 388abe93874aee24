//! `outboxd status`: what is stuck, why, and what to do next.

mod check;
mod pauses;
mod render;

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use self::check::{CheckArgs, Limit, Limits};
use self::render::render;
use super::Failure;
use crate::config::{Check, DatabaseArgs};
use crate::outbox::status::{SCAN_MAX, Status};
use crate::outbox::{self, Database, Outbox};
use crate::verify::findings::Verdict;

#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    limits: CheckArgs,

    /// Print one JSON object, for programs
    #[arg(long)]
    json: bool,
}

/// What is printed of a status whose limits are checked.
#[derive(Serialize)]
struct Checked {
    verdict: Verdict,
    limits: Vec<Limit>,
}

/// An operator should not wait longer than this for an answer.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(25);

pub async fn status(args: &StatusArgs) -> Result<(), Failure> {
    let (database, limits) = Check::run(|check| {
        let limits = args.limits.limits(check);
        Some((args.database.database(check)?, limits))
    })?;
    let schema = &args.database.schema;
    if args.limits.check {
        let status = read(&database, schema).await;
        let status = status.map_err(|error| Failure::Undecided(error.to_string()))?;
        return check_limits(&limits, &status, args.json);
    }
    let status = read(&database, schema).await?;
    if args.json {
        print_json(&status)?;
    } else {
        print!("{}", render(&status, schema));
    }
    Ok(())
}

async fn read(database: &Database, schema: &str) -> outbox::Result<Status> {
    let outbox = Outbox::open(database, schema, STATEMENT_TIMEOUT).await?;
    outbox.status(SCAN_MAX).await
}

/// Prints the limits that do not hold. Nothing is printed where all hold, because cron sends mail of everything it is told.
fn check_limits(limits: &Limits, status: &Status, json: bool) -> Result<(), Failure> {
    let limits = limits.judge(status);
    let count = |verdict| limits.iter().filter(|limit| limit.verdict == verdict).count();
    let (broken, undecided) = (count(Verdict::Broken), count(Verdict::Undecided));
    let verdict = match (broken, undecided) {
        (0, 0) => Verdict::Holds,
        (0, _) => Verdict::Undecided,
        _ => Verdict::Broken,
    };
    if json {
        print_json(&Checked { verdict, limits })?;
    } else {
        for Limit { limit, verdict, found } in &limits {
            match verdict {
                Verdict::Holds => {}
                Verdict::Broken => println!("{limit}: {found}"),
                Verdict::Undecided => println!("{limit}: it cannot be told: {found}"),
            }
        }
    }
    match verdict {
        Verdict::Holds => Ok(()),
        Verdict::Broken => Err(Failure::Found(format!("{broken} limit(s) broken"))),
        Verdict::Undecided => Err(Failure::Undecided(format!("{undecided} limit(s)"))),
    }
}

fn print_json(shown: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(shown).map_err(|error| Failure::Broken(error.to_string()))?;
    println!("{json}");
    Ok(())
}
