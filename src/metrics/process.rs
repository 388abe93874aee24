//! Metrics of the process, under the names that Prometheus gives them. They are read from the system at each scrape.

use metrics_process::Collector;

use super::list::{build_info, database_connections, database_connections_max};
use super::metric::{Kind, Metric};
use crate::domain::sample::Connections;

/// What [`Collector`] records.
pub(super) const PROCESS: &[Metric] = &[
    process(
        Kind::Counter,
        "process_cpu_seconds_total",
        "Processor time used, in whole seconds.",
    ),
    process(Kind::Gauge, "process_resident_memory_bytes", "Resident memory."),
    process(Kind::Gauge, "process_virtual_memory_bytes", "Virtual memory."),
    process(
        Kind::Gauge,
        "process_virtual_memory_max_bytes",
        "Limit of virtual memory; 0 if there is none.",
    ),
    process(Kind::Gauge, "process_open_fds", "Open file descriptors."),
    process(
        Kind::Gauge,
        "process_max_fds",
        "Limit of open file descriptors; 0 if there is none.",
    ),
    process(Kind::Gauge, "process_threads", "Threads."),
    process(
        Kind::Gauge,
        "process_start_time_seconds",
        "When the process started, in seconds since 1970.",
    ),
];

const fn process(kind: Kind, name: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        kind,
        labels: &[],
        help,
    }
}

/// Records what runs. The revision is known if the build was given one as `OUTBOXD_REVISION`.
pub fn register() {
    build_info(
        env!("CARGO_PKG_VERSION"),
        option_env!("OUTBOXD_REVISION").unwrap_or("unknown"),
        1,
    );
}

/// Reads the process's figures from the system. Its own descriptions of them are not used.
pub fn collect(collector: &Collector) {
    collector.collect();
}

/// Records the connections of the worker's pool.
pub fn connections(connections: Connections) {
    database_connections("used", connections.used);
    database_connections("idle", connections.idle);
    database_connections("waiting", connections.waiting);
    database_connections_max(connections.max);
}
