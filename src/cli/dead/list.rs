//! `outboxd dead list`.

use clap::Args;
use serde_json::json;

use crate::cli::Failure;
use crate::cli::operation::{failure, open};
use crate::cli::table::table;
use crate::config::{Check, DatabaseArgs, DeadFilterArgs};
use crate::outbox::operator::dead::DeadLetter;
use crate::words::{age, grouped};

#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    filter: DeadFilterArgs,

    /// Print one JSON object, for programs
    #[arg(long)]
    json: bool,
}

const LIMIT: i64 = 50;

pub async fn list(args: &ListArgs) -> Result<(), Failure> {
    let (database, mut filter) = Check::run(|check| {
        let filter = args.filter.filter(check);
        Some((args.database.database(check)?, filter))
    })?;
    filter.limit = filter.limit.or(Some(LIMIT));
    let outbox = open(&database, &args.database.schema).await?;
    let dead = outbox.dead_list(&filter, 0, None).await.map_err(failure)?;
    let matched = dead.first().map_or(0, |dead| dead.matched);
    if args.json {
        println!("{}", json!({ "matched": matched, "dead": dead }));
    } else {
        print!("{}", as_text(&dead, matched));
    }
    Ok(())
}

fn as_text(dead: &[DeadLetter], matched: i64) -> String {
    if dead.is_empty() {
        return "No dead letter matches.\n".to_owned();
    }
    let rows: Vec<Vec<String>> = dead.iter().map(cells).collect();
    let mut text = table(&["ID", "TOPIC", "KEY", "ATTEMPTS", "DEAD FOR", "ERROR"], &rows);
    let more = matched.unsigned_abs().saturating_sub(dead.len() as u64);
    if more > 0 {
        text += &format!("and {} more; see --limit\n", grouped(more));
    }
    text
}

fn cells(dead: &DeadLetter) -> Vec<String> {
    vec![
        dead.id.to_string(),
        dead.topic.clone(),
        dead.key.clone().unwrap_or("-".to_owned()),
        dead.attempts.to_string(),
        age(dead.age_seconds),
        dead.error.clone().unwrap_or_default(),
    ]
}
