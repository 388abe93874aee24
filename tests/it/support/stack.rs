//! The running dev stack, and servers of a test's own that it may break.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// Where the shared PostgreSQL and Kafka are.
pub struct Stack {
    pub database_url: String,
    pub kafka: String,
    /// The folder of Kafka's jars.
    pub kafka_libs: String,
}

static STACK: LazyLock<Stack> = LazyLock::new(|| {
    from_environment(|name| std::env::var(name).ok())
        .or_else(running_stack)
        .expect("no dev stack: use `make test`, or `make up` first")
});

impl Stack {
    pub fn get() -> &'static Stack {
        &STACK
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/dev/stack")
}

fn from_environment(value: impl Fn(&str) -> Option<String>) -> Option<Stack> {
    Some(Stack {
        database_url: value("OUTBOXD_TEST_DATABASE_URL")?,
        kafka: value("OUTBOXD_TEST_KAFKA")?,
        kafka_libs: value("OUTBOXD_TEST_KAFKA_LIBS")?,
    })
}

fn running_stack() -> Option<Stack> {
    let output = Command::new(script()).arg("env").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    from_environment(|name| {
        let line = text.lines().find(|line| line.contains(&format!("{name}=")))?;
        Some(line.split_once('=')?.1.trim_matches(['"', '\'']).to_owned())
    })
}

/// Runs the stack script; panics with its words if it fails.
pub fn stack(args: &[&str]) -> String {
    let output = Command::new(script())
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("the stack script runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "stack {args:?} failed: {stderr}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The same at a test's end, where a failure is nobody's business any more.
pub fn clean_up(args: &[&str]) {
    let _ = Command::new(script()).args(args).output();
}

/// A Kafka broker of the test's own, to be stopped and killed.
pub struct OwnKafka {
    dir: tempfile::TempDir,
    pub address: String,
}

impl OwnKafka {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let address = stack(&["kafka-start", &dir.path().display().to_string()]);
        OwnKafka { dir, address }
    }

    pub fn kill(&self) {
        stack(&["kafka-stop", &self.path(), "--mode", "immediate"]);
    }

    pub fn restart(&self) {
        assert_eq!(
            stack(&["kafka-start", &self.path()]),
            self.address,
            "the same port again"
        );
    }

    fn path(&self) -> String {
        self.dir.path().display().to_string()
    }
}

impl Drop for OwnKafka {
    fn drop(&mut self) {
        clean_up(&["kafka-stop", &self.path(), "--mode", "immediate", "--wipe"]);
    }
}

/// A PostgreSQL server of the test's own, to be crashed.
pub struct OwnPostgres {
    dir: tempfile::TempDir,
    pub url: String,
}

impl OwnPostgres {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let url = stack(&["postgres-start", &dir.path().display().to_string()]);
        OwnPostgres { dir, url }
    }

    /// Another server that follows this one, not synchronously.
    pub fn standby(&self) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let url = stack(&["postgres-standby", &dir.path().display().to_string(), &self.path()]);
        OwnPostgres { dir, url }
    }

    /// `pg_ctl stop -m immediate`: as if the machine had lost power.
    pub fn crash(&self) {
        stack(&["postgres-stop", &self.path(), "--mode", "immediate"]);
    }

    pub fn restart(&self) {
        assert_eq!(
            stack(&["postgres-start", &self.path()]),
            self.url,
            "the same port again"
        );
    }

    fn path(&self) -> String {
        self.dir.path().display().to_string()
    }
}

impl Drop for OwnPostgres {
    fn drop(&mut self) {
        clean_up(&["postgres-stop", &self.path(), "--mode", "immediate", "--wipe"]);
    }
}

/// host:port of a URL.
pub fn address_of(url: &str) -> &str {
    let (_, rest) = url.split_once('@').expect("a login in the URL");
    rest.split_once('/').expect("a database in the URL").0
}
