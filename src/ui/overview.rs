//! The first page: what is the matter and what to do about it, how fast rows flow, and who has which lanes.

use std::time::Instant;

use axum::response::Response;
use maud::{Markup, html};

use super::chart::{Line, chart, lanes};
use super::fields::link;
use super::gate::Visit;
use super::html::{Tab, foreign, key, live, number, rate, sentence, span};
use super::rates::Counts;
use super::sample::{Look, Sample};
use super::{holds, pauses};
use crate::advice::advice;
use crate::domain::sample::{self, TopicSample};
use crate::outbox::HeldUnit;
use crate::outbox::status::{DeadStatus, WorkerStatus};
use crate::words::{held, time};

pub async fn show(visit: Visit) -> Response {
    let look = visit.look().await;
    let content = html! {
        h1.hidden { "Overview" }
        (live(html! {
            @if let Some(error) = &look.error { (unreachable(error, look.sample.as_deref())) }
            @if let Some(sample) = &look.sample { (to_do(sample, visit.schema())) (figures(&look, sample)) }
            (rates(&visit, &look))
            @if let Some(sample) = &look.sample { (details(&visit, sample)) }
        }))
    };
    visit.show(Some(Tab::Overview), "Overview", content)
}

/// Says why nothing newer is known.
fn unreachable(error: &str, sample: Option<&Sample>) -> Markup {
    html! {
        section.problem {
            h2 { "PostgreSQL cannot be asked" }
            p { (foreign(error)) }
            @if let Some(sample) = sample { p { "What is below was so at " (time(sample.taken)) "." } }
        }
    }
}

fn to_do(sample: &Sample, schema: &str) -> Markup {
    html! {
        section.advice {
            h2 { "What to do" }
            ul { @for advice in advice(&sample.status, schema) { li { (sentence(&advice)) } } }
        }
    }
}

/// The figures that tell whether something is the matter.
fn figures(look: &Look, sample: &Sample) -> Markup {
    let backlog = &sample.status.backlog;
    let about = if backlog.estimated { "about " } else { "" };
    let flow = |counts: &Counts| {
        counts
            .current()
            .map_or("…".to_owned(), |current| format!("{} /s", rate(current)))
    };
    html! {
        section aria-label="Figures" {
            dl.figures {
                (figure("Pending", html! { (about) (number(backlog.pending)) }, false))
                (figure("Oldest", html! { (span(backlog.oldest_seconds)) }, backlog.oldest_seconds > OLD))
                (figure("Written", html! { (flow(&look.written)) }, false))
                (figure("Published", html! { (flow(&look.published)) }, false))
                (figure("Dead", linked("/dead", backlog.dead), backlog.dead > 0))
                (figure("Held keys", linked("/holds", backlog.held_keys), backlog.held_keys > 0))
                (figure("Parked topics", linked("/holds", backlog.parked_topics), backlog.parked_topics > 0))
                (figure("Paused partitions", linked("/holds", backlog.paused_partitions), backlog.paused_partitions > 0))
                (figure("Pauses", linked("/pauses", sample.status.pauses.len() as i64), !sample.status.pauses.is_empty()))
                (figure("Delayed", html! { (number(backlog.delayed)) }, false))
            }
        }
    }
}

/// A row that has been pending for longer stands out.
const OLD: f64 = 60.0;

fn figure(name: &str, value: Markup, is_notable: bool) -> Markup {
    html! { div.notable[is_notable] { dt { (name) } dd { (value) } } }
}

fn linked(path: &str, count: i64) -> Markup {
    html! { @if count > 0 { a href=(path) { (number(count)) } } @else { "0" } }
}

fn rates(visit: &Visit, look: &Look) -> Markup {
    let own = visit.own_counts();
    let now = own.last().unwrap_or_else(Instant::now);
    let (of_own, written, published) = (own.rates(now), look.written.rates(now), look.published.rates(now));
    let lines = [
        Line {
            name: "published by this worker",
            class: "own",
            rates: &of_own,
            current: own.current(),
        },
        Line {
            name: "published by all, about",
            class: "published",
            rates: &published,
            current: look.published.current(),
        },
        Line {
            name: "written, about",
            class: "written",
            rates: &written,
            current: look.written.current(),
        },
    ];
    html! { section.rates { (chart("Rows a second", &lines)) } }
}

fn details(visit: &Visit, sample: &Sample) -> Markup {
    let status = &sample.status;
    html! {
        (topics(&status.backlog, visit.can_change()))
        (workers(&status.workers, status.free_lanes))
        @if !status.pauses.is_empty() { (pauses::table(&status.pauses, visit.can_change())) }
        @if !status.holds.is_empty() { (held_back(&status.holds)) }
        @if !status.dead.is_empty() { (dead(&status.dead)) }
        p.taken { "As of " (time(sample.taken)) }
    }
}

