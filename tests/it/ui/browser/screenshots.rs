//! The pictures in the README and in docs/ui.md.

use std::path::Path;
use std::time::Duration;

use super::chromium::Chromium;
use super::*;

/// Longer than it takes until the chart has some columns.
const CHART: Duration = Duration::from_secs(120);
/// The largest picture, in bytes.
const PICTURE_MAX: usize = 150_000;

/// Two workers, three topics, and rows that come in all the time.
struct Shop {
    ui: Ui,
    _kafka: OwnKafka,
    _other: Relay,
    writer: tokio::task::JoinHandle<()>,
}

impl Shop {
    async fn open() -> Self {
        let kafka = OwnKafka::start();
        for topic in ["orders", "payments", "shipments"] {
            create_topic(&kafka.address, topic, 6, &[SMALL]).await;
        }
        let world = World::with_kafka(&kafka.address).await;
        let operator = world.login("oncall", &["outbox_operator"]).await;
        let other = world
            .relay()
            .args(&["--worker-name", "outboxd-7c9f-x2k4p", "--max-attempts", "1"]);
        let other = other.start_ready().await;
        let relay = world
            .relay()
            .args(&["--worker-name", "outboxd-7c9f-m8d2q", "--max-attempts", "1"]);
        let ui = Ui::of(world, relay, Some(&operator)).await;
        let session = ui.world.session().await;
        let writer = tokio::spawn(async move {
            loop {
                let rows = 40 + fastrand::i32(0..60);
                let insert = format!(
                    "INSERT INTO outbox.message (topic, key, payload)
                     SELECT (ARRAY['orders', 'payments', 'shipments'])[1 + n % 3], 'customer-' || n % 500, jsonb_build_object('total', n)
                     FROM generate_series(1, {rows}) n"
                );
                session.batch_execute(&insert).await.expect("written");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        Shop {
            ui,
            _kafka: kafka,
            _other: other,
            writer,
        }
    }

    /// A topic that is missing, messages that are too large, a pause.
    async fn break_things(&self) {
        let world = &self.ui.world;
        let large = format!(
            "INSERT INTO outbox.message (topic, key, payload_bytes)
             SELECT 'orders', 'customer-' || n, {TOO_LARGE} FROM generate_series(100, 104) n"
        );
        world.execute(&large).await;
        world.fill("invoices", 1_200, 40).await;
        let pause = "SELECT outbox.pause('payments', NULL, 'page: bob: the bank is down, ticket 4711')";
        world.execute(pause).await;
        world
            .until("SELECT count(*) = 5 FROM outbox.message WHERE dead_at IS NOT NULL")
            .await;
        world
            .until("SELECT count(*) > 0 FROM outbox.hold WHERE topic = 'invoices'")
            .await;
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

/// Takes a picture. It is kept if the pictures are to be written anew.
async fn picture(browser: &Chromium, name: &str) {
    let png = browser.screenshot().await;
    assert!(
        png.starts_with(b"\x89PNG") && (10_000..PICTURE_MAX).contains(&png.len()),
        "{name}: {} bytes",
        png.len()
    );
    let file = repository().join("docs/ui").join(name);
    if std::env::var_os("OUTBOXD_WRITE_SCREENSHOTS").is_some() {
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(&file, png).expect("a file");
    }
    assert!(
        Path::new(&file).exists(),
        "{name} is shown in a document: take it with OUTBOXD_WRITE_SCREENSHOTS=1"
    );
}

#[tokio::test]
#[ignore = "needs Chromium: make test-all"]
async fn the_pictures_in_the_documents_are_of_this_page() {
    let shop = Shop::open().await;
    let browser = Chromium::start().await;
    let address = shop.ui.address();
    browser.resize(1280, 1000, false).await;
    browser.log_in(&address, TOKEN).await;
    // A column of the chart is five seconds.
    let columns = "return document.querySelector('path.line.own').getAttribute('d').split('L').length";
    eventually(CHART, "rows that flow", async || {
        (browser.ask(columns).await.as_u64() > Some(8)).then_some(())
    })
    .await;
    let heights = "return ['.plot', '.plot svg'].map(it => document.querySelector(it).clientHeight)";
    let heights = browser.ask(heights).await;
    assert_eq!(heights[0], heights[1], "the chart stays in its frame");
    browser.prefers("dark").await;
    picture(&browser, "quiet-dark.png").await;
    shop.break_things().await;
    shows(&browser, "Topic invoices takes nothing").await;
    shows(&browser, "the bank is down").await;
    browser.prefers("light").await;
    picture(&browser, "trouble-light.png").await;
    browser.open(&format!("http://{address}/dead")).await;
    picture(&browser, "dead-letters-light.png").await;
    browser.resize(390, 844, true).await;
    for path in [
        "/",
        "/dead",
        "/dead/redrive?topic=orders",
        "/holds",
        "/pauses",
        "/audit",
    ] {
        browser.open(&format!("http://{address}{path}")).await;
        let excess = browser
            .ask("return document.documentElement.scrollWidth - window.innerWidth")
            .await;
        assert!(excess.as_i64() <= Some(0), "{path} is wider than a phone by {excess}");
    }
    browser.close().await;
}
