//! Texts of others: keys, errors, payloads, reasons and names that try to be markup, or to look like something else.

use super::*;

/// What an attacker writes. The last one would show "txt.exe" as "exe.txt".
const HOSTILE: [&str; 6] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onfocus=alert(1) autofocus='",
    "</textarea></pre></title><svg onload=alert(1)>",
    "{{7*7}}${7*7}<!--",
    "\u{202e}txt.exe\u{200b}",
];

/// Nothing of it is markup: every tag is one that the page itself writes, and no attribute runs anything.
fn assert_harmless(path: &str, page: &WebPage) {
    let text = page.text();
    for tag in text.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap_or_default();
        let name: String = tag
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '!'))
            .collect();
        let is_own = tag == "script src=\"/ui.js\" defer"
            || !matches!(name.as_str(), "script" | "img" | "!" | "iframe" | "style");
        assert!(is_own, "{path}: <{tag}> in {text}");
        let outside: String = tag.split('"').step_by(2).collect();
        assert!(
            !outside.contains(" on") && !outside.contains("autofocus='"),
            "{path}: <{tag}> in {text}"
        );
    }
    assert!(!page.shown().contains(['\u{202e}', '\u{200b}', '\0']), "{path}: {text}");
}

/// A page with hostile texts wherever others choose the text, and the addresses at which they are shown or given.
pub async fn world_with_hostile_rows() -> (Ui, Vec<String>) {
    let world = World::new().await;
    let operator = world.login("operator", &["outbox_operator"]).await;
    let relay = world.relay().args(&["--worker-name", HOSTILE[0]]);
    let ui = Ui::of(world, relay, Some(&operator)).await;
    let mut paths: Vec<String> = ["/", "/dead", "/holds", "/pauses", "/audit"]
        .map(str::to_owned)
        .to_vec();
    ui.world
        .execute("SELECT outbox.pause('no.such.topic', NULL, 'so that nothing is tried')")
        .await;
    for text in HOSTILE {
        let sql = "
            WITH dead AS (
                INSERT INTO outbox.message (topic, key, payload, headers, event_type, aggregate_type, aggregate_id)
                VALUES ('no.such.topic', $1::text, jsonb_build_object($1::text, $1::text), jsonb_build_object('trace', $1::text), $1::text, $1::text, $1::text) RETURNING id
            ), bytes AS (
                INSERT INTO outbox.message (topic, key, payload_bytes) VALUES ('no.such.topic', $1::text, convert_to($1::text, 'UTF8')) RETURNING id
            )
            SELECT dead.id, bytes.id FROM dead, bytes";
        let row = ui.world.db.query_one(sql, &[&text]).await.expect("inserted");
        let ids: [i64; 2] = [row.get(0), row.get(1)];
        let die = "UPDATE outbox.message SET dead_at = now(), last_error = $1, published_at = NULL WHERE id = ANY ($2)";
        ui.world.db.execute(die, &[&text, &ids.as_slice()]).await.expect("dead");
        let hold = "INSERT INTO outbox.hold (lane, topic, unit, head_id, resume_floor, reason, retry_at)
                    VALUES (0, 'another.topic', 'k:' || $1::text, $2, 0, $1, 'infinity')";
        ui.world.db.execute(hold, &[&text, &ids[0]]).await.expect("held");
        let pause = "SELECT outbox.pause('no.such.topic', $1, $1)";
        ui.world.db.execute(pause, &[&text]).await.expect("paused");
        for page in ["", "/payload"] {
            paths.extend(ids.map(|id| format!("/dead/{id}{page}")));
        }
        let key: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
        paths.extend([
            format!("/dead?key={key}&error={key}&topic={key}&id={key}"),
            format!("/dead?key={key}&error={key}"),
            format!("/dead/redrive?key={key}"),
            format!("/dead/discard?key={key}"),
            format!("/holds?key={key}&topic={key}"),
            format!("/holds/release?unit=k:{key}"),
            format!("/pauses/pause?scope=key&topic=no.such.topic&key={key}"),
            format!("/pauses/pause?scope=topic&topic={key}"),
            format!("/pauses/resume?scope=key&topic=no.such.topic&key={key}"),
            format!("/pauses?version={key}"),
            format!("/audit?topic={key}"),
            format!("/audit/{key}"),
            format!("/{key}"),
            format!("/login?next=/{key}"),
        ]);
    }
    (ui, paths)
}

#[tokio::test]
async fn no_text_of_others_is_markup_on_any_page() {
    let (ui, mut paths) = world_with_hostile_rows().await;
    let last = "/dead/redrive?key=%22%3E%3Cimg+src%3Dx+onerror%3Dalert(1)%3E";
    let question = ui.page(last).await;
    let done = ui.visitor.submit(&question, &[("reason", HOSTILE[1])]).await;
    assert_harmless("an operation", &done);
    let operation = ui.world.count("SELECT max(operation) FROM outbox.audit").await;
    paths.push(format!("/audit/{operation}"));
    for path in &paths {
        let page = ui.visitor.get(path).await;
        assert!(page.status < 500, "{path}: {}", page.text());
        assert_harmless(path, &page);
    }
    let overview = eventually(SOON, "a sample with all of it", async || {
        let page = ui.page("/").await;
        page.shown().contains("Held back the longest").then_some(page)
    })
    .await;
    assert_harmless("/", &overview);
    assert!(
        overview.shown().contains("\\u{202e}txt.exe\\u{200b}"),
        "{}",
        overview.shown()
    );
    ui.relay.assert_alive();
}

#[tokio::test]
async fn bytes_that_are_no_text_are_refused_or_shown_as_what_they_are() {
    let ui = Ui::new().await;
    for path in [
        "/dead?key=%ff%fe%00",
        "/dead?id=%00",
        "/holds?topic=%00",
        "/pauses/pause?scope=key&topic=t&key=%00",
        "/audit?topic=%00",
    ] {
        let page = ui.visitor.get(path).await;
        assert!(
            (200..500).contains(&page.status),
            "{path}: {} {}",
            page.status,
            page.shown()
        );
        assert_harmless(path, &page);
    }
    let question = ui.page("/pauses/pause?scope=all").await;
    let page = ui.visitor.submit(&question, &[("reason", "a\0b")]).await;
    assert_eq!(page.status, 400, "{}", page.shown());
    ui.relay.assert_alive();
}
