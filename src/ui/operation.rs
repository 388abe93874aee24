//! Changes of many rows: asked for with their number, and carried out in small transactions, as the commands do.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::gate::{Change, Refusal, Visit};
use super::html::{Tab, foreign, sentence};
use super::login::see;
use crate::domain::filter::Filter;
use crate::outbox::operator::{FILTER_BYTES_MAX, Purpose, REASON_BYTES_MAX, Step};
use crate::outbox::{self, HeldUnit, Outbox};
use crate::words::operation::{Matched, Words};
use crate::words::{counted, grouped};

/// Most rows that one click changes. A command changes any number.
pub const ROWS_MAX: usize = 10_000;
/// After this long no further transaction begins.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Marks what was done by way of the page. All of it has the same login.
const REASON_PREFIX: &str = "page: ";
/// How many topics are named before it is asked.
const TOPICS_SHOWN: usize = 20;

/// A question before something is changed.
pub struct Question<'a> {
    pub tab: Tab,
    /// "Send again 12 dead letters of 2 topics"
    pub what: String,
    /// What it means, in a sentence or two.
    pub meaning: &'a str,
    /// More to be seen before it is answered.
    pub details: Markup,
    /// Where the answer is sent, with these fields.
    pub path: &'a str,
    pub fields: Vec<(&'a str, &'a str)>,
    /// It cannot be taken back.
    pub is_final: bool,
    /// Where no leads.
    pub back: &'a str,
}

/// Asks, and for the reason.
pub fn ask(visit: &Visit, question: Question<'_>) -> Response {
    let title = format!("{}?", question.what);
    let class = if question.is_final { "danger" } else { "primary" };
    let content = html! {
        h1 { (foreign(&title)) }
        p { (sentence(question.meaning)) }
        (question.details)
        form.question method="post" action=(question.path) {
            (visit.form_field())
            @for (name, value) in &question.fields { input type="hidden" name=(name) value=(value); }
            label for="reason" { "Who are you, and why? The audit keeps it." }
            input #reason name="reason" required autofocus autocomplete="off" maxlength=(reason_max());
            div.buttons {
                button type="submit" class=(class) { (foreign(&question.what)) }
                a href=(question.back) { "Cancel" }
            }
        }
    };
    visit.show(Some(question.tab), &title, content)
}

/// The rows of each topic.
pub fn by_topic(matched: &Matched) -> Markup {
    let topics = matched.by_rows();
    html! {
        table.narrow {
            thead { tr { th scope="col" { "Topic" } th.number scope="col" { "Rows" } } }
            tbody { @for (topic, rows) in topics.iter().take(TOPICS_SHOWN) {
                tr { th scope="row" { (foreign(topic)) } td.number data-label="Rows" { (grouped(*rows)) } }
            } }
        }
        @if topics.len() > TOPICS_SHOWN { p { "and " (topics.len() - TOPICS_SHOWN) " more topics" } }
        @if matched.rows() >= ROWS_MAX as u64 {
            p { "No more than " (grouped(ROWS_MAX as u64)) " are changed at once. Repeat it for the rest, or use the command." }
        }
    }
}

/// The answer if nothing matches.
pub fn nothing(visit: &Visit, words: &Words) -> Refusal {
    let text = format!("No {} matches any more.", words.nouns.0);
    visit.refuse(StatusCode::NOT_FOUND, "Nothing to do", &text)
}

fn reason_max() -> usize {
    REASON_BYTES_MAX - REASON_PREFIX.len()
}

impl Change {
    /// The reason that was given, as the audit keeps it.
    pub fn reason(&self) -> Result<String, Refusal> {
        let reason = self.form.fields.get("reason").unwrap_or_default().trim();
        let problem = match reason.len() {
            0 => "Say who you are, and why: others will read it in the audit.".to_owned(),
            bytes if bytes > reason_max() => format!("The reason has {bytes} bytes; {} are allowed.", reason_max()),
            _ => return Ok(format!("{REASON_PREFIX}{reason}")),
        };
        Err(self
            .form
            .visit
            .refuse(StatusCode::BAD_REQUEST, "A reason is needed", &problem))
    }

