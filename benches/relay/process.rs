//! An `outboxd` process: what it counts, what it costs.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outboxd::http::ask;
use tokio::time::sleep;

use crate::cpu;
use crate::workspace::{OUTBOXD, Workspace};
use crate::{Deadline, Outcome};

pub struct Process {
    child: Child,
    http: String,
    pub started: Instant,
}

impl Process {
    pub fn start(workspace: &Workspace, flags: &[&str]) -> Outcome<Self> {
        Process::start_in([], workspace, flags)
    }

    /// The same with something in its environment.
    pub fn start_in<const N: usize>(
        environment: [(&str, String); N],
        workspace: &Workspace,
        flags: &[&str],
    ) -> Outcome<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let http = format!("127.0.0.1:{port}");
        let started = Instant::now();
        let child = Command::new(OUTBOXD)
            .args([
                "run",
                "--database-url",
                &workspace.url,
                "--kafka-brokers",
                &workspace.servers.kafka,
            ])
            .args(["--http-listen", &http, "--log-level", "error"])
            .args(flags)
            .envs(environment)
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Process { child, http, started })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn get(&self, path: &str) -> Option<String> {
        ask(&self.http, path, Duration::from_secs(5)).ok()
    }

    /// Its counters at this moment; none while nobody answers.
    pub fn counters(&self) -> Option<Counters> {
        let answer = self.get("/metrics")?;
        let value = |name: &str| {
            let line = answer.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<f64>().ok()
        };
        Some(Counters {
            claimed: value("outboxd_rows_claimed_total ")? as i64,
            marked: value("outboxd_rows_marked_total ")? as i64,
        })
    }

    pub async fn ready(&self) -> Outcome<()> {
        let deadline = Deadline::new(Duration::from_secs(60));
        while !self
            .get("/readyz")
            .is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
        {
            deadline.or("a process that is ready")?;
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    pub fn cpu_seconds(&self) -> f64 {
        cpu::seconds(self.pid())
    }

    pub fn memory_mib(&self) -> f64 {
        cpu::memory_mib(self.pid(), "VmRSS")
    }

    pub fn memory_mib_max(&self) -> f64 {
        cpu::memory_mib(self.pid(), "VmHWM")
    }

    /// As a deploy stops it: what is in flight is finished.
    pub async fn stop(mut self) -> Outcome<()> {
        Command::new("kill").args(["-TERM", &self.pid().to_string()]).status()?;
        let deadline = Deadline::new(Duration::from_secs(40));
        while self.child.try_wait()?.is_none() {
            deadline.or("a process that stops when told to")?;
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

/// As a crash ends it.
impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Counters {
    pub claimed: i64,
    pub marked: i64,
}
