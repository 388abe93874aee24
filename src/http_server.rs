//! Serves HTTP on a listener, and bounds how many connections are open and for how long.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Wait after a connection could not be accepted, for example because the process has no file descriptor left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// The largest head of a request. It is read before anybody has logged in.
const HEAD_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of open connections. Another one closes the oldest, so a client that opens many and sends nothing cannot keep
    /// out the others.
    pub connections: usize,
    /// A connection carries one request and is closed after this time, whether or not the request was sent and the answer read.
    pub time: Duration,
}

/// Serves until `stop`. `routes` is asked once for each connection, with the address of the client.
pub async fn serve(
    listener: TcpListener,
    limits: Limits,
    routes: impl Fn(SocketAddr) -> Router,
    stop: CancellationToken,
) {
    let answers = TaskTracker::new();
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let Ok((stream, client)) = accepted else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= limits.connections
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let answer = answers.spawn(answer(stream, routes(client), limits.time, stop.clone()));
        open.push_back(answer.abort_handle());
    }
    answers.close();
    answers.wait().await;
}

/// Answers one request, unless it or its reader is too slow. After `stop`, a connection that has sent no request is closed.
async fn answer(stream: TcpStream, routes: Router, time: Duration, stop: CancellationToken) {
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
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
    let _ = tokio::time::timeout(time, answered).await;
}
