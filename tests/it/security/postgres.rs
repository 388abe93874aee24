//! TLS to PostgreSQL: what each mode verifies, client certificates, and certificates that are replaced.

use testkit::*;

const PUBLISHED: &str = "SELECT count(*) FROM outbox.message WHERE published_at IS NOT NULL";

/// `outboxd status` of the database at this URL: its exit code, and what it says on stderr.
fn status(url: &str, flags: &[&str]) -> (i32, String) {
    let output = outboxd().args(["status", "--database-url", url]).args(flags).output();
    let output = output.expect("outboxd runs");
    (output.status.code().expect("it ends by itself"), stderr_of(&output))
}

/// The same until it ends with this code. A server that refuses a certificate may close the connection before its reason is read.
async fn status_ends_with(code: i32, url: &str) -> String {
    eventually(SOON, &format!("exit code {code} of {url}"), async || {
        let (found, said) = status(url, &[]);
        (found == code).then_some(said)
    })
    .await
}

/// A server with the certificates that it may show, and the URL of a login that has a password.
async fn servers() -> (SecurePostgres, World, String) {
    let postgres = SecurePostgres::start().await;
    let world = postgres.world().await;
    let roles = ["outbox_operator", "outbox_relay", "by_password"];
    let url = world.login_with("client", &roles, "r1ght").await;
    let right = Leaf::default;
    postgres.certificates.leaf("elsewhere", right().elsewhere());
    postgres.certificates.leaf("expired", right().expired());
    postgres.certificates.leaf("untrusted", right().untrusted());
    (postgres, world, url)
}

/// Why a client does not talk to the server that shows this certificate.
fn reason(mode: &str, certificate: &str) -> &'static str {
    match (mode, certificate) {
        ("disable" | "allow" | "prefer", _) => "pg_hba.conf rejects connection",
        (_, "elsewhere") => "the server's certificate is not trusted: it is for other.example, not for 127.0.0.1",
        (_, "expired") => "the server's certificate is not trusted: it expired on 20",
        (_, "untrusted") => "the server's certificate is not trusted: no trusted CA has issued it",
        _ => "server does not support TLS",
    }
}

#[tokio::test]
async fn each_sslmode_means_what_libpq_means() {
    let (postgres, _world, url) = servers().await;
    let ca = format!("&sslrootcert={}", postgres.certificates.path("ca.pem"));
    // The exit code in each mode, by the certificate that the server shows. The last one speaks no TLS, and this server lets
    // nobody in without.
    let certificates = ["server", "elsewhere", "expired", "untrusted", "none"];
    let modes: [(&str, &str, [i32; 5]); 7] = [
        ("disable", "", [77, 77, 77, 77, 77]),
        ("allow", "", [0, 0, 0, 0, 77]),
        ("prefer", "", [0, 0, 0, 0, 77]),
        ("require", "", [0, 0, 0, 0, 69]),
        ("require", &ca, [0, 0, 77, 77, 69]),
        ("verify-ca", &ca, [0, 0, 77, 77, 69]),
        ("verify-full", &ca, [0, 77, 77, 77, 69]),
    ];
    for (at, certificate) in certificates.into_iter().enumerate() {
        match certificate {
            "none" => postgres.speak_tls(false).await,
            certificate => postgres.show(certificate).await,
        }
        for (mode, ca, codes) in &modes {
            let (code, said) = status(&format!("{url}?sslmode={mode}{ca}"), &[]);
            assert_eq!(code, codes[at], "sslmode={mode}{ca}, {certificate}: {said}");
            assert!(
                code == 0 || said.contains(reason(mode, certificate)),
                "sslmode={mode}{ca}, {certificate}: {said}"
            );
        }
    }
}

