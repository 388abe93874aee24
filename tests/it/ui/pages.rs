//! What is shown.

use super::*;

#[tokio::test]
async fn the_overview_shows_what_status_shows_and_the_same_advice() {
    let ui = Ui::new().await;
    let topic = ui.world.topic("orders", 1, &[]).await;
    ui.world.fill(&topic, 20, 3).await;
    ui.world.drained(SOON).await;
    let missing = format!("{}.missing", ui.world.name);
    ui.world.fill(&missing, 3, 1).await;
    let ids = ui.dead_letters("letters", 2).await;
    ui.world.until("SELECT count(*) > 0 FROM outbox.hold").await;
    ui.world
        .execute("SELECT outbox.pause('bills', NULL, 'because of a test')")
        .await;
    // A sample is shown for two seconds.
    let page = eventually(SOON, "a sample that has all of it", async || {
        let page = ui.page("/").await;
        page.shown().contains("because of a test").then_some(page)
    })
    .await;
    let shown = page.shown();
    for expected in [
        missing.as_str(),
        "letters",
        "MessageSizeTooLarge",
        "topic bills",
        "because of a test",
        "Workers",
        "published by this worker",
        "answered by",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let status = ui.world.outboxd("status", &[]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    let (_, advice) = status.split_once("What to do\n").expect("advice");
    for line in advice.lines() {
        let sentence = line.trim_start_matches("  - ").replace('`', "");
        assert!(shown.contains(&sentence), "{sentence}: {shown}");
    }
    let link = format!("href=\"/dead/{}\"", ids[0]);
    assert!(page.text().contains(&link), "{}", page.text());
}

#[tokio::test]
async fn dead_letters_are_listed_by_each_filter_and_page_by_page() {
    let ui = Ui::new().await;
    ui.dead_letters("orders", 60).await;
    ui.dead_letters("bills", 1).await;
    let rows = |page: &WebPage| page.text().matches("aria-label=\"Select ").count();
    let all = ui.page("/dead").await;
    assert_eq!(rows(&all), 50);
    assert!(all.shown().contains("1–50 of 61"), "{}", all.shown());
    assert!(all.text().contains("href=\"/dead?page=1\""), "{}", all.text());
    let second = ui.page("/dead?page=1").await;
    assert!(
        rows(&second) == 11 && second.shown().contains("51–61 of 61"),
        "{}",
        second.shown()
    );
    for (query, expected) in [
        ("topic=bills", 1),
        ("topic=bills&topic=orders", 50),
        ("key=k7", 1),
        ("error=sizetoo", 50),
        ("older-than=1h", 0),
        ("newer-than=1h&id=1-5,7", 6),
        ("topic=none", 0),
        ("topic=&key=&error=&older-than=&newer-than=&id=", 50),
        ("page=-1", 50),
        ("page=9223372036854775807", 0),
        ("page=x", 50),
    ] {
        let page = ui.page(&format!("/dead?{query}")).await;
        assert_eq!(rows(&page), expected, "{query}: {}", page.shown());
    }
    let wrong = ui.visitor.get("/dead?id=x&older-than=soon").await;
    assert_eq!(wrong.status, 400);
    assert!(
        wrong.shown().contains("older-than \"soon\" is not a duration"),
        "{}",
        wrong.shown()
    );
}

#[tokio::test]
async fn a_payload_is_shown_to_who_asks_for_it() {
    let ui = Ui::new().await;
    let insert = "
        INSERT INTO outbox.message (topic, key, payload, payload_bytes, headers) VALUES
            ('t', 'k', '{\"price\": 12345678901234567890.123, \"secret\": [1, {}]}', NULL, '{\"trace\": \"1\"}'),
            ('t', 'k', NULL, '\\x00ff3c623e', NULL), ('t', 'k', NULL, NULL, NULL), ('t', 'k', NULL, convert_to('a text', 'UTF8'), NULL),
            ('t', 'k', to_jsonb(repeat('z', 1000000)), NULL, NULL), ('t', 'k', NULL, decode(repeat('ab', 3000000), 'hex'), NULL);
        UPDATE outbox.message SET dead_at = now(), last_error = 'refused'";
    ui.world.execute(insert).await;
    let (list, letter) = (ui.page("/dead").await.text(), ui.page("/dead/1").await.text());
    assert!(!list.contains("secret") && !letter.contains("secret"), "{letter}");
    assert!(letter.contains("trace"), "{letter}");
    let payload = ui.page("/dead/1/payload").await.shown();
    assert!(
        payload.contains("  \"price\": 12345678901234567890.123,\n"),
        "every digit: {payload}"
    );
    let download = ui.page("/dead/1/download").await;
    assert_eq!(
        download.text(),
        "{\"price\": 12345678901234567890.123, \"secret\": [1, {}]}"
    );
    assert_eq!(download.header("content-type"), Some("application/octet-stream"));
    assert_eq!(
        download.header("content-disposition"),
        Some("attachment; filename=\"payload-1.bin\"")
    );
    assert!(
        ui.page("/dead/2/payload").await.shown().contains("00 ff 3c 62 3e"),
        "bytes"
    );
    assert_eq!(
        ui.page("/dead/2/download").await.body.as_ref(),
        [0, 255, b'<', b'b', b'>']
    );
    assert!(ui.page("/dead/3/payload").await.shown().contains("tombstone"));
    assert!(ui.page("/dead/4/payload").await.shown().contains("a text"));
    let large = ui.page("/dead/5/payload").await;
    assert!(
        large.body.len() < 100_000 && large.shown().contains("the beginning is shown"),
        "{}",
        large.body.len()
    );
    assert_eq!(ui.page("/dead/5/download").await.body.len(), 1_000_002);
    assert!(
        ui.page("/dead/6/payload")
            .await
            .shown()
            .contains("outboxd dead show 6 --payload"),
        "too large"
    );
    assert_eq!(ui.visitor.get("/dead/6/download").await.status, 409);
    for path in [
        "/dead/7",
        "/dead/7/payload",
        "/dead/-1",
        "/dead/7/download",
        "/dead/x",
        "/nothing",
    ] {
        assert_eq!(ui.visitor.get(path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn without_the_operators_login_the_page_shows_and_changes_nothing() {
    let ui = Ui::read_only().await;
    let ids = ui.dead_letters("orders", 3).await;
    for path in ["/", "/dead", "/dead/1", "/holds", "/pauses", "/audit"] {
        let text = ui.page(path).await.text();
        assert!(text.contains("read-only"), "{path}: {text}");
        for link in [
            "/dead/redrive",
            "/dead/discard",
            "/holds/release",
            "/pauses/pause",
            "/pauses/resume",
        ] {
            assert!(
                !text.contains(&format!("href=\"{link}")) && !text.contains(&format!("formaction=\"{link}")),
                "{path}: {link}"
            );
        }
    }
    assert!(ui.page("/audit").await.shown().contains("--ui-database-url-file"));
    let token = ui.page("/").await.text();
    let token = token
        .split("name=\"form-token\" value=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let token = token.expect("the form to log out").to_owned();
    for path in [
        "/dead/redrive",
        "/dead/discard",
        "/holds/release",
        "/pauses/pause",
        "/pauses/resume",
    ] {
        assert_eq!(ui.visitor.get(&format!("{path}?scope=all")).await.status, 403, "{path}");
        let fields = [
            ("form-token", token.as_str()),
            ("scope", "all"),
            ("counted", "1-3"),
            ("reason", "x"),
        ];
        let page = ui.visitor.post(path, &fields).await;
        assert!(
            page.status == 403 && page.shown().contains("changes nothing"),
            "{path}: {}",
            page.shown()
        );
    }
    assert_eq!(ui.world.ids_where("dead_at IS NOT NULL").await, ids);
    assert_eq!(ui.world.count("SELECT count(*) FROM outbox.pause").await, 0);
}
