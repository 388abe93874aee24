//! `outboxd doctor` and `status --check`: for each check a world in which nothing but that is wrong.

mod kafka;
mod limits;
mod relay;
mod schema;
mod security;
mod server;
mod vacuum;

use std::process::Output;

use outboxd::doctor::check::CheckId;
use serde_json::Value;
use testkit::*;

/// What the doctor said.
struct Report {
    code: i32,
    json: Value,
    stderr: String,
}

/// Runs the doctor with these arguments.
fn run(args: &[&str]) -> Output {
    outboxd().arg("doctor").args(args).output().expect("outboxd runs")
}

/// The same, and reads its JSON.
fn doctor(args: &[&str]) -> Report {
    let output = run(&[args, &["--json"]].concat());
    let stderr = stderr_of(&output);
    let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    let code = output.status.code().expect("it ends by itself");
    Report { code, json, stderr }
}

/// Examines a database by this login, and no Kafka.
fn examine(url: &str, args: &[&str]) -> Report {
    doctor(&[&["--database-url", url], args].concat())
}

/// A world, and a login that has the relay's role and nothing else.
async fn world_and_relay() -> (World, String) {
    let world = World::new().await;
    let url = world.login("relay", &["outbox_relay"]).await;
    (world, url)
}

impl Report {
    fn checks(&self) -> &Vec<Value> {
        self.json["checks"].as_array().expect("a list")
    }

    /// What all checks of this id say.
    fn all(&self, id: &str) -> Vec<&Value> {
        self.checks().iter().filter(|check| check["id"] == id).collect()
    }

    /// What the one check of this id says.
    fn check(&self, id: &str) -> &Value {
        match self.all(id)[..] {
            [check] => check,
            _ => panic!("not one {id} in {:#}", self.json),
        }
    }

    fn verdict(&self, id: &str) -> &str {
        self.check(id)["verdict"].as_str().expect("a verdict")
    }

    /// The ids of the checks with this verdict, each once.
    fn with(&self, verdict: &str) -> Vec<&str> {
        let with = self.checks().iter().filter(|check| check["verdict"] == verdict);
        let mut ids: Vec<&str> = with.map(|check| check["id"].as_str().expect("an id")).collect();
        ids.dedup();
        ids
    }

    /// That check alone is a problem. Returns what it found and the fix.
    fn only_problem(&self, id: &str) -> (String, String) {
        assert_eq!(self.with("problem"), [id], "{:#}", self.json);
        assert_eq!(self.with("unknown"), [""; 0], "{:#}", self.json);
        assert_eq!((self.code, &self.json["verdict"]), (1, &Value::from("problem")));
        assert!(self.stderr.contains(id), "{}", self.stderr);
        self.said(id)
    }

    /// That check has advice, and nothing is worse.
    fn only_advice(&self, id: &str) -> (String, String) {
        assert_eq!(self.verdict(id), "advice", "{:#}", self.json);
        assert_eq!(
            (self.with("problem"), self.with("unknown")),
            (vec![], vec![]),
            "{:#}",
            self.json
        );
        assert_eq!((self.code, &self.json["verdict"]), (0, &Value::from("ok")));
        self.said(id)
    }

    /// What the check found, and its fix. It also says why.
    fn said(&self, id: &str) -> (String, String) {
        let check = self.all(id).into_iter().find(|check| !check["fix"].is_null());
        let check = check.unwrap_or_else(|| panic!("no fix of {id} in {:#}", self.json));
        let text = |name: &str| check[name].as_str().expect(name).to_owned();
        assert!(!text("why").is_empty());
        (text("found"), text("fix"))
    }
}

fn assert_contains(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in {text:?}");
    }
}

#[tokio::test]
async fn a_healthy_world_has_every_check_and_no_problem() {
    let (world, url) = world_and_relay().await;
    let topic = world.topic("orders", 4, &[]).await;
    let relay = world.relay_as(&url).start_ready().await;
    world.fill(&topic, 10, 2).await;
    world.drained(SOON).await;
    eventually(SOON, "all lanes to be taken", async || {
        relay.metric("outboxd_lanes_owned").filter(|owned| *owned == 64.0)
    })
    .await;
    let report = doctor(&["--database-url", &url, "--kafka-brokers", &world.kafka]);
    assert_eq!((report.code, &report.stderr[..]), (0, ""), "{:#}", report.json);
    assert_eq!(
        (report.with("problem"), report.with("unknown")),
        (vec![], vec![]),
        "{:#}",
        report.json
    );
    assert_eq!(report.with("skipped"), ["db.history_days"], "{:#}", report.json);
    for id in CheckId::ALL {
        let check = report.check(id.name());
        let is_of_topic = id.name().starts_with("kafka.topic.");
        assert_eq!(check["topic"] == topic.as_str(), is_of_topic, "{check:#}");
        assert!(check["found"].as_str().is_some_and(|found| !found.is_empty()));
    }
    // On one broker nothing is replicated.
    let (found, _) = report.only_advice("kafka.topic.isr");
    assert_contains(&found, &["1 replica in sync"]);
}

#[tokio::test]
async fn what_is_wrong_is_read_last_with_the_command_that_fixes_it() {
    let (world, url) = world_and_relay().await;
    world
        .execute("ALTER TABLE outbox.message SET (autovacuum_enabled = off)")
        .await;
    let output = run(&["--database-url", &url]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    let (fine, wrong) = text.split_once("\nPROBLEM  db.autovacuum: ").expect("the problem");
    assert_contains(
        fine,
        &["ok       db.connect", "skipped  kafka.auth, kafka.connect, kafka.tls"],
    );
    assert_contains(
        wrong,
        &[
            "→ ALTER TABLE outbox.message RESET (autovacuum_enabled",
            "\n1 problem, 0 unknown",
        ],
    );
    assert_contains(&stderr_of(&output), &["outboxd: a problem with db.autovacuum"]);
}

#[tokio::test]
async fn what_nobody_answers_is_unknown_and_no_problem() {
    let (world, url) = world_and_relay().await;
    let locker = world.session().await;
    locker
        .batch_execute("BEGIN; LOCK TABLE outbox.worker IN ACCESS EXCLUSIVE MODE")
        .await
        .expect("locked");
    let report = examine(&url, &[]);
    assert_eq!(report.code, 2, "{:#}", report.json);
    assert_eq!(
        report.with("unknown"),
        ["relay.workers", "relay.versions"],
        "{:#}",
        report.json
    );
    let found = report.check("relay.workers")["found"].as_str().expect("a reason");
    assert_contains(found, &["55P03"]);
    assert_contains(&report.stderr, &["undecided", "relay.workers"]);
}

#[test]
fn bad_settings_are_listed_all_at_once_and_no_secret_is_repeated() {
    let output = run(&[
        "--database-url",
        "postgres://u:hunter2@127.0.0.1:notaport/db",
        "--max-transaction-age",
        "long",
        "--tasks",
        "0",
        "--kafka-property",
        "acks=1",
    ]);
    let said = stderr_of(&output);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert_contains(&said, &["--database-url", "--max-transaction-age", "--tasks", "acks"]);
    assert!(!said.contains("hunter") && !said.contains("--kafka-brokers"), "{said}");
}