#[tokio::test]
async fn a_ca_in_a_flag_is_the_same_as_in_the_connection_string() {
    let (postgres, _world, url) = servers().await;
    let (ca, other) = (
        postgres.certificates.path("ca.pem"),
        postgres.certificates.path("other-ca.pem"),
    );
    for (mode, ca, at_home, elsewhere) in [
        ("", &ca, 0, 77),
        ("?sslmode=verify-full", &ca, 0, 77),
        ("?sslmode=verify-ca", &ca, 0, 0),
        ("?sslmode=require", &ca, 0, 0),
        ("?sslmode=require", &other, 77, 77),
    ] {
        for (certificate, expected) in [("server", at_home), ("elsewhere", elsewhere)] {
            postgres.show(certificate).await;
            let (code, said) = status(&format!("{url}{mode}"), &["--database-tls-ca", ca]);
            assert_eq!(code, expected, "{mode} {certificate}: {said}");
        }
    }
}

#[tokio::test]
async fn a_relay_publishes_over_verified_tls_that_its_password_is_bound_to() {
    let (postgres, world, url) = servers().await;
    let topic = world.topic("orders", 1, &[]).await;
    let ca = postgres.certificates.path("ca.pem");
    let tls = format!("sslmode=verify-full&sslrootcert={ca}&channel_binding=require");
    let mut relay = RelayBuilder::new(&format!("{url}?{tls}"), &world.kafka)
        .start_ready()
        .await;
    world.fill(&topic, 100, 10).await;
    world.drained(SOON).await;
    let encrypted = format!(
        "(SELECT count(*) > 0 AND bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
          WHERE a.usename = '{}_client')",
        world.name
    );
    assert!(world.is_true(&encrypted).await);
    relay.stop();
    world.history(&topic).await.assert_exact();
    // This login has no password that could be bound to anything.
    let (code, said) = status(&format!("{}?{tls}", world.database_url), &[]);
    assert_eq!(code, 69, "{said}");
    assert!(said.contains("channel binding"), "{said}");
}

/// A login that needs a client certificate, and the files it may show.
struct CertificateLogin {
    postgres: SecurePostgres,
    world: World,
    name: String,
    url: String,
}

impl CertificateLogin {
    async fn new() -> Self {
        let postgres = SecurePostgres::start().await;
        let world = postgres.world().await;
        let roles = ["outbox_operator", "outbox_relay", "by_certificate"];
        let url = world.login("client", &roles).await;
        let name = format!("{}_client", world.name);
        let trusted = postgres.certificates.path("ca.pem");
        postgres.certificates.leaf("right", Leaf::of(&name));
        postgres.certificates.leaf("stranger", Leaf::default());
        CertificateLogin {
            url: format!("{url}?sslmode=verify-full&sslrootcert={trusted}"),
            postgres,
            world,
            name,
        }
    }

    fn file(&self, name: &str) -> String {
        self.postgres.certificates.path(name)
    }

    /// The connection string with these files.
    fn showing(&self, certificate: &str, key: &str) -> String {
        let (certificate, key) = (self.file(certificate), self.file(key));
        format!("{}&sslcert={certificate}&sslkey={key}", self.url)
    }
}

#[tokio::test]
async fn a_client_certificate_logs_in() {
    let login = CertificateLogin::new().await;
    let (code, said) = status(&login.showing("right.pem", "right.key"), &[]);
    assert_eq!(code, 0, "{said}");
    let (certificate, key) = (login.file("right.pem"), login.file("right.key"));
    let flags = ["--database-tls-cert", &certificate, "--database-tls-key", &key];
    let (code, said) = status(&login.url, &flags);
    assert_eq!(code, 0, "{said}");
}

