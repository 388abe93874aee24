//! `/metrics`, `/livez`, `/readyz`: answered, and asked for.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::health::Health;
use crate::metrics;

/// A connection carries one request, and lasts no longer than this: time to send the request and to read the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Most connections at once. One more closes the oldest: who opens many and sends nothing does not keep a probe out.
const CONNECTIONS_MAX: usize = 64;
/// Wait after a connection could not be accepted, as when the process has no file descriptor left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

#[derive(Clone)]
struct Shared {
    health: Arc<Health>,
    metrics: PrometheusHandle,
}

/// Serves until `stop`.
pub async fn serve(listener: TcpListener, health: Arc<Health>, metrics: PrometheusHandle, stop: CancellationToken) {
    let routes = Router::new()
        .route("/metrics", get(scrape))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .with_state(Shared { health, metrics });
    let answers = TaskTracker::new();
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= CONNECTIONS_MAX
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let answer = answers.spawn(answer(stream, routes.clone(), stop.clone()));
        open.push_back(answer.abort_handle());
    }
    answers.close();
    answers.wait().await;
}

/// Answers one request, unless it or its reader is too slow. `stop` closes a connection that has sent none.
async fn answer(stream: tokio::net::TcpStream, routes: Router, stop: CancellationToken) {
    let connection = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let mut connection = pin!(connection);
    let answered = async {
        tokio::select! {
            done = connection.as_mut() => return done,
            () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    };
    // Whoever asked has hung up, or is cut off: nobody is left to tell.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, answered).await;
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
