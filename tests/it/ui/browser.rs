//! The page in a real browser: Chromium without a screen, driven over WebDriver.

mod chromium;
mod screenshots;

use super::foreign::world_with_hostile_rows;
use super::*;
use chromium::{Chromium, ENTER, SPACE, TAB};

/// Waits until the page shows this text.
async fn shows(browser: &Chromium, text: &str) {
    eventually(SOON, text, async || browser.text().await.contains(text).then_some(())).await;
}

#[tokio::test]
#[ignore = "needs Chromium: make test-all"]
async fn no_text_of_others_runs_and_the_policy_is_never_broken() {
    let (ui, paths) = world_with_hostile_rows().await;
    let browser = Chromium::start().await;
    browser.log_in(&ui.address(), TOKEN).await;
    for path in &paths {
        browser.open(&format!("http://{}{path}", ui.address())).await;
        let scripts = browser.ask("return document.querySelectorAll('script').length").await;
        assert_eq!(scripts, 1, "{path}: the script of the page");
        let foreign = browser
            .ask("return document.querySelectorAll('img, iframe, svg[onload], [onfocus], [onerror]').length")
            .await;
        assert_eq!(foreign, 0, "{path}");
    }
    // A dialog, which any of the scripts would open, ends the commands above.
    let complaints: Vec<String> = browser
        .console()
        .await
        .into_iter()
        .filter(|line| !is_refusal(line))
        .collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    browser.close().await;
}

/// Chromium writes each answer with an error code to its console. Some of the addresses make no sense on purpose.
fn is_refusal(line: &str) -> bool {
    line.contains("the server responded with a status of 4")
}

#[tokio::test]
#[ignore = "needs Chromium: make test-all"]
async fn a_dead_letter_is_sent_again_by_keyboard_alone() {
    let ui = Ui::new().await;
    let topic = ui.world.topic("orders", 1, &[]).await;
    let ids = ui.dead_letters(&topic, 2).await;
    let browser = Chromium::start().await;
    browser.open(&format!("http://{}/dead", ui.address())).await;
    browser.keys(&format!("{TOKEN}{ENTER}")).await;
    shows(&browser, "1–2 of 2").await;
    browser.tab_to(&format!("input[value='{}']", ids[0])).await;
    browser.keys(SPACE).await;
    browser
        .tab_to("form[action='/dead/redrive'] button:not([formaction])")
        .await;
    browser.keys(ENTER).await;
    shows(&browser, "Send again 1 dead letter of 1 topic?").await;
    let focused = browser.ask("return document.activeElement.id").await;
    assert_eq!(focused, "reason", "the question begins with it");
    browser.keys(&format!("alice: by keyboard{TAB}{ENTER}")).await;
    shows(&browser, "page: alice: by keyboard").await;
    ui.world.drained(SOON).await;
    assert_eq!(ui.world.ids_where("published_at IS NOT NULL").await, [ids[0]]);
    let complaints = browser.console().await;
    assert!(complaints.is_empty(), "{complaints:#?}");
    browser.close().await;
}

#[tokio::test]
#[ignore = "needs Chromium: make test-all"]
async fn everything_works_without_scripts() {
    let ui = Ui::new().await;
    let ids = ui.dead_letters("orders", 2).await;
    let browser = Chromium::start().await;
    browser.without_scripts().await;
    browser.log_in(&ui.address(), TOKEN).await;
    let refresh = browser.ask("return document.querySelectorAll('noscript').length").await;
    assert_eq!(refresh, 1, "the overview loads itself again");
    ui.world
        .execute("SELECT outbox.pause('bills', NULL, 'meanwhile')")
        .await;
    shows(&browser, "meanwhile").await;
    browser.open(&format!("http://{}/dead/{}", ui.address(), ids[0])).await;
    browser.click("a.danger").await;
    shows(&browser, "Remove for good 1 dead letter of 1 topic?").await;
    browser.keys("alice: without scripts").await;
    browser.click("button.danger").await;
    shows(&browser, "page: alice: without scripts").await;
    assert_eq!(ui.world.ids_where("true").await, [ids[1]]);
    browser.close().await;
}

#[tokio::test]
#[ignore = "needs Chromium: make test-all"]
async fn the_overview_follows_the_outbox_and_says_when_it_cannot() {
    let mut ui = Ui::new().await;
    let browser = Chromium::start().await;
    browser.log_in(&ui.address(), TOKEN).await;
    ui.dead_letters("orders", 3).await;
    shows(&browser, "MessageSizeTooLarge").await;
    browser.tab_to("#live a[href='/dead']").await;
    ui.dead_letters("bills", 2).await;
    eventually(SOON, "newer figures", async || {
        let dead = browser
            .ask("return document.querySelector(\"#live a[href='/dead']\").textContent")
            .await;
        (dead == "5").then_some(())
    })
    .await;
    let focused = browser.ask("return document.activeElement.getAttribute('href')").await;
    assert_eq!(focused, "/dead", "what has the focus keeps it");
    let complaints = browser.console().await;
    assert!(complaints.is_empty(), "{complaints:#?}");
    ui.relay.kill();
    shows(&browser, "Not connected. What is shown is old.").await;
    browser.close().await;
}
