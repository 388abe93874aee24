//! Who is logged in. A session is a cookie that proves itself, so every replica accepts it, and none remembers it.
//!
//! All keys are derived from the token, so another token ends all sessions.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac::{self, HMAC_SHA256};
use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

/// As long as a shift. A session cannot be ended earlier but in the browser that has it, or by another token.
pub const LIFETIME: Duration = Duration::from_secs(12 * 3600);

/// What follows from one token.
pub struct Keys {
    login: hmac::Key,
    /// The token under the key `login`.
    token: hmac::Tag,
    sessions: hmac::Key,
    forms: hmac::Key,
    /// Tells the cookies of several outboxes on one host apart.
    pub label: String,
}

impl Keys {
    pub fn of(token: &SecretString) -> Self {
        let token = token.expose_secret().as_bytes();
        let root = hmac::Key::new(HMAC_SHA256, token);
        let derived = |purpose: &str| hmac::sign(&root, purpose.as_bytes());
        let key = |purpose: &str| hmac::Key::new(HMAC_SHA256, derived(purpose).as_ref());
        let login = key("login");
        Keys {
            token: hmac::sign(&login, token),
            login,
            sessions: key("sessions"),
            forms: key("forms"),
            label: URL_SAFE_NO_PAD.encode(&derived("label").as_ref()[..6]),
        }
    }

    /// Is this the token? What is compared, in constant time, is a keyed hash of both.
    pub fn is_token(&self, given: &str) -> bool {
        hmac::verify(&self.login, given.as_bytes(), self.token.as_ref()).is_ok()
    }
}

/// A session whose cookie was found to be valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// What is signed: the end of the session, in seconds since 1970, and a random part.
    claims: String,
}

impl Session {
    pub fn begin(now: SystemTime) -> Self {
        let end = seconds(now) + LIFETIME.as_secs();
        Session {
            claims: format!("{end}.{}", Uuid::new_v4().simple()),
        }
    }

    /// The value of its cookie.
    pub fn cookie(&self, keys: &Keys) -> String {
        format!("{}.{}", self.claims, proof(&keys.sessions, &self.claims))
    }

    /// `None` if the cookie was not made with these keys, or has ended.
    pub fn of_cookie(cookie: &str, keys: &Keys, now: SystemTime) -> Option<Self> {
        let (claims, given) = cookie.rsplit_once('.')?;
        let (end, _) = claims.split_once('.')?;
        let is_valid = is_proof(&keys.sessions, claims, given) && seconds(now) < end.parse().ok()?;
        is_valid.then(|| Session {
            claims: claims.to_owned(),
        })
    }

    /// What each form carries that changes something. Another site cannot know it.
    pub fn form_token(&self, keys: &Keys) -> String {
        proof(&keys.forms, &self.claims)
    }

    pub fn is_form_token(&self, given: &str, keys: &Keys) -> bool {
        is_proof(&keys.forms, &self.claims, given)
    }
}

fn proof(key: &hmac::Key, claims: &str) -> String {
    URL_SAFE_NO_PAD.encode(hmac::sign(key, claims.as_bytes()))
}

/// Compares in constant time.
fn is_proof(key: &hmac::Key, claims: &str, given: &str) -> bool {
    let given = URL_SAFE_NO_PAD.decode(given).unwrap_or_default();
    hmac::verify(key, claims.as_bytes(), &given).is_ok()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(token: &str) -> Keys {
        Keys::of(&token.into())
    }

    #[test]
    fn only_the_token_is_the_token() {
        let keys = keys("0123456789abcdef");
        assert!(keys.is_token("0123456789abcdef"));
        for wrong in [
            "",
            "0123456789abcde",
            "0123456789abcdeg",
            "0123456789abcdef ",
            "0123456789ABCDEF",
        ] {
            assert!(!keys.is_token(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_session_ends_with_its_time_and_with_its_token() {
        let (one, other, now) = (keys("0123456789abcdef"), keys("another-0123456789"), SystemTime::now());
        let session = Session::begin(now);
        let cookie = session.cookie(&one);
        assert_eq!(Session::of_cookie(&cookie, &one, now), Some(session));
        assert_eq!(Session::of_cookie(&cookie, &other, now), None, "the token was replaced");
        let last = now + LIFETIME - Duration::from_secs(1);
        assert!(Session::of_cookie(&cookie, &one, last).is_some());
        assert_eq!(Session::of_cookie(&cookie, &one, now + LIFETIME), None);
    }

    #[test]
    fn no_part_of_a_cookie_can_be_changed() {
        let (keys, now) = (keys("0123456789abcdef"), SystemTime::now());
        let cookie = Session::begin(now).cookie(&keys);
        for at in 0..cookie.len() {
            let mut bytes = cookie.clone().into_bytes();
            bytes[at] = if bytes[at] == b'1' { b'2' } else { b'1' };
            let changed = String::from_utf8(bytes).expect("text");
            assert_eq!(Session::of_cookie(&changed, &keys, now), None, "{changed}");
        }
        let later = cookie.replacen('1', "11", 1);
        assert_eq!(Session::of_cookie(&later, &keys, now), None, "{later}");
    }

    #[test]
    fn a_form_belongs_to_its_session() {
        let (keys, now) = (keys("0123456789abcdef"), SystemTime::now());
        let (one, other) = (Session::begin(now), Session::begin(now));
        assert!(one.is_form_token(&one.form_token(&keys), &keys));
        assert!(!one.is_form_token(&other.form_token(&keys), &keys));
        assert!(!one.is_form_token("", &keys));
        let cookie = one.cookie(&keys);
        let signature = cookie.rsplit('.').next().expect("a proof");
        assert!(
            !one.is_form_token(signature, &keys),
            "the proof of the cookie is another one"
        );
    }

    proptest! {
        #[test]
        fn no_cookie_of_others_is_valid(cookie: String, end: u64) {
            let keys = keys("0123456789abcdef");
            for cookie in [cookie.clone(), format!("{end}.{cookie}"), format!("{end}.x.{cookie}")] {
                prop_assert_eq!(Session::of_cookie(&cookie, &keys, UNIX_EPOCH), None);
            }
        }
    }
}
