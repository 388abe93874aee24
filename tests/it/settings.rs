//! Settings, start-up and stop: what is refused, what is waited for, and with which exit code it ends.

use std::fs;
use std::process::{Command, Output};

use testkit::*;
use tokio_postgres::NoTls;

/// `outboxd run` with these arguments, to its end. One that does not end by itself is told to.
fn run(args: &[&str]) -> Output {
    let mut bounded = Command::new("timeout");
    bounded.arg("10").arg(outboxd().get_program()).arg("run").args(args);
    bounded.output().expect("outboxd runs")
}

const ENOUGH: [&str; 4] = [
    "--database-url",
    "postgres://u:hunter2@127.0.0.1/db",
    "--kafka-brokers",
    "127.0.0.1:9",
];

/// The flags whose value is free text, each with an environment twin.
const FREE_TEXT: [&str; 18] = [
    "--schema",
    "--retention",
    "--processed-retention",
    "--inbox-retention",
    "--max-attempts",
    "--retry-backoff-min",
    "--retry-backoff-max",
    "--tasks",
    "--batch-rows",
    "--max-in-flight-bytes",
    "--max-message-bytes",
    "--batch-deadline",
    "--lease",
    "--poll-interval-max",
    "--shutdown-grace",
    "--http-listen",
    "--ui-listen",
    "--ui-url",
];

#[test]
fn any_text_in_the_variables_is_listed_and_no_secret_is_repeated() {
    for text in ["", " ", "-1", "ü\nx", "99999999999999999999", "\u{1b}[31m"] {
        let variable = |flag: &str| format!("OUTBOXD_{}", flag[2..].to_uppercase().replace('-', "_"));
        let output = outboxd()
            .arg("run")
            .envs(FREE_TEXT.map(|flag| (variable(flag), text)))
            .env(
                "OUTBOXD_DATABASE_URL",
                format!("postgres://u:hunter2{text}@h:x{text}/db"),
            )
            .env(
                "OUTBOXD_KAFKA_PROPERTIES",
                format!("hunter3{text}\nsasl.pasword=hunter4{text}"),
            )
            .output()
            .expect("outboxd runs");
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(64), "{text:?}: {said}");
        for flag in FREE_TEXT
            .iter()
            .chain(&["--database-url", "--kafka-brokers", "name=value", "sasl.pasword"])
        {
            assert!(said.contains(flag), "{text:?}: {flag} is missing in {said}");
        }
        assert!(!said.contains("hunter"), "{text:?}: {said}");
        assert!(!said.contains('\u{1b}'), "raw to the terminal: {said:?}");
    }
}

#[test]
fn bad_settings_are_listed_all_at_once_and_no_secret_is_repeated() {
    let output = run(&[
        "--database-url",
        "postgres://u:hunter2@127.0.0.1:notaport/db",
        "--kafka-property",
        "sasl.pasword=hunter3",
        "--kafka-property",
        "hunter4",
        "--kafka-property",
        "acks=1",
        "--lease",
        "soon",
        "--tasks",
        "0",
        "--batch-rows",
        "none",
        "--schema",
        "Bad Name",
        "--http-listen",
        "here",
        "--retention",
        "5s",
        "--max-in-flight-bytes",
        "much",
    ]);
    let said = stderr_of(&output);
    assert_eq!(output.status.code(), Some(64), "{said}");
    for flag in [
        "--database-url",
        "--kafka-brokers",
        "sasl.pasword",
        "name=value",
        "acks",
        "--lease",
        "--tasks",
        "--batch-rows",
        "--schema",
        "--http-listen",
        "--retention",
        "--max-in-flight-bytes",
    ] {
        assert!(said.contains(flag), "{flag} is missing in:\n{said}");
    }
    assert!(!said.contains("hunter"), "{said}");
}

#[test]
fn every_command_lists_all_problems_of_its_settings() {
    let commands: [(&[&str], &[&str]); 5] = [
        (
            &["verify", "--since", "lately"],
            &["--database-url", "--kafka-brokers", "--since"],
        ),
        (&["purge", "--retention", "5s"], &["--database-url", "--retention"]),
        (
            &["status", "--log-level", "verbose"],
            &["--log-level", "write error, warn"],
        ),
        (&["status", "--log-level", "outboxd=loud"], &["--log-level"]),
        (&["migrate", "--schema", "Bad Name"], &["--database-url", "--schema"]),
    ];
    for (args, flags) in commands {
        let output = outboxd().args(args).output().expect("outboxd runs");
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(64), "{said}");
        for flag in flags {
            assert!(said.contains(flag), "{flag} is missing in:\n{said}");
        }
    }
}

