//! Tokens of an OIDC issuer, by the client credentials grant.

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioExecutor;
use oauth2::basic::{BasicClient, BasicErrorResponse};
use oauth2::http::Uri;
use oauth2::url::{Host, Url};
use oauth2::{
    ClientId, ClientSecret, HttpRequest, HttpResponse, RequestTokenError, Scope, TokenResponse as _, TokenUrl,
};
use secrecy::{ExposeSecret as _, SecretString};

use super::token::Token;
use crate::tls::{self, Verify};
use crate::words::causes;

/// Longest wait for a connection to the issuer, and for its answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// How much of the issuer's own words is repeated.
const WORDS_MAX: usize = 200;

/// What an issuer gives tokens for.
#[derive(Clone, Debug)]
pub struct ClientCredentials {
    endpoint: TokenUrl,
    id: String,
    secret: SecretString,
    scopes: Vec<String>,
    /// The CA that signed the issuer's certificate; the system's if there is none.
    ca: Option<PathBuf>,
}

impl ClientCredentials {
    /// The endpoint's URL is refused if the secret would travel in plain text to another machine.
    pub fn new(endpoint: &str, id: &str, secret: SecretString) -> Result<Self, String> {
        let url = Url::parse(endpoint).map_err(|error| format!("is not a URL ({error})"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("contains a login: the client's id and its secret have properties of their own".to_owned());
        }
        match url.scheme() {
            "https" => {}
            "http" if is_this_machine(&url) => {}
            "http" => return Err("must begin with https://, because the client's secret is sent there".to_owned()),
            _ => return Err("must begin with https://".to_owned()),
        }
        Ok(ClientCredentials {
            endpoint: TokenUrl::from_url(url),
            id: id.to_owned(),
            secret,
            scopes: Vec::new(),
            ca: None,
        })
    }

    /// Asks for these scopes, which are separated by spaces.
    pub fn scopes(mut self, scopes: &str) -> Self {
        self.scopes = scopes.split_whitespace().map(str::to_owned).collect();
        self
    }

    /// Trusts certificates that this CA has signed, and no others.
    pub fn ca(mut self, ca: Option<PathBuf>) -> Self {
        self.ca = ca;
        self
    }

    /// Fetches a token.
    pub async fn token(&self) -> Result<Token, String> {
        let host = self.endpoint.url().host_str().unwrap_or_default();
        let client = BasicClient::new(ClientId::new(self.id.clone()))
            .set_client_secret(ClientSecret::new(self.secret.expose_secret().to_owned()))
            .set_token_uri(self.endpoint.clone());
        let scopes = self.scopes.iter().cloned().map(Scope::new);
        let request = client.exchange_client_credentials().add_scopes(scopes);
        // What the requests borrow nothing of can be sent from any thread.
        let tls = self.tls();
        let http = move |request| exchange(request, tls.clone());
        let answer = request.request_async(&http).await;
        let answer = answer.map_err(|error| format!("the issuer {host} gives no token: {}", self.describe(error)))?;
        let now = SystemTime::now();
        let expires = answer.expires_in().and_then(|life| now.checked_add(life));
        let token = Token::new(answer.access_token().secret(), None, expires, now);
        token.map_err(|problem| format!("the issuer {host} gives no token that can be used: {problem}"))
    }

    /// The files are read for each connection, so a replaced CA is used without a restart.
    fn tls(&self) -> tls::Settings {
        tls::Settings {
            verify: Verify::ChainAndName,
            ca: self.ca.clone(),
            identity: None,
        }
    }

    /// Why there is no token, without any secret.
    fn describe(&self, error: RequestTokenError<HttpError, BasicErrorResponse>) -> String {
        let words = match error {
            RequestTokenError::ServerResponse(refusal) => refusal.to_string(),
            RequestTokenError::Request(error) => error.0,
            // The answer may contain a token.
            RequestTokenError::Parse(..) => "its answer is not that of an OAuth 2.0 token endpoint".to_owned(),
            RequestTokenError::Other(words) => words,
        };
        // Words of the issuer may quote what it was sent.
        let words = words.replace(self.secret.expose_secret(), "…");
        words
            .chars()
            .filter(|sign| !sign.is_control())
            .take(WORDS_MAX)
            .collect()
    }
}

/// One request and its answer, within a time. Redirects are not followed: they would lead the secret elsewhere.
async fn exchange(request: HttpRequest, tls: tls::Settings) -> Result<HttpResponse, HttpError> {
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, connect_and_send(request, &tls)).await;
    let late = |_| Err(HttpError(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs())));
    let answer = answer.unwrap_or_else(late)?;
    let status = answer.status();
    let is_oauth = serde_json::from_slice::<serde_json::Value>(answer.body()).is_ok_and(|body| body.is_object());
    if status.is_success() || (status.is_client_error() && is_oauth) {
        return Ok(answer);
    }
    Err(HttpError(format!("it answers HTTP {status}")))
}

