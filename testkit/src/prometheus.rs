//! A real Prometheus that scrapes the relays of a test, and its tool that checks rules.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::paths::repository;
use crate::relay::Relay;
use crate::{SOON, eventually, free_port};

/// How often it scrapes, and how often it evaluates rules.
const EVERY: &str = "1s";
/// Longest wait for its answer to a query.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// A sample: its labels, and its value.
pub type Sample = (BTreeMap<String, String>, f64);

pub struct Prometheus {
    process: Child,
    dir: tempfile::TempDir,
    address: String,
}

/// The relays of one outbox, and the labels that Prometheus gives them.
pub struct Scraped<'a> {
    pub namespace: &'a str,
    pub job: &'a str,
    pub relays: Vec<&'a Relay>,
}

impl Prometheus {
    /// One that evaluates these rules and scrapes nobody yet.
    pub async fn start(rules: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| dir.path().join(name);
        let config = json!({
            "global": {"scrape_interval": EVERY, "evaluation_interval": EVERY},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "outboxd", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": EVERY}]}],
        });
        fs::write(path("rules.yaml"), rules).expect("writable");
        fs::write(path("targets.json"), "[]").expect("writable");
        // YAML has JSON in it.
        fs::write(path("config.yaml"), config.to_string()).expect("writable");
        let address = format!("127.0.0.1:{}", free_port());
        let process = program("prometheus")
            .arg(format!("--config.file={}", path("config.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", path("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(path("log")).expect("a log file"))
            .spawn()
            .expect("prometheus starts");
        let prometheus = Prometheus { process, dir, address };
        eventually(SOON, "Prometheus to be ready", async || {
            let answer = prometheus.get("/-/ready")?;
            answer.starts_with("HTTP/1.0 200").then_some(())
        })
        .await;
        prometheus
    }

    /// Scrapes these from now on, and nobody else.
    pub fn scrape(&self, outboxes: &[Scraped<'_>]) {
        let targets: Vec<Value> = outboxes
            .iter()
            .map(|outbox| {
                let addresses: Vec<_> = outbox.relays.iter().filter_map(|relay| relay.address()).collect();
                json!({"targets": addresses, "labels": {"namespace": outbox.namespace, "job": outbox.job}})
            })
            .collect();
        let (new, path) = (self.dir.path().join("new"), self.dir.path().join("targets.json"));
        fs::write(&new, Value::from(targets).to_string()).expect("writable");
        fs::rename(new, path).expect("the same folder");
    }

    /// What an expression says now. Panics if it is none.
    pub fn query(&self, expression: &str) -> Vec<Sample> {
        let answer = self.get(&format!("/api/v1/query?query={}", escaped(expression)));
        let answer = answer.unwrap_or_else(|| panic!("Prometheus does not answer:\n{}", self.log()));
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        assert_eq!(body["status"], "success", "{expression}: {answer}");
        let result = body["data"]["result"].as_array().cloned().unwrap_or_default();
        result.iter().map(sample).collect()
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(ANSWERS_WITHIN)).ok()?;
        // This version of HTTP sends no answer in pieces.
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs promtool, to its end.
pub fn promtool(args: &[&str]) -> Output {
    program("promtool").args(args).output().expect("promtool runs")
}

/// A program of Debian's package, which the setup unpacks and does not install, since it would start a service.
fn program(name: &str) -> Command {
    let unpacked: PathBuf = repository().join(".dev/prometheus/usr/bin").join(name);
    if unpacked.exists() {
        Command::new(unpacked)
    } else {
        Command::new(name)
    }
}

fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn sample(found: &Value) -> Sample {
    let labels = found["metric"].as_object().cloned().unwrap_or_default();
    let labels = labels
        .into_iter()
        .map(|(label, value)| (label, value.as_str().unwrap_or_default().to_owned()));
    let value = found["value"][1].as_str().unwrap_or_default();
    (labels.collect(), value.parse().expect("a number"))
}
