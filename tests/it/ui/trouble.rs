//! What goes wrong, and what the page costs.

use std::time::{Duration, Instant};

use super::*;

/// In the statement that only the page sends.
const SAMPLE: &str = "n_tup_upd AS updated";

/// How many sessions of the page PostgreSQL has.
async fn sessions(ui: &Ui) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outboxd page'";
    ui.world.count(sql).await
}

/// A page whose relay reaches PostgreSQL through a proxy.
async fn behind_a_proxy() -> (Ui, Proxy) {
    let world = World::new().await;
    let proxy = Proxy::to_postgres(&world.database_url);
    let operator = proxy.url(&world.login("operator", &["outbox_operator"]).await);
    let relay = world.relay_through(&proxy);
    (Ui::of(world, relay, Some(&operator)).await, proxy)
}

#[tokio::test]
async fn many_viewers_cost_as_much_as_one_and_nobody_costs_nothing() {
    let (ui, proxy) = behind_a_proxy().await;
    assert_eq!(
        (sessions(&ui).await, proxy.times_executed(SAMPLE)),
        (0, 0),
        "nobody has looked"
    );
    let began = Instant::now();
    let viewers = (0..20).map(|_| async {
        while began.elapsed() < Duration::from_secs(5) {
            ui.page("/").await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    futures_util::future::join_all(viewers).await;
    let asked = proxy.times_executed(SAMPLE);
    assert!((2..=4).contains(&asked), "{asked} samples in five seconds");
    assert!(sessions(&ui).await <= 3);
    eventually(SOON, "the page to close its sessions", async || {
        (sessions(&ui).await == 0).then_some(())
    })
    .await;
    assert_eq!(proxy.times_executed(SAMPLE), asked, "nobody has looked since");
}

#[tokio::test]
async fn while_the_database_is_away_the_page_says_so_in_time() {
    let (ui, proxy) = behind_a_proxy().await;
    ui.page("/").await;
    proxy.both_ways(Link::BLACK_HOLE);
    for path in ["/", "/dead", "/pauses/pause?scope=all"] {
        let began = Instant::now();
        let page = eventually(SOON, "an old sample to be over", async || {
            let page = ui.visitor.get(path).await;
            (page.shown().contains("cannot be asked") || page.status == 503).then_some(page)
        })
        .await;
        assert!(
            began.elapsed() < Duration::from_secs(15),
            "{path}: {:?}",
            began.elapsed()
        );
        assert!(
            page.shown().contains("did not answer") || page.shown().contains("no database connection"),
            "{}",
            page.shown()
        );
    }
    assert!(
        ui.page("/").await.shown().contains("What is below was so at"),
        "the last figures are shown"
    );
    ui.relay.assert_alive();
    proxy.both_ways(Link::default());
    eventually(SOON, "the page to show new figures", async || {
        (!ui.page("/").await.shown().contains("cannot be asked")).then_some(())
    })
    .await;
    let topic = ui.world.topic("orders", 1, &[]).await;
    ui.world.fill(&topic, 10, 2).await;
    ui.world.drained(SOON).await;
}

#[tokio::test]
async fn before_the_relay_has_reached_its_database_the_page_says_why() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let token = folder.path().join("token");
    fs::write(&token, TOKEN).expect("a file");
    // Nobody listens there.
    let relay = RelayBuilder::new("postgres://u@127.0.0.1:1/db", &Stack::get().kafka);
    let relay = relay.with_page(token.to_str().expect("text")).start();
    let address = eventually(SOON, "the page to listen", async || relay.ui_address()).await;
    let visitor = Visitor::with_token(&address, TOKEN).await;
    let page = visitor.get("/").await;
    assert!(
        page.status == 200 && page.shown().contains("PostgreSQL cannot be asked"),
        "{}",
        page.shown()
    );
}

#[tokio::test]
async fn an_operation_goes_on_when_its_browser_has_left() {
    let ui = Ui::new().await;
    ui.dead_letters("orders", 3_000).await;
    let question = ui.page("/dead/discard").await;
    let blocker = ui.world.session().await;
    blocker
        .batch_execute("BEGIN; SELECT FROM outbox.message WHERE id = 1 FOR UPDATE")
        .await
        .expect("locked");
    let left = tokio::time::timeout(
        Duration::from_secs(1),
        ui.visitor.submit(&question, &[("reason", "alice: a test")]),
    );
    assert!(left.await.is_err(), "it waits for the lock");
    blocker.batch_execute("COMMIT").await.expect("unlocked");
    eventually(SOON, "all three transactions", async || {
        (ui.world.count("SELECT count(*) FROM outbox.audit").await == 3).then_some(())
    })
    .await;
    assert!(ui.world.ids_where("true").await.is_empty());
}
