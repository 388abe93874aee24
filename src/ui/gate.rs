//! What each request passes: the address it was sent to, the site it comes from, and who sends it. It hands out what pages need.

mod visit;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::header::{HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};
use tracing::warn;

use super::html::{self, Frame};
use super::sample::Sampler;
use super::session::Keys;
use super::site::{Origin, Site};
use super::throttle::Throttle;
use crate::config::{self, Config};
use crate::credentials::ui_token;
use crate::metrics;
use crate::outbox::{self, Database, Outbox, PAGE_APPLICATION};

pub use visit::{Change, Form, Visit};

pub const READER_CONNECTIONS: usize = 2;
pub const OPERATOR_CONNECTIONS: usize = 1;
/// Longest run of a statement that reads.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// The same of one that changes something.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for all that a page asks.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that nobody has used for so long is closed.
const UNUSED_MAX: Duration = Duration::from_secs(10);
/// A larger message is not read: many browsers may ask for one at the same time.
const MESSAGE_BYTES_MAX: usize = 2 << 20;

/// What the browser may do with each answer: take it from here, and run, load and send nothing of elsewhere. The referrer goes to pages
/// of ours, because without it browsers would not say where a form comes from either.
const HEADERS: [(&str, &str); 7] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
         base-uri 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// The page, with its own connections.
#[derive(Clone)]
pub struct Page(Arc<Shared>);

struct Shared {
    token_file: PathBuf,
    site: Site,
    throttle: Mutex<Throttle>,
    sampler: Sampler,
    reader: Outbox,
    /// `None` if nothing can be changed.
    operator: Option<Outbox>,
    schema: String,
    worker: String,
}

impl Page {
    /// Connects when somebody looks.
    pub async fn open(config: &Config, settings: &config::Ui) -> outbox::Result<Self> {
        let reader = Database {
            application: PAGE_APPLICATION,
            ..config.database.clone()
        };
        let bytes_max = config.message_bytes_max.min(MESSAGE_BYTES_MAX);
        let open = async |database: &Database, connections, timeout| {
            Outbox::shared(database, &config.schema, connections, bytes_max, timeout).await
        };
        let operator = match &settings.operator {
            Some(database) => Some(open(database, OPERATOR_CONNECTIONS, CHANGE_TIMEOUT).await?),
            None => None,
        };
        Ok(Page(Arc::new(Shared {
            token_file: settings.token_file.clone(),
            site: Site {
                url: settings.url.clone(),
            },
            throttle: Mutex::default(),
            sampler: Sampler::new(config.on_published),
            reader: open(&reader, READER_CONNECTIONS, READ_TIMEOUT).await?,
            operator,
            schema: config.schema.clone(),
            worker: config.lease.worker_name.clone(),
        })))
    }

    pub fn tick(&self) {
        self.0.sampler.note_published(metrics::published());
        self.0.reader.close_unused(UNUSED_MAX);
        if let Some(operator) = &self.0.operator {
            operator.close_unused(UNUSED_MAX);
        }
    }

    /// The keys of the token that is valid now.
    pub fn keys(&self) -> Result<Keys, Refusal> {
        let token = ui_token::read(&self.0.token_file);
        let token = token.map_err(|reason| {
            warn!(%reason, "nobody can log in to the page");
            let text = "The file with the token cannot be used. The log of outboxd says why.";
            refuse(StatusCode::SERVICE_UNAVAILABLE, "Nobody can log in", text)
        })?;
        Ok(Keys::of(&token))
    }

    pub fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.0.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the request was sent to. Refuses one that a page of another site may have sent.
    fn origin_of(&self, request: &Request) -> Result<Origin, Refusal> {
        let origin = host_of(request.headers()).and_then(|host| self.0.site.origin(host));
        let origin = origin.ok_or_else(|| {
            let text = "No page is at this address. If it should be, set --ui-url (OUTBOXD_UI_URL) to it.";
            refuse(StatusCode::MISDIRECTED_REQUEST, "Another address is needed", text)
        })?;
        let only_reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let sender = request.headers().get(ORIGIN).map(HeaderValue::as_bytes);
        if !only_reads && sender != Some(origin.text.as_bytes()) {
            let text = "The form was not sent by a page of this address. Behind a proxy, --ui-url (OUTBOXD_UI_URL) must be the address \
                        that browsers show.";
            return Err(refuse(StatusCode::FORBIDDEN, "Not from here", text));
        }
        Ok(origin)
    }
}

fn host_of(headers: &HeaderMap) -> Option<&str> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next()?;
    // Of two, a proxy may have judged by the other one.
    if hosts.next().is_some() {
        return None;
    }
    host.to_str().ok()
}

/// Lets through what was sent to an address of the page, by the page if it changes something. Every answer gets [`HEADERS`].
pub async fn guard(State(page): State<Page>, mut request: Request, next: Next) -> Response {
    let mut response = match page.origin_of(&request) {
        Ok(origin) => {
            request.extensions_mut().insert(origin);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    };
    for (name, value) in HEADERS {
        let headers = response.headers_mut();
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// Who is at the other end of the connection, which may be a proxy.
#[derive(Clone, Copy, Debug)]
pub struct Client(pub IpAddr);

impl Client {
    /// A network of IPv6 counts as one, since a client that has one address of it usually has all.
    pub fn of(address: SocketAddr) -> Self {
        const NETWORK: u128 = u128::MAX << 64;
        Client(match address.ip().to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
            address => address,
        })
    }
}

/// An answer that is not what was asked for.
pub struct Refusal(Box<Response>);

impl From<Response> for Refusal {
    fn from(response: Response) -> Self {
        Refusal(Box::new(response))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        *self.0
    }
}

/// A page that says no.
pub fn refuse(status: StatusCode, title: &str, text: &str) -> Refusal {
    let content = html::message(title, text);
    let page = html::page(&Frame::bare(title), content);
    (status, Html(page.into_string())).into_response().into()
}

pub async fn not_found() -> Refusal {
    nothing_here()
}

fn nothing_here() -> Refusal {
    refuse(StatusCode::NOT_FOUND, "Nothing is here", "No page has this address.")
}

/// The number in the address of a page.
pub struct Id(pub i64);

impl FromRequestParts<Page> for Id {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, page: &Page) -> Result<Self, Refusal> {
        let text = Path::<String>::from_request_parts(parts, page).await;
        let number = text.ok().and_then(|Path(text)| text.parse().ok());
        number.map(Id).ok_or_else(nothing_here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_one_host() {
        let mut headers = HeaderMap::new();
        assert_eq!(host_of(&headers), None);
        headers.append(HOST, HeaderValue::from_static("localhost"));
        assert_eq!(host_of(&headers), Some("localhost"));
        headers.append(HOST, HeaderValue::from_static("localhost"));
        assert_eq!(host_of(&headers), None);
    }

    #[test]
    fn a_client_is_an_address_or_a_network_of_ipv6() {
        let client = |address: &str| Client::of(address.parse().expect("an address")).0.to_string();
        assert_eq!(client("10.0.0.1:80"), "10.0.0.1");
        assert_eq!(client("[::ffff:10.0.0.1]:80"), "10.0.0.1");
        assert_eq!(client("[2001:db8:1:2:3:4:5:6]:80"), "2001:db8:1:2::");
    }
}
