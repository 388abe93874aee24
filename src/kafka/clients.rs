//! The settings that clients are built from now, and the clients of the library themselves.
//!
//! Settings have a *generation*. It rises when the properties file, or a certificate or key that a property names, has changed;
//! the owner of a client compares generations and builds another one. Files are read again after a connection has failed or no
//! token could be fetched, and every minute.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

use rdkafka::ClientConfig;
use rdkafka::admin::AdminClient;
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaResult;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::context::Context;
use super::failures::{Failure, Failures};
use super::oauth::Login;
use super::producer::Purpose;
use super::settings::{ClientSettings, Settings};
use super::{certificate, lock, statistics};
use crate::credentials::token::Tokens;
use crate::tls::InUse;

/// How often settings are read again if nothing fails.
const READ_EVERY: Duration = Duration::from_secs(60);
/// How often at most, however often connections fail.
const READ_PAUSE: Duration = Duration::from_secs(5);
/// How long the first token is waited for. After that, clients are built without one, and get it when there is one.
const FIRST_TOKEN: Duration = Duration::from_secs(10);

/// A client of the library.
pub trait TakesTokens: Send + Sync {
    /// Takes the newest token, unless it has that.
    fn refresh_token(&self);
}

pub struct Clients {
    settings: ClientSettings,
    current: Mutex<Arc<Settings>>,
    generation: watch::Sender<u64>,
    tokens: Arc<Tokens>,
    pub(super) failures: Arc<Failures>,
    /// Those that are given each new token, as long as they exist.
    logged_in: Mutex<Vec<Weak<dyn TakesTokens>>>,
}

impl Clients {
    pub fn new(settings: ClientSettings) -> Arc<Self> {
        Arc::new(Clients {
            current: Mutex::new(Arc::new(settings.read.clone())),
            generation: watch::channel(0).0,
            tokens: Arc::new(Tokens::new(settings.read.tokens.clone())),
            failures: Arc::default(),
            logged_in: Mutex::default(),
            settings,
        })
    }

    /// The generation of the settings. A client of an earlier one is outdated.
    pub fn generation(&self) -> u64 {
        *self.generation.borrow()
    }

    /// Waits until the settings are of a later generation.
    pub async fn changed_since(&self, generation: u64) {
        let mut generations = self.generation.subscribe();
        // The sender lives as long as `self`.
        let _ = generations.wait_for(|now| *now > generation).await;
    }

    /// Waits for a token with another number than this one, and returns its number.
    pub async fn token_after(&self, number: u64) -> u64 {
        self.tokens.changed_from(number).await;
        self.tokens.number()
    }

