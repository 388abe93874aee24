//! What is paused. Pauses and resumes.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};

use super::fields::{Fields, link};
use super::gate::{Change, Refusal, Visit};
use super::html::{Tab, foreign, live, span};
use super::login::see;
use super::operation::{Question, ask};
use crate::domain::pause::{KEY_BYTES_MAX, is_topic_name};
use crate::outbox::{PauseChange, PauseScope, PauseStatus, WorkerAndPauses};
use crate::words::{counted, paused};

/// How many pauses are listed.
const LISTED_MAX: i64 = 1_000;
/// So many rows are read at most to count those that wait.
const PENDING_SCAN_MAX: i64 = 10_000;

pub async fn show(visit: Visit) -> Result<Response, Refusal> {
    let pauses = visit.ask(visit.reader().list_pauses(LISTED_MAX)).await?;
    let version = visit.fields.get("version").and_then(|version| version.parse().ok());
    let workers = match version {
        Some(version) => Some(visit.ask(visit.reader().workers_and_pauses(version)).await?),
        None => None,
    };
    let content = html! {
        h1 { "Pauses" }
        p { "What is paused waits, in order, and nothing of it is lost. Everything else is published." }
        @if let Some(workers) = &workers { (live(effect(workers))) }
        @if pauses.is_empty() { p.none { "Nothing is paused." } } @else { (table(&pauses, visit.can_change())) }
        @if visit.can_change() { (pause_form()) }
    };
    Ok(visit.show(Some(Tab::Pauses), "Pauses", content))
}

/// Whether the last change is in effect everywhere.
fn effect(workers: &[WorkerAndPauses]) -> Markup {
    let others: Vec<&str> = workers
        .iter()
        .filter(|worker| !worker.obeys)
        .map(|worker| worker.name.as_str())
        .collect();
    let all = counted(workers.len() as u64, "worker", "workers");
    html! {
        p.effect role="status" {
            @if workers.is_empty() { "It is stored. No worker is running, and one that starts obeys it." }
            @else if others.is_empty() { "It is in effect on " (all) "." }
            @else { "It is stored, and not yet in effect on " (foreign(&others.join(", "))) ", of " (all) "." }
        }
    }
}

pub fn table(pauses: &[PauseStatus], can_change: bool) -> Markup {
    html! {
        section {
            h2 { "Paused" }
            table {
                thead { tr {
                    th scope="col" { "What" } th scope="col" { "Why" } th scope="col" { "By" } th.number scope="col" { "For" }
                    @if can_change { th scope="col" { span.hidden { "Actions" } } }
                } }
                tbody { @for pause in pauses { tr {
                    th scope="row" { (foreign(&paused(pause.topic.as_deref(), pause.key.as_deref()))) }
                    td data-label="Why" { (foreign(&pause.reason)) }
                    td data-label="By" { (foreign(&pause.login)) }
                    td.number data-label="For" { (span(pause.age_seconds)) }
                    @if can_change { td.actions { a href=(resume_link(pause)) { "Resume…" } } }
                } } }
            }
        }
    }
}

fn resume_link(pause: &PauseStatus) -> String {
    let scope = PauseScope {
        topic: pause.topic.as_deref(),
        key: pause.key.as_deref(),
    };
    link("/pauses/resume", fields_of(scope))
}

fn fields_of(scope: PauseScope<'_>) -> Vec<(&str, &str)> {
    match (scope.topic, scope.key) {
        (None, _) => vec![("scope", "all")],
        (Some(topic), None) => vec![("scope", "topic"), ("topic", topic)],
        (Some(topic), Some(key)) => vec![("scope", "key"), ("topic", topic), ("key", key)],
    }
}

fn pause_form() -> Markup {
    let choice = |value: &str, text: &str, is_checked| {
        html! { label.choice { input type="radio" name="scope" value=(value) checked[is_checked]; " " (text) } }
    };
    html! {
        section {
            h2 { "Pause something" }
            form.pause method="get" action="/pauses/pause" {
                fieldset {
                    legend { "What" }
                    (choice("topic", "a topic", true)) (choice("key", "one key of a topic", false)) (choice("all", "everything", false))
                }
                label { "Topic" input name="topic"; }
                label { "Key" input name="key"; }
                button type="submit" { "Pause…" }
            }
        }
    }
}

