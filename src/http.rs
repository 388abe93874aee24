//! `/metrics`, `/livez`, `/readyz`.

use std::sync::Arc;

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
        .route("/livez", get(alive))
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
