//! Who gets in, and from where.

use std::time::Duration;

use axum::http::header::{COOKIE, HOST, ORIGIN};
use axum::http::{Method, Request};

use super::*;

/// Every page, each of which asks something of the database.
const PAGES: [&str; 10] = [
    "/",
    "/dead",
    "/dead/1",
    "/dead/1/payload",
    "/dead/1/download",
    "/dead/redrive",
    "/holds",
    "/pauses",
    "/audit",
    "/audit/1",
];

/// Every form that changes something.
const FORMS: [&str; 5] = [
    "/dead/redrive",
    "/dead/discard",
    "/holds/release",
    "/pauses/pause",
    "/pauses/resume",
];

#[tokio::test]
async fn nothing_is_shown_or_changed_without_a_login() {
    let ui = Ui::new().await;
    ui.dead_letters("orders", 1).await;
    let stranger = Visitor::new(&ui.address());
    for path in PAGES {
        let page = stranger.get(path).await;
        assert_eq!((page.status, page.body.len()), (303, 0), "{path}");
        assert!(
            page.header("location").is_some_and(|to| to.starts_with("/login?next=")),
            "{path}"
        );
    }
    for path in FORMS {
        let page = stranger
            .post(path, &[("scope", "all"), ("counted", "1-1"), ("reason", "x")])
            .await;
        assert_eq!((page.status, page.header("location")), (303, Some("/login")), "{path}");
    }
    let forged = ["outboxd-x=9999999999.x.x", "a=b; c", "=", "outboxd="];
    for cookie in forged {
        let mut visitor = stranger.clone();
        visitor.cookie = Some(cookie.to_owned());
        assert_eq!(visitor.get("/").await.status, 303, "{cookie}");
    }
    let login = stranger.get("/login?next=/dead").await;
    assert_eq!(login.status, 200);
    assert!(
        login.text().contains("name=\"next\" value=\"/dead\""),
        "{}",
        login.text()
    );
    assert_eq!(ui.world.count("SELECT count(*) FROM outbox.audit").await, 0);
}

#[tokio::test]
async fn the_token_opens_a_session_in_a_cookie_of_its_own_site() {
    let ui = Ui::new().await;
    let mut visitor = Visitor::new(&ui.address());
    let page = visitor.log_in(TOKEN).await;
    assert_eq!((page.status, page.header("location")), (303, Some("/")));
    let cookie = page.header("set-cookie").expect("a cookie");
    let (_, attributes) = cookie.split_once(';').expect("attributes");
    assert_eq!(attributes, " Max-Age=43200; Path=/; HttpOnly; SameSite=Strict");
    assert_eq!(visitor.get("/").await.status, 200);
    let out = visitor.get("/").await;
    let token = out
        .text()
        .split("name=\"form-token\" value=\"")
        .nth(1)
        .expect("a form")
        .to_owned();
    let token = token.split('"').next().expect("a value");
    let left = visitor.post("/logout", &[("form-token", token)]).await;
    let cleared = left.header("set-cookie").expect("a cookie");
    assert!(left.status == 303 && cleared.contains("=; Max-Age=0;"), "{cleared}");
    assert_eq!(visitor.post("/logout", &[]).await.status, 403, "not by another site");
}

#[tokio::test]
async fn a_wrong_token_is_refused_and_the_next_one_is_not_heard_for_a_while() {
    let ui = Ui::new().await;
    let mut visitor = Visitor::new(&ui.address());
    for (token, status) in [("wrong", 403), (TOKEN, 429)] {
        let page = visitor.log_in(token).await;
        assert_eq!(
            (page.status, page.header("set-cookie")),
            (status, None),
            "{}",
            page.text()
        );
        assert!(!page.text().contains(token), "it is not repeated: {}", page.text());
    }
    assert!(visitor.log_in(TOKEN).await.header("retry-after").is_some());
    eventually(SOON, "the right token to be heard again", async || {
        (visitor.log_in(TOKEN).await.status == 303).then_some(())
    })
    .await;
    assert!(ui.relay.logged("wrong token"), "{}", ui.relay.log());
    assert_eq!(ui.visitor.get("/").await.status, 200, "who is in stays in");
}