/// What is meant, or what is wrong with it.
fn scope(fields: &Fields) -> Result<PauseScope<'_>, String> {
    let topic = fields.get("topic").unwrap_or_default();
    let key = fields.get("key").unwrap_or_default();
    let (topic, key) = match fields.get("scope") {
        Some("all") => return Ok(PauseScope { topic: None, key: None }),
        Some("topic") => (topic, None),
        Some("key") => (topic, Some(key)),
        _ => return Err("Choose a topic, a key of one, or everything.".to_owned()),
    };
    if !is_topic_name(topic) {
        return Err(format!("{topic:?} is not a name that a Kafka topic can have."));
    }
    if key.is_some_and(|key| key.len() > KEY_BYTES_MAX) {
        return Err(format!("No message can have this key: at most {KEY_BYTES_MAX} bytes."));
    }
    Ok(PauseScope {
        topic: Some(topic),
        key,
    })
}

fn read_scope<'a>(visit: &Visit, fields: &'a Fields) -> Result<PauseScope<'a>, Refusal> {
    scope(fields).map_err(|problem| visit.refuse(StatusCode::BAD_REQUEST, "What is meant?", &problem))
}

pub async fn ask_pause(visit: Visit) -> Result<Response, Refusal> {
    let meaning = "Applications write as ever, and the rows wait, in order. It takes effect on each worker within seconds, and lasts until \
                   somebody resumes it.";
    ask_for(&visit, "Pause", "/pauses/pause", meaning).await
}

pub async fn ask_resume(visit: Visit) -> Result<Response, Refusal> {
    let meaning = "What has waited is sent, in order. Other pauses of the same rows stay.";
    ask_for(&visit, "Resume", "/pauses/resume", meaning).await
}

async fn ask_for(visit: &Visit, verb: &str, path: &str, meaning: &str) -> Result<Response, Refusal> {
    visit.require_operator()?;
    let scope = read_scope(visit, &visit.fields)?;
    let pending = visit.ask(visit.reader().pending_rows(scope, PENDING_SCAN_MAX)).await?;
    let at_least = if pending.is_all { "" } else { "At least " };
    let rows = counted(pending.rows.unsigned_abs(), "row", "rows");
    let question = Question {
        tab: Tab::Pauses,
        what: format!("{verb} {}", paused(scope.topic, scope.key)),
        meaning,
        details: html! { p { (at_least) (rows) " pending." } },
        path,
        fields: fields_of(scope),
        is_final: false,
        back: "/pauses",
    };
    Ok(ask(visit, question))
}

pub async fn pause(change: Change) -> Result<Response, Refusal> {
    let scope = read_scope(&change.form.visit, &change.form.fields)?;
    let reason = change.reason()?;
    changed(&change, change.operator().pause(scope, &reason).await)
}

pub async fn resume(change: Change) -> Result<Response, Refusal> {
    let scope = read_scope(&change.form.visit, &change.form.fields)?;
    let reason = change.reason()?;
    changed(&change, change.operator().resume(scope, Some(&reason)).await)
}

/// The page of pauses shows when it is in effect.
fn changed(change: &Change, changed: crate::outbox::Result<PauseChange>) -> Result<Response, Refusal> {
    let changed = changed.map_err(|error| change.form.visit.failed(&error))?;
    Ok(see(&format!("/pauses?version={}", changed.version)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_meant_survives_a_link_and_nothing_else_is_taken() {
        for (topic, key) in [
            (None, None),
            (Some("orders"), None),
            (Some("orders"), Some("")),
            (Some("orders"), Some("a&b")),
        ] {
            let address = link("", fields_of(PauseScope { topic, key }));
            let fields = Fields::parse(address.trim_start_matches('?').as_bytes());
            let read = scope(&fields).expect("valid");
            assert_eq!((read.topic, read.key), (topic, key));
        }
        let long = format!("scope=key&topic=t&key={}", "k".repeat(KEY_BYTES_MAX + 1));
        for wrong in [
            "",
            "scope=x",
            "scope=topic",
            "scope=topic&topic=no+topic",
            "scope=key&key=7",
            &long,
        ] {
            assert!(scope(&Fields::parse(wrong.as_bytes())).is_err(), "{wrong}");
        }
    }
}
