//! Sends dead letters again, or removes them.

use axum::http::StatusCode;
use axum::response::Response;

use super::list::refuse_filter;
use crate::domain::filter::Filter;
use crate::domain::id_ranges::IdRanges;
use crate::outbox::operator::CHUNK_ROWS;
use crate::outbox::operator::dead::DeadIds;
use crate::ui::fields::{DEAD_FILTER, Fields, link};
use crate::ui::gate::{Change, Refusal, Visit};
use crate::ui::html::Tab;
use crate::ui::operation::{Chunk, Job, Question, ROWS_MAX, ask, by_topic, nothing};
use crate::words::operation::{DISCARD, Matched, REDRIVE, Words};

/// The field with the ids that were counted. What dies after that is left alone.
const COUNTED: &str = "counted";

/// What is done to dead letters.
struct Kind {
    words: &'static Words,
    path: &'static str,
    meaning: &'static str,
    is_final: bool,
    chunk: fn(Vec<i64>) -> Chunk,
}

const REDRIVES: Kind = Kind {
    words: &REDRIVE,
    path: "/dead/redrive",
    meaning: "Rows of a key are sent in the order of their ids, behind what was sent of the key meanwhile. If the cause of the refusal is \
              not fixed, they are dead again soon.",
    is_final: false,
    chunk: Chunk::Redrive,
};

const DISCARDS: Kind = Kind {
    words: &DISCARD,
    path: "/dead/discard",
    meaning: "They are deleted from the outbox, and consumers never see them. The audit keeps their ids and not what they said.",
    is_final: true,
    chunk: Chunk::Discard,
};

pub async fn ask_redrive(visit: Visit) -> Result<Response, Refusal> {
    ask_for(&REDRIVES, &visit).await
}

pub async fn ask_discard(visit: Visit) -> Result<Response, Refusal> {
    ask_for(&DISCARDS, &visit).await
}

pub async fn redrive(change: Change) -> Result<Response, Refusal> {
    carry_out(&REDRIVES, &change).await
}

pub async fn discard(change: Change) -> Result<Response, Refusal> {
    carry_out(&DISCARDS, &change).await
}

async fn ask_for(kind: &Kind, visit: &Visit) -> Result<Response, Refusal> {
    visit.require_operator()?;
    // Without a filter everything is meant, which who has selected nothing did not mean.
    if visit.fields.has("selected") && visit.fields.filled("id").is_none() {
        let text = "Go back and select what is meant. Below the list is a link to all that match.";
        return Err(visit.refuse(StatusCode::BAD_REQUEST, "Nothing is selected", text));
    }
    let filter = read_filter(visit, &visit.fields)?;
    let dead = find(visit, &filter).await?;
    let matched = matched(&dead);
    if dead.ids.is_empty() {
        return Err(nothing(visit, kind.words));
    }
    let counted = ids_text(&dead.ids);
    let mut fields = visit.fields.only(&DEAD_FILTER);
    let back = match fields.iter().all(|(name, _)| *name == "id") {
        true => "/dead".to_owned(),
        false => link("/dead", fields.iter().copied()),
    };
    fields.push((COUNTED, &counted));
    let question = Question {
        tab: Tab::Dead,
        what: format!("{} {}", kind.words.verb, matched.describe(kind.words)),
        meaning: kind.meaning,
        details: by_topic(&matched),
        path: kind.path,
        fields,
        is_final: kind.is_final,
        back: &back,
    };
    Ok(ask(visit, question))
}

async fn carry_out(kind: &Kind, change: &Change) -> Result<Response, Refusal> {
    let (visit, fields) = (&change.form.visit, &change.form.fields);
    let filter = read_filter(visit, fields)?;
    let purpose = change.purpose(&filter)?;
    let counted = Filter {
        ids: read_counted(visit, fields)?,
        ..Filter::default()
    };
    let dead = find(visit, &counted).await?;
    if dead.ids.is_empty() {
        return Err(nothing(visit, kind.words));
    }
    let job = Job {
        words: kind.words,
        matched: dead.ids.len() as u64,
        chunks: dead
            .ids
            .chunks(CHUNK_ROWS)
            .map(|ids| (kind.chunk)(ids.to_vec()))
            .collect(),
        purpose,
    };
    Ok(job.run(change).await)
}

fn read_filter(visit: &Visit, fields: &Fields) -> Result<Filter, Refusal> {
    fields
        .dead_filter()
        .map_err(|problems| refuse_filter(visit, &problems.0))
}

fn read_counted(visit: &Visit, fields: &Fields) -> Result<IdRanges, Refusal> {
    let counted = fields.ids(COUNTED).ok().filter(|counted| !counted.is_empty());
    counted.ok_or_else(|| {
        let text = "It does not say which dead letters were counted.";
        visit.refuse(StatusCode::BAD_REQUEST, "The form is not whole", text)
    })
}

/// Those with the lowest ids, if there are more than are changed at once.
async fn find(visit: &Visit, filter: &Filter) -> Result<DeadIds, Refusal> {
    let limited = Filter {
        limit: Some(ROWS_MAX as i64),
        ..filter.clone()
    };
    visit.ask(visit.reader().dead_ids(&limited)).await
}

fn matched(dead: &DeadIds) -> Matched {
    Matched {
        topics: dead.topics.clone(),
    }
}

/// As the filter reads them.
fn ids_text(ids: &[i64]) -> String {
    let ranges = IdRanges::of_ids(ids.iter().copied());
    let ranges = ranges.iter().map(|(first, last)| format!("{first}-{last}"));
    ranges.collect::<Vec<_>>().join(",")
}