#[test]
fn a_certificate_that_cannot_be_read_is_a_setting_to_every_command() {
    let database = ["--database-url", ENOUGH[1], "--database-tls-ca", "/nowhere/ca.pem"];
    for (command, more) in [("run", &ENOUGH[2..]), ("migrate", &[]), ("status", &[]), ("purge", &[])] {
        let output = outboxd()
            .arg(command)
            .args(database)
            .args(more)
            .output()
            .expect("outboxd runs");
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(64), "{command}: {said}");
        assert!(said.contains("/nowhere/ca.pem"), "{said}");
    }
}

/// A certificate that nobody has: for tests of what is done where one is asked for.
fn certificate(folder: &tempfile::TempDir) -> String {
    let (certificate, key) = (folder.path().join("ca.pem"), folder.path().join("ca.key"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ])
        .args(["-subj", "/CN=nobody", "-days", "1", "-out"])
        .arg(&certificate)
        .arg("-keyout")
        .arg(&key)
        .output()
        .expect("openssl runs");
    assert!(made.status.success(), "{}", stderr_of(&made));
    certificate.display().to_string()
}

#[test]
fn plain_text_beside_a_certificate_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let ca = certificate(&folder);
    for url in [
        "postgres://u:hunter2@127.0.0.1/db?sslmode=disable",
        "postgres://u:hunter2@127.0.0.1/db?sslmode=prefer",
        "host=127.0.0.1 user=u password=hunter2 sslmode = 'disable'",
    ] {
        let args = ["--database-url", url, "--database-tls-ca", &ca];
        let output = run(&[&args[..], &ENOUGH[2..]].concat());
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(64), "{url}: {said}");
        assert!(
            said.contains("permits plain text") && said.contains("sslmode=verify-full"),
            "{said}"
        );
        assert!(!said.contains("hunter"), "{said}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_prove_who_it_is_is_not_spoken_to_in_plain_text() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let ca = certificate(&folder);
    let world = World::new().await;
    let verify = format!("{}?sslmode=verify-full", world.database_url);
    for args in [
        ["--database-url", &world.database_url, "--database-tls-ca", &ca],
        ["--database-url", &verify, "--database-tls-ca", &ca],
    ] {
        let output = outboxd().arg("status").args(args).output().expect("outboxd runs");
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains("server does not support TLS"), "{said}");
    }
}

#[test]
fn what_a_kafka_client_refuses_when_it_is_made_is_a_setting() {
    for (command, properties, named) in [
        (
            "run",
            ["security.protocol=ssl", "ssl.ca.location=/nowhere/ca.pem"],
            "ssl.ca.location",
        ),
        (
            "verify",
            ["security.protocol=ssl", "ssl.ca.location=/nowhere/ca.pem"],
            "ssl.ca.location",
        ),
        (
            "run",
            ["security.protocol=sasl_ssl", "sasl.mechanism=GUESSWORK"],
            "sasl.mechanism",
        ),
    ] {
        let output = outboxd()
            .arg(command)
            .args(ENOUGH)
            .args(properties.iter().flat_map(|property| ["--kafka-property", property]))
            .output()
            .expect("outboxd runs");
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(64), "{command} {properties:?}: {said}");
        assert!(
            said.contains(&format!("--kafka-property {named} is not accepted")),
            "{said}"
        );
    }
}

/// A server that speaks TLS, with a certificate that nobody trusts, and nothing else.
struct TlsServer {
    process: std::process::Child,
    address: String,
}

