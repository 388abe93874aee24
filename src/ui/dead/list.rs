//! The list of dead letters, without their payloads.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};

use crate::outbox::operator::dead::DeadLetter;
use crate::ui::fields::{DEAD_FILTER, Fields, link};
use crate::ui::gate::{Refusal, Visit};
use crate::ui::html::{Tab, foreign, key, number, span};

/// How many are on a page of the list.
const PAGE_ROWS: i64 = 50;
/// No more are counted, nor reached page by page.
const MATCHED_MAX: i64 = 10_000;

pub async fn show(visit: Visit) -> Result<Response, Refusal> {
    let mut filter = visit
        .fields
        .dead_filter()
        .map_err(|problems| refuse_filter(&visit, &problems.0))?;
    filter.limit = Some(PAGE_ROWS);
    let page = visit
        .fields
        .get("page")
        .and_then(|page| page.parse().ok())
        .unwrap_or(0i64)
        .clamp(0, MATCHED_MAX / PAGE_ROWS);
    let listed = visit.reader().dead_list(&filter, page * PAGE_ROWS, Some(MATCHED_MAX));
    let dead = visit.ask(listed).await?;
    let matched = dead.first().map_or(0, |dead| dead.matched);
    let content = html! {
        h1 { "Dead letters" }
        p { "Kafka has refused these messages for good. Once the cause is fixed, they can be sent again." }
        (filter_form(&visit.fields))
        @if dead.is_empty() { p.none { "No dead letter matches." } } @else {
            (table(&dead, visit.can_change()))
            (pages(&visit.fields, page, dead.len() as i64, matched))
            @if visit.can_change() { (all_that_match(&visit.fields, matched)) }
        }
    };
    Ok(visit.show(Some(Tab::Dead), "Dead letters", content))
}

/// Says what is wrong with the filter. The flags that it is made of are named as the fields are.
pub fn refuse_filter(visit: &Visit, problems: &[String]) -> Refusal {
    let problems: Vec<&str> = problems
        .iter()
        .map(|problem| problem.trim_start_matches("--"))
        .collect();
    visit.refuse(
        StatusCode::BAD_REQUEST,
        "The filter cannot be read",
        &problems.join("; "),
    )
}

/// The inputs by which dead letters and holds are filtered.
pub fn filter_inputs(fields: &Fields) -> Markup {
    let value = |name| fields.get(name).unwrap_or_default();
    html! {
        label { "Topic" input name="topic" value=(value("topic")); }
        label { "Key" input name="key" value=(value("key")); }
        label { "Error contains" input name="error" value=(value("error")); }
        label { "Older than" input name="older-than" value=(value("older-than")) placeholder="10m, 2h, 7days" size="8"; }
    }
}

fn filter_form(fields: &Fields) -> Markup {
    let value = |name| fields.get(name).unwrap_or_default();
    html! {
        form.filter method="get" action="/dead" {
            (filter_inputs(fields))
            label { "Newer than" input name="newer-than" value=(value("newer-than")) placeholder="10m, 2h, 7days" size="8"; }
            label { "Ids" input name="id" value=(value("id")) placeholder="17,20-29" size="10"; }
            button type="submit" { "Filter" }
            @if !fields.only(&DEAD_FILTER).is_empty() { a href="/dead" { "All" } }
        }
    }
}

fn table(dead: &[DeadLetter], can_change: bool) -> Markup {
    html! {
        form method="get" action="/dead/redrive" {
            input type="hidden" name="selected" value="yes";
            table {
                thead { tr {
                    @if can_change { th scope="col" { span.hidden { "Selected" } } }
                    th scope="col" { "Id" } th scope="col" { "Topic" } th scope="col" { "Key" } th scope="col" { "Error" }
                    th.number scope="col" { "Attempts" } th.number scope="col" { "Dead for" }
                } }
                tbody { @for dead in dead { (row(dead, can_change)) } }
            }
            @if can_change {
                div.buttons {
                    button type="submit" { "Send the selected again…" }
                    button type="submit" formaction="/dead/discard" { "Remove the selected…" }
                }
            }
        }
    }
}

fn row(dead: &DeadLetter, can_change: bool) -> Markup {
    html! {
        tr {
            @if can_change {
                td.check { input type="checkbox" name="id" value=(dead.id) aria-label={ "Select " (dead.id) }; }
            }
            th scope="row" { a href={ "/dead/" (dead.id) } { (dead.id) } }
            td data-label="Topic" { (foreign(&dead.topic)) }
            td data-label="Key" { (key(dead.key.as_deref())) }
            td data-label="Error" {
                (foreign(dead.error.as_deref().unwrap_or("no reason recorded")))
                @if let Some(operation) = dead.requeued_by { span.none { " (sent again by operation " (operation) ", in vain)" } }
            }
            td.number data-label="Attempts" { (dead.attempts) }
            td.number data-label="Dead for" { (span(dead.age_seconds)) }
        }
    }
}

fn pages(fields: &Fields, page: i64, shown: i64, matched: i64) -> Markup {
    let to = |page: i64| {
        let page = page.to_string();
        let fields = fields.only(&DEAD_FILTER).into_iter().chain([("page", page.as_str())]);
        link("/dead", fields)
    };
    let first = page * PAGE_ROWS;
    html! {
        nav.pages aria-label="Pages of the list" {
            span { (number(first + 1)) "–" (number(first + shown)) " of " (how_many(matched)) }
            @if page > 0 { a rel="prev" href=(to(page - 1)) { "Newer" } }
            @if first + shown < matched { a rel="next" href=(to(page + 1)) { "Older" } }
        }
    }
}

fn how_many(matched: i64) -> String {
    let or_more = if matched >= MATCHED_MAX { " or more" } else { "" };
    number(matched) + or_more
}

fn all_that_match(fields: &Fields, matched: i64) -> Markup {
    let fields = fields.only(&DEAD_FILTER);
    html! {
        p {
            "All that match, " (how_many(matched)) ": "
            a href=(link("/dead/redrive", fields.iter().copied())) { "send them again…" } " · "
            a href=(link("/dead/discard", fields.iter().copied())) { "remove them…" }
        }
    }
}
