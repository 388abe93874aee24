//! `/metrics`, `/livez`, `/readyz`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What the probes say.
#[derive(Debug, Default)]
pub struct Health {
    verified: AtomicBool,
    draining: AtomicBool,
}

impl Health {
    /// The schema is there and ours to use. It stays so while PostgreSQL or Kafka are away: a restart would not help.
    pub fn verified(&self) {
        self.verified.store(true, Ordering::Relaxed);
    }

    pub fn draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}

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
) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/metrics", get(scrape))
        // Answered by the same runtime that runs the loops: if it is stuck, so is this.
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .with_state(Shared { health, metrics });
    axum::serve(listener, routes)
        .with_graceful_shutdown(async move { stop.cancelled().await })
        .await
}

async fn scrape(State(shared): State<Shared>) -> impl IntoResponse {
    shared.metrics.run_upkeep();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], shared.metrics.render())
}

async fn ready(State(shared): State<Shared>) -> (StatusCode, &'static str) {
    if shared.health.draining.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n");
    }
    if !shared.health.verified.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "the schema is not verified yet\n");
    }
    (StatusCode::OK, "ready\n")
}
