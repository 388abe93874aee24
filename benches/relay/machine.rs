//! What it all ran on.

use std::fs;

use crate::Outcome;
use crate::servers::{Servers, connect};

/// A name and its value, as they stand in the report.
pub struct Fact {
    pub name: String,
    pub value: String,
}

impl Fact {
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Fact {
            name: name.into(),
            value: value.into(),
        }
    }
}

pub async fn facts(servers: &Servers) -> Outcome<Vec<Fact>> {
    let db = connect(&servers.database_url).await?;
    let postgres: String = db.query_one("SHOW server_version", &[]).await?.get(0);
    let cores = std::thread::available_parallelism()?;
    let mut facts = vec![
        Fact::new("processor", format!("{}, {cores} cores", processor())),
        Fact::new("memory", memory()),
        Fact::new("kernel", read("/proc/sys/kernel/osrelease")),
        Fact::new("load average before the run", read("/proc/loadavg")),
        Fact::new("PostgreSQL", postgres),
        Fact::new("Kafka", kafka()),
        Fact::new("librdkafka", rdkafka::util::get_rdkafka_version().1),
        Fact::new("outboxd", env!("CARGO_PKG_VERSION")),
    ];
    facts.extend(servers.settings().await?);
    facts.push(Fact::new(
        "producers",
        "acks=all, enable.idempotence=true; replication factor 1, one broker",
    ));
    Ok(facts)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The value after the first line that begins so.
fn line(path: &str, begins: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(begins))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn processor() -> String {
    line("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn memory() -> String {
    let kib = line("/proc/meminfo", "MemTotal").and_then(|value| value.split(' ').next()?.parse::<f64>().ok());
    kib.map_or("unknown".to_owned(), |kib| format!("{:.0} GiB", kib / 1024.0 / 1024.0))
}

/// The broker says its version to nobody, its jar does.
fn kafka() -> String {
    let jars = std::env::var("OUTBOXD_TEST_KAFKA_LIBS").unwrap_or_default();
    let names = fs::read_dir(jars).into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .find_map(|name| Some(name.strip_prefix("kafka-clients-")?.strip_suffix(".jar")?.to_owned()))
        .unwrap_or("unknown".to_owned())
}
