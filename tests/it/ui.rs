//! The page for the person on call, by plain HTTP: who gets in, what is shown, what is changed, and what goes wrong.

mod browser;
mod changes;
mod documented;
mod foreign;
mod gate;
mod pages;
mod trouble;

use std::fs;

use testkit::*;

/// The token of every page here.
const TOKEN: &str = "a-t0ken-that-nobody-guesses";
/// The password of the operator, which no page may show. The test servers trust everybody.
const PASSWORD: &str = "operat0r-passw0rd";

/// A world with a relay that serves a page, and somebody who has logged in.
struct Ui {
    world: World,
    relay: Relay,
    visitor: Visitor,
    folder: tempfile::TempDir,
}

impl Ui {
    /// A page that changes things by a login that is an operator's and nothing else.
    async fn new() -> Self {
        let world = World::new().await;
        let operator = with_password(&world.login("operator", &["outbox_operator"]).await);
        let relay = world.relay();
        Ui::of(world, relay, Some(&operator)).await
    }

    /// One that changes nothing.
    async fn read_only() -> Self {
        let world = World::new().await;
        let relay = world.relay();
        Ui::of(world, relay, None).await
    }

    async fn of(world: World, relay: RelayBuilder, operator: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (token, url) = (folder.path().join("token"), folder.path().join("url"));
        fs::write(&token, TOKEN).expect("a file");
        let mut relay = relay.with_page(token.to_str().expect("text"));
        if let Some(operator) = operator {
            fs::write(&url, operator).expect("a file");
            relay = relay.args(&["--ui-database-url-file", url.to_str().expect("text")]);
        }
        let relay = relay.start_ready().await;
        let visitor = Visitor::with_token(&relay.ui_address().expect("a page"), TOKEN).await;
        Ui {
            world,
            relay,
            visitor,
            folder,
        }
    }

    fn address(&self) -> String {
        self.relay.ui_address().expect("a page")
    }

    /// A page, which must be there.
    async fn page(&self, path: &str) -> WebPage {
        let page = self.visitor.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text());
        page
    }

    /// Answers the question at this address, and gives a reason.
    async fn do_it(&self, path: &str) -> WebPage {
        let question = self.page(path).await;
        self.visitor.submit(&question, &[("reason", "alice: a test")]).await
    }

    /// Dead letters of one topic, by their payloads; answers their ids. The relay never sees them pending.
    async fn dead_letters(&self, topic: &str, rows: usize) -> Vec<i64> {
        let insert = format!(
            "INSERT INTO outbox.message (topic, key, payload) SELECT '{topic}', 'k' || n, jsonb_build_object('n', n) FROM generate_series(1, {rows}) n;
             UPDATE outbox.message SET dead_at = now(), attempts = 5, last_error = 'MessageSizeTooLarge' WHERE topic = '{topic}'"
        );
        self.world.execute(&insert).await;
        self.world.ids_where(&format!("topic = '{topic}'")).await
    }

    /// The last row of the audit: command, login, reason and how many rows it changed.
    async fn last_audited(&self) -> (String, String, String, i32) {
        let sql = "SELECT command, login::text, reason, changed FROM outbox.audit ORDER BY id DESC LIMIT 1";
        let row = self.world.db.query_one(sql, &[]).await.expect(sql);
        (row.get(0), row.get(1), row.get(2), row.get(3))
    }

    /// The audit has what was done, by the operator's login and with the reason that was given.
    async fn assert_audited(&self, command: &str, changed: i32) {
        let operator = format!("{}_operator", self.world.name);
        let expected = (command.to_owned(), operator, "page: alice: a test".to_owned(), changed);
        assert_eq!(self.last_audited().await, expected);
    }
}

/// The URL of a login, with a password that the server does not ask for.
fn with_password(url: &str) -> String {
    url.replacen('@', &format!(":{PASSWORD}@"), 1)
}
