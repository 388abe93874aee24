//! TLS to PostgreSQL: what each mode verifies, client certificates, and certificates that are replaced.

use testkit::*;

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

#[tokio::test]
async fn each_sslmode_means_what_libpq_means() {
    let postgres = SecurePostgres::start().await;
    let world = postgres.world().await;
    let roles = ["outbox_operator", "by_password"];
    let url = world.login_with("operator", &roles, "r1ght").await;
    let certificates = &postgres.certificates;
    for (name, leaf) in [
        ("right", Leaf::default()),
        (
            "elsewhere",
            Leaf {
                hosts: &["other.example"],
                ..Leaf::default()
            },
        ),
        (
            "expired",
            Leaf {
                expired: true,
                ..Leaf::default()
            },
        ),
        (
            "untrusted",
            Leaf {
                ca: Ca::Other,
                ..Leaf::default()
            },
        ),
    ] {
        certificates.leaf(name, leaf);
    }
    let ca = format!("&sslrootcert={}", certificates.path("ca.pem"));
    // Which code each mode ends with, by what the server shows; the last one speaks no TLS.
    let servers = ["right", "elsewhere", "expired", "untrusted", "no TLS"];
    let modes = [
        ("disable", "", [77, 77, 77, 77, 77]),
        ("allow", "", [0, 0, 0, 0, 77]),
        ("prefer", "", [0, 0, 0, 0, 77]),
        ("require", "", [0, 0, 0, 0, 69]),
        ("require", &ca, [0, 0, 77, 77, 69]),
        ("verify-ca", &ca, [0, 0, 77, 77, 69]),
        ("verify-full", &ca, [0, 77, 77, 77, 69]),
    ];
    for (at, server) in servers.iter().enumerate() {
        match *server {
            "no TLS" => postgres.speak_tls(false).await,
            certificate => postgres.show(certificate).await,
        }
        for (mode, ca, codes) in &modes {
            let (code, said) = status(&format!("{url}?sslmode={mode}{ca}"), &[]);
            assert_eq!(code, codes[at], "sslmode={mode}{ca}, {server}: {said}");
            let words = match (code, *mode, *server) {
                (0, ..) => "",
                (_, "disable" | "allow" | "prefer", _) => "pg_hba.conf rejects connection",
                (_, _, "elsewhere") => {
                    "the server's certificate is not trusted: it is for other.example, not for 127.0.0.1"
                }
                (_, _, "expired") => "the server's certificate is not trusted: it expired on 20",
                (_, _, "untrusted") => "the server's certificate is not trusted: no trusted CA has issued it",
                _ => "server does not support TLS",
            };
            assert!(said.contains(words), "sslmode={mode}{ca}, {server}: {said}");
        }
    }
}

#[tokio::test]
async fn a_ca_in_a_flag_is_the_same_as_in_the_connection_string() {
    let postgres = SecurePostgres::start().await;
    let world = postgres.world().await;
    let url = world
        .login_with("operator", &["outbox_operator", "by_password"], "r1ght")
        .await;
    let elsewhere = Leaf {
        hosts: &["other.example"],
        ..Leaf::default()
    };
    postgres.certificates.leaf("elsewhere", elsewhere);
    let ca = postgres.certificates.path("ca.pem");
    let other = postgres.certificates.path("other-ca.pem");
    for (mode, ca, at_home, away) in [
        ("", &ca, 0, 77),
        ("?sslmode=verify-full", &ca, 0, 77),
        ("?sslmode=verify-ca", &ca, 0, 0),
        ("?sslmode=require", &ca, 0, 0),
        ("?sslmode=require", &other, 77, 77),
    ] {
        for (certificate, expected) in [("server", at_home), ("elsewhere", away)] {
            postgres.show(certificate).await;
            let (code, said) = status(&format!("{url}{mode}"), &["--database-tls-ca", ca]);
            assert_eq!(code, expected, "{mode} {certificate}: {said}");
        }
    }
}

#[tokio::test]
async fn a_relay_publishes_over_verified_tls_that_the_password_is_bound_to() {
    let postgres = SecurePostgres::start().await;
    let world = postgres.world().await;
    let topic = world.topic("orders", 1, &[]).await;
    let url = world
        .login_with("relay", &["outbox_relay", "by_password"], "r1ght")
        .await;
    let ca = postgres.certificates.path("ca.pem");
    let tls = format!("sslmode=verify-full&sslrootcert={ca}&channel_binding=require");
    let mut relay = RelayBuilder::new(&format!("{url}?{tls}"), &world.kafka)
        .start_ready()
        .await;
    world.fill(&topic, 100, 10).await;
    world.drained(SOON).await;
    let encrypted = format!(
        "(SELECT count(*) > 0 AND bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
          WHERE a.usename = '{}_relay')",
        world.name
    );
    assert!(world.is_true(&encrypted).await);
    relay.stop();
    world.history(&topic).await.assert_exact();
    // A login without a password cannot be bound to anything.
    let (code, said) = status(&format!("{}?{tls}", world.database_url), &[]);
    assert_eq!(code, 69, "{said}");
    assert!(said.contains("channel binding"), "{said}");
}

