//! Passwords: where they come from, how one is replaced without a restart, and that none is ever seen.

use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use testkit::*;

const PUBLISHED: &str = "SELECT count(*) FROM outbox.message WHERE published_at IS NOT NULL";

/// A world on a server that asks the login `relay` for its password, which is `first`, over TLS.
struct Guarded {
    world: World,
    postgres: SecurePostgres,
    folder: tempfile::TempDir,
    topic: String,
}

impl Guarded {
    async fn new() -> Self {
        let postgres = SecurePostgres::start().await;
        let world = postgres.world().await;
        world
            .login_with("relay", &["outbox_relay", "outbox_operator", "by_password"], "first")
            .await;
        let topic = world.topic("orders", 4, &[]).await;
        Guarded {
            topic,
            world,
            postgres,
            folder: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    fn login(&self) -> String {
        format!("{}_relay", self.world.name)
    }

    /// The connection string, with `login` in it as a URL has it: `relay` or `relay:password`.
    fn url(&self, login: &str) -> String {
        let url = self.world.database_url.replacen("postgres@", &format!("{login}@"), 1);
        format!("{url}?sslmode=require")
    }

    /// A file with this text; answers its path.
    fn file(&self, name: &str, text: &str) -> String {
        let (new, path) = (self.folder.path().join("new"), self.folder.path().join(name));
        fs::write(&new, text).expect("writable");
        fs::rename(&new, &path).expect("the same folder");
        path.display().to_string()
    }

    async fn set_password(&self, password: &str) {
        let alter = format!("ALTER ROLE {} PASSWORD '{password}'", self.login());
        self.world.execute(&alter).await;
    }

    /// Waits until the relay has published many more rows.
    async fn many_more_are_published(&self) {
        let goal = self.world.count(PUBLISHED).await + 400;
        self.world.until(&format!("({PUBLISHED}) > {goal}")).await;
    }

    /// Stops the writes, and checks that nothing was lost and no repeat lacks its flag.
    async fn assert_nothing_lost(&self, writes: BackgroundWrites, mut relay: Relay) {
        writes.stop();
        self.world.drained(SOON).await;
        relay.assert_alive();
        self.world.history(&self.topic).await.assert_counted_by(&[&relay]);
        relay.stop();
    }

    /// `outboxd status` with this environment and these flags: its exit code, and what it says on stderr.
    fn status(&self, environment: &[(&str, &str)], flags: &[&str]) -> (i32, String) {
        let output = self.command("status", environment, flags);
        (output.status.code().expect("it ends by itself"), stderr_of(&output))
    }

    /// Any subcommand, without the passwords of the user who runs the tests. One that does not end by itself is told to.
    fn command(&self, subcommand: &str, environment: &[(&str, &str)], flags: &[&str]) -> Output {
        let mut bounded = Command::new("timeout");
        bounded
            .arg("20")
            .arg(outboxd().get_program())
            .arg(subcommand)
            .args(flags);
        bounded.env_remove("PGPASSWORD").env_remove("PGPASSFILE");
        bounded
            .env("HOME", self.folder.path())
            .envs(environment.iter().copied());
        bounded.output().expect("outboxd runs")
    }
}

type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], i32);