impl TlsServer {
    fn start(folder: &tempfile::TempDir, certificate: &str) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let process = Command::new("openssl")
            .args(["s_server", "-quiet", "-accept", &address, "-cert", certificate, "-key"])
            .arg(folder.path().join("ca.key"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("openssl runs");
        TlsServer { process, address }
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Lines of this level that contain these words.
fn lines(relay: &Relay, level: &str, words: &str) -> usize {
    let level = format!("\"level\":\"{level}\"");
    let log = relay.log();
    let of_level = log.lines().filter(|line| line.contains(&level));
    of_level.filter(|line| line.contains(words)).count()
}

#[tokio::test]
async fn why_kafka_cannot_be_reached_securely_is_said_once() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = TlsServer::start(&folder, &certificate(&folder));
    let world = World::new().await;
    let tls = ["security.protocol=ssl"];
    let sasl = [
        "security.protocol=sasl_plaintext",
        "sasl.mechanism=PLAIN",
        "sasl.username=u",
        "sasl.password=hunter2",
    ];
    for (kafka, properties, words) in [
        (&server.address, &tls[..], "certificate verify failed"),
        (&world.kafka, &sasl[..], "SASL PLAIN mechanism handshake failed"),
    ] {
        let flags: Vec<&str> = properties
            .iter()
            .flat_map(|property| ["--kafka-property", property])
            .collect();
        let relay = RelayBuilder::new(&world.database_url, kafka)
            .args(&flags)
            .args(&["--log-level", "debug"])
            .start_ready()
            .await;
        eventually(SOON, "the reason to be said, and to come again", async || {
            (lines(&relay, "WARN", words) > 0 && lines(&relay, "DEBUG", words) >= 5).then_some(())
        })
        .await;
        assert_eq!(lines(&relay, "WARN", words), 1, "{}", relay.log());
        assert!(!relay.logged("hunter2"));
    }
}

#[tokio::test]
async fn a_pause_says_why_connections_fail() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    world.fill(&topic, 1, 0).await;
    let relay = world
        .relay()
        .args(&["--kafka-property", "security.protocol=ssl"])
        .start_ready()
        .await;
    let pause = eventually(SOON, "the pause", async || {
        let log = relay.log();
        let pause = log.lines().find(|line| line.contains("Kafka does not answer"));
        pause.map(str::to_owned)
    })
    .await;
    assert!(pause.contains("SSL_HANDSHAKE"), "{}", relay.log());
}

#[test]
fn help_does_not_show_secrets_from_the_environment() {
    let output = outboxd()
        .args(["run", "--help"])
        .env("OUTBOXD_DATABASE_URL", "postgres://u:hunter2@h/db")
        .env("OUTBOXD_KAFKA_PROPERTIES", "sasl.password=hunter3")
        .output()
        .expect("outboxd runs");
    assert_eq!(output.status.code(), Some(0));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("hunter"));
}

#[test]
fn a_lease_that_a_batch_could_outlive_is_refused() {
    let output = run(&[&ENOUGH[..], &["--lease", "8s", "--batch-deadline", "6s"]].concat());
    assert_eq!(output.status.code(), Some(64));
    let said = stderr_of(&output);
    assert!(
        said.contains("--lease 8s is too short for --batch-deadline 6s"),
        "{said}"
    );
    assert!(said.contains("at least 11.25s"), "{said}");
}

#[test]
fn backoffs_the_wrong_way_round_are_refused() {
    let output = run(&[&ENOUGH[..], &["--retry-backoff-min", "2m", "--retry-backoff-max", "1m"]].concat());
    assert_eq!(output.status.code(), Some(64));
    assert!(stderr_of(&output).contains("--retry-backoff-min 2m is longer"));
}

#[test]
fn a_kafka_property_that_would_break_a_promise_is_refused_with_the_reason() {
    let output = run(&[&ENOUGH[..], &["--kafka-property", "acks=1"]].concat());
    assert_eq!(output.status.code(), Some(64));
    let said = stderr_of(&output);
    assert!(
        said.contains("an acknowledged row must survive the loss of a broker"),
        "{said}"
    );
    assert!(!said.contains("hunter"), "{said}");
}

#[test]
fn an_address_that_is_taken_is_said_to_be() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let output = run(&[&ENOUGH[..], &["--http-listen", &address]].concat());
    assert_eq!(output.status.code(), Some(69));
    assert!(stderr_of(&output).contains(&format!("cannot listen on {address}")));
}

#[tokio::test]
async fn an_unreachable_database_is_waited_for() {
    let postgres = OwnPostgres::start();
    let world = World::on(&postgres.url, &Stack::get().kafka).await;
    let topic = world.topic("orders", 1, &[]).await;
    postgres.crash();
    let relay = world.relay().start();
    eventually(SOON, "a word about the database", async || {
        relay.logged("cannot reach the database yet").then_some(())
    })
    .await;
    assert!(relay.get("/livez").expect("an answer").contains(" 200 "));
    assert!(relay.get("/readyz").expect("an answer").contains(" 503 "));
    postgres.restart();
    eventually(SOON, "readiness", async || {
        relay.get("/readyz").filter(|answer| answer.contains(" 200 "))
    })
    .await;
    let application = world.session().await;
    let enqueue = format!("SELECT outbox.enqueue('{topic}', 'k', '1')");
    application.batch_execute(&enqueue).await.expect("enqueued");
    assert_eq!(read_until(&world.kafka, &topic, 1, SOON).await.len(), 1);
}