#[tokio::test]
async fn another_token_ends_all_sessions_without_a_restart() {
    let ui = Ui::new().await;
    let file = ui.folder.path().join("token");
    let another = "another-t0ken-0123456789";
    fs::write(&file, format!("{another}\n")).expect("a file");
    assert_eq!(ui.visitor.get("/").await.status, 303, "the session has ended");
    let visitor = Visitor::with_token(&ui.address(), another).await;
    assert_eq!(visitor.get("/").await.status, 200);
    fs::write(&file, "short").expect("a file");
    assert_eq!(
        visitor.get("/").await.status,
        503,
        "nobody is in with a token that could be guessed"
    );
    fs::remove_file(&file).expect("there");
    assert_eq!(visitor.get("/login").await.status, 200);
    assert_eq!(visitor.get("/").await.status, 503);
    ui.relay.assert_alive();
}

#[tokio::test]
async fn a_form_needs_the_token_of_its_session() {
    let ui = Ui::new().await;
    let other = Visitor::with_token(&ui.address(), TOKEN).await;
    let of_other = other.get("/pauses/pause?scope=all").await.field("form-token");
    for token in [
        &[][..],
        &[("form-token", "")],
        &[("form-token", "x")],
        &[("form-token", of_other.as_str())],
    ] {
        for path in FORMS {
            let fields = [&[("scope", "all"), ("counted", "1-1"), ("reason", "x")][..], token].concat();
            let page = ui.visitor.post(path, &fields).await;
            assert_eq!(page.status, 403, "{path}: {}", page.text());
        }
    }
    assert_eq!(ui.world.count("SELECT count(*) FROM outbox.audit").await, 0);
    assert_eq!(ui.world.count("SELECT count(*) FROM outbox.pause").await, 0);
}

#[tokio::test]
async fn a_page_is_at_its_address_only_and_forms_come_from_it_only() {
    let ui = Ui::new().await;
    let address = ui.address();
    let cookie = ui.visitor.cookie.clone().expect("logged in");
    let request = |method: Method, host: &str| {
        let request = Request::builder().method(method).uri("/").header(COOKIE, &cookie);
        request.header(HOST, host)
    };
    for host in ["evil.example", "localhost.evil.example", "evil.example:9091", ""] {
        let page = ui.visitor.send(request(Method::GET, host), "").await;
        assert_eq!(page.status, 421, "{host}: {}", page.text());
        assert!(page.header("content-security-policy").is_some(), "{host}");
    }
    let two = request(Method::GET, &address).header(HOST, "evil.example");
    assert_eq!(ui.visitor.send(two, "").await.status, 421);
    for host in ["localhost:8080", "[::1]:9091", &address] {
        assert_eq!(
            ui.visitor.send(request(Method::GET, host), "").await.status,
            200,
            "{host}"
        );
    }
    let token = ui.page("/pauses/pause?scope=all").await.field("form-token");
    let form = format!("form-token={token}&scope=all&reason=x");
    for origin in [
        None,
        Some("null"),
        Some("https://evil.example"),
        Some("http://localhost:1"),
        Some("http://127.0.0.1"),
    ] {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri("/pauses/pause")
            .header(COOKIE, &cookie);
        request = request.header(HOST, &address);
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        let page = ui.visitor.send(request, &form).await;
        assert_eq!(page.status, 403, "{origin:?}: {}", page.text());
    }
    assert_eq!(ui.world.count("SELECT count(*) FROM outbox.pause").await, 0);
}

