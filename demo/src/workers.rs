//! The relay workers: real daemons, each a process of its own, so that one can really be killed.

use std::process::Stdio;
use std::sync::Arc;

use outboxd::cli::Failure;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use crate::display::Display;

/// What every worker is told.
pub struct Setup {
    pub database_url: String,
    pub schema: String,
    pub brokers: String,
    pub display: Arc<Display>,
}

struct Worker {
    name: String,
    process: Child,
}

/// All of them are killed when this is dropped.
pub struct Workers {
    setup: Setup,
    running: Vec<Worker>,
    started: usize,
}

impl Workers {
    pub fn new(setup: Setup) -> Self {
        Workers {
            setup,
            running: Vec::new(),
            started: 0,
        }
    }

    /// Starts one more; answers its name.
    pub fn start(&mut self) -> Result<String, Failure> {
        self.started += 1;
        let name = format!("worker-{}", self.started);
        let mut process = self
            .command(&name)
            .and_then(|mut command| command.spawn())
            .map_err(|error| {
                Failure::Broken(format!(
                    "cannot start a worker, the outboxd beside this program: {error}"
                ))
            })?;
        if let Some(stderr) = process.stderr.take() {
            tokio::spawn(relate(name.clone(), stderr, self.setup.display.clone()));
        }
        let worker = Worker {
            name: name.clone(),
            process,
        };
        self.running.push(worker);
        Ok(name)
    }

    fn command(&self, name: &str) -> std::io::Result<Command> {
        // Both are built into the same directory.
        let mut command = Command::new(std::env::current_exe()?.with_file_name("outboxd"));
        // The viewer's own settings are for the viewer's own relay.
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("OUTBOXD_") {
                command.env_remove(variable);
            }
        }
        command
            .args([
                "run",
                "--log-level=error",
                "--log-format=text",
                "--http-listen=127.0.0.1:0",
            ])
            // As short as the settings' check allows: the lanes of a killed worker wait for its lease.
            .args(["--batch-deadline=1s", "--lease=5s"])
            .args(["--worker-name", name, "--schema", &self.setup.schema])
            .args(["--kafka-brokers", &self.setup.brokers])
            // Not an argument: it may hold a password.
            .env("OUTBOXD_DATABASE_URL", &self.setup.database_url)
            // Ctrl-C is for the demo, which ends them in its own order.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        Ok(command)
    }

    /// SIGKILL to the newest: no drain, no farewell. Answers its name.
    pub async fn kill_one(&mut self) -> Result<String, Failure> {
        let Some(mut victim) = self.running.pop() else {
            return Err(Failure::Broken("there is no worker to kill".to_owned()));
        };
        victim
            .process
            .kill()
            .await
            .map_err(|error| Failure::Broken(format!("cannot kill {}: {error}", victim.name)))?;
        Ok(victim.name)
    }

    pub async fn kill_all(&mut self) {
        for worker in &mut self.running {
            // Already gone is as good.
            let _ = worker.process.kill().await;
        }
    }

    /// None ends by itself; what it had to say has been shown.
    pub fn check(&mut self) -> Result<(), Failure> {
        for worker in &mut self.running {
            if let Ok(Some(status)) = worker.process.try_wait() {
                return Err(Failure::Broken(format!("{} ended by itself: {status}", worker.name)));
            }
        }
        Ok(())
    }
}

async fn relate(name: String, stderr: impl AsyncRead + Unpin, display: Arc<Display>) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        display.note(&format!("{name}: {line}"));
    }
}