    /// The same with the filter that has chosen the rows.
    pub fn purpose(&self, filter: &Filter) -> Result<Purpose, Refusal> {
        let filter = filter.to_json().to_string();
        if filter.len() > FILTER_BYTES_MAX {
            let text = "The audit could not keep it. Choose by fewer ids or keys.";
            let refusal = self
                .form
                .visit
                .refuse(StatusCode::BAD_REQUEST, "The filter is too long", text);
            return Err(refusal);
        }
        Ok(Purpose {
            reason: Some(self.reason()?),
            filter,
        })
    }
}

/// What one transaction changes.
pub enum Chunk {
    Redrive(Vec<i64>),
    Discard(Vec<i64>),
    Release(Vec<HeldUnit>),
}

impl Chunk {
    async fn change(&self, outbox: &Outbox, purpose: &Purpose, operation: Option<i64>) -> outbox::Result<Step> {
        match self {
            Chunk::Redrive(ids) => outbox.dead_redrive(ids, purpose, operation).await,
            Chunk::Discard(ids) => outbox.dead_discard(ids, purpose, operation).await,
            Chunk::Release(held) => outbox.holds_release(held, purpose, operation).await,
        }
    }
}

/// An operation that was confirmed.
pub struct Job {
    pub words: &'static Words,
    pub matched: u64,
    pub chunks: Vec<Chunk>,
    pub purpose: Purpose,
}

/// What became of it.
#[derive(Debug, Default)]
struct Outcome {
    /// Its id in the audit, once something has been changed.
    operation: Option<i64>,
    changed: u64,
    /// Why not all of it was done.
    stopped: Option<String>,
}

impl Job {
    /// Carries it out, and shows it in the audit. Once begun, it does not depend on the browser.
    pub async fn run(self, change: &Change) -> Response {
        let (words, matched) = (self.words, self.matched);
        let outbox = change.operator().clone();
        let outcome = tokio::spawn(async move { self.change_all(&outbox).await }).await;
        let outcome = outcome.unwrap_or_else(|error| Outcome {
            stopped: Some(error.to_string()),
            ..Outcome::default()
        });
        match (outcome.operation, &outcome.stopped) {
            (Some(operation), None) => see(&format!("/audit/{operation}")),
            _ => unfinished(&change.form.visit, words, matched, &outcome),
        }
    }

    async fn change_all(&self, outbox: &Outbox) -> Outcome {
        let (mut outcome, began) = (Outcome::default(), Instant::now());
        for chunk in &self.chunks {
            if began.elapsed() > TIME_MAX {
                outcome.stopped = Some("It took too long. Repeat it for the rest.".to_owned());
                break;
            }
            match chunk.change(outbox, &self.purpose, outcome.operation).await {
                Ok(step) => outcome.note(step),
                Err(error) => {
                    outcome.stopped = Some(error.to_string());
                    break;
                }
            }
        }
        outcome
    }
}

impl Outcome {
    fn note(&mut self, step: Step) {
        self.operation = step.operation.or(self.operation);
        self.changed += u64::from(step.changed.unsigned_abs());
    }
}

/// Says how far it has come. What has been changed stays changed.
fn unfinished(visit: &Visit, words: &Words, matched: u64, outcome: &Outcome) -> Response {
    let (one, many) = words.nouns;
    let so_far = format!(
        "{} {} of {}",
        words.done,
        grouped(outcome.changed),
        counted(matched, one, many)
    );
    let why = outcome
        .stopped
        .as_deref()
        .unwrap_or("They have changed meanwhile, and were left alone.");
    let content = html! {
        div.message {
            h1 { (so_far) }
            p { (foreign(why)) }
            @if let Some(operation) = outcome.operation {
                p { a href={ "/audit/" (operation) } { "Operation " (operation) " in the audit" } }
            }
        }
    };
    let status = match outcome.stopped {
        Some(_) => StatusCode::SERVICE_UNAVAILABLE,
        None => StatusCode::CONFLICT,
    };
    (status, visit.show(None, &so_far, content)).into_response()
}