async fn connect_and_send(request: HttpRequest, tls: &tls::Settings) -> Result<HttpResponse, HttpError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    if request.uri().scheme_str() == Some("http") {
        return send(tcp, request).await;
    }
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(tls.client_config().map_err(HttpError)?)
        .https_only()
        .enable_http1();
    let Some(proxy) = Matcher::from_env().intercept(request.uri()) else {
        return send(https.wrap_connector(tcp), request).await;
    };
    let mut tunnel = Tunnel::new(http_proxy(proxy.uri())?, tcp);
    if let Some(login) = proxy.basic_auth() {
        tunnel = tunnel.with_auth(login.clone());
    }
    send(https.wrap_connector(tunnel), request).await
}

fn is_this_machine(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// A proxy that is spoken to in plain text; what passes through it is encrypted all the way.
fn http_proxy(proxy: &Uri) -> Result<Uri, HttpError> {
    if proxy.scheme_str() == Some("http") {
        return Ok(proxy.clone());
    }
    let problem = "HTTPS_PROXY or ALL_PROXY names a proxy that is not spoken to by HTTP; write http://host:port";
    Err(HttpError(problem.to_owned()))
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct HttpError(String);

async fn send<C>(connector: C, request: HttpRequest) -> Result<HttpResponse, HttpError>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let client = Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector);
    let request = request.map(|body| Full::new(Bytes::from(body)));
    let answer = client.request(request).await;
    let (head, body) = answer.map_err(|error| HttpError(words(&error)))?.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| HttpError(format!("its answer cannot be read: {}", causes(&*error))))?;
    Ok(HttpResponse::from_parts(head, body.to_bytes().to_vec()))
}

/// Why there is no connection.
fn words(error: &(dyn Error + 'static)) -> String {
    tls::certificate_problem(error).unwrap_or_else(|| causes(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issuer(endpoint: &str) -> Result<ClientCredentials, String> {
        ClientCredentials::new(endpoint, "relay", "s3cret".into())
    }

    #[test]
    fn the_secret_is_sent_to_another_machine_over_tls_only() {
        for endpoint in [
            "https://issuer.example/token",
            "http://localhost:8080/token",
            "http://127.0.0.1/token",
            "http://[::1]/token",
        ] {
            assert!(issuer(endpoint).is_ok(), "{endpoint}");
        }
        for (endpoint, words) in [
            ("http://issuer.example/token", "https://"),
            ("http://localhost.example/token", "https://"),
            ("ftp://localhost/token", "https://"),
            ("issuer.example", "not a URL"),
            ("https://relay:s3cret@issuer.example/token", "a login"),
        ] {
            let problem = issuer(endpoint).map(drop).expect_err(endpoint);
            assert!(problem.contains(words), "{endpoint}: {problem}");
            assert!(!problem.contains("s3cret"), "{problem}");
        }
    }

    #[test]
    fn words_of_the_issuer_are_repeated_without_the_secret() {
        let issuer = issuer("https://issuer.example/token").expect("valid");
        let answer = r#"{"error":"invalid_client","error_description":"no s3cret\n of mine"}"#;
        let refusal = serde_json::from_str(answer).expect("an OAuth error");
        let words = issuer.describe(RequestTokenError::ServerResponse(refusal));
        assert!(words.contains("invalid_client") && words.contains("of mine"), "{words}");
        assert!(!words.contains("s3cret") && !words.contains('\n'), "{words}");
        let long = issuer.describe(RequestTokenError::Other("x".repeat(10_000)));
        assert_eq!(long.len(), WORDS_MAX);
        assert!(!format!("{issuer:?}").contains("s3cret"));
    }

    #[test]
    fn a_proxy_that_wants_another_protocol_is_refused() {
        let proxy = |uri: &'static str| http_proxy(&Uri::from_static(uri)).is_ok();
        assert!(proxy("http://proxy.example:3128"));
        assert!(!proxy("socks5://proxy.example:1080"));
        assert!(!proxy("https://proxy.example:3128"));
    }
}
