//! `/metrics`, `/livez` and `/readyz`: the server, and the client of `outboxd healthcheck`.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::health::Health;
use crate::http_server::{self, Limits};
use crate::metrics::{self, Scrape};

const LIMITS: Limits = Limits {
    connections: 64,
    time: Duration::from_secs(10),
};
/// How often histograms are folded, if nobody scrapes.
const UPKEEP_EVERY: Duration = Duration::from_secs(15);

#[derive(Clone)]
struct Shared {
    health: Arc<Health>,
    metrics: Scrape,
}

/// Serves until `stop`.
pub async fn serve(listener: TcpListener, health: Arc<Health>, metrics: Scrape, stop: CancellationToken) {
    let routes = Router::new()
        .route("/metrics", get(scrape))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .with_state(Shared { health, metrics });
    tokio::select! {
        () = http_server::serve(listener, LIMITS, |_| routes.clone(), stop) => {}
        () = upkeep() => {}
    }
}

/// Never ends.
async fn upkeep() {
    let mut due = tokio::time::interval(UPKEEP_EVERY);
    loop {
        due.tick().await;
        metrics::upkeep();
    }
}

async fn scrape(State(shared): State<Shared>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], shared.metrics.render())
}

async fn alive(State(shared): State<Shared>) -> (StatusCode, &'static str) {
    if shared.health.is_stuck() {
        return (StatusCode::SERVICE_UNAVAILABLE, "a loop does not turn\n");
    }
    (StatusCode::OK, "alive\n")
}

async fn ready(State(shared): State<Shared>) -> (StatusCode, &'static str) {
    if shared.health.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n");
    }
    if !shared.health.is_verified() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the schema is not verified yet\n");
    }
    (StatusCode::OK, "ready\n")
}

/// The whole answer of a daemon, headers included. It blocks the thread, so async code must not call it.
pub fn ask(address: &str, path: &str, timeout: Duration) -> io::Result<String> {
    let mut stream = connect(address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    // One write: a server that answers the first half and hangs up would make the write of the second half fail.
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A name may resolve to several addresses, and the daemon may listen on only one of them.
fn connect(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut connected: io::Result<TcpStream> = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in address.to_socket_addrs()? {
        connected = connected.or_else(|_| TcpStream::connect_timeout(&address, timeout));
    }
    connected
}
