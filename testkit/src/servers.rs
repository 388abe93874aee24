//! The running dev stack, and servers of a test's own that it may break.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use crate::SmallDisk;
use crate::paths::repository;
use crate::test_slots::wait_for_slot;

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
    repository().join("deploy/dev/stack")
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
    wait_for_slot();
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
        OwnKafka::with_properties(&[])
    }

    /// One that asks who may do what. A topic is everybody's until somebody was granted something there.
    pub fn guarded() -> Self {
        OwnKafka::with_properties(&[
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found=true",
        ])
    }

    /// One that asks named users what they may do. Who gives no name may do everything.
    pub fn guarded_for_named_users() -> Self {
        OwnKafka::with_properties(&[
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:ANONYMOUS",
        ])
    }

    /// One that creates topics that are asked for.
    pub fn creating_topics() -> Self {
        OwnKafka::with_properties(&["auto.create.topics.enable=true"])
    }

    /// One that tells its clients to come to this port: a proxy's.
    pub fn advertising(port: u16) -> Self {
        OwnKafka::with_properties(&[&format!("advertised.listeners=BROKER://127.0.0.1:{port}")])
    }

    fn with_properties(properties: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().display().to_string();
        let address = stack(&[&["kafka-start", &path], properties].concat());
        OwnKafka { dir, address }
    }

    /// One more broker in the cluster of this one, which alone controls it. Numbers begin with 2: this one's is 1.
    pub fn joined_by(&self, number: i32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().display().to_string();
        let address = stack(&["kafka-join", &path, &self.path(), &number.to_string()]);
        OwnKafka { dir, address }
    }

    /// Grants an operation on a topic to a principal, and so denies the topic to all who were granted nothing.
    pub fn grant(&self, principal: &str, operation: &str, topic: &str) {
        let allowed = [
            "--allow-principal",
            principal,
            "--operation",
            operation,
            "--topic",
            topic,
        ];
        kafka_tool(ADD_ACL, &self.address, &allowed);
    }

    /// SIGSTOP: connections stay, the kernel takes what is sent, and nobody answers.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// SIGCONT: what had arrived meanwhile is read, and answered to clients that still listen.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = std::fs::read_to_string(self.dir.path().join("kafka/pid")).expect("a pid");
        let sent = Command::new("kill").args([&format!("-{signal}"), pid.trim()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -{signal}");
    }

    /// In good order: leaders are given up first.
    pub fn stop(&self) {
        stack(&["kafka-stop", &self.path()]);
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

/// Adds an ACL.
pub const ADD_ACL: &[&str] = &["org.apache.kafka.tools.AclCommand", "--add", "--force"];

/// Runs one of Kafka's own tools, a class and its first arguments, against a broker; panics with its words if it fails.
pub fn kafka_tool(tool: &[&str], broker: &str, args: &[&str]) {
    let output = Command::new("java")
        .args([
            "-XX:TieredStopAtLevel=1",
            "-cp",
            &format!("{}/*", Stack::get().kafka_libs),
        ])
        .args(tool)
        .args(["--bootstrap-server", broker])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("java runs");
    assert!(output.status.success(), "{tool:?}: {output:?}");
}

/// A PostgreSQL server of the test's own, to be crashed.
pub struct OwnPostgres {
    dir: tempfile::TempDir,
    pub url: String,
}

impl OwnPostgres {
    pub fn start() -> Self {
        OwnPostgres::start_in(tempfile::tempdir().expect("a temporary directory"))
    }

    /// On a disk of the test's own.
    pub fn start_on(disk: &SmallDisk) -> Self {
        OwnPostgres::start_in(tempfile::tempdir_in(disk.path()).expect("a temporary directory"))
    }

    fn start_in(dir: tempfile::TempDir) -> Self {
        let url = stack(&["postgres-start", &dir.path().display().to_string()]);
        OwnPostgres { dir, url }
    }

    /// It stops and comes back as a standby that follows nobody, until it is promoted: a read-only node.
    pub fn restart_as_standby(&self) {
        stack(&["postgres-stop", &self.path()]);
        let signal = self.dir.path().join("postgres/data/standby.signal");
        std::fs::write(signal, "").expect("a file");
        self.restart();
    }

    /// Another server that follows this one, not synchronously.
    pub fn standby(&self) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let url = stack(&["postgres-standby", &dir.path().display().to_string(), &self.path()]);
        OwnPostgres { dir, url }
    }

    /// What the server itself says.
    pub fn log_path(&self) -> PathBuf {
        self.dir.path().join("postgres/log")
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
