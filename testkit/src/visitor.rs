//! Visits the page as a browser without scripts does: it keeps its cookie, and sends the forms that it finds.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, COOKIE, HOST, LOCATION, ORIGIN, SET_COOKIE};
use axum::http::request::Builder;
use axum::http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Longer than the page waits for anything.
const TIMEOUT: Duration = Duration::from_secs(45);

/// One browser.
#[derive(Clone, Debug)]
pub struct Visitor {
    address: String,
    /// As it is sent.
    pub cookie: Option<String>,
}

/// What the page has answered.
#[derive(Debug)]
pub struct WebPage {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Visitor {
    pub fn new(address: &str) -> Self {
        Visitor {
            address: address.to_owned(),
            cookie: None,
        }
    }

    /// One that has logged in.
    pub async fn with_token(address: &str, token: &str) -> Self {
        let mut visitor = Visitor::new(address);
        let page = visitor.log_in(token).await;
        assert_eq!(page.status, 303, "{}", page.text());
        visitor
    }

    /// Keeps the cookie that it is given.
    pub async fn log_in(&mut self, token: &str) -> WebPage {
        let page = self.post("/login", &[("token", token), ("next", "/")]).await;
        if let Some(cookie) = page.header(SET_COOKIE.as_str()) {
            self.cookie = cookie.split(';').next().map(str::to_owned);
        }
        page
    }

    pub async fn get(&self, path: &str) -> WebPage {
        self.send(self.request(Method::GET, path), "").await
    }

    /// Sends a form as a page of this address does.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> WebPage {
        let request = self
            .request(Method::POST, path)
            .header(ORIGIN, format!("http://{}", self.address));
        self.send(request, &encoded(fields)).await
    }

    /// Answers a question: sends its form, with these fields added. Follows the answer to another page.
    pub async fn submit(&self, question: &WebPage, more: &[(&str, &str)]) -> WebPage {
        let (action, mut fields) = question.form();
        fields.extend(
            more.iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let fields: Vec<(&str, &str)> = fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let answer = self.post(&action, &fields).await;
        match answer.header(LOCATION.as_str()) {
            Some(next) => self.get(next).await,
            None => answer,
        }
    }

    /// A request with the cookie and nothing else.
    pub fn request(&self, method: Method, path: &str) -> Builder {
        let request = Request::builder().method(method).uri(path).header(HOST, &self.address);
        match &self.cookie {
            Some(cookie) => request.header(COOKIE, cookie),
            None => request,
        }
    }

    /// Sends a request with this body.
    pub async fn send(&self, request: Builder, body: &str) -> WebPage {
        let mut request = request
            .body(Full::new(Bytes::from(body.to_owned())))
            .expect("a request");
        if !body.is_empty() {
            let form = "application/x-www-form-urlencoded".parse().expect("a header");
            request.headers_mut().insert(CONTENT_TYPE, form);
        }
        let answer = tokio::time::timeout(TIMEOUT, answer(&self.address, request)).await;
        answer.expect("the page answers in time")
    }
}

async fn answer(address: &str, request: Request<Full<Bytes>>) -> WebPage {
    let stream = TcpStream::connect(address).await.expect("the page listens");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a connection");
    tokio::spawn(connection);
    let answer = sender.send_request(request).await.expect("an answer");
    let (parts, body) = answer.into_parts();
    WebPage {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: body.collect().await.expect("a whole body").to_bytes(),
    }
}

fn encoded(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(fields)
        .finish()
}

impl WebPage {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// What is between the tags, as a reader sees it.
    pub fn shown(&self) -> String {
        let text = self.text();
        let (mut shown, mut is_tag) = (String::new(), false);
        for c in text.chars() {
            match c {
                '<' => is_tag = true,
                '>' if is_tag => is_tag = false,
                c if !is_tag => shown.push(c),
                _ => {}
            }
        }
        unescaped(&shown)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Where the question's form is sent, and its hidden fields.
    pub fn form(&self) -> (String, Vec<(String, String)>) {
        let text = self.text();
        let (_, form) = text
            .split_once("<form class=\"question\"")
            .unwrap_or_else(|| panic!("no question in {text}"));
        let (form, _) = form.split_once("</form>").expect("an end");
        let attribute = |tag: &str, name: &str| {
            let value = tag.split(&format!(" {name}=\"")).nth(1)?;
            Some(unescaped(value.split('"').next()?))
        };
        let fields = form.split("<input").filter(|tag| tag.contains("type=\"hidden\""));
        let fields = fields.map(|tag| {
            let value = attribute(tag, "value").unwrap_or_default();
            (attribute(tag, "name").expect("a name"), value)
        });
        (attribute(form, "action").expect("an address"), fields.collect())
    }

    /// The value of a hidden field of the question's form.
    pub fn field(&self, name: &str) -> String {
        let (_, fields) = self.form();
        let field = fields.into_iter().find(|(known, _)| known == name);
        field.unwrap_or_else(|| panic!("no field {name} in {}", self.text())).1
    }
}

fn unescaped(text: &str) -> String {
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&amp;", "&")];
    entities
        .iter()
        .fold(text.to_owned(), |text, (entity, sign)| text.replace(entity, sign))
}