    /// Gives this client each new token at once, so that its connections log in again with that before the last one ends.
    pub fn keep_logged_in<C: TakesTokens + 'static>(&self, client: &Arc<C>) {
        let client = Arc::downgrade(client);
        let mut logged_in = lock(&self.logged_in);
        logged_in.retain(|client| client.strong_count() > 0);
        logged_in.push(client);
    }

    /// Gives the newest token to all clients.
    pub fn give_token(&self) {
        let clients: Vec<_> = lock(&self.logged_in).iter().filter_map(Weak::upgrade).collect();
        clients.iter().for_each(|client| client.refresh_token());
    }

    /// Whom a broker must allow something, as its ACLs name it.
    pub fn principal(&self) -> String {
        self.current().security.principal(self.tokens.principal().as_deref())
    }

    /// Why a connection failed last, if that was recent.
    pub fn last_failure(&self) -> Option<String> {
        self.failures.last().map(|failure| failure.reason)
    }

    /// The same with what it means, if that is a matter of TLS or SASL.
    pub async fn explained_failure(&self) -> Option<String> {
        let failure = self.failures.take()?;
        Some(self.explained(&failure).await)
    }

    /// Why a connection failed, with what it means if that is a matter of TLS or SASL.
    pub(super) async fn explained(&self, failure: &Failure) -> String {
        match self.words(failure).await {
            Some(words) => format!("{words} ({})", failure.reason),
            None => failure.reason.clone(),
        }
    }

    /// How long the token is still valid, if there is one.
    pub fn token_left(&self) -> Option<Duration> {
        let (_, token) = self.tokens.current().ok()?;
        token.expires.duration_since(SystemTime::now()).ok()
    }

    /// Do clients show a certificate of their own?
    pub fn has_certificate(&self) -> bool {
        self.current().security.has_certificate()
    }

    /// The certificates in use, and when they expire. `None`: nobody knows.
    pub async fn certificates(&self) -> Option<InUse> {
        let current = self.current();
        let read = tokio::task::spawn_blocking(move || {
            let brokers = current.config.get("bootstrap.servers").unwrap_or_default();
            certificate::in_use(brokers, &current.security)
        });
        read.await.ok()
    }

    /// What a producer is built from: the settings, with those of its purpose, and a context.
    pub fn of_producer(&self, purpose: Purpose) -> (ClientConfig, Context) {
        let (settings, context) = self.settings();
        let mut config = statistics::without_interval(&settings.config);
        if purpose == Purpose::Batches {
            statistics::set_interval(&mut config, &settings.config);
        }
        for (name, value) in purpose.properties() {
            config.set(*name, *value);
        }
        (config, context)
    }

    pub fn admin(&self) -> KafkaResult<AdminClient<Context>> {
        let (config, context) = self.parts();
        AdminClient::from_config_and_context(&config, context)
    }

    pub fn consumer(&self) -> KafkaResult<BaseConsumer<Context>> {
        let (config, context) = self.parts();
        BaseConsumer::from_config_and_context(&config, context)
    }

    /// What any client is built from: the settings and a context.
    pub(super) fn parts(&self) -> (ClientConfig, Context) {
        let (settings, context) = self.settings();
        (statistics::without_interval(&settings.config), context)
    }

    /// The settings, and a context of their generation.
    fn settings(&self) -> (Arc<Settings>, Context) {
        // Settings and generation are replaced under this lock.
        let current = lock(&self.current);
        let login = Login::new(self.tokens.clone());
        let context = Context::new(self.generation(), self.failures.clone(), login);
        (current.clone(), context)
    }

    pub(super) fn current(&self) -> Arc<Settings> {
        lock(&self.current).clone()
    }

    /// Fetches the first token, if tokens are used, so that clients need not wait for it.
    pub async fn first_token(&self) -> Result<(), String> {
        self.tokens.first(FIRST_TOKEN).await
    }

    /// Keeps tokens and settings up to date, and says why connections fail. It never ends.
    pub async fn follow(&self) {
        tokio::join!(self.tokens.renew(), self.follow_settings());
    }

    /// Fetches one token after the other, until the handle is dropped.
    pub fn keep_renewing_tokens(&self) -> AbortOnDropHandle<()> {
        let tokens = self.tokens.clone();
        AbortOnDropHandle::new(tokio::spawn(async move { tokens.renew().await }))
    }

    async fn follow_settings(&self) {
        // A problem is said once.
        let mut problem = None;
        loop {
            let has_failed = tokio::select! {
                () = self.failures.next() => true,
                // The issuer's own settings may be wrong.
                () = self.tokens.failure() => false,
                () = tokio::time::sleep(READ_EVERY) => false,
            };
            let has_changed = self.read_again(&mut problem).await;
            if has_failed && !has_changed {
                self.explain().await;
            }
            tokio::time::sleep(READ_PAUSE).await;
        }
    }

    /// Reads the settings again, and returns whether they have changed.
    async fn read_again(&self, known_problem: &mut Option<String>) -> bool {
        let (settings, current) = (self.settings.clone(), self.current());
        let read = tokio::task::spawn_blocking(move || settings.read_again(&current)).await;
        let read = read.unwrap_or_else(|error| Err(vec![error.to_string()]));
        let problem = read.as_ref().err().map(|problems| problems.join("; "));
        if let Some(problem) = problem
            .as_ref()
            .filter(|problem| known_problem.as_ref() != Some(*problem))
        {
            warn!(
                reason = problem,
                "the changed settings of Kafka cannot be used; those at hand stay in use"
            );
        }
        *known_problem = problem;
        let Ok(Some(settings)) = read else { return false };
        self.replace(settings);
        true
    }

    fn replace(&self, settings: Settings) {
        self.tokens.set_source(settings.tokens.clone());
        let mut current = lock(&self.current);
        *current = Arc::new(settings);
        let generation = self.generation() + 1;
        self.failures.begin(generation);
        self.generation.send_replace(generation);
        drop(current);
        info!("the settings of Kafka have changed; clients are built anew");
    }

    /// Says why connections fail, if that is a matter of TLS or SASL. It does not pass without a fix, and is said once for each
    /// outage.
    async fn explain(&self) {
        let Some(failure) = self.failures.take().filter(Failure::may_be_security) else {
            return;
        };
        if failure.is_login() {
            self.tokens.refused();
        }
        if self.failures.is_explained(Instant::now()) {
            return;
        }
        if let Some(words) = self.words(&failure).await {
            self.failures.explained(Instant::now());
            warn!(reason = failure.reason, "Kafka cannot be reached securely: {words}");
        }
    }

    /// What a failure means, if it is one of TLS or SASL.
    async fn words(&self, failure: &Failure) -> Option<String> {
        let current = self.current();
        if failure.is_login() {
            return Some(current.security.login_advice());
        }
        if !current.security.uses_tls {
            return None;
        }
        if let Some(words) = certificate::refusal_of_ours(&failure.reason) {
            return Some(words);
        }
        let seen = match failure.broker_at_fault().map(str::to_owned) {
            Some(broker) => inspect(broker, current).await,
            None => None,
        };
        let unknown = || {
            failure
                .is_security()
                .then(|| "see security.protocol and its properties".to_owned())
        };
        seen.or_else(unknown)
    }
}

async fn inspect(broker: String, settings: Arc<Settings>) -> Option<String> {
    let looked = tokio::task::spawn_blocking(move || {
        let security = &settings.security;
        certificate::inspect(&broker, security.ca.clone(), security.verify)
    });
    looked.await.ok().flatten()
}
