//! What is changed, and what the audit says of it.

use super::*;

#[tokio::test]
async fn selected_dead_letters_are_sent_again_and_no_others() {
    let ui = Ui::new().await;
    let topic = ui.world.topic("orders", 1, &[]).await;
    let ids = ui.dead_letters(&topic, 4).await;
    let path = format!("/dead/redrive?selected=yes&id={}&id={}", ids[0], ids[2]);
    let question = ui.page(&path).await;
    assert!(
        question.shown().contains("Send again 2 dead letters of 1 topic?"),
        "{}",
        question.shown()
    );
    let done = ui.visitor.submit(&question, &[("reason", "alice: a test")]).await;
    assert!(
        done.shown().contains("dead redrive") && done.shown().contains("alice: a test"),
        "{}",
        done.shown()
    );
    ui.assert_audited("dead redrive", 2).await;
    ui.world.drained(SOON).await;
    assert_eq!(ui.world.ids_where("published_at IS NOT NULL").await, [ids[0], ids[2]]);
    let again = ui.visitor.submit(&question, &[("reason", "the form once more")]).await;
    assert!(
        again.status == 404 && again.shown().contains("No dead letter matches"),
        "{}",
        again.shown()
    );
    let nothing = ui.visitor.get("/dead/redrive?selected=yes").await;
    assert!(
        nothing.status == 400 && nothing.shown().contains("Nothing is selected"),
        "{}",
        nothing.shown()
    );
}

#[tokio::test]
async fn all_that_match_are_sent_again_but_what_died_since() {
    let ui = Ui::new().await;
    let topic = ui.world.topic("orders", 1, &[]).await;
    let first = ui.dead_letters(&topic, 2_500).await;
    ui.dead_letters("bills", 1).await;
    let question = ui.page(&format!("/dead/redrive?topic={topic}&error=toolarge")).await;
    assert!(
        question.shown().contains("Send again 2,500 dead letters of 1 topic?"),
        "{}",
        question.shown()
    );
    let died_since = format!(
        "INSERT INTO outbox.message (topic, key, payload) VALUES ('{topic}', 'late', '1');
         UPDATE outbox.message SET dead_at = now(), last_error = 'MessageSizeTooLarge' WHERE key = 'late'"
    );
    ui.world.execute(&died_since).await;
    ui.visitor.submit(&question, &[("reason", "alice: a test")]).await;
    ui.world.drained(SOON).await;
    assert_eq!(ui.world.ids_where("published_at IS NOT NULL").await, first);
    assert_eq!(ui.world.ids_where("dead_at IS NOT NULL").await.len(), 2);
    let sql = "SELECT count(*) FROM outbox.audit WHERE operation = (SELECT max(operation) FROM outbox.audit)";
    assert_eq!(ui.world.count(sql).await, 3, "chunks of 1,000 of one operation");
    let filter = ui
        .world
        .text("SELECT filter::text FROM outbox.audit ORDER BY id DESC LIMIT 1")
        .await;
    assert!(filter.contains("toolarge") && filter.contains(&topic), "{filter}");
}

#[tokio::test]
async fn one_click_changes_a_bounded_number() {
    let ui = Ui::new().await;
    ui.dead_letters("orders", 10_001).await;
    let question = ui.page("/dead/discard").await;
    assert!(
        question.shown().contains("Remove for good 10,000 dead letters"),
        "{}",
        question.shown()
    );
    assert!(
        question.shown().contains("Repeat it for the rest"),
        "{}",
        question.shown()
    );
    ui.visitor.submit(&question, &[("reason", "alice: a test")]).await;
    assert_eq!(ui.world.ids_where("true").await.len(), 1);
    ui.do_it("/dead/discard?topic=orders").await;
    ui.assert_audited("dead discard", 1).await;
    assert_eq!(ui.visitor.get("/dead/discard").await.status, 404, "nothing is left");
}

#[tokio::test]
async fn a_key_behind_a_dead_letter_is_released() {
    let world = World::new().await;
    let operator = world.login("operator", &["outbox_operator"]).await;
    let relay = world.relay().args(&["--on-dead", "hold", "--max-attempts", "1"]);
    let ui = Ui::of(world, relay, Some(&operator)).await;
    let topic = ui.world.topic("orders", 1, &[SMALL]).await;
    let insert = format!(
        "INSERT INTO outbox.message (topic, key, payload_bytes) VALUES ('{topic}', 'a&b', {TOO_LARGE}), ('{topic}', 'a&b', 'x'), ('{topic}', 'c', 'x')"
    );
    ui.world.execute(&insert).await;
    ui.world
        .until("SELECT count(*) = 1 FROM outbox.hold WHERE retry_at = 'infinity'")
        .await;
    let holds = ui.page("/holds").await;
    assert!(
        holds.shown().contains("key a&b") && holds.shown().contains("waits for you"),
        "{}",
        holds.shown()
    );
    let link = holds
        .text()
        .split("href=\"/holds/release?")
        .nth(1)
        .expect("a link")
        .to_owned();
    let link = link.split('"').next().expect("its end").replace("&amp;", "&");
    ui.do_it(&format!("/holds/release?{link}")).await;
    ui.assert_audited("hold release", 1).await;
    ui.world.drained(SOON).await;
    assert_eq!(ui.world.ids_where("published_at IS NOT NULL").await.len(), 2);
    assert_eq!(ui.visitor.get("/holds/release").await.status, 404, "nothing is held");
}

