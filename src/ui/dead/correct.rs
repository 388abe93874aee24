//! Replaces the payload of a dead letter by what somebody has edited, and sends it again.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};

use super::message::find;
use crate::domain::filter::Filter;
use crate::domain::id_ranges::IdRanges;
use crate::domain::row::Body;
use crate::outbox::operator::dead::DeadMessage;
use crate::ui::gate::{Change, Id, Refusal, Visit};
use crate::ui::html::{Tab, foreign};
use crate::ui::operation::{Chunk, Job, Question, ask as ask_about};
use crate::words::escaped;
use crate::words::operation::CORRECT;

/// A larger document is corrected with a command. Percent-encoded it is three times as large.
const EDITABLE_MAX: usize = 256 << 10;

pub async fn ask(Id(id): Id, visit: Visit) -> Result<Response, Refusal> {
    visit.require_operator()?;
    let dead = find(&visit, id).await?;
    let json = editable(&visit, &dead)?;
    let (path, back) = (format!("/dead/{id}/correct"), format!("/dead/{id}"));
    let question = Question {
        tab: Tab::Dead,
        what: format!("{} dead letter {id}", CORRECT.verb),
        meaning: "The message is sent with this payload. The audit keeps the old one. Its key and headers stay as they are.",
        details: html! { p { "Topic " (foreign(&dead.row.topic)) } },
        path: &path,
        fields: Vec::new(),
        inputs: editor(&json),
        is_final: false,
        back: &back,
    };
    Ok(ask_about(&visit, question))
}

fn editor(json: &str) -> Markup {
    html! {
        label for="payload" { "Payload, as JSON" }
        // The browser drops the first line end.
        textarea #payload name="payload" rows="16" spellcheck="false" required { "\n" (json) }
    }
}

/// The document. Texts and bytes would not come back from a browser as they were.
fn editable(visit: &Visit, dead: &DeadMessage) -> Result<String, Refusal> {
    match &dead.row.body {
        Body::Json(json) if dead.row.unreadable.is_none() && json.len() <= EDITABLE_MAX => {
            // The same document.
            Ok(escaped(&String::from_utf8_lossy(json)))
        }
        _ => {
            let id = dead.row.id;
            let text = format!(
                "Only JSON of at most 256 KiB can be edited here. Use a shell: outboxd dead show {id} --payload > payload; then outboxd dead \
                 redrive --id {id} --payload-file payload"
            );
            Err(visit.refuse(StatusCode::CONFLICT, "It cannot be edited here", &text))
        }
    }
}

pub async fn correct(Id(id): Id, change: Change) -> Result<Response, Refusal> {
    let visit = &change.form.visit;
    editable(visit, &find(visit, id).await?)?;
    let payload = change.form.fields.get("payload").unwrap_or_default();
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(payload) {
        let text = format!("Go back and correct it: {error}.");
        return Err(visit.refuse(StatusCode::BAD_REQUEST, "This is not JSON", &text));
    }
    let filter = Filter {
        ids: IdRanges::of_ids([id]),
        ..Filter::default()
    };
    let job = Job {
        words: &CORRECT,
        matched: 1,
        chunks: vec![Chunk::Correct(id, payload.as_bytes().to_vec())],
        purpose: change.purpose(&filter)?,
    };
    Ok(job.run(&change).await)
}
