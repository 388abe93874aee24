//! How a client of the library gets its tokens.
//!
//! The library asks for a token by an event, which is answered by polling the client. A client that looks topics up is not polled:
//! `AdminClient` polls a queue of its own and never learns that a token is wanted (rust-rdkafka issue 757), and no call that
//! waits for metadata polls. Such a client is given its token before each call. All clients are given a newer token as soon as there
//! is one: they would ask only towards the end of the one that they have, which a broker may refuse long before.

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use rdkafka::bindings::rd_kafka_oauthbearer_set_token;
use rdkafka::client::{NativeClient, OAuthToken};
use rdkafka::types::RDKafkaRespErr;
use secrecy::ExposeSecret as _;

use crate::credentials::token::{Token, Tokens};

/// The tokens of one client.
pub struct Login {
    tokens: Arc<Tokens>,
    /// The number of the token that the client has; 0 if it has none.
    given: AtomicU64,
}

impl Login {
    pub fn new(tokens: Arc<Tokens>) -> Self {
        let given = AtomicU64::new(0);
        Login { tokens, given }
    }

    /// The answer to the library's question. It is read from memory, because the thread that asks has reports to deliver.
    pub fn answer(&self) -> Result<OAuthToken, String> {
        let (number, token) = self.tokens.current()?;
        self.given.store(number, Ordering::Relaxed);
        Ok(OAuthToken {
            lifetime_ms: lifetime_ms(&token),
            token: token.secret.expose_secret().to_owned(),
            principal_name: token.principal,
        })
    }

    /// Gives the client the newest token, unless it has that.
    pub fn refresh(&self, client: &NativeClient) {
        if self.tokens.number() == self.given.load(Ordering::Relaxed) {
            return;
        }
        let Ok((number, token)) = self.tokens.current() else {
            return;
        };
        if set_token(client, &token) {
            self.given.store(number, Ordering::Relaxed);
        }
    }
}

/// In milliseconds since 1970.
fn lifetime_ms(token: &Token) -> i64 {
    let life = token.expires.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(life.as_millis()).unwrap_or(i64::MAX)
}

/// Returns whether the client took the token.
fn set_token(client: &NativeClient, token: &Token) -> bool {
    let secret = CString::new(token.secret.expose_secret());
    let (Ok(secret), Ok(principal)) = (secret, CString::new(token.principal.as_str())) else {
        return false;
    };
    // The library's words may quote the token, so nobody reads them.
    let mut words: [c_char; 512] = [0; 512];
    // SAFETY: the client lives as long as its reference. The strings end with a zero and are copied by the library, which writes
    // no more than their length into `words`. There are no extensions.
    let code = unsafe {
        rd_kafka_oauthbearer_set_token(
            client.ptr(),
            secret.as_ptr(),
            lifetime_ms(token),
            principal.as_ptr(),
            ptr::null_mut(),
            0,
            words.as_mut_ptr(),
            words.len(),
        )
    };
    let is_set = code == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR;
    if !is_set {
        tracing::debug!(?code, "the Kafka client does not take the token");
    }
    is_set
}