fn topics(backlog: &sample::Sample, can_change: bool) -> Markup {
    html! {
        section {
            h2 { "Backlog by topic" }
            @if backlog.topics.is_empty() { p.none { "Nothing is pending, and nothing is dead." } } @else {
                table {
                    thead { tr {
                        th scope="col" { "Topic" } th.number scope="col" { "Pending" } th.number scope="col" { "Oldest" }
                        th.number scope="col" { "Dead" } @if can_change { th scope="col" { span.hidden { "Actions" } } }
                    } }
                    tbody { @for topic in &backlog.topics { (topic_row(topic, can_change)) } }
                }
            }
        }
    }
}

fn topic_row(sample: &TopicSample, can_change: bool) -> Markup {
    let topic = sample.topic.as_deref();
    let is_old = sample.oldest_seconds > OLD;
    html! {
        tr {
            th scope="row" { @if let Some(topic) = topic { (foreign(topic)) } @else { "all other topics" } }
            td.number data-label="Pending" { (number(sample.pending)) }
            td.number.notable[is_old] data-label="Oldest" { @if sample.pending > 0 { (span(sample.oldest_seconds)) } @else { "–" } }
            td.number.notable[sample.dead > 0] data-label="Dead" {
                @if let Some(topic) = topic.filter(|_| sample.dead > 0) {
                    a href=(link("/dead", [("topic", topic)])) { (number(sample.dead)) }
                } @else { (number(sample.dead)) }
            }
            @if can_change {
                td.actions {
                    @if let Some(topic) = topic {
                        a href=(link("/pauses/pause", [("scope", "topic"), ("topic", topic)])) { "Pause…" }
                    }
                }
            }
        }
    }
}

fn workers(workers: &[WorkerStatus], free_lanes: i64) -> Markup {
    html! {
        section {
            h2 { "Workers" }
            @if workers.is_empty() { p.none { "No worker is running." } } @else {
                table {
                    thead { tr {
                        th scope="col" { "Worker" } th scope="col" { "Lanes" } th.number scope="col" { "Lease" } th.number scope="col" { "Up" }
                        th scope="col" { "Version" }
                    } }
                    tbody { @for worker in workers { (worker_row(worker)) } }
                }
            }
            @if free_lanes > 0 { p.notable { (number(free_lanes)) " lanes have no live owner." } }
        }
    }
}

fn worker_row(worker: &WorkerStatus) -> Markup {
    let is_dead = !worker.is_live();
    html! {
        tr {
            th scope="row" { (foreign(&worker.name)) }
            td data-label="Lanes" { span.lanes-count { (worker.lanes.len()) } (lanes(&worker.lanes)) }
            td.number.notable[is_dead] data-label="Lease" {
                @if is_dead { "expired" } @else { (span(worker.lease_left_seconds.floor())) }
            }
            td.number data-label="Up" { (span(worker.age_seconds)) }
            td data-label="Version" { (foreign(&worker.version)) }
        }
    }
}

fn held_back(holds: &[HeldUnit]) -> Markup {
    html! {
        section {
            h2 { "Held back the longest" }
            table {
                thead { tr {
                    th scope="col" { "Topic" } th scope="col" { "What" } th scope="col" { "Why" } th.number scope="col" { "For" }
                    th.number scope="col" { "Next try" }
                } }
                tbody { @for hold in holds { tr {
                    th scope="row" { (foreign(&hold.topic)) }
                    td data-label="What" { (foreign(&held(&hold.unit))) }
                    td data-label="Why" { (foreign(&hold.error)) }
                    td.number data-label="For" { (span(hold.age_seconds)) }
                    td.number data-label="Next try" { (holds::next_try(hold.retry_in_seconds)) }
                } } }
            }
            p { a href="/holds" { "All holds" } }
        }
    }
}

fn dead(dead: &[DeadStatus]) -> Markup {
    html! {
        section {
            h2 { "Newest dead letters" }
            table {
                thead { tr {
                    th scope="col" { "Id" } th scope="col" { "Topic" } th scope="col" { "Key" } th scope="col" { "Why" }
                    th.number scope="col" { "Dead for" }
                } }
                tbody { @for dead in dead { tr {
                    th scope="row" { a href={ "/dead/" (dead.id) } { (dead.id) } }
                    td data-label="Topic" { (foreign(&dead.topic)) }
                    td data-label="Key" { (key(dead.key.as_deref())) }
                    td data-label="Why" { (foreign(dead.error.as_deref().unwrap_or("no reason recorded"))) }
                    td.number data-label="Dead for" { (span(dead.age_seconds)) }
                } } }
            }
            p { a href="/dead" { "All dead letters" } }
        }
    }
}
