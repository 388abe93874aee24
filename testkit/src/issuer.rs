//! A small OIDC issuer: tokens by the client credentials grant, and whatever else an issuer may answer.
//!
//! It runs on a thread of its own: a test that blocks does not hold it up.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Form, Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::KeyPair;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

/// The client that the issuer knows.
pub const CLIENT_ID: &str = "relay";
pub const CLIENT_SECRET: &str = "issuer-s3cret";

const KEY_ID: &str = "test";

/// Signs tokens.
pub struct Signer {
    key: EncodingKey,
    jwks: Value,
}

impl Signer {
    pub fn new() -> Self {
        let pair = KeyPair::generate().expect("a key");
        // An uncompressed point: a byte that says so, and two coordinates.
        let (x, y) = pair.public_key_raw()[1..].split_at(32);
        let key = json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": KEY_ID,
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        });
        Signer {
            key: EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).expect("a key in PEM format"),
            jwks: json!({ "keys": [key] }),
        }
    }

    /// The public key, for those who verify signatures.
    pub fn jwks(&self) -> String {
        self.jwks.to_string()
    }

    /// A token about this subject that lives so long.
    pub fn token(&self, subject: &str, life: Duration) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(KEY_ID.to_owned());
        let claims = json!({
            "iss": "testkit", "aud": "kafka", "sub": subject,
            "iat": now.as_secs(), "exp": (now + life).as_secs(),
            // Two tokens of one second differ.
            "jti": fastrand::u64(..).to_string(),
        });
        jsonwebtoken::encode(&header, &claims, &self.key).expect("signed")
    }
}

impl Default for Signer {
    fn default() -> Self {
        Signer::new()
    }
}

/// What the issuer answers to a client that it knows.
#[derive(Clone)]
pub enum Answer {
    /// A token about this subject that lives so long.
    Token { subject: String, life: Duration },
    /// A token with a signature of somebody else.
    Forged,
    /// This status and this text.
    Text(u16, String),
}

pub struct Issuer {
    port: u16,
    scheme: &'static str,
    state: Arc<Shared>,
    stop: CancellationToken,
}

struct Shared {
    signer: &'static Signer,
    answer: Mutex<(Answer, Duration)>,
    requests: AtomicUsize,
    refused: AtomicUsize,
}

impl Issuer {
    /// Answers with tokens about the relay that live for an hour.
    pub fn start(signer: &'static Signer) -> Self {
        Issuer::serve(signer, None)
    }

    /// The same over TLS, with the certificate and the key of these files.
    pub fn start_tls(signer: &'static Signer, certificate: &str, key: &str) -> Self {
        let chain = CertificateDer::pem_file_iter(certificate).expect("a certificate");
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(key).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, key);
        Issuer::serve(signer, Some(TlsAcceptor::from(Arc::new(config.expect("a pair")))))
    }

    fn serve(signer: &'static Signer, tls: Option<TlsAcceptor>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket for tokio");
        let port = listener.local_addr().expect("bound").port();
        let state = Arc::new(Shared {
            signer,
            answer: Mutex::new((hourly(), Duration::ZERO)),
            requests: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        });
        let (scheme, stop) = (if tls.is_some() { "https" } else { "http" }, CancellationToken::new());
        let router = Router::new().route("/token", post(token)).with_state(state.clone());
        let stopped = stop.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let tcp = TcpListener::from_std(listener).expect("a listener");
                let served = async {
                    match tls {
                        None => axum::serve(tcp, router).await,
                        Some(acceptor) => axum::serve(TlsListener { tcp, acceptor }, router).await,
                    }
                };
                tokio::select! {
                    served = served => served.expect("it serves"),
                    () = stopped.cancelled() => {}
                }
            });
        });
        Issuer {
            port,
            scheme,
            state,
            stop,
        }
    }

    pub fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}/token", self.scheme, self.port)
    }

    /// From now on it answers this.
    pub fn answer(&self, answer: Answer) {
        self.state.answer.lock().expect("an answer").0 = answer;
    }

    /// Tokens live so long from now on.
    pub fn live_for(&self, life: Duration) {
        let subject = CLIENT_ID.to_owned();
        self.answer(Answer::Token { subject, life });
    }

    /// From now on an answer takes so long.
    pub fn delay(&self, delay: Duration) {
        self.state.answer.lock().expect("an answer").1 = delay;
    }

    /// How many requests have come.
    pub fn requests(&self) -> usize {
        self.state.requests.load(Ordering::SeqCst)
    }

    /// How many of them were not by the client that it knows.
    pub fn refused(&self) -> usize {
        self.state.refused.load(Ordering::SeqCst)
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn hourly() -> Answer {
    Answer::Token {
        subject: CLIENT_ID.to_owned(),
        life: Duration::from_secs(3600),
    }
}

async fn token(
    State(state): State<Arc<Shared>>,
    headers: HeaderMap,
    Form(form): Form<Vec<(String, String)>>,
) -> Response {
    state.requests.fetch_add(1, Ordering::SeqCst);
    let (answer, delay) = state.answer.lock().expect("an answer").clone();
    tokio::time::sleep(delay).await;
    let is_grant = form.contains(&("grant_type".to_owned(), "client_credentials".to_owned()));
    if !is_grant || !is_known(&headers) {
        state.refused.fetch_add(1, Ordering::SeqCst);
        let error = json!({ "error": "invalid_client", "error_description": "nobody is known by that secret" });
        return (StatusCode::UNAUTHORIZED, Json(error)).into_response();
    }
    let (token, life) = match answer {
        Answer::Token { subject, life } => (state.signer.token(&subject, life), life),
        Answer::Forged => {
            let hour = Duration::from_secs(3600);
            (Signer::new().token(CLIENT_ID, hour), hour)
        }
        Answer::Text(status, text) => {
            let status = StatusCode::from_u16(status).expect("a status");
            return (status, text).into_response();
        }
    };
    let granted = json!({ "access_token": token, "token_type": "Bearer", "expires_in": life.as_secs() });
    Json(granted).into_response()
}

/// By HTTP's Basic authentication.
fn is_known(headers: &HeaderMap) -> bool {
    let login = headers.get("authorization").and_then(|login| login.to_str().ok());
    let known = format!("Basic {}", STANDARD.encode(format!("{CLIENT_ID}:{CLIENT_SECRET}")));
    login.is_some_and(|login| login == known)
}

struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let (client, address) = self.tcp.accept().await.expect("a client");
            // Clients that do not trust the certificate go away.
            if let Ok(stream) = self.acceptor.accept(client).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}