#[tokio::test]
async fn a_client_certificate_that_the_server_refuses_is_a_refused_login() {
    let login = CertificateLogin::new().await;
    let (certificates, right) = (&login.postgres.certificates, Leaf::of(&login.name));
    certificates.leaf("expired", right.clone().expired());
    certificates.leaf("untrusted", right.untrusted());
    for (url, words) in [
        (login.url.clone(), "requires a valid client certificate"),
        (
            login.showing("stranger.pem", "stranger.key"),
            "certificate authentication failed",
        ),
        (
            login.showing("expired.pem", "expired.key"),
            "the server refused the client certificate: it has expired",
        ),
        (
            login.showing("untrusted.pem", "untrusted.key"),
            "the server refused the client certificate: it does not trust the CA",
        ),
    ] {
        let said = status_ends_with(77, &url).await;
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[tokio::test]
async fn tls_files_that_cannot_be_used_are_settings() {
    let login = CertificateLogin::new().await;
    std::fs::write(login.file("not-a.key"), "s3cret").expect("writable");
    for (url, words) in [
        (login.showing("right.pem", "stranger.key"), "cannot be used together"),
        (login.showing("right.pem", "missing.key"), "missing.key"),
        (login.showing("missing.pem", "right.key"), "missing.pem"),
        (
            login.showing("right.pem", "not-a.key"),
            "has no private key in PEM format",
        ),
        (
            format!("{}&sslcert={}", login.url, login.file("right.pem")),
            "--database-tls-key",
        ),
    ] {
        let (code, said) = status(&url, &[]);
        assert_eq!(code, 64, "{said}");
        assert!(said.contains(words) && !said.contains("s3cret"), "{words}: {said}");
    }
}

#[tokio::test]
async fn certificates_are_read_again_for_each_connection() {
    let mut login = CertificateLogin::new().await;
    let (postgres, world) = (&login.postgres, &login.world);
    let certificates = &postgres.certificates;
    certificates.copy("ca.pem", "trusted.pem");
    login.url = login.url.replace("/ca.pem", "/trusted.pem");
    let topic = world.topic("orders", 4, &[]).await;
    let mut relay = RelayBuilder::new(&login.showing("right.pem", "right.key"), &world.kafka)
        .start_ready()
        .await;
    let writes = BackgroundWrites::start(world, &topic);
    world.until(&format!("({PUBLISHED}) > 200")).await;

    // The other CA takes over: nothing that was valid is valid any more.
    certificates.leaf("right", Leaf::of(&login.name).untrusted());
    certificates.leaf("successor", Leaf::default().untrusted());
    certificates.copy("other-ca.pem", "trusted.pem");
    postgres.trust("other-ca.pem").await;
    postgres.show("successor").await;
    assert!(world.end_sessions("client").await > 0);
    let goal = world.count(PUBLISHED).await + 200;
    world.until(&format!("({PUBLISHED}) > {goal}")).await;

    writes.stop();
    world.drained(SOON).await;
    relay.assert_alive();
    world.history(&topic).await.assert_counted_by(&[&relay]);
    relay.stop();
}

#[tokio::test]
async fn a_server_that_cannot_be_trusted_ends_a_start_and_is_waited_for_later() {
    let (postgres, world, url) = servers().await;
    let topic = world.topic("orders", 1, &[]).await;
    let ca = postgres.certificates.path("ca.pem");
    let url = format!("{url}?sslmode=verify-full&sslrootcert={ca}");

    postgres.show("expired").await;
    let mut early = RelayBuilder::new(&url, &world.kafka).start();
    assert_eq!(early.wait(SOON).code(), Some(77), "{}", early.log());
    assert!(early.logged("it expired on"), "{}", early.log());

    postgres.show("server").await;
    let mut relay = RelayBuilder::new(&url, &world.kafka).start_ready().await;
    postgres.show("expired").await;
    // A session may still be on its way in.
    eventually(SOON, "the date to be said", async || {
        let ended = world.end_sessions("client").await;
        (ended == 0 && relay.logged("it expired on")).then_some(())
    })
    .await;
    postgres.speak_tls(false).await;
    eventually(SOON, "the missing TLS to be said", async || {
        relay.logged("server does not support TLS").then_some(())
    })
    .await;
    assert_eq!(world.end_sessions("client").await, 0, "nothing is said in plain text");
    world.fill(&topic, 10, 2).await;
    postgres.show("server").await;
    postgres.speak_tls(true).await;
    world.drained(SOON).await;
    relay.assert_alive();
    relay.stop();
    world.history(&topic).await.assert_exact();
}
