//! `/metrics`, `/livez` and `/readyz`: the server, and the client of `outboxd healthcheck`.

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
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::health::Health;
use crate::metrics::{self, Scrape};

/// A connection carries one request and is closed after this time, whether or not the request was sent and the answer read.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of open connections. Another one closes the oldest, so a client that opens many and sends nothing cannot keep
/// out a probe.
const CONNECTIONS_MAX: usize = 64;
/// Wait after a connection could not be accepted, for example because the process has no file descriptor left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
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
    let answers = TaskTracker::new();
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    let mut upkeep = tokio::time::interval(UPKEEP_EVERY);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = upkeep.tick() => {
                metrics::upkeep();
                continue;
            }
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

/// Answers one request, unless it or its reader is too slow. After `stop`, a connection that has sent no request is closed.
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
    // On an error or a timeout the connection is closed, and there is no client left to report it to.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, answered).await;
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
