//! Logging in by the token, and out.

use std::time::SystemTime;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{COOKIE, HeaderMap, LOCATION, RETRY_AFTER, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{Html, IntoResponse, Response};
use maud::html;
use tracing::{info, warn};

use super::fields::{Fields, link};
use super::gate::{Client, Form, Page, Refusal};
use super::html::{self, Frame};
use super::session::{Keys, LIFETIME, Session};
use super::site::Origin;

/// The valid session among the cookies of a request.
pub fn session(headers: &HeaderMap, origin: &Origin, keys: &Keys, now: SystemTime) -> Option<Session> {
    let name = cookie_name(origin, keys);
    let texts = headers.get_all(COOKIE).iter().filter_map(|header| header.to_str().ok());
    let cookies = texts
        .flat_map(|text| text.split(';'))
        .filter_map(|cookie| cookie.trim().split_once('='));
    let mut own = cookies.filter(|(known, _)| *known == name);
    own.find_map(|(_, value)| Session::of_cookie(value, keys, now))
}

/// With the prefix, browsers take the cookie from no other host and over HTTPS only.
fn cookie_name(origin: &Origin, keys: &Keys) -> String {
    let prefix = if origin.is_secure { "__Host-" } else { "" };
    format!("{prefix}outboxd-{}", keys.label)
}

fn set_cookie(origin: &Origin, keys: &Keys, value: &str, seconds: u64) -> String {
    let secure = if origin.is_secure { "; Secure" } else { "" };
    let name = cookie_name(origin, keys);
    format!("{name}={value}; Max-Age={seconds}; Path=/; HttpOnly; SameSite=Strict{secure}")
}

/// The answer to a request without a session.
pub fn required(parts: &Parts) -> Refusal {
    let only_reads = matches!(parts.method, Method::GET | Method::HEAD);
    if only_reads
        && parts
            .headers
            .get("sec-fetch-site")
            .is_some_and(|site| site == "cross-site")
    {
        return Html(again(&parts.uri)).into_response().into();
    }
    let wanted = only_reads.then(|| ("next", path_of(&parts.uri)));
    see(&link("/login", wanted)).into()
}

/// After a link from another site, such as one in an alert, the browser has sent no cookie. It does when the page asks for itself.
fn again(uri: &Uri) -> String {
    let page = html! {
        (maud::DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { "outboxd" }
                meta http-equiv="refresh" content={ "0; url=" (path_of(uri)) };
            }
            body { a href=(path_of(uri)) { "Continue" } }
        }
    };
    page.into_string()
}

fn path_of(uri: &Uri) -> &str {
    ours(uri.path_and_query().map_or("/", |path| path.as_str()))
}

/// Another page of ours, to be asked for by GET.
pub fn see(address: &str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, address.to_owned())]).into_response()
}

/// Where to go after the login.
fn next_page(fields: &Fields) -> &str {
    ours(fields.get("next").unwrap_or_default())
}

/// A page of ours: this one, if it is. An address that begins with two slashes would be another site.
fn ours(wanted: &str) -> &str {
    let is_ours =
        wanted.starts_with('/') && !wanted.starts_with("//") && wanted.bytes().all(|byte| byte.is_ascii_graphic());
    if is_ours && !wanted.contains('\\') { wanted } else { "/" }
}

pub async fn form(Extension(origin): Extension<Origin>, uri: Uri) -> Response {
    show_form(StatusCode::OK, &origin, &Fields::of_uri(&uri), None)
}

fn show_form(status: StatusCode, origin: &Origin, fields: &Fields, problem: Option<&str>) -> Response {
    let content = html! {
        div.login {
            h1 { "Log in" }
            @if let Some(problem) = problem {
                p.problem role="alert" { (problem) }
            }
            form method="post" action="/login" {
                input type="hidden" name="next" value=(next_page(fields));
                label for="token" { "Token" }
                input #token type="password" name="token" required autofocus autocomplete="current-password"
                    aria-describedby="token-help";
                p.help #token-help {
                    "What is in the file of " code { "--ui-token-file" } ". You stay logged in for "
                    (LIFETIME.as_secs() / 3600) " hours, or until the token is replaced."
                }
                button.primary type="submit" { "Log in" }
            }
            @if !origin.is_secure {
                p.help { "This connection is not encrypted. Use it on this machine, or through a tunnel." }
            }
        }
    };
    (status, Html(html::page(&Frame::bare("Log in"), content).into_string())).into_response()
}

