//! What operators did, by commands and by this page.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};

use super::fields::link;
use super::gate::{Id, Refusal, Visit};
use super::html::{Tab, foreign, number};
use crate::outbox::operator::audit::{AuditFilter, AuditedOperation, AuditedTransaction};
use crate::words::{counted, plain, time};

/// How many operations are on a page of the list.
const PAGE_ROWS: usize = 50;
/// How many transactions of an operation are shown, and how many ids of each.
const TRANSACTIONS_SHOWN: i64 = 20;
const IDS_SHOWN: usize = 100;
/// How much of a replaced payload is shown, in characters.
const PAYLOAD_SHOWN: usize = 4_096;

pub async fn list(visit: Visit) -> Result<Response, Refusal> {
    let topic = visit.fields.filled("topic");
    let filter = AuditFilter {
        topics: topic.map(str::to_owned).into_iter().collect(),
        before: visit.fields.get("before").and_then(|before| before.parse().ok()),
        limit: PAGE_ROWS as i64,
        ..AuditFilter::default()
    };
    let operations = visit.audit(&filter).await?;
    let content = html! {
        h1 { "Audit" }
        @match &operations {
            None => { (needs_operator()) }
            Some(operations) => { (operations_table(operations, topic)) }
        }
    };
    Ok(visit.show(Some(Tab::Audit), "Audit", content))
}

fn needs_operator() -> Markup {
    html! {
        p {
            "The audit is for operators: start outboxd with " code { "--ui-database-url-file" } ", the connection string of a login with \
             the role " code { "outbox_operator" } ", or use " code { "outboxd audit" } "."
        }
    }
}

fn operations_table(operations: &[AuditedOperation], topic: Option<&str>) -> Markup {
    html! {
        form.filter method="get" action="/audit" {
            label { "Topic" input name="topic" value=(topic.unwrap_or_default()); }
            button type="submit" { "Filter" }
            @if topic.is_some() { a href="/audit" { "All" } }
        }
        @if operations.is_empty() { p.none { "No operation matches." } } @else {
            table {
                thead { tr {
                    th scope="col" { "Operation" } th scope="col" { "When" } th scope="col" { "Login" } th scope="col" { "Command" }
                    th.number scope="col" { "Changed" } th scope="col" { "Topics" } th scope="col" { "Reason" }
                } }
                tbody { @for operation in operations { (operation_row(operation)) } }
            }
            @if let Some(oldest) = operations.get(PAGE_ROWS - 1) {
                @let before = oldest.operation.to_string();
                @let fields = topic.map(|topic| ("topic", topic)).into_iter().chain([("before", before.as_str())]);
                p { a rel="next" href=(link("/audit", fields)) { "Older" } }
            }
        }
    }
}

fn operation_row(operation: &AuditedOperation) -> Markup {
    html! {
        tr {
            th scope="row" { a href={ "/audit/" (operation.operation) } { (operation.operation) } }
            td data-label="When" { (time(operation.began_at)) }
            td data-label="Login" { (foreign(&operation.login)) }
            td data-label="Command" { (foreign(&operation.command)) }
            td.number data-label="Changed" { (number(operation.changed)) }
            td data-label="Topics" { (topics(&operation.topics)) }
            td data-label="Reason" { (foreign(operation.reason.as_deref().unwrap_or_default())) }
        }
    }
}

fn topics(topics: &[String]) -> Markup {
    html! { @match topics {
        [] => { "–" }
        [topic] => { (foreign(topic)) }
        [topic, others @ ..] => { (foreign(topic)) " and " (others.len()) " more" }
    } }
}

pub async fn show(Id(operation): Id, visit: Visit) -> Result<Response, Refusal> {
    let filter = AuditFilter {
        before: Some(operation.saturating_add(1)),
        limit: 1,
        ..AuditFilter::default()
    };
    let found = visit.audit(&filter).await?;
    let Some(found) = found else {
        return Ok(visit.show(Some(Tab::Audit), "Audit", needs_operator()));
    };
    let Some(found) = found.iter().find(|found| found.operation == operation) else {
        let text = format!("There is no operation {operation}.");
        return Err(visit.refuse(StatusCode::NOT_FOUND, "Not in the audit", &text));
    };
    let transactions = visit.audited(operation, TRANSACTIONS_SHOWN).await?;
    let title = format!("Operation {operation}");
    let content = html! {
        h1 { (title) }
        (about(found))
        section {
            h2 { "Transactions" }
            @if found.transactions > TRANSACTIONS_SHOWN { p { "The first " (TRANSACTIONS_SHOWN) " of " (number(found.transactions)) ":" } }
            @for transaction in &transactions { (transaction_of(transaction)) }
        }
    };
    Ok(visit.show(Some(Tab::Audit), &title, content))
}

fn about(operation: &AuditedOperation) -> Markup {
    let transactions = counted(operation.transactions.unsigned_abs(), "transaction", "transactions");
    html! {
        dl.about {
            dt { "Command" } dd { (foreign(&operation.command)) }
            dt { "Changed" } dd { strong { (number(operation.changed)) } " in " (transactions) }
            dt { "When" } dd { (time(operation.began_at)) }
            dt { "Login" } dd { (foreign(&operation.login)) }
            dt { "Reason" } dd { (foreign(operation.reason.as_deref().unwrap_or_default())) }
            dt { "Filter" } dd { code { (plain(&operation.filter)) } }
            dt { "Topics" } dd { @for topic in &operation.topics { (foreign(topic)) " " } }
        }
    }
}

fn transaction_of(transaction: &AuditedTransaction) -> Markup {
    let ids = transaction.ids.iter().take(IDS_SHOWN).map(i64::to_string);
    let ids = ids.collect::<Vec<_>>().join(", ");
    let others = transaction.ids.len().saturating_sub(IDS_SHOWN);
    let before = transaction
        .payload_before
        .as_ref()
        .or(transaction.payload_bytes_before.as_ref());
    html! {
        section.transaction {
            h3 { (time(transaction.at)) ": " (number(transaction.changed.into())) " changed" }
            @if !ids.is_empty() { p { "Ids: " (ids) @if others > 0 { " and " (others) " more" } } }
            @if let Some(before) = before { details { summary { "The payload before" } (payload(before)) } }
        }
    }
}

fn payload(before: &str) -> Markup {
    let beginning: String = before.chars().take(PAYLOAD_SHOWN).collect();
    html! {
        pre.payload { (foreign(&beginning)) }
        @if beginning.len() < before.len() { p { "Only the beginning is shown. The whole is in " code { "outboxd audit --operation" } "." } }
    }
}
