//! Tokens that log in to Kafka: where they come from, what is known about each, and when the next one is fetched.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tracing::{debug, info, warn};

use super::command::CommandLine;
use super::file;
use super::oidc::ClientCredentials;
use crate::jitter::jittered;

pub const FILE_FLAG: &str = "--kafka-token-file";
pub const COMMAND_FLAG: &str = "--kafka-token-command";

/// A token that does not say when it ends is taken to live this long.
const LIFE_UNKNOWN: Duration = Duration::from_secs(300);
/// No token lives longer. A later time could be neither printed nor given to the client library.
const YEAR_9999: Duration = Duration::from_secs(253_370_764_800);
/// A token is replaced after this part of its life, so that an issuer that is down for a while costs nothing.
const RENEWED_AFTER: f64 = 0.8;
/// A file is read again at least this often, and a clock that jumped is noticed as soon.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The first wait after a failure. It doubles each time.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The first wait between two tokens while brokers refuse them. It doubles each time.
const REFUSED_WAIT_MIN: Duration = Duration::from_secs(5);
const REFUSED_WAIT_MAX: Duration = Duration::from_secs(60);
/// A refusal so long after the one before is the first of another outage.
const REFUSALS_END_AFTER: Duration = Duration::from_secs(180);
/// Longest wait for a token. A command and an issuer have shorter limits of their own.
const FETCH_TIMEOUT: Duration = Duration::from_secs(15);

/// A token, and what is known about it.
#[derive(Clone, Debug)]
pub struct Token {
    pub secret: SecretString,
    /// Whom the token is about, as far as that can be read from it. Brokers read it themselves.
    pub principal: String,
    pub expires: SystemTime,
}

impl Token {
    /// Reads what a file contains or a command printed: the token by itself, or a JSON object with it.
    pub fn parse(text: &SecretString, now: SystemTime) -> Result<Token, String> {
        let text = text.expose_secret().trim();
        if !text.starts_with('{') {
            return Token::new(text, None, None, now);
        }
        // The message of the parser may quote the text.
        let json: Value = serde_json::from_str(text).map_err(|_| "it begins like JSON and is none".to_owned())?;
        let secret = first(&json, &["token", "access_token", "accessToken"]).and_then(Value::as_str);
        let secret = secret.ok_or("its JSON has neither \"token\" nor \"access_token\"")?;
        let principal = json["principal"].as_str().map(str::to_owned);
        let expires = match (json.get("expires_in"), first(&json, &["expires_at", "expires_on"])) {
            (Some(seconds), _) => Some(number(seconds).and_then(|seconds| now.checked_add(seconds))),
            (None, Some(time)) => Some(timestamp(time)),
            (None, None) => None,
        };
        match expires {
            Some(None) => Err("its JSON does not say in seconds, or as a time, when the token ends".to_owned()),
            Some(expires) => Token::new(secret, principal, expires, now),
            None => Token::new(secret, principal, None, now),
        }
    }

    /// A token of which these things are known. What is not known is read from the token if it is a JWT. Its signature is for the
    /// broker to check.
    pub fn new(
        secret: &str,
        principal: Option<String>,
        expires: Option<SystemTime>,
        now: SystemTime,
    ) -> Result<Token, String> {
        if secret.is_empty() {
            return Err("it is empty".to_owned());
        }
        // The client library would quote a token with such a character in its error.
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("it is no token: it contains a character that no token has, such as a space".to_owned());
        }
        let claims = claims(secret).unwrap_or_default();
        let expires = expires.or_else(|| timestamp(&claims["exp"]));
        let expires = expires.unwrap_or(now + LIFE_UNKNOWN).min(UNIX_EPOCH + YEAR_9999);
        if expires <= now {
            let at = humantime::format_rfc3339_seconds(expires);
            return Err(format!("the token ended at {at}; is the clock of this machine right?"));
        }
        let principal = principal.or_else(|| Some(claims["sub"].as_str()?.to_owned()));
        Ok(Token {
            secret: secret.into(),
            principal: principal.unwrap_or_else(|| "unknown".to_owned()),
            expires,
        })
    }
}

/// The first of these members that the object has.
fn first<'a>(json: &'a Value, names: &[&str]) -> Option<&'a Value> {
    names.iter().find_map(|name| json.get(name))
}

