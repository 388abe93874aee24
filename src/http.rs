//! `/metrics`, `/livez`, `/readyz`: answered, and asked for.

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
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::health::Health;
use crate::metrics;

#[derive(Clone)]
struct Shared {
    health: Arc<Health>,
    metrics: PrometheusHandle,
}

/// Serves until `stop`.
pub async fn serve(
    listener: TcpListener,
    health: Arc<Health>,
    metrics: PrometheusHandle,
    stop: CancellationToken,
) -> io::Result<()> {
    let routes = Router::new()
        .route("/metrics", get(scrape))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .with_state(Shared { health, metrics });
    axum::serve(listener, routes)
        .with_graceful_shutdown(async move { stop.cancelled().await })
        .await
}

async fn scrape(State(shared): State<Shared>) -> impl IntoResponse {
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4")],
        metrics::render(&shared.metrics),
    )
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

/// The whole answer of a daemon, its head included. Waits for it without yielding: nothing for a daemon itself to call.
pub fn ask(address: &str, path: &str, patience: Duration) -> io::Result<String> {
    let mut stream = connect(address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    // At once: who answers the first half and hangs up would break the pipe for the second.
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A name may stand for several addresses, of which the daemon listens on one.
fn connect(address: &str, patience: Duration) -> io::Result<TcpStream> {
    let mut connected: io::Result<TcpStream> = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in address.to_socket_addrs()? {
        connected = connected.or_else(|_| TcpStream::connect_timeout(&address, patience));
    }
    connected
}
