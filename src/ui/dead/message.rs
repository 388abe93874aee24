//! One dead letter. Its payload is shown to who asks for it.

use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use crate::outbox::operator::dead::DeadMessage;
use crate::ui::fields::link;
use crate::ui::gate::{Id, Refusal, Visit};
use crate::ui::html::{Tab, foreign, key, number, span};
use crate::ui::payload::{self, Shown};
use crate::words::size;

pub async fn show(Id(id): Id, visit: Visit) -> Result<Response, Refusal> {
    let dead = find(&visit, id).await?;
    let content = html! {
        (heading(id))
        (about(&dead))
        section { h2 { "Payload" } (offer(&dead)) }
        @if visit.can_change() { (actions(&dead)) }
    };
    Ok(visit.show(Some(Tab::Dead), &format!("Dead letter {id}"), content))
}

pub async fn show_payload(Id(id): Id, visit: Visit) -> Result<Response, Refusal> {
    let dead = find(&visit, id).await?;
    let content = html! {
        (heading(id))
        p { a href={ "/dead/" (id) } { "Back to the dead letter" } }
        section {
            h2 { "Payload" }
            @match payload::shown(&dead.row.body) {
                _ if dead.row.unreadable.is_some() => { p { (unread(id)) } }
                None => { p.none { "None: it is a tombstone." } }
                Some(shown) => { (whole_or_beginning(id, &shown)) }
            }
        }
    };
    Ok(visit.show(Some(Tab::Dead), &format!("Payload of {id}"), content))
}

/// The bytes that would be sent. The browser stores them and never shows them.
pub async fn download(Id(id): Id, visit: Visit) -> Result<Response, Refusal> {
    let dead = find(&visit, id).await?;
    if dead.row.unreadable.is_some() {
        return Err(visit.refuse(StatusCode::CONFLICT, "It was not read", &unread(id)));
    }
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (
            CONTENT_DISPOSITION,
            format!("attachment; filename=\"payload-{id}.bin\""),
        ),
    ];
    let body = dead.row.body.as_bytes().unwrap_or_default().to_vec();
    Ok((headers, body).into_response())
}

/// The dead letter, or a page that says that there is none.
pub async fn find(visit: &Visit, id: i64) -> Result<DeadMessage, Refusal> {
    let found = visit.ask(visit.reader().dead_message(id)).await?;
    found.ok_or_else(|| {
        let text = format!("Message {id} is no dead letter, or no longer: it was sent again or removed.");
        visit.refuse(StatusCode::NOT_FOUND, "Not a dead letter", &text)
    })
}

pub fn heading(id: i64) -> Markup {
    html! { h1 { "Dead letter " (id) } }
}

fn about(dead: &DeadMessage) -> Markup {
    let row = &dead.row;
    let optional =
        |name: &str, value: Option<Markup>| html! { @if let Some(value) = value { dt { (name) } dd { (value) } } };
    let text = |value: &Option<String>| value.as_deref().map(foreign);
    let headers = row.headers.as_ref().map(|json| foreign(&String::from_utf8_lossy(json)));
    html! {
        dl.about {
            dt { "Error" } dd.notable { (foreign(dead.error.as_deref().unwrap_or("no reason recorded"))) }
            dt { "Dead for" } dd { (span(dead.age_seconds)) }
            dt { "Attempts" } dd { (row.attempts) }
            (optional("Sent again", dead.requeued_by.map(|operation| html! { "by operation " (operation) ", in vain" })))
            dt { "Topic" } dd { (foreign(&row.topic)) }
            dt { "Key" } dd { (key(row.key.as_deref())) }
            (optional("Partition", row.partition.map(|partition| html! { (partition) })))
            dt { "Message id" } dd { (row.message_id.to_string()) }
            (optional("Event type", text(&row.event_type)))
            (optional("Aggregate type", text(&row.aggregate_type)))
            (optional("Aggregate id", text(&row.aggregate_id)))
            (optional("Version", row.aggregate_version.map(|version| html! { (version) })))
            (optional("Headers", headers))
        }
    }
}

fn offer(dead: &DeadMessage) -> Markup {
    let id = dead.row.id;
    if dead.row.unreadable.is_some() {
        return html! { p { (unread(id)) } };
    }
    html! {
        @if let Some(body) = dead.row.body.as_bytes() {
            p { (size(body.len() as i64)) }
            p.buttons { a.button href={ "/dead/" (id) "/payload" } { "Show it" } a.button href={ "/dead/" (id) "/download" } { "Download" } }
        } @else { p.none { "None: it is a tombstone." } }
    }
}

fn unread(id: i64) -> String {
    format!("It is larger than what this page reads, or damaged. Use a shell: outboxd dead show {id} --payload")
}

fn whole_or_beginning(id: i64, shown: &Shown) -> Markup {
    html! {
        p {
            (shown.kind) ", " (number(shown.bytes as i64)) " bytes"
            @if shown.is_cut { ", of which the beginning is shown" } ". "
            a href={ "/dead/" (id) "/download" } { "Download" }
        }
        // The text is plain already, line by line.
        pre.payload tabindex="0" aria-label="Payload" { bdi { (shown.text) } }
    }
}

fn actions(dead: &DeadMessage) -> Markup {
    let id = dead.row.id.to_string();
    let of_this = [("id", id.as_str())];
    html! {
        section {
            h2 { "What to do with it" }
            p.buttons {
                a.button href=(link("/dead/redrive", of_this)) { "Send it again…" }
                a.button.danger href=(link("/dead/discard", of_this)) { "Remove it…" }
            }
        }
    }
}
