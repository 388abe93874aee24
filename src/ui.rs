//! The page for the person on call: what is pending, held, paused and dead, and buttons for what the commands do.
//!
//! [`gate`] is passed by each request, and hands out what the others need. The pages are a file each. They are rendered here, and work
//! without a script; [`html`] has what they share.
//!
//! - **Invariant:** nothing is asked of PostgreSQL for who is not logged in, and nothing while nobody looks. However many look, one
//!   sample is taken in two seconds.
//! - **Invariant:** nothing is changed without a [`gate::Change`]: a login, a form of its own, a reason and the operator's connection.
//! - **Invariant:** a text that others chose is shown by [`html::foreign`], and markup is written by `maud` alone, which escapes it.

mod assets;
mod audit;
mod chart;
mod dead;
mod fields;
mod gate;
mod holds;
mod html;
mod login;
mod operation;
mod overview;
mod pauses;
mod payload;
mod rates;
mod sample;
mod session;
mod site;
mod throttle;

use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use axum::{Extension, Router};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config;
use crate::http_server::{self, Limits};
use gate::Client;

pub use gate::Page;

/// An operation may take a while.
const LIMITS: Limits = Limits {
    connections: 64,
    time: Duration::from_secs(40),
};
/// How often the page notes how much this process has published, and looks for connections that nobody uses.
const TICK: Duration = Duration::from_secs(2);
/// The largest form: the ids that were counted, percent-encoded.
const FORM_BYTES_MAX: usize = 512 << 10;
/// The largest form of who is not logged in.
const LOGIN_BYTES_MAX: usize = 8 << 10;

/// How many connections to the database the page opens at most.
pub fn connections(settings: &config::Ui) -> usize {
    gate::READER_CONNECTIONS + settings.operator.as_ref().map_or(0, |_| gate::OPERATOR_CONNECTIONS)
}

/// Serves the page until `stop`.
pub async fn serve(listener: TcpListener, page: Page, stop: CancellationToken) {
    let routes = routes(page.clone());
    let routes = |client| routes.clone().layer(Extension(Client::of(client)));
    tokio::select! {
        () = http_server::serve(listener, LIMITS, routes, stop) => {}
        () = tick(&page) => {}
    }
}

/// Never ends.
async fn tick(page: &Page) {
    let mut due = tokio::time::interval(TICK);
    loop {
        due.tick().await;
        page.tick();
    }
}

fn routes(page: Page) -> Router {
    Router::new()
        .route("/", get(overview::show))
        .route("/dead", get(dead::list::show))
        .route(
            "/dead/redrive",
            get(dead::change::ask_redrive).post(dead::change::redrive),
        )
        .route(
            "/dead/discard",
            get(dead::change::ask_discard).post(dead::change::discard),
        )
        .route("/dead/{id}", get(dead::message::show))
        .route("/dead/{id}/payload", get(dead::message::show_payload))
        .route("/dead/{id}/download", get(dead::message::download))
        .route("/holds", get(holds::show))
        .route("/holds/release", get(holds::ask).post(holds::release))
        .route("/pauses", get(pauses::show))
        .route("/pauses/pause", get(pauses::ask_pause).post(pauses::pause))
        .route("/pauses/resume", get(pauses::ask_resume).post(pauses::resume))
        .route("/audit", get(audit::list))
        .route("/audit/{operation}", get(audit::show))
        .route(
            "/login",
            get(login::form)
                .post(login::log_in)
                .layer(DefaultBodyLimit::max(LOGIN_BYTES_MAX)),
        )
        .route("/logout", post(login::log_out))
        .route("/ui.css", get(assets::css))
        .route("/ui.js", get(assets::js))
        .route("/favicon.svg", get(assets::icon))
        .fallback(gate::not_found)
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
        .layer(from_fn_with_state(page.clone(), gate::guard))
        .with_state(page)
}