#[tokio::test]
async fn a_client_certificate_logs_in() {
    let postgres = SecurePostgres::start().await;
    let world = postgres.world().await;
    let url = world.login("client", &["outbox_operator", "by_certificate"]).await;
    let login = format!("{}_client", world.name);
    let certificates = &postgres.certificates;
    let right = Leaf {
        common_name: &login,
        ..Leaf::default()
    };
    certificates.leaf("right", right.clone());
    certificates.leaf("stranger", Leaf::default());
    certificates.leaf(
        "expired",
        Leaf {
            expired: true,
            ..right.clone()
        },
    );
    certificates.leaf("foreign", Leaf { ca: Ca::Other, ..right });
    let verified = format!("{url}?sslmode=verify-full&sslrootcert={}", certificates.path("ca.pem"));
    let file = |name: &str| certificates.path(name);
    let with = |certificate: &str, key: &str| format!("{verified}&sslcert={}&sslkey={}", file(certificate), file(key));

    let (code, said) = status(&with("right.pem", "right.key"), &[]);
    assert_eq!(code, 0, "{said}");
    let (certificate, key) = (file("right.pem"), file("right.key"));
    let flags = ["--database-tls-cert", &certificate, "--database-tls-key", &key];
    let (code, said) = status(&verified, &flags);
    assert_eq!(code, 0, "{said}");

    for (url, words) in [
        (verified.clone(), "requires a valid client certificate"),
        (
            with("stranger.pem", "stranger.key"),
            "certificate authentication failed",
        ),
        (
            with("expired.pem", "expired.key"),
            "the server refused the client certificate: it has expired",
        ),
        (
            with("foreign.pem", "foreign.key"),
            "the server refused the client certificate: it does not trust the CA",
        ),
    ] {
        let said = status_ends_with(77, &url).await;
        assert!(said.contains(words), "{words}: {said}");
    }

    std::fs::write(file("not-a.key"), "s3cret").expect("writable");
    for (url, words) in [
        (with("right.pem", "stranger.key"), "cannot be used together"),
        (with("right.pem", "missing.key"), "missing.key"),
        (with("missing.pem", "right.key"), "missing.pem"),
        (with("right.pem", "not-a.key"), "has no private key in PEM format"),
        (format!("{verified}&sslcert={certificate}"), "--database-tls-key"),
    ] {
        let (code, said) = status(&url, &[]);
        assert_eq!(code, 64, "{said}");
        assert!(said.contains(words) && !said.contains("s3cret"), "{words}: {said}");
    }
}

#[tokio::test]
async fn certificates_are_read_again_for_each_connection() {
    let postgres = SecurePostgres::start().await;
    let world = postgres.world().await;
    let topic = world.topic("orders", 4, &[]).await;
    let login = format!("{}_relay", world.name);
    let url = world.login("relay", &["outbox_relay", "by_certificate"]).await;
    let certificates = &postgres.certificates;
    let client = Leaf {
        common_name: &login,
        ..Leaf::default()
    };
    certificates.leaf("client", client.clone());
    certificates.copy("ca.pem", "trusted.pem");
    let url = format!(
        "{url}?sslmode=verify-full&sslrootcert={}&sslcert={}&sslkey={}",
        certificates.path("trusted.pem"),
        certificates.path("client.pem"),
        certificates.path("client.key")
    );
    let mut relay = RelayBuilder::new(&url, &world.kafka).start_ready().await;
    let writes = BackgroundWrites::start(&world, &topic);
    let published = "SELECT count(*) FROM outbox.message WHERE published_at IS NOT NULL";
    world.until(&format!("({published}) > 200")).await;

    // The other CA takes over: nothing that was valid is valid any more.
    certificates.leaf(
        "client",
        Leaf {
            ca: Ca::Other,
            ..client
        },
    );
    certificates.copy("other-ca.pem", "trusted.pem");
    let server = Leaf {
        ca: Ca::Other,
        ..Leaf::default()
    };
    certificates.leaf("server", server);
    postgres.trust("other-ca.pem").await;
    postgres.show("server").await;
    assert!(world.end_sessions("relay").await > 0);
    let before = world.count(published).await;
    world.until(&format!("({published}) > {}", before + 200)).await;

    writes.stop();
    world.drained(SOON).await;
    relay.assert_alive();
    world.history(&topic).await.assert_counted_by(&[&relay]);
    relay.stop();
}

#[tokio::test]
async fn a_server_that_cannot_be_trusted_ends_a_start_and_is_waited_for_later() {
    let postgres = SecurePostgres::start().await;
    let world = postgres.world().await;
    let topic = world.topic("orders", 1, &[]).await;
    let url = world
        .login_with("relay", &["outbox_relay", "by_password"], "r1ght")
        .await;
    let certificates = &postgres.certificates;
    let expired = Leaf {
        expired: true,
        ..Leaf::default()
    };
    certificates.leaf("expired", expired);
    let url = format!("{url}?sslmode=verify-full&sslrootcert={}", certificates.path("ca.pem"));

    postgres.show("expired").await;
    let mut early = RelayBuilder::new(&url, &world.kafka).start();
    assert_eq!(early.wait(SOON).code(), Some(77), "{}", early.log());
    assert!(early.logged("it expired on"), "{}", early.log());

    postgres.show("server").await;
    let mut relay = RelayBuilder::new(&url, &world.kafka).start_ready().await;
    postgres.show("expired").await;
    world.end_sessions("relay").await;
    eventually(SOON, "the date to be said", async || {
        relay.logged("it expired on").then_some(())
    })
    .await;
    postgres.speak_tls(false).await;
    eventually(SOON, "the missing TLS to be said", async || {
        relay.logged("server does not support TLS").then_some(())
    })
    .await;
    assert_eq!(
        world.end_sessions("relay").await,
        0,
        "nothing is said to it in plain text"
    );
    world.fill(&topic, 10, 2).await;
    postgres.show("server").await;
    postgres.speak_tls(true).await;
    world.drained(SOON).await;
    relay.assert_alive();
    relay.stop();
    world.history(&topic).await.assert_exact();
}