/// Each case ends with its exit code, and says no password.
fn assert_codes(guarded: &Guarded, cases: &[Case<'_>]) {
    for (environment, flags, expected) in cases {
        let (code, said) = guarded.status(environment, flags);
        assert_eq!(code, *expected, "{environment:?} {flags:?}: {said}");
        assert!(!said.contains("wr0ng") && !said.contains("first"), "{said}");
    }
}

const FILE: &str = "--database-password-file";
const COMMAND: &str = "--database-password-command";

#[tokio::test]
async fn a_password_comes_from_any_source() {
    let guarded = Guarded::new().await;
    let login = guarded.login();
    let url = guarded.url(&login);
    let given = guarded.url(&format!("{login}:first"));
    let file = guarded.file("password", "first\n");
    let url_file = guarded.file("url", &format!("{given}\n"));
    let pgpass = guarded.file("pgpass", &format!("127.0.0.1:*:*:{login}:first\n"));
    let json = guarded.file("json", r#"{"password": "first", "expires_at": "2001-01-01T00:00:00Z"}"#);
    let (print, print_json) = (format!("cat '{file}'"), format!("cat '{json}'"));
    let cases: [Case<'_>; 8] = [
        (&[], &["--database-url", &given], 0),
        (&[], &["--database-url-file", &url_file], 0),
        (&[], &["--database-url", &url, FILE, &file], 0),
        (&[], &["--database-url", &url, COMMAND, &print], 0),
        (&[], &["--database-url", &url, COMMAND, &print_json], 0),
        (&[("PGPASSWORD", "first")], &["--database-url", &url], 0),
        (&[("PGPASSFILE", &pgpass)], &["--database-url", &url], 0),
        (&[], &["--database-url", &url], 77),
    ];
    assert_codes(&guarded, &cases);
    guarded.file(".pgpass", &format!("*:*:*:{login}:first\n"));
    // Now the home directory has it.
    assert_codes(&guarded, &[(&[], &["--database-url", &url], 0)]);
}

#[tokio::test]
async fn of_several_passwords_the_first_source_gives_it() {
    let guarded = Guarded::new().await;
    let login = guarded.login();
    let url = guarded.url(&login);
    let (right, wrong) = (
        guarded.url(&format!("{login}:first")),
        guarded.url(&format!("{login}:wr0ng")),
    );
    let (right_file, wrong_file) = (guarded.file("right", "first"), guarded.file("wrong", "wr0ng"));
    let pgpass = guarded.file("pgpass", "*:*:*:*:first\n");
    let cases: [Case<'_>; 6] = [
        (&[("PGPASSWORD", "wr0ng")], &["--database-url", &right], 0),
        (&[("PGPASSWORD", "first")], &["--database-url", &wrong], 77),
        (
            &[("PGPASSWORD", "wr0ng")],
            &["--database-url", &url, FILE, &right_file],
            0,
        ),
        (
            &[("PGPASSWORD", "first")],
            &["--database-url", &url, FILE, &wrong_file],
            77,
        ),
        (
            &[("PGPASSFILE", &pgpass)],
            &["--database-url", &url, COMMAND, "echo wr0ng"],
            77,
        ),
        (
            &[("PGPASSWORD", "wr0ng"), ("PGPASSFILE", &pgpass)],
            &["--database-url", &url],
            77,
        ),
    ];
    assert_codes(&guarded, &cases);
}

#[tokio::test]
async fn two_passwords_and_none_that_can_be_read_are_problems() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (file, empty, url_file) = (path("password"), path("empty"), path("url"));
    fs::write(&file, "s3cret").expect("writable");
    fs::write(&empty, "\n").expect("writable");
    fs::write(&url_file, "postgres://u:s3cret@h:notaport/db").expect("writable");
    let missing = path("missing");
    let (url, given) = ("postgres://u@127.0.0.1/db", "postgres://u:s3cret@127.0.0.1/db");
    let cases: [(&[&str], &[&str]); 9] = [
        (
            &["--database-url", given, FILE, &file],
            &["--database-url has a password", FILE],
        ),
        (
            &["--database-url", given, COMMAND, "echo s3cret"],
            &["--database-url has a password", COMMAND],
        ),
        (
            &["--database-url", url, FILE, &file, COMMAND, "echo s3cret"],
            &[FILE, COMMAND],
        ),
        (
            &["--database-url", given, "--database-url-file", &url_file],
            &["--database-url-file"],
        ),
        (
            &["--database-url-file", &url_file],
            &["--database-url-file cannot be used"],
        ),
        (
            &["--database-url-file", &missing],
            &["--database-url-file", "cannot be read"],
        ),
        (&["--database-url", url, FILE, &missing], &[FILE, "cannot be read"]),
        (&["--database-url", url, FILE, &empty], &[FILE, "holds nothing"]),
        (&["--database-url", url, COMMAND, "echo 's3cret"], &[COMMAND, "quote"]),
    ];
    for (flags, words) in cases {
        let output = outboxd().arg("status").args(flags).output().expect("outboxd runs");
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(64), "{flags:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert!(!said.contains("s3cret"), "{said}");
    }
}

#[tokio::test]
async fn a_password_command_that_fails_ends_a_start_and_says_why() {
    let guarded = Guarded::new().await;
    let url = guarded.url(&guarded.login());
    let touched = guarded.folder.path().join("touched");
    let substitution = format!("echo $(touch {})", touched.display());
    for (command, words) in [
        (
            "sh -c 'echo s3cret >&2; exit 3'",
            "--database-password-command ended with status 3",
        ),
        ("yes s3cret", "--database-password-command printed more than 64 KiB"),
        ("true s3cret", "--database-password-command printed nothing"),
        ("/nowhere/s3cret", "--database-password-command cannot be run"),
        ("sleep 60", "--database-password-command did not end within 10s"),
        (substitution.as_str(), "password authentication failed"),
    ] {
        let (code, said) = guarded.status(&[], &["--database-url", &url, "--database-password-command", command]);
        assert_eq!(code, 77, "{command}: {said}");
        assert!(said.contains(words) && !said.contains("s3cret"), "{command}: {said}");
    }
    assert!(!touched.exists(), "there is no shell");
}

#[tokio::test]
async fn a_rotated_database_password_needs_no_restart() {
    let guarded = Guarded::new().await;
    let file = guarded.file("password", "first\n");
    let url = guarded.url(&guarded.login());
    let relay = RelayBuilder::new(&url, &guarded.world.kafka)
        .args(&["--database-password-file", &file])
        .start_ready()
        .await;
    let writes = BackgroundWrites::start(&guarded.world, &guarded.topic);
    guarded.many_more_are_published().await;

    // The file is behind the server for a while, and the sessions end meanwhile.
    guarded.set_password("second").await;
    guarded.world.end_sessions("relay").await;
    eventually(SOON, "the old password to be refused", async || {
        relay.logged("password authentication failed").then_some(())
    })
    .await;
    guarded.file("password", "second\n");
    guarded.many_more_are_published().await;
    assert!(relay.logged("accepted the one that was read again"), "{}", relay.log());

    // The file comes first, and the sessions stay for a while.
    guarded.file("password", "third\n");
    guarded.set_password("third").await;
    guarded.many_more_are_published().await;
    guarded.world.end_sessions("relay").await;
    guarded.many_more_are_published().await;

    // A file that is gone is no reason to forget the password.
    fs::remove_file(&file).expect("there");
    guarded.world.end_sessions("relay").await;
    guarded.many_more_are_published().await;
    guarded.assert_nothing_lost(writes, relay).await;
}

#[tokio::test]
async fn a_login_that_is_replaced_in_its_file_needs_no_restart() {
    let guarded = Guarded::new().await;
    let world = &guarded.world;
    let file = guarded.file("url", &guarded.url(&format!("{}:first", guarded.login())));
    let relay = RelayBuilder::without_database(&world.kafka)
        .args(&["--database-url-file", &file])
        .start_ready()
        .await;
    let writes = BackgroundWrites::start(world, &guarded.topic);
    guarded.many_more_are_published().await;
    world
        .login_with("successor", &["outbox_relay", "by_password"], "second")
        .await;
    world.execute(&format!("ALTER ROLE {} NOLOGIN", guarded.login())).await;
    world.end_sessions("relay").await;
    eventually(SOON, "the old login to be refused", async || {
        relay.logged("is not permitted to log in").then_some(())
    })
    .await;
    guarded.file("url", &guarded.url(&format!("{}_successor:second", world.name)));
    guarded.many_more_are_published().await;
    let sessions = format!(
        "(SELECT count(*) > 0 FROM pg_stat_activity WHERE usename = '{}_successor')",
        world.name
    );
    assert!(world.is_true(&sessions).await);
    guarded.assert_nothing_lost(writes, relay).await;
}

#[tokio::test]
async fn a_password_command_is_run_again_when_its_password_is_refused_or_expires() {
    let guarded = Guarded::new().await;
    let world = &guarded.world;
    let runs = guarded.folder.path().join("runs");
    let file = guarded.file("password", "first\n");
    let command = format!("sh -c 'echo run >> {}; cat {file}'", runs.display());
    let relay = RelayBuilder::new(&guarded.url(&guarded.login()), &world.kafka)
        .args(&["--database-password-command", &command])
        .start_ready()
        .await;
    let count = || fs::read_to_string(&runs).expect("it has run").lines().count();
    let writes = BackgroundWrites::start(world, &guarded.topic);
    guarded.many_more_are_published().await;
    assert_eq!(count(), 1, "one run for all connections");
    guarded.file("password", "second\n");
    guarded.set_password("second").await;
    world.end_sessions("relay").await;
    guarded.many_more_are_published().await;
    assert!(count() > 1);

    // This one has expired when it is printed, so each login needs another.
    guarded.file(
        "password",
        r#"{"password": "third", "expires_at": "2001-01-01T00:00:00Z"}"#,
    );
    guarded.set_password("third").await;
    world.end_sessions("relay").await;
    guarded.many_more_are_published().await;
    let before = count();
    world.end_sessions("relay").await;
    guarded.many_more_are_published().await;
    assert!(count() > before, "no login was refused, and yet the command was run");
    guarded.assert_nothing_lost(writes, relay).await;
}

#[tokio::test]
async fn a_refused_login_is_tried_once_a_second() {
    let guarded = Guarded::new().await;
    let file = guarded.file("password", "first\n");
    let relay = RelayBuilder::new(&guarded.url(&guarded.login()), &guarded.world.kafka)
        .args(&["--database-password-file", &file, "--tasks", "8"])
        .start_ready()
        .await;
    guarded.set_password("second").await;
    let log = guarded.postgres.server.log_path();
    let refusals = || {
        let log = fs::read_to_string(&log).expect("the server's log");
        log.matches("password authentication failed").count()
    };
    // Sessions may still be on their way in by the first password.
    eventually(SOON, "refusals", async || {
        guarded.world.end_sessions("relay").await;
        (refusals() >= 12).then_some(())
    })
    .await;
    // The first ones may come from every connection at once. Those that follow are counted.
    let (before, began) = (refusals(), Instant::now());
    eventually(SOON, "more refusals", async || (refusals() >= before + 6).then_some(())).await;
    assert!(
        began.elapsed() >= Duration::from_secs(3),
        "six more logins in {:?}",
        began.elapsed()
    );
    relay.assert_alive();
}

#[tokio::test]
async fn no_secret_is_ever_seen() {
    let guarded = Guarded::new().await;
    let mut canary = Canary::default();
    let password = canary.secret();
    guarded.set_password(&password).await;
    for (environment, flags) in ways_to_give_a_secret(&guarded, &mut canary) {
        let environment: Vec<_> = environment
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        for subcommand in ["status", "verify", "purge", "migrate", "doctor", "audit"] {
            let trace = [&flags[..], &["--log-level", "trace"]].concat();
            let output = guarded.command(subcommand, &environment, &trace);
            canary.note_output(&format!("{subcommand} {environment:?} {flags:?}"), &output);
        }
        for subcommand in ["run", "status", "verify", "purge", "migrate", "doctor", "audit"] {
            if !environment.is_empty() {
                let output = guarded.command(subcommand, &environment, &["--help"]);
                canary.note_output(&format!("{subcommand} --help"), &output);
            }
        }
    }
    a_relay_keeps_its_secrets(&guarded, &mut canary, &password).await;
    canary.assert_unseen();
}

type Way = (Vec<(&'static str, String)>, Vec<String>);

/// Every way to give a secret, each with a wrong one, and each way to get it wrong.
fn ways_to_give_a_secret(guarded: &Guarded, canary: &mut Canary) -> Vec<Way> {
    let login = guarded.login();
    let url = guarded.url(&login);
    let flags = |flags: &[&str]| flags.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>();
    let by_url = |more: &[&str]| flags(&[&["--database-url", url.as_str()][..], more].concat());
    let mut secret_url = |end: &str| format!("{}{end}", guarded.url(&format!("{login}:{}", canary.secret())));
    let (wrong, broken) = (secret_url(""), secret_url("&port=none"));
    let url_file = guarded.file("canary-url", &secret_url(""));
    let password_file = guarded.file("canary-password", &canary.secret());
    let pgpass = guarded.file("canary-pgpass", &format!("*:*:*:*:{}\n", canary.secret()));
    let key = guarded.file("canary.key", &format!("-----BEGIN {0}\n{0}\n", canary.secret()));
    let (printed, failing) = (canary.secret(), canary.secret());
    let property = |name: &str, canary: &mut Canary| format!("{name}={}", canary.secret());
    vec![
        (vec![], flags(&["--database-url", &wrong])),
        (vec![], flags(&["--database-url", &broken])),
        (vec![("OUTBOXD_DATABASE_URL", wrong.clone())], vec![]),
        (vec![], flags(&["--database-url-file", &url_file])),
        (vec![], by_url(&["--database-password-file", &password_file])),
        (
            vec![],
            flags(&["--database-url", &wrong, "--database-password-file", &password_file]),
        ),
        (vec![], by_url(&[COMMAND, &format!("echo {printed}")])),
        (
            vec![],
            by_url(&[COMMAND, &format!("sh -c 'echo {failing}; echo {failing} >&2; exit 3'")]),
        ),
        (
            vec![("OUTBOXD_DATABASE_PASSWORD_COMMAND", format!("echo '{failing}"))],
            by_url(&[]),
        ),
        (vec![("PGPASSWORD", canary.secret())], by_url(&[])),
        (vec![("PGPASSFILE", pgpass)], by_url(&[])),
        (
            vec![],
            by_url(&["--database-tls-cert", &key, "--database-tls-key", &key]),
        ),
        (
            vec![("OUTBOXD_KAFKA_PROPERTIES", property("sasl.pasword", canary))],
            by_url(&[]),
        ),
        (
            vec![("OUTBOXD_KAFKA_PROPERTIES", property("ssl.key.password", canary))],
            by_url(&[]),
        ),
    ]
}

/// A relay whose own password is the canary, with everything logged that can be, until it is refused.
async fn a_relay_keeps_its_secrets(guarded: &Guarded, canary: &mut Canary, password: &str) {
    let world = &guarded.world;
    let sasl = format!("sasl.password={}", canary.secret());
    let key = format!("ssl.key.password={}", canary.secret());
    let mut relay = RelayBuilder::new(&guarded.url(&format!("{}:{password}", guarded.login())), &world.kafka)
        .args(&["--log-level", "trace", "--kafka-property", "debug=all"])
        .args(&["--kafka-property", &sasl, "--kafka-property", &key])
        .start_ready()
        .await;
    world.fill(&guarded.topic, 100, 10).await;
    world.drained(SOON).await;
    canary.note_relay("a relay", &relay);
    guarded.set_password("other").await;
    world.end_sessions("relay").await;
    eventually(SOON, "the password to be refused", async || {
        relay.logged("password authentication failed").then_some(())
    })
    .await;
    canary.note_relay("a refused relay", &relay);
    relay.signal("TERM");
    relay.wait(SOON);
    canary.note("a stopped relay", relay.log());
}