#[tokio::test]
async fn behind_https_the_page_has_its_own_name_and_its_cookie_is_for_https() {
    let world = World::new().await;
    let relay = world.relay().args(&["--ui-url", "https://outbox.example"]);
    let ui = Ui::of(world, relay, None).await;
    let request = |host: &str| {
        let request = Request::builder().method(Method::POST).uri("/login").header(HOST, host);
        request.header(ORIGIN, "https://outbox.example")
    };
    let body = format!("token={TOKEN}");
    let page = ui.visitor.send(request("outbox.example"), &body).await;
    let cookie = page.header("set-cookie").expect("a cookie");
    assert!(
        cookie.starts_with("__Host-outboxd-") && cookie.ends_with("; Secure"),
        "{cookie}"
    );
    assert_eq!(ui.visitor.send(request("other.example"), &body).await.status, 421);
    assert_eq!(
        ui.visitor.send(request("localhost"), &body).await.status,
        403,
        "another origin"
    );
}

#[tokio::test]
async fn a_link_in_an_alert_opens_the_page_and_not_the_login() {
    let ui = Ui::read_only().await;
    let from_elsewhere = Visitor::new(&ui.address());
    let request = from_elsewhere.request(Method::GET, "/dead?topic=a%22b&key=%3Cscript%3E");
    let page = from_elsewhere
        .send(request.header("sec-fetch-site", "cross-site"), "")
        .await;
    assert_eq!(page.status, 200);
    let text = page.text();
    assert!(
        text.contains("content=\"0; url=/dead?topic=a%22b&amp;key=%3Cscript%3E\""),
        "{text}"
    );
    assert!(!text.contains("<form"), "{text}");
}

#[tokio::test]
async fn every_answer_forbids_what_a_page_does_not_need() {
    let ui = Ui::read_only().await;
    for path in [
        "/",
        "/dead",
        "/dead/999",
        "/nothing",
        "/login",
        "/ui.css",
        "/ui.js",
        "/favicon.svg",
        "/logout",
    ] {
        for visitor in [&ui.visitor, &Visitor::new(&ui.address())] {
            let page = visitor.get(path).await;
            let policy = page.header("content-security-policy").expect(path);
            assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
            assert!(
                policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"),
                "{policy}"
            );
            for (header, value) in [
                ("x-content-type-options", "nosniff"),
                ("x-frame-options", "DENY"),
                ("referrer-policy", "same-origin"),
                ("cache-control", "no-store"),
            ] {
                assert_eq!(page.header(header), Some(value), "{path}");
            }
        }
    }
    let page = ui.page("/").await.text();
    assert!(
        !page.contains(" style=") && !page.contains("<script>") && !page.contains(" onclick"),
        "{page}"
    );
    assert!(!page.contains("://"), "nothing from elsewhere: {page}");
}

#[tokio::test]
async fn no_secret_is_on_a_page_or_in_the_log() {
    let ui = Ui::new().await;
    ui.dead_letters("orders", 1).await;
    ui.do_it("/pauses/pause?scope=topic&topic=orders").await;
    let mut said = ui.relay.log();
    for path in PAGES {
        said += &ui.visitor.get(path).await.text();
    }
    said += &ui.relay.get("/metrics").expect("a scrape");
    for secret in [TOKEN, PASSWORD] {
        assert!(!said.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn who_floods_the_page_keeps_neither_it_nor_the_probes_from_answering() {
    let ui = Ui::read_only().await;
    let address = ui.address();
    let silent: Vec<std::net::TcpStream> = (0..200)
        .map(|_| std::net::TcpStream::connect(&address).expect("a connection"))
        .collect();
    ui.page("/").await;
    ui.relay.assert_alive();
    drop(silent);
    let stranger = Visitor::new(&address);
    let page = stranger.post("/login", &[("token", &"x".repeat(16 << 10))]).await;
    assert_eq!(page.status, 413, "{}", page.text());
    let many = (0..50).map(|_| stranger.get("/"));
    let pages = tokio::time::timeout(Duration::from_secs(20), futures_util::future::join_all(many)).await;
    assert!(pages.expect("in time").iter().all(|page| page.status == 303));
}