/// Seconds, as a number or as text.
fn number(json: &Value) -> Option<Duration> {
    let seconds = json.as_f64().or_else(|| json.as_str()?.parse().ok())?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// Seconds since 1970, or a time such as 2026-01-31T12:00:00Z.
fn timestamp(json: &Value) -> Option<SystemTime> {
    let since_1970 = || UNIX_EPOCH.checked_add(number(json)?);
    let text = || humantime::parse_rfc3339_weak(json.as_str()?).ok();
    since_1970().or_else(text)
}

/// What a JWT says about itself, if the token is one.
fn claims(token: &str) -> Option<Value> {
    let [_, claims, _]: [&str; 3] = token.split('.').collect::<Vec<_>>().try_into().ok()?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
}

/// Where tokens come from.
#[derive(Clone, Debug)]
pub enum TokenSource {
    File(PathBuf),
    Command(CommandLine),
    Issuer(Arc<ClientCredentials>),
}

impl TokenSource {
    async fn fetch(&self) -> Result<Token, String> {
        let (name, text) = match self {
            TokenSource::File(path) => {
                let name = format!("{FILE_FLAG} {}", path.display());
                (name, file::read(FILE_FLAG, path)?)
            }
            TokenSource::Command(command) => (COMMAND_FLAG.to_owned(), command.output().await?),
            TokenSource::Issuer(issuer) => return issuer.token().await,
        };
        Token::parse(&text, SystemTime::now()).map_err(|problem| format!("{name}: {problem}"))
    }

    /// When a token that was fetched now should be replaced.
    fn renewal(&self, token: &Token, now: SystemTime) -> SystemTime {
        let life = token.expires.duration_since(now).unwrap_or_default();
        // Replicas that were started together do not ask together.
        let after = life.mul_f64(RENEWED_AFTER * (0.9 + 0.1 * fastrand::f64()));
        let after = match self {
            // Nobody says when the file changes, and reading it is cheap.
            TokenSource::File(_) => after.min(LOOK_EVERY),
            TokenSource::Command(_) | TokenSource::Issuer(_) => after,
        };
        now + after.max(BACKOFF_MIN)
    }
}

/// The current token. It is replaced in the background, before it ends; the clients of Kafka only read it.
#[derive(Debug)]
pub struct Tokens {
    state: Mutex<State>,
    /// Rises with each token that differs from the one before; 0 while there has been none.
    number: watch::Sender<u64>,
    /// A token is wanted before it is time for one.
    wanted: Notify,
    /// Tokens come from elsewhere now.
    replaced: Notify,
    /// A token could not be fetched.
    failed: Notify,
}

#[derive(Debug, Default)]
struct State {
    source: Option<TokenSource>,
    token: Option<Token>,
    /// When to fetch the next token. `None`: now.
    renewal: Option<SystemTime>,
    /// When a token was last asked for.
    asked: Option<Instant>,
    /// How many tokens brokers have refused in a row.
    refusals: u32,
    /// Why there is no newer token.
    problem: Option<String>,
}

impl State {
    /// The wait between the last token, of so long ago, and the next one, if brokers refuse it.
    fn refusal_wait(&mut self, ago: Duration) -> Duration {
        self.refusals = if ago > REFUSALS_END_AFTER { 0 } else { self.refusals };
        let wait = REFUSED_WAIT_MIN * 2u32.pow(self.refusals.min(4));
        self.refusals += 1;
        wait.min(REFUSED_WAIT_MAX)
    }
}

impl Tokens {
    /// Tokens from this source. Without one there are none.
    pub fn new(source: Option<TokenSource>) -> Self {
        let state = State {
            source,
            ..State::default()
        };
        Tokens {
            state: Mutex::new(state),
            number: watch::channel(0).0,
            wanted: Notify::new(),
            replaced: Notify::new(),
            failed: Notify::new(),
        }
    }

    /// Changes where tokens come from. The token at hand is used until there is another.
    pub fn set_source(&self, source: Option<TokenSource>) {
        let mut state = self.state();
        (state.source, state.renewal, state.refusals) = (source, None, 0);
        drop(state);
        self.replaced.notify_one();
    }

    /// The token and its number, or why there is none.
    pub fn current(&self) -> Result<(u64, Token), String> {
        let state = self.state();
        match (&state.token, &state.problem) {
            (Some(token), _) if token.expires > SystemTime::now() => Ok((self.number(), token.clone())),
            (_, Some(problem)) => Err(problem.clone()),
            (_, None) => Err("no token has been fetched yet".to_owned()),
        }
    }

    /// The number of the token; 0 while there has been none.
    pub fn number(&self) -> u64 {
        *self.number.borrow()
    }

    /// Waits for a token with another number than this one.
    pub async fn changed_from(&self, number: u64) {
        let mut numbers = self.number.subscribe();
        // The sender lives as long as `self`.
        let _ = numbers.wait_for(|now| *now != number).await;
    }

    /// Whom the token is about.
    pub fn principal(&self) -> Option<String> {
        self.state().token.as_ref().map(|token| token.principal.clone())
    }

    /// Why the last attempt to fetch a token failed, if it did.
    pub fn problem(&self) -> Option<String> {
        self.state().problem.clone()
    }

    /// Waits until a token cannot be fetched.
    pub async fn failure(&self) {
        self.failed.notified().await;
    }

    /// A broker refused the token. It may have been revoked, or its file may have a newer one, so another is fetched early.
    pub fn refused(&self) {
        if self.current().is_ok() {
            self.wanted.notify_one();
        }
    }

    /// Fetches the first token, so that clients have one from the start. Gives up after this time.
    pub async fn first(&self, within: Duration) -> Result<(), String> {
        let deadline = Instant::now() + within;
        loop {
            let fetched = tokio::time::timeout_at(deadline.into(), self.fetch()).await;
            let late = || Err(format!("no token within {} s", within.as_secs()));
            match fetched.unwrap_or_else(|_| late()) {
                Err(_) if Instant::now() + BACKOFF_MIN < deadline => tokio::time::sleep(BACKOFF_MIN).await,
                fetched => return fetched,
            }
        }
    }

    /// Fetches one token after the other. It never ends.
    pub async fn renew(&self) {
        let mut failures = 0;
        loop {
            let mut wait = self.until_renewal();
            if wait.is_zero() {
                match self.fetch().await {
                    Ok(()) if failures > 0 => info!("there is a token for Kafka again"),
                    Ok(()) => {}
                    // It is said once, until a token is fetched.
                    Err(problem) if failures == 0 => {
                        warn!(reason = problem, "cannot get a token for Kafka; trying again");
                    }
                    Err(problem) => debug!(reason = problem, "cannot get a token for Kafka"),
                }
                failures = if self.problem().is_some() { failures + 1 } else { 0 };
                wait = if failures > 0 {
                    backoff(failures)
                } else {
                    self.until_renewal()
                };
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.replaced.notified() => {}
                () = self.wanted.notified() => tokio::select! {
                    () = self.hurry() => {}
                    () = self.replaced.notified() => {}
                },
            }
        }
    }

    /// How long to wait for the time of the next token, at most [`LOOK_EVERY`].
    fn until_renewal(&self) -> Duration {
        let state = self.state();
        let wait = match (&state.source, state.renewal) {
            (None, _) => LOOK_EVERY,
            (Some(_), None) => Duration::ZERO,
            (Some(_), Some(at)) => at.duration_since(SystemTime::now()).unwrap_or_default(),
        };
        wait.min(LOOK_EVERY)
    }

    /// The next token is due now. The issuer is asked less and less often while brokers refuse what it gives.
    async fn hurry(&self) {
        let asked = self.state().asked;
        if let Some(asked) = asked {
            let at = asked + self.state().refusal_wait(asked.elapsed());
            tokio::time::sleep_until(at.into()).await;
        }
        self.state().renewal = None;
    }

    async fn fetch(&self) -> Result<(), String> {
        let Some(source) = self.state().source.clone() else {
            return Ok(());
        };
        let fetched = tokio::time::timeout(FETCH_TIMEOUT, source.fetch()).await;
        let late = |_| Err(format!("no token within {} s", FETCH_TIMEOUT.as_secs()));
        let fetched = fetched.unwrap_or_else(late);
        let mut state = self.state();
        state.asked = Some(Instant::now());
        match fetched {
            Ok(token) => {
                state.renewal = Some(source.renewal(&token, SystemTime::now()));
                state.problem = None;
                let known = state.token.as_ref().map(|known| known.secret.expose_secret());
                let is_new = known != Some(token.secret.expose_secret());
                state.token = Some(token);
                self.number.send_modify(|number| *number += u64::from(is_new));
                Ok(())
            }
            Err(problem) => {
                state.problem = Some(problem.clone());
                self.failed.notify_one();
                Err(problem)
            }
        }
    }

    /// A panic of another task ends the process, so a poisoned lock is taken like any other.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The wait after so many failures in a row.
fn backoff(failures: u32) -> Duration {
    let doubled = BACKOFF_MIN * 2u32.pow(failures.saturating_sub(1).min(5));
    jittered(doubled).min(BACKOFF_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn parse(text: &str) -> Result<Token, String> {
        Token::parse(&text.into(), at(1_000))
    }

    /// {"alg":"none"} . {"sub":"relay","exp":2000} . no signature
    const JWT: &str = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJyZWxheSIsImV4cCI6MjAwMH0.";

    #[test]
    fn a_token_says_itself_whom_it_is_about_and_when_it_ends() {
        let token = parse(JWT).expect("a token");
        assert_eq!((token.principal.as_str(), token.expires), ("relay", at(2_000)));
        assert_eq!(token.secret.expose_secret(), JWT);
        let opaque = parse("0paque\n").expect("a token");
        assert_eq!((opaque.principal.as_str(), opaque.expires), ("unknown", at(1_300)));
        assert_eq!(opaque.secret.expose_secret(), "0paque");
    }

    #[test]
    fn an_issuer_whose_tokens_are_refused_is_asked_less_and_less_often() {
        let mut state = State::default();
        let waits: Vec<u64> = (0..6)
            .map(|_| state.refusal_wait(Duration::from_secs(60)).as_secs())
            .collect();
        assert_eq!(waits, [5, 10, 20, 40, 60, 60]);
        let later = state.refusal_wait(REFUSALS_END_AFTER + Duration::from_secs(1));
        assert_eq!(later, REFUSED_WAIT_MIN, "another outage");
    }

    #[test]
    fn json_around_a_token_is_read() {
        for (json, principal, expires) in [
            (r#"{"token":"t","expires_in":60,"principal":"me"}"#, "me", 1_060),
            (r#"{"access_token":"t","expires_in":"60"}"#, "unknown", 1_060),
            (r#"{"token":"t","expires_at":5000}"#, "unknown", 5_000),
            (r#"{"token":"t","expires_at":"1970-01-01T01:00:00Z"}"#, "unknown", 3_600),
            (r#"{"accessToken":"t","expires_on":7000}"#, "unknown", 7_000),
            (r#"{"token":"t"}"#, "unknown", 1_300),
        ] {
            let token = parse(json).expect(json);
            assert_eq!(
                (token.principal.as_str(), token.expires),
                (principal, at(expires)),
                "{json}"
            );
            assert_eq!(token.secret.expose_secret(), "t", "{json}");
        }
    }

    #[test]
    fn what_is_no_token_is_refused_and_never_repeated() {
        for (text, words) in [
            ("", "empty"),
            ("<html>s3cret page</html>", "is no token"),
            ("s3cret\ns3cret", "is no token"),
            ("{s3cret", "JSON"),
            (r#"{"s3cret":"s3cret"}"#, "access_token"),
            (r#"{"token":"s3cret","expires_in":"soon"}"#, "when the token ends"),
            (r#"{"token":"s3cret","expires_at":-1}"#, "when the token ends"),
            (r#"{"token":"s3cret","expires_at":1e300}"#, "when the token ends"),
            (r#"{"token":"s3cret","expires_at":999}"#, "ended at 1970"),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(problem.contains(words), "{text}: {problem}");
            assert!(!problem.contains("s3cret"), "{problem}");
        }
        let debug = format!("{:?}", parse("s3cret"));
        assert!(!debug.contains("s3cret"), "{debug}");
    }

    #[test]
    fn text_that_only_looks_like_a_jwt_is_an_opaque_token() {
        for text in ["a.b.c", "a.!!.c", "a.eyJ.c", "..", "a.b.c.d"] {
            assert_eq!(parse(text).expect(text).expires, at(1_300), "{text}");
        }
    }

    #[tokio::test]
    async fn a_file_is_read_again_and_an_old_token_outlives_a_file_that_is_gone() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("token");
        let tokens = Tokens::new(Some(TokenSource::File(path.clone())));
        assert!(tokens.current().is_err());
        std::fs::write(&path, "first\n").expect("a file");
        tokens.fetch().await.expect("a token");
        assert_eq!(tokens.number(), 1);
        tokens.fetch().await.expect("the same");
        assert_eq!(tokens.number(), 1, "nothing to tell anybody");
        std::fs::write(&path, "second\n").expect("a file");
        tokens.fetch().await.expect("another");
        let (number, token) = tokens.current().expect("a token");
        assert_eq!((number, token.secret.expose_secret()), (2, "second"));
        std::fs::remove_file(&path).expect("removed");
        let problem = tokens.fetch().await.expect_err("no file");
        assert!(problem.contains(FILE_FLAG), "{problem}");
        assert_eq!(tokens.problem(), Some(problem));
        assert_eq!(tokens.current().expect("not ended").0, 2);
    }

    #[test]
    fn a_token_is_replaced_in_time_and_a_file_is_read_every_minute() {
        let token = parse(&format!(r#"{{"token":"t","expires_at":{}}}"#, 1_000 + 3_600)).expect("a token");
        let file = TokenSource::File(PathBuf::new());
        assert_eq!(file.renewal(&token, at(1_000)), at(1_060));
        let command = TokenSource::Command(CommandLine::parse(COMMAND_FLAG, "true").expect("a command"));
        for _ in 0..100 {
            let renewal = command.renewal(&token, at(1_000));
            assert!(
                renewal >= at(1_000 + 2_592) && renewal <= at(1_000 + 2_880),
                "{renewal:?}"
            );
        }
    }

    #[test]
    fn failures_are_retried_ever_more_slowly() {
        assert!(backoff(1) < Duration::from_secs(2));
        for failures in 5..100 {
            let wait = backoff(failures);
            assert!(
                wait >= Duration::from_secs(8) && wait <= BACKOFF_MAX,
                "{failures}: {wait:?}"
            );
        }
    }
}