#[tokio::test]
async fn an_unreachable_kafka_costs_time_and_no_attempt() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    world
        .execute(&format!(
            "SELECT outbox.enqueue('{topic}', 'k', '1'); SELECT outbox.enqueue('{topic}', NULL, '2');"
        ))
        .await;
    // Nobody listens there.
    let mut relay = RelayBuilder::new(&world.database_url, "127.0.0.1:1")
        .start_ready()
        .await;
    eventually(SOON, "the pause", async || {
        relay.metric("outboxd_publisher_paused").filter(|paused| *paused == 1.0)
    })
    .await;
    assert!(relay.logged("Kafka does not answer"));
    assert!(
        relay.get("/readyz").expect("an answer").contains(" 200 "),
        "a restart would not help"
    );
    relay.stop();
    let unharmed = "SELECT count(*) FROM outbox.message
                    WHERE attempts = 0 AND last_error IS NULL AND published_at IS NULL AND dead_at IS NULL";
    assert_eq!(world.count(unharmed).await, 2);
    assert_eq!(world.count("SELECT count(*) FROM outbox.hold").await, 0);
    let _relay = world.relay().start_ready().await;
    world.drained(SOON).await;
}

/// Requires a password of this login from now on.
async fn require_password(world: &World, login: &str) {
    let hba = world.text("SHOW hba_file").await;
    let rest = fs::read_to_string(&hba).expect("readable");
    fs::write(&hba, format!("host all {login} 127.0.0.1/32 scram-sha-256\n{rest}")).expect("writable");
    world.execute("SELECT pg_reload_conf()").await;
    let without = world.database_url.replacen("postgres@", &format!("{login}:wr0ng@"), 1);
    eventually(SOON, "the password to be asked for", async || {
        tokio_postgres::connect(&without, NoTls).await.is_err().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_wrong_password_ends_it_and_the_right_one_does_not() {
    let postgres = OwnPostgres::start();
    let world = World::on(&postgres.url, &Stack::get().kafka).await;
    let url = world.login("relay", &["outbox_relay"]).await;
    let login = format!("{}_relay", world.name);
    world.execute(&format!("ALTER ROLE {login} PASSWORD 'r1ght'")).await;
    require_password(&world, &login).await;
    let with = |password: &str| url.replacen(&format!("{login}@"), &format!("{login}:{password}@"), 1);
    for wrong in [&with("wr0ng"), &url] {
        let mut refused = RelayBuilder::new(wrong, &world.kafka).start();
        assert_eq!(refused.wait(SOON).code(), Some(77), "{}", refused.log());
        assert!(refused.logged("password authentication failed"), "{}", refused.log());
        assert!(!refused.logged("wr0ng"), "{}", refused.log());
    }
    let topic = world.topic("orders", 1, &[]).await;
    let mut relay = RelayBuilder::new(&with("r1ght"), &world.kafka).start_ready().await;
    world.execute(&format!("ALTER ROLE {login} PASSWORD 'n3w'")).await;
    let end_sessions =
        format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{login}'");
    assert!(world.count(&end_sessions).await > 0);
    // Sessions may still be on their way in by the old password.
    eventually(SOON, "the password to be refused", async || {
        world.count(&end_sessions).await;
        relay.logged("password authentication failed").then_some(())
    })
    .await;
    relay.assert_alive();
    world.execute(&format!("ALTER ROLE {login} PASSWORD 'r1ght'")).await;
    world.fill(&topic, 1, 0).await;
    world.drained(SOON).await;
    relay.assert_alive();
    relay.stop();
}

#[tokio::test]
async fn a_database_that_does_not_exist_ends_it() {
    let world = World::new().await;
    let nowhere = with_database(&world.database_url, "no_such_database");
    let mut relay = RelayBuilder::new(&nowhere, &world.kafka).start();
    assert_eq!(relay.wait(SOON).code(), Some(77), "{}", relay.log());
    assert!(relay.logged("no_such_database"));
}

/// Every privilege of the relay's role, as the GRANT that gives it.
const PRIVILEGES: &str = "
    SELECT format('%s ON %s', privilege_type, table_name) FROM information_schema.role_table_grants
    WHERE grantee = 'outbox_relay' AND table_schema = 'outbox'
    UNION ALL
    SELECT 'SELECT ON message_id_seq'
    UNION ALL
    SELECT format('%s (%s) ON %s', privilege_type, column_name, table_name) FROM information_schema.role_column_grants c
    WHERE grantee = 'outbox_relay' AND table_schema = 'outbox'
      AND NOT EXISTS (SELECT FROM information_schema.role_table_grants t
                      WHERE t.grantee = c.grantee AND t.table_name = c.table_name AND t.privilege_type = c.privilege_type)";

#[tokio::test]
async fn every_privilege_the_relay_needs_is_asked_for_at_start_up() {
    let world = World::new().await;
    let rows = world.db.query(PRIVILEGES, &[]).await.expect("grants");
    let privileges: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert!(privileges.len() > 15, "{privileges:?}");
    let url = world.login("relay", &[]).await;
    let login = format!("{}_relay", world.name);
    let all = format!(
        "GRANT USAGE ON SCHEMA outbox TO {login};
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox TO {login};"
    );
    let on = |privilege: &str| privilege.replacen(" ON ", " ON outbox.", 1);
    let grants: Vec<String> = privileges
        .iter()
        .map(|p| format!("GRANT {} TO {login};", on(p)))
        .collect();
    world.execute(&format!("{all}{}", grants.concat())).await;
    RelayBuilder::new(&url, &world.kafka).start_ready().await.stop();
    for (privilege, grant) in privileges.iter().zip(&grants) {
        world.execute(&format!("REVOKE {} FROM {login}", on(privilege))).await;
        let mut relay = RelayBuilder::new(&url, &world.kafka).start();
        let status = relay.wait(SOON);
        assert_eq!(status.code(), Some(79), "without {privilege}:\n{}", relay.log());
        let table = privilege.rsplit(' ').next().expect("a table");
        assert!(relay.logged(table), "without {privilege}:\n{}", relay.log());
        world.execute(grant).await;
    }
}

#[tokio::test]
async fn a_missing_privilege_is_named_together_with_the_role_that_has_it() {
    let world = World::new().await;
    let url = world.login("reader", &["outbox_operator"]).await;
    let mut relay = RelayBuilder::new(&url, &world.kafka).start();
    assert_eq!(relay.wait(SOON).code(), Some(79), "{}", relay.log());
    for words in [
        "UPDATE on outbox.lane",
        "INSERT on outbox.hold",
        "Grant it the role outbox_relay",
    ] {
        assert!(relay.logged(words), "{words}:\n{}", relay.log());
    }
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    let mut relay = world.relay().failpoint("after_claim").start_ready().await;
    world
        .execute(&format!("SELECT outbox.enqueue('{topic}', 'k', '1')"))
        .await;
    relay.at_failpoint("after_claim").await;
    relay.signal("TERM");
    eventually(SOON, "draining", async || {
        relay.get("/readyz").filter(|answer| answer.contains("draining"))
    })
    .await;
    let asked = std::time::Instant::now();
    relay.signal("TERM");
    let status = relay.wait(SOON);
    assert_eq!(status.code(), Some(70), "{}", relay.log());
    assert!(asked.elapsed().as_secs() < 5, "not the grace period of 25 s");
    assert!(relay.logged("second signal"), "{}", relay.log());
}

#[tokio::test]
async fn one_signal_lets_the_batch_in_flight_be_finished_and_marked() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    // Written first: a claim that finds nothing stops there as well.
    world
        .execute(&format!("SELECT outbox.enqueue('{topic}', 'k', '1')"))
        .await;
    let mut relay = world.relay().failpoint("after_publish").start_ready().await;
    assert_eq!(read_until(&world.kafka, &topic, 1, SOON).await.len(), 1);
    assert_eq!(world.pending().await, 1, "published, not yet marked");
    relay.signal("TERM");
    eventually(SOON, "draining", async || {
        relay.get("/readyz").filter(|answer| answer.contains("draining"))
    })
    .await;
    relay.continue_from("after_publish");
    let status = relay.wait(SOON);
    assert_eq!(status.code(), Some(0), "{}", relay.log());
    assert_eq!(world.pending().await, 0, "what Kafka has is marked");
    assert_eq!(
        world
            .count("SELECT count(*) FROM outbox.lane WHERE owner IS NOT NULL")
            .await,
        0
    );
}

#[tokio::test]
async fn a_worker_task_that_panics_ends_the_process() {
    let world = World::new().await;
    let topic = world.topic("orders", 1, &[]).await;
    world
        .execute(&format!("SELECT outbox.enqueue('{topic}', 'k', '1')"))
        .await;
    let mut relay = world.relay().panic_at("after_publish").start();
    let status = relay.wait(SOON);
    assert_eq!(status.code(), Some(70), "{}", relay.log());
    assert!(relay.logged("a worker task panicked"), "{}", relay.log());
    let _successor = world.relay().start_ready().await;
    world.drained(SOON).await;
}