#[tokio::test]
async fn a_topic_is_paused_and_resumed() {
    let ui = Ui::new().await;
    let topic = ui.world.topic("orders", 1, &[]).await;
    let scope = format!("scope=topic&topic={topic}&key=");
    ui.do_it(&format!("/pauses/pause?{scope}")).await;
    ui.assert_audited("pause", 1).await;
    let version = ui.world.count("SELECT version FROM outbox.pause_version").await;
    eventually(SOON, "the pause to be in effect", async || {
        let page = ui.page(&format!("/pauses?version={version}")).await;
        page.shown().contains("It is in effect on 1 worker.").then_some(())
    })
    .await;
    ui.world.fill(&topic, 5, 2).await;
    let pending = ui.page(&format!("/pauses/resume?{scope}")).await;
    assert!(pending.shown().contains("5 rows pending"), "{}", pending.shown());
    assert_eq!(ui.world.pending().await, 5);
    ui.visitor.submit(&pending, &[("reason", "alice: a test")]).await;
    ui.assert_audited("resume", 1).await;
    ui.world.drained(SOON).await;
    for scope in ["scope=all", "scope=key&topic=t&key="] {
        ui.do_it(&format!("/pauses/pause?{scope}")).await;
        ui.do_it(&format!("/pauses/resume?{scope}")).await;
        ui.assert_audited("resume", 1).await;
    }
    assert_eq!(ui.world.count("SELECT count(*) FROM outbox.pause").await, 0);
    for wrong in ["", "?scope=topic&topic=no%20topic", "?scope=x"] {
        assert_eq!(
            ui.visitor.get(&format!("/pauses/pause{wrong}")).await.status,
            400,
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn nothing_is_changed_without_a_reason() {
    let ui = Ui::new().await;
    let ids = ui.dead_letters("orders", 1).await;
    let questions = [
        "/dead/redrive".to_owned(),
        "/dead/discard".to_owned(),
        "/pauses/pause?scope=all".to_owned(),
    ];
    for path in questions {
        let question = ui.page(&path).await;
        let long = "x".repeat(995);
        for reason in ["", " \t ", &long] {
            let page = ui.visitor.submit(&question, &[("reason", reason)]).await;
            assert!(
                page.status == 400 && page.shown().contains("reason"),
                "{path}: {}",
                page.shown()
            );
        }
    }
    assert_eq!(ui.world.ids_where("dead_at IS NOT NULL").await, ids);
    assert_eq!(ui.world.count("SELECT count(*) FROM outbox.audit").await, 0);
}

#[tokio::test]
async fn a_login_that_is_no_operators_changes_nothing_and_says_what_it_lacks() {
    let world = World::new().await;
    let stranger = world.login("stranger", &["outbox_relay"]).await;
    let relay = world.relay();
    let ui = Ui::of(world, relay, Some(&stranger)).await;
    let ids = ui.dead_letters("orders", 1).await;
    let done = ui.do_it("/dead/discard").await;
    assert!(
        done.status == 503 && done.shown().contains("permission denied"),
        "{}",
        done.shown()
    );
    let audit = ui.visitor.get("/audit").await;
    assert!(
        audit.status == 403 && audit.shown().contains("outbox_operator"),
        "{}",
        audit.shown()
    );
    assert_eq!(ui.world.ids_where("dead_at IS NOT NULL").await, ids);
}

#[tokio::test]
async fn an_operation_of_any_tool_is_shown_with_its_transactions() {
    let ui = Ui::new().await;
    ui.dead_letters("orders", 3).await;
    ui.dead_letters("bills", 1).await;
    ui.world.outboxd(
        "dead discard",
        &["--topic", "orders", "--reason", "by a command", "--yes"],
    );
    ui.do_it("/dead/discard?topic=bills").await;
    let list = ui.page("/audit").await.shown();
    assert!(
        list.contains("by a command") && list.contains("page: alice: a test"),
        "{list}"
    );
    let bills = ui.page("/audit?topic=bills").await.shown();
    assert!(!bills.contains("by a command") && bills.contains("alice"), "{bills}");
    let operation = ui.world.count("SELECT min(operation) FROM outbox.audit").await;
    let shown = ui.page(&format!("/audit/{operation}")).await.shown();
    assert!(shown.contains("3 changed") && shown.contains("Ids: 1, 2, 3"), "{shown}");
    assert!(
        ui.page(&format!("/audit?before={operation}"))
            .await
            .shown()
            .contains("No operation matches")
    );
    for unknown in ["999999", "-1", "9223372036854775807"] {
        assert_eq!(
            ui.visitor.get(&format!("/audit/{unknown}")).await.status,
            404,
            "{unknown}"
        );
    }
}
