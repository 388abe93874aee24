//! What is held back, and its release.

use axum::response::Response;
use maud::{Markup, html};

use super::dead::list::{filter_inputs, refuse_filter};
use super::fields::{Fields, HOLD_FILTER, link};
use super::gate::{Change, Refusal, Visit};
use super::html::{Tab, foreign, span};
use super::operation::{Chunk, Job, Question, ROWS_MAX, ask as ask_about, by_topic, nothing};
use crate::domain::filter::Filter;
use crate::domain::partition::Partition;
use crate::outbox::HeldUnit;
use crate::outbox::operator::hold;
use crate::words::held;
use crate::words::operation::{Matched, RELEASE};

/// How many are listed, those that are held the longest.
const LISTED_MAX: usize = 200;

pub async fn show(visit: Visit) -> Result<Response, Refusal> {
    let filter = read_filter(&visit, &visit.fields)?;
    let holds = find(&visit, filter, LISTED_MAX + 1).await?;
    let listed = &holds[..holds.len().min(LISTED_MAX)];
    let fields = visit.fields.only(&HOLD_FILTER);
    let content = html! {
        h1 { "Holds" }
        p {
            "These keys, partitions and topics wait: Kafka has refused their first row, or takes nothing of them. What is tried again needs \
             nobody. A release has it tried at once, and lets a key go on that waits behind a dead letter."
        }
        (filter_form(&visit.fields))
        @if listed.is_empty() { p.none { "Nothing is held back." } } @else {
            (table(listed, visit.can_change()))
            @if holds.len() > LISTED_MAX { p { "Only the " (LISTED_MAX) " that are held the longest are listed." } }
            @if visit.can_change() { p { a href=(link("/holds/release", fields)) { "Release all that match…" } } }
        }
    };
    Ok(visit.show(Some(Tab::Holds), "Holds", content))
}

fn filter_form(fields: &Fields) -> Markup {
    html! {
        form.filter method="get" action="/holds" {
            (filter_inputs(fields))
            button type="submit" { "Filter" }
            @if !fields.only(&HOLD_FILTER).is_empty() { a href="/holds" { "All" } }
        }
    }
}

fn table(holds: &[HeldUnit], can_change: bool) -> Markup {
    html! {
        table {
            thead { tr {
                th scope="col" { "Topic" } th scope="col" { "What" } th scope="col" { "Error" } th.number scope="col" { "Tried" }
                th.number scope="col" { "Held for" } th.number scope="col" { "Next try" }
                @if can_change { th scope="col" { span.hidden { "Actions" } } }
            } }
            tbody { @for hold in holds { tr {
                th scope="row" { (foreign(&hold.topic)) }
                td data-label="What" { (foreign(&held(&hold.unit))) }
                td data-label="Error" { (foreign(&hold.error)) }
                td.number data-label="Tried" { (hold.failures) }
                td.number data-label="Held for" { (span(hold.age_seconds)) }
                td.number data-label="Next try" { (next_try(hold.retry_in_seconds)) }
                @if can_change { td.actions { a href=(release_link(hold)) { "Release…" } } }
            } } }
        }
    }
}

pub fn next_try(seconds: Option<f64>) -> Markup {
    html! { @match seconds {
        None => { span.notable { "waits for you" } }
        Some(seconds) if seconds < 1.0 => { "now" }
        Some(seconds) => { "in " (span(seconds.floor())) }
    } }
}

/// With the fields that name this hold.
fn release_link(hold: &HeldUnit) -> String {
    let partition = hold.unit.strip_prefix("p:").map(str::to_owned);
    let paused = Partition::of_unit(&hold.unit).map(|partition| partition.number.to_string());
    let unit = match partition.or(paused) {
        Some(number) => Some(("partition", number)),
        None if hold.unit.is_empty() => None,
        None => Some(("unit", hold.unit.clone())),
    };
    let unit = unit.iter().map(|(name, value)| (*name, value.as_str()));
    link(
        "/holds/release",
        [("topic", hold.topic.as_str())].into_iter().chain(unit),
    )
}

fn read_filter(visit: &Visit, fields: &Fields) -> Result<Filter, Refusal> {
    fields
        .hold_filter()
        .map_err(|problems| refuse_filter(visit, &problems.0))
}

async fn find(visit: &Visit, mut filter: Filter, limit: usize) -> Result<Vec<HeldUnit>, Refusal> {
    filter.limit = Some(limit as i64);
    visit.ask(visit.reader().hold_list(&filter)).await
}

pub async fn ask(visit: Visit) -> Result<Response, Refusal> {
    visit.require_operator()?;
    let filter = read_filter(&visit, &visit.fields)?;
    let holds = find(&visit, filter, ROWS_MAX).await?;
    if holds.is_empty() {
        return Err(nothing(&visit, &RELEASE));
    }
    let matched = Matched {
        topics: hold::by_topic(&holds),
    };
    let only = match holds.as_slice() {
        [hold] => format!("This is {}. ", held(&hold.unit)),
        _ => String::new(),
    };
    let question = Question {
        tab: Tab::Holds,
        what: format!("{} {}", RELEASE.verb, matched.describe(&RELEASE)),
        meaning: "They are tried at once. A key or partition that waits behind a dead letter goes on without it, and the dead letter stays. \
                  A topic as a whole, and a paused partition, has a hold in each lane.",
        details: html! { @if !only.is_empty() { p { (foreign(&only)) } } (by_topic(&matched)) },
        path: "/holds/release",
        fields: visit.fields.only(&HOLD_FILTER),
        is_final: false,
        back: "/holds",
    };
    Ok(ask_about(&visit, question))
}

pub async fn release(change: Change) -> Result<Response, Refusal> {
    let (visit, fields) = (&change.form.visit, &change.form.fields);
    let filter = read_filter(visit, fields)?;
    let purpose = change.purpose(&filter)?;
    let holds = find(visit, filter, ROWS_MAX).await?;
    if holds.is_empty() {
        return Err(nothing(visit, &RELEASE));
    }
    let job = Job {
        words: &RELEASE,
        matched: hold::by_topic(&holds).iter().map(|(_, holds)| holds).sum(),
        chunks: hold::chunks(&holds)
            .into_iter()
            .map(|holds| Chunk::Release(holds.to_vec()))
            .collect(),
        purpose,
    };
    Ok(job.run(&change).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_names_the_hold_and_no_other() {
        let filter_of = |unit: &str| {
            let hold = HeldUnit {
                topic: "a&b".to_owned(),
                unit: unit.to_owned(),
                holds: 1,
                failures: 1,
                error: String::new(),
                head_id: None,
                age_seconds: 1.0,
                retry_in_seconds: None,
            };
            let address = release_link(&hold);
            let (_, query) = address.split_once('?').expect("fields");
            let filter = Fields::parse(query.as_bytes()).hold_filter().expect("valid");
            assert_eq!(filter.topics, ["a&b"]);
            (filter.keys, filter.partitions)
        };
        assert_eq!(filter_of("k:p:1"), (vec!["p:1".to_owned()], vec![]));
        assert_eq!(filter_of("k:"), (vec![String::new()], vec![]));
        assert_eq!(filter_of("p:3"), (vec![], vec![3]));
        assert_eq!(filter_of("s:3/12"), (vec![], vec![3]));
        assert_eq!(filter_of(""), (vec![], vec![]), "the topic with everything of it");
    }
}