pub async fn log_in(
    State(page): State<Page>,
    Extension(Client(client)): Extension<Client>,
    Extension(origin): Extension<Origin>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let (fields, keys) = (Fields::parse(&body), page.keys()?);
    if let Err(wait) = page.throttle().attempt(client, std::time::Instant::now()) {
        let seconds = wait.as_secs() + 1;
        let problem = format!("A token was wrong. Try again in {seconds} s.");
        let mut answer = show_form(StatusCode::TOO_MANY_REQUESTS, &origin, &fields, Some(&problem));
        answer.headers_mut().insert(RETRY_AFTER, seconds.into());
        return Ok(answer);
    }
    if !keys.is_token(fields.get("token").unwrap_or_default()) {
        warn!(%client, "somebody tried to log in to the page with a wrong token");
        let problem = "This is not the token.";
        return Ok(show_form(StatusCode::FORBIDDEN, &origin, &fields, Some(problem)));
    }
    page.throttle().succeeded(client);
    info!(%client, "somebody has logged in to the page");
    let cookie = Session::begin(SystemTime::now()).cookie(&keys);
    let cookie = set_cookie(&origin, &keys, &cookie, LIFETIME.as_secs());
    Ok(([(SET_COOKIE, cookie)], see(next_page(&fields))).into_response())
}

/// The browser forgets the session.
pub async fn log_out(
    State(page): State<Page>,
    Extension(origin): Extension<Origin>,
    _: Form,
) -> Result<Response, Refusal> {
    let cookie = set_cookie(&origin, &page.keys()?, "", 0);
    Ok(([(SET_COOKIE, cookie)], see("/login")).into_response())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn next(text: &str) -> String {
        let address = link("/login", [("next", text)]);
        let uri: Uri = address.parse().expect("an address");
        next_page(&Fields::of_uri(&uri)).to_owned()
    }

    #[test]
    fn a_login_leads_to_a_page_of_ours() {
        for ours in ["/", "/dead?topic=orders&key=a%2Fb", "/audit/12"] {
            assert_eq!(next(ours), ours);
        }
        for foreign in [
            "",
            "dead",
            "//evil.example",
            "https://evil.example",
            "/\\evil.example",
            "/\t/evil.example",
            "/ü",
            "javascript:alert(1)",
        ] {
            assert_eq!(next(foreign), "/", "{foreign}");
        }
        let path: Uri = "//evil.example/dead".parse().expect("a path");
        assert_eq!(path_of(&path), "/");
    }

    #[test]
    fn a_session_is_found_among_other_cookies() {
        let (keys, now) = (Keys::of(&"0123456789abcdef".into()), SystemTime::now());
        for is_secure in [false, true] {
            let origin = Origin {
                text: String::new(),
                is_secure,
            };
            let own = Session::begin(now);
            let set = set_cookie(&origin, &keys, &own.cookie(&keys), 60);
            assert!(
                set.ends_with("; HttpOnly; SameSite=Strict; Secure") == is_secure,
                "{set}"
            );
            assert!(set.starts_with("__Host-") == is_secure, "{set}");
            let (cookie, _) = set.split_once(';').expect("attributes");
            let (name, _) = cookie.split_once('=').expect("a value");
            let sent = format!("a=b; {name}=of.another.site;{cookie}; c");
            let headers = HeaderMap::from_iter([(COOKIE, sent.parse().expect("a header"))]);
            assert_eq!(session(&headers, &origin, &keys, now), Some(own));
            let other = Keys::of(&"another-0123456789".into());
            assert_eq!(session(&headers, &origin, &other, now), None);
        }
    }

    proptest! {
        #[test]
        fn no_text_leads_elsewhere(text: String) {
            let next = next(&text);
            prop_assert!(next.starts_with('/') && !next[1..].starts_with(['/', '\\']), "{}", next);
            prop_assert!(next.is_ascii() && !next.contains(|c: char| c.is_whitespace() || c.is_control()));
        }
    }
}
