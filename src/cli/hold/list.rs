//! `outboxd hold list`.

use clap::Args;
use serde_json::json;

use crate::cli::Failure;
use crate::cli::operation::{failure, open};
use crate::cli::table::table;
use crate::config::{Check, DatabaseArgs, HoldFilterArgs};
use crate::outbox::HeldUnit;
use crate::words::{self, age};

#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    filter: HoldFilterArgs,

    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..))]
    limit: i64,

    /// Print one JSON object, for programs
    #[arg(long)]
    json: bool,
}

pub async fn list(args: &ListArgs) -> Result<(), Failure> {
    let (database, mut filter) = Check::run(|check| {
        let filter = args.filter.filter(check);
        Some((args.database.database(check)?, filter))
    })?;
    filter.limit = Some(args.limit);
    let outbox = open(&database, &args.database.schema).await?;
    let held = outbox.hold_list(&filter).await.map_err(failure)?;
    if args.json {
        println!("{}", json!({ "held": held }));
    } else {
        print!("{}", as_text(&held));
    }
    Ok(())
}

fn as_text(held: &[HeldUnit]) -> String {
    if held.is_empty() {
        return "Nothing is held back.\n".to_owned();
    }
    let rows: Vec<Vec<String>> = held.iter().map(cells).collect();
    table(
        &[
            "TOPIC", "WHAT", "HEAD", "HOLDS", "TRIED", "HELD FOR", "NEXT TRY", "ERROR",
        ],
        &rows,
    )
}

fn cells(held: &HeldUnit) -> Vec<String> {
    let next_try = held.retry_in_seconds.map_or("waits for you".to_owned(), age);
    vec![
        held.topic.clone(),
        words::held(&held.unit),
        held.head_id.map_or("-".to_owned(), |id| id.to_string()),
        held.holds.to_string(),
        held.failures.to_string(),
        age(held.age_seconds),
        next_try,
        held.error.clone(),
    ]
}
