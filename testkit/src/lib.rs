//! What the integration tests, the soak and the benches share: an isolated world for each test, real processes and servers, faults to
//! inject, and waiting on conditions.

mod allocations;
mod background_writes;
mod brokerless_broker;
mod canary;
mod certificates;
mod cpu_ticks;
mod database_template;
pub mod failpoint;
mod fault;
mod history;
mod issuer;
mod kafka_frames;
mod kafka_records;
mod lying_broker;
mod paths;
mod pooler;
mod preload;
mod primary_standby;
mod prometheus;
mod promises;
mod proxy;
mod relay;
mod relay_counters;
mod rows;
mod secure;
mod secure_postgres;
mod servers;
mod small_disk;
mod statement_cost;
mod statement_log;
mod steal_time;
pub mod svg;
mod test_slots;
mod topics;
mod visitor;
mod world;

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::DbError;

pub use allocations::Allocations;
pub use background_writes::BackgroundWrites;
pub use brokerless_broker::BrokerlessBroker;
pub use canary::Canary;
pub use certificates::{Ca, Certificates, Leaf};
pub use cpu_ticks::CpuTicks;
pub use fault::{Fault, Recovered, cells, documented_faults};
pub use history::History;
pub use issuer::{Answer as IssuerAnswer, Issuer, Signer};
pub use kafka_records::{Record, plant, read_topic, read_until};
pub use lying_broker::LyingBroker;
pub use paths::{binary, outboxd, repository, text_of};
pub use preload::Preload;
pub use primary_standby::PrimaryStandby;
pub use prometheus::{Prometheus, Sample, Scraped, promtool};
pub use proxy::{Answer, Link, Proxy};
pub use relay::{Relay, RelayBuilder};
pub use relay_counters::Counters;
pub use rows::noise;
pub use secure::{Access, SecureKafka};
pub use secure_postgres::SecurePostgres;
pub use servers::{OwnKafka, OwnPostgres, Stack};
pub use small_disk::SmallDisk;
pub use statement_cost::cost;
pub use steal_time::Stopwatch;
pub use topics::{alter_topic, create_topic, create_topic_on, delete_topic, forget_records, grow_topic};
pub use visitor::{Visitor, WebPage};
pub use world::{World, connect, with_database};

/// How long a test waits for something that should come soon.
pub const SOON: Duration = Duration::from_secs(30);

/// The lease of every relay a world starts.
pub const LEASE: Duration = Duration::from_secs(5);

/// With what the server refuses the statement.
pub async fn refusal_of(client: &Client, sql: &str) -> DbError {
    let error = client.batch_execute(sql).await.expect_err(sql);
    error.as_db_error().expect("from the server").clone()
}

/// A port at which nobody listens.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

/// Waits until `holds` answers something, or fails with `what` was waited for.
pub async fn eventually<T>(within: Duration, what: &str, mut holds: impl AsyncFnMut() -> Option<T>) -> T {
    let stopwatch = Stopwatch::start();
    loop {
        if let Some(found) = holds().await {
            return found;
        }
        assert!(
            stopwatch.without_steal() < within,
            "waited {within:?} in vain for: {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Sends a signal to any process.
pub fn signal(signal: &str, pid: i64) {
    let sent = std::process::Command::new("kill")
        .args([&format!("-{signal}"), &pid.to_string()])
        .status();
    assert!(sent.is_ok_and(|status| status.success()), "kill -{signal} {pid}");
}

/// SQL for bytes that no compression brings below a small topic's limit.
pub const TOO_LARGE: &str = "(SELECT string_agg(uuid_send(gen_random_uuid()), '') FROM generate_series(1, 300))";

/// A topic setting under which [`TOO_LARGE`] is refused and small rows are not.
pub const SMALL: (&str, &str) = ("max.message.bytes", "2000");

/// What a process said on stderr.
pub fn stderr_of(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a process that succeeded printed.
pub fn stdout_of(output: &std::process::Output) -> String {
    assert!(output.status.success(), "{}", stderr_of(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The object that a command with --json printed.
pub fn json_of(output: &std::process::Output) -> serde_json::Value {
    serde_json::from_str(&stdout_of(output)).expect("one JSON object")
}
