//! A real `outboxd run` process: started, watched, signalled, killed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use outboxd::http::ask;

use crate::paths::outboxd;
use crate::{Stopwatch, failpoint};

pub struct RelayBuilder {
    command: Command,
    failpoints: Vec<String>,
    panics: Vec<String>,
}

impl RelayBuilder {
    /// As short as the settings allow: recovery is part of what is tested. By environment, so that a flag wins.
    pub fn new(database_url: &str, kafka: &str) -> Self {
        RelayBuilder::without_database(kafka).args(&["--database-url", database_url])
    }

    /// The same for a relay that is told otherwise where its database is.
    pub fn without_database(kafka: &str) -> Self {
        RelayBuilder::running(kafka)
            .env("OUTBOXD_BATCH_DEADLINE", "1s")
            .env("OUTBOXD_LEASE", "5s")
            .env("OUTBOXD_POLL_INTERVAL_MAX", "100ms")
    }

    /// With the settings a user gets who sets none.
    pub fn with_defaults(database_url: &str, kafka: &str) -> Self {
        RelayBuilder::running(kafka).args(&["--database-url", database_url])
    }

    fn running(kafka: &str) -> Self {
        let mut command = outboxd();
        command
            .args(["run", "--kafka-brokers", kafka])
            .args(["--http-listen", "127.0.0.1:0", "--log-format", "json"]);
        RelayBuilder {
            command,
            failpoints: Vec::new(),
            panics: Vec::new(),
        }
    }

    /// More flags; they win over the builder's own choice.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// With a page for the person on call, which the token in this file opens.
    pub fn with_page(self, token_file: &str) -> Self {
        self.args(&["--ui-listen", "127.0.0.1:0", "--ui-token-file", token_file])
    }

    /// Stop at this failpoint until told to continue: see [`Relay::at_failpoint`].
    pub fn failpoint(mut self, name: &str) -> Self {
        self.failpoints.push(name.to_owned());
        self
    }

    /// Panic at this failpoint.
    pub fn panic_at(mut self, name: &str) -> Self {
        self.panics.push(name.to_owned());
        self
    }

    pub fn start(mut self) -> Relay {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let log = dir.path().join("log");
        let armed: Vec<String> = self
            .failpoints
            .iter()
            .map(|name| failpoint::armed(dir.path(), name))
            .chain(self.panics.iter().map(|name| format!("{name}=panic")))
            .collect();
        let child = self
            .command
            .env("OUTBOXD_FAILPOINTS", armed.join(","))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).expect("a log file"))
            .spawn()
            .expect("outboxd starts");
        Relay { child, dir, log }
    }

    /// Starts it and waits until it is ready.
    pub async fn start_ready(self) -> Relay {
        let relay = self.start();
        crate::eventually(crate::SOON, "the relay to be ready", async || {
            relay.get("/readyz").filter(|answer| answer.contains(" 200 ")).map(drop)
        })
        .await;
        relay
    }
}

/// A running process; killed when dropped.
pub struct Relay {
    child: Child,
    dir: tempfile::TempDir,
    log: PathBuf,
}

impl Relay {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its log is on disk even after a kill: keep reading it.
    pub fn logged(&self, text: &str) -> bool {
        self.log().contains(text)
    }

    /// Where it listens, once it does.
    pub fn address(&self) -> Option<String> {
        self.listener("http")
    }

    /// Where its page listens, once it does.
    pub fn ui_address(&self) -> Option<String> {
        self.listener("ui")
    }

    fn listener(&self, name: &str) -> Option<String> {
        let log = self.log();
        let line = log.lines().find(|line| line.contains("outboxd starts"))?;
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(line[name].as_str()?.to_owned())
    }

    /// The whole HTTP answer, or `None` if nobody answers.
    pub fn get(&self, path: &str) -> Option<String> {
        ask(&self.address()?, path, Duration::from_secs(5)).ok()
    }

    /// A metric's value, summed over its labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        Relay::metric_in(&self.get("/metrics")?, name)
    }

    /// The same in an answer that is at hand.
    pub fn metric_in(answer: &str, name: &str) -> Option<f64> {
        let values: Vec<f64> = answer
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// The series of a metric in an answer, by their labels as they are written: `{topic="orders"}`.
    pub fn series_in<'a>(answer: &'a str, name: &str) -> BTreeMap<&'a str, f64> {
        let series = answer.lines().filter_map(|line| {
            let (labels, value) = line.strip_prefix(name)?.rsplit_once(' ')?;
            let is_it = labels.is_empty() || labels.starts_with('{');
            is_it.then_some((labels, value.parse().ok()?))
        });
        series.collect()
    }

    /// It never stopped, and its loops turn.
    pub fn assert_alive(&self) {
        let answer = self.get("/livez").expect("it answers");
        assert!(answer.contains(" 200 "), "{answer}");
        assert_eq!(self.log().matches("outboxd starts").count(), 1, "no restart");
    }

    /// Processor time it has used so far.
    pub fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it lives");
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        // User and system time, in hundredths of a second on every Linux there is.
        let ticks = fields.split_whitespace().skip(11).take(2);
        let total: u64 = ticks.map(|field| field.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(total * 10)
    }

    pub fn signal(&self, signal: &str) {
        crate::signal(signal, self.pid().into());
    }

    /// kill -9, and wait until it is gone.
    pub fn kill(&mut self) {
        self.signal("KILL");
        self.child.wait().expect("it ends");
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it can be waited for")
    }

    /// Waits for the process to end by itself.
    pub fn wait(&mut self, within: Duration) -> ExitStatus {
        let stopwatch = Stopwatch::start();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(
                stopwatch.without_steal() < within,
                "it did not end within {within:?}:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// SIGTERM, and wait for a clean end.
    pub fn stop(&mut self) {
        self.signal("TERM");
        let status = self.wait(Duration::from_secs(30));
        assert!(status.success(), "{status}:\n{}", self.log());
    }

    /// Has it arrived at the failpoint?
    pub fn is_at_failpoint(&self, name: &str) -> bool {
        failpoint::is_reached(self.dir.path(), name)
    }

    /// Waits until it has.
    pub async fn at_failpoint(&self, name: &str) {
        failpoint::reached(self.dir.path(), name).await;
    }

    /// Lets it go on.
    pub fn continue_from(&self, name: &str) {
        failpoint::continue_from(self.dir.path(), name);
    }

    /// Arms a failpoint again that it was told to continue from: it stops at the next arrival.
    pub fn stop_again_at(&self, name: &str) {
        failpoint::arm_again(self.dir.path(), name);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("── log of outboxd {} ──\n{}", self.pid(), self.log());
        }
    }
}
