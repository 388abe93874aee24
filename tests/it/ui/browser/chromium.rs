//! Chromium without a screen, with a profile of its own, and the ChromeDriver that drives it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use axum::http::Method;
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use testkit::{SOON, eventually};
use url::{ParseError, Url};

/// Keys as WebDriver takes them.
pub const TAB: &str = "\u{e004}";
pub const ENTER: &str = "\u{e007}";
pub const SPACE: &str = " ";

/// More presses of the tab key than any page has things to focus.
const TABS_MAX: usize = 60;

pub struct Chromium {
    client: Client,
    /// Both are gone when this is.
    _driver: Driver,
    _profile: tempfile::TempDir,
}

struct Driver {
    process: Child,
    /// Kept open, since it may write more.
    _stdout: BufReader<ChildStdout>,
    port: u16,
}

impl Driver {
    /// It chooses a port, and says which.
    fn start() -> Self {
        let mut process = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver runs: deploy/dev/setup --all installs it");
        let mut stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        let port = stdout.by_ref().lines().map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        Driver {
            process,
            _stdout: stdout,
            port: port.expect("chromedriver listens"),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Chromium {
    pub async fn start() -> Self {
        let driver = Driver::start();
        let profile = tempfile::tempdir().expect("a temporary directory");
        let capabilities = json!({
            "goog:chromeOptions": { "args": arguments(&profile) },
            "goog:loggingPrefs": { "browser": "INFO" },
        });
        let mut builder = ClientBuilder::new(HttpConnector::new());
        builder.capabilities(capabilities.as_object().expect("an object").clone());
        let client = builder.connect(&format!("http://127.0.0.1:{}", driver.port)).await;
        let client = client.expect("a browser");
        Chromium {
            client,
            _driver: driver,
            _profile: profile,
        }
    }

    pub async fn open(&self, address: &str) {
        self.client.goto(address).await.expect(address);
    }

    /// Opens the overview by way of the login.
    pub async fn log_in(&self, address: &str, token: &str) {
        self.open(&format!("http://{address}/")).await;
        self.keys(&format!("{token}{ENTER}")).await;
        eventually(SOON, "the overview", async || {
            self.text().await.contains("Workers").then_some(())
        })
        .await;
    }

    /// Types into what has the focus.
    pub async fn keys(&self, keys: &str) {
        let focused = self.client.active_element().await.expect("a focus");
        focused.send_keys(keys).await.expect(keys);
    }

    /// Presses the tab key until this has the focus.
    pub async fn tab_to(&self, selector: &str) {
        let has_it = format!("return document.activeElement.matches({selector:?})");
        for _ in 0..TABS_MAX {
            self.keys(TAB).await;
            if self.ask(&has_it).await == true {
                return;
            }
        }
        panic!("the tab key does not lead to {selector}: {}", self.text().await);
    }

    pub async fn click(&self, selector: &str) {
        let element = self.client.find(Locator::Css(selector)).await.expect(selector);
        element.click().await.expect(selector);
    }

    /// What a person reads. It is empty while a page is loading.
    pub async fn text(&self) -> String {
        match self.client.find(Locator::Css("body")).await {
            Ok(body) => body.text().await.unwrap_or_default(),
            Err(_) => String::new(),
        }
    }

    /// What a script of ours returns on the page.
    pub async fn ask(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.expect(script)
    }

    /// What the browser has written to its console since the last time.
    pub async fn console(&self) -> Vec<String> {
        let entries = self.command("se/log", json!({ "type": "browser" })).await;
        let entries = entries.as_array().expect("a list").iter();
        entries
            .map(|entry| entry["message"].as_str().expect("a message").to_owned())
            .collect()
    }

    /// Pages that are opened from now on run no script of theirs.
    pub async fn without_scripts(&self) {
        self.devtools("Emulation.setScriptExecutionDisabled", json!({ "value": true }))
            .await;
    }

    pub async fn prefers(&self, scheme: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    /// The size of the window, in pixels of the page.
    pub async fn resize(&self, width: u32, height: u32, is_phone: bool) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// A picture of the window, as PNG.
    pub async fn screenshot(&self) -> Vec<u8> {
        self.client.screenshot().await.expect("a picture")
    }

    pub async fn close(self) {
        self.client.close().await.expect("closed");
    }

    async fn devtools(&self, command: &str, params: Value) -> Value {
        self.command("goog/cdp/execute", json!({ "cmd": command, "params": params }))
            .await
    }

    async fn command(&self, path: &'static str, body: Value) -> Value {
        self.client.issue_cmd(DriverCommand { path, body }).await.expect(path)
    }
}

/// As root there is no sandbox; and nothing is asked of anybody but the page.
fn arguments(profile: &tempfile::TempDir) -> Vec<String> {
    let fixed = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--no-default-browser-check",
        "--hide-scrollbars",
        "--window-size=1280,900",
    ];
    let profile = format!("--user-data-dir={}", profile.path().display());
    fixed.into_iter().map(str::to_owned).chain([profile]).collect()
}

/// A command of ChromeDriver that is not in WebDriver.
#[derive(Debug)]
struct DriverCommand {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for DriverCommand {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.path))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.body.to_string()))
    }
}
