//! `outboxd audit`: what operators did.

use clap::Args;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Failure;
use super::operation::{failure, open};
use super::table::table;
use crate::config::{Check, DatabaseArgs};
use crate::outbox::operator::audit::{AuditFilter, AuditedOperation, AuditedTransaction};
use crate::words::{counted, grouped, plain, time};

#[derive(Args, Debug)]
pub struct AuditArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    /// Show each transaction of this operation, with the ids and the payload that it replaced
    #[arg(long, value_name = "N", conflicts_with_all = ["topics", "login", "newer_than"])]
    operation: Option<i64>,

    /// Only what concerned this topic; may be repeated
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,

    /// Only what this login did
    #[arg(long, value_name = "NAME")]
    login: Option<String>,

    /// Only what began at most this long ago, e.g. 2h, 7days
    #[arg(long, value_name = "DURATION")]
    newer_than: Option<String>,

    /// At most so many, the newest
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..))]
    limit: i64,

    /// Print one JSON object, for programs
    #[arg(long)]
    json: bool,
}

pub async fn audit(args: &AuditArgs) -> Result<(), Failure> {
    let (database, filter) = Check::run(|check| {
        let newer_than = args.newer_than.as_ref();
        let filter = AuditFilter {
            topics: args.topics.clone(),
            login: args.login.clone(),
            newer_than: newer_than.map(|age| check.duration("--newer-than", age)),
            before: None,
            limit: args.limit,
        };
        Some((args.database.database(check)?, filter))
    })?;
    let outbox = open(&database, &args.database.schema).await?;
    let output = match args.operation {
        Some(operation) => {
            let transactions = outbox.audit_transactions(operation, None).await.map_err(failure)?;
            if transactions.is_empty() {
                return Err(Failure::Usage(format!(
                    "there is no operation {operation}; see `outboxd audit`"
                )));
            }
            match args.json {
                true => transactions_as_json(operation, &transactions)?,
                false => transactions_as_text(&transactions),
            }
        }
        None => {
            let operations = outbox.audit_operations(&filter).await.map_err(failure)?;
            match args.json {
                true => operations_as_json(&operations).to_string() + "\n",
                false => operations_as_text(&operations),
            }
        }
    };
    print!("{output}");
    Ok(())
}

fn operations_as_json(operations: &[AuditedOperation]) -> Value {
    let operations = operations.iter().map(|operation| {
        json!({
            "operation": operation.operation,
            "began_at": time(operation.began_at),
            "login": operation.login,
            "command": operation.command,
            "filter": serde_json::from_str::<Value>(&operation.filter).unwrap_or_default(),
            "reason": operation.reason,
            "changed": operation.changed,
            "topics": operation.topics,
            "transactions": operation.transactions,
        })
    });
    json!({ "operations": operations.collect::<Vec<_>>() })
}

fn operations_as_text(operations: &[AuditedOperation]) -> String {
    if operations.is_empty() {
        return "No operation matches.\n".to_owned();
    }
    let rows: Vec<Vec<String>> = operations.iter().map(cells).collect();
    table(
        &[
            "OPERATION",
            "WHEN",
            "LOGIN",
            "COMMAND",
            "CHANGED",
            "TOPICS",
            "FILTER",
            "REASON",
        ],
        &rows,
    )
}

fn cells(operation: &AuditedOperation) -> Vec<String> {
    let topics = match operation.topics.as_slice() {
        [] => "-".to_owned(),
        [topic] => topic.clone(),
        [topic, others @ ..] => format!("{topic} and {}", counted(others.len() as u64, "other", "others")),
    };
    vec![
        operation.operation.to_string(),
        time(operation.began_at),
        operation.login.clone(),
        operation.command.clone(),
        grouped(operation.changed.unsigned_abs()),
        topics,
        operation.filter.clone(),
        operation.reason.clone().unwrap_or_default(),
    ]
}

/// As a struct, so that the payload keeps every digit of its numbers.
#[derive(serde::Serialize)]
struct Transaction<'a> {
    id: i64,
    at: String,
    changed: i32,
    topics: &'a [String],
    ids: &'a [i64],
    payload_before: Option<Box<RawValue>>,
    payload_bytes_before: Option<&'a str>,
}

#[derive(serde::Serialize)]
struct Transactions<'a> {
    operation: i64,
    transactions: Vec<Transaction<'a>>,
}

fn transactions_as_json(operation: i64, transactions: &[AuditedTransaction]) -> Result<String, Failure> {
    let raw = |json: &String| RawValue::from_string(json.clone()).ok();
    let transactions = transactions.iter().map(|transaction| Transaction {
        id: transaction.id,
        at: time(transaction.at),
        changed: transaction.changed,
        topics: &transaction.topics,
        ids: &transaction.ids,
        payload_before: transaction.payload_before.as_ref().and_then(raw),
        payload_bytes_before: transaction.payload_bytes_before.as_deref(),
    });
    let all = Transactions {
        operation,
        transactions: transactions.collect(),
    };
    let json = serde_json::to_string(&all).map_err(|error| Failure::Broken(error.to_string()))?;
    Ok(json + "\n")
}

fn transactions_as_text(transactions: &[AuditedTransaction]) -> String {
    let texts = transactions.iter().map(|transaction| {
        let ids: Vec<String> = transaction.ids.iter().map(i64::to_string).collect();
        let before = transaction.payload_before.as_ref();
        let before = before.or(transaction.payload_bytes_before.as_ref());
        let before = before.map_or(String::new(), |payload| {
            format!("  payload before: {}\n", plain(payload))
        });
        format!(
            "{}  {} changed of {}\n  ids: {}\n{before}",
            time(transaction.at),
            grouped(transaction.changed.unsigned_abs().into()),
            plain(&transaction.topics.join(", ")),
            ids.join(",")
        )
    });
    texts.collect()
}
