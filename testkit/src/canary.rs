//! Secrets that must be seen nowhere, and everything that was written where they could be seen.

use std::process::Output;

use crate::relay::Relay;

#[derive(Default)]
pub struct Canary {
    secrets: Vec<String>,
    written: Vec<(String, String)>,
}

impl Canary {
    /// One more secret, to be used like a password or a token.
    pub fn secret(&mut self) -> String {
        let secret = format!("canary{:016x}", fastrand::u64(..));
        self.secrets.push(secret.clone());
        secret
    }

    /// Notes what somebody has written.
    pub fn note(&mut self, who: &str, text: impl Into<String>) {
        self.written.push((who.to_owned(), text.into()));
    }

    pub fn note_output(&mut self, who: &str, output: &Output) {
        for bytes in [&output.stdout, &output.stderr] {
            self.note(who, String::from_utf8_lossy(bytes));
        }
    }

    /// The log of a relay so far, and what it answers.
    pub fn note_relay(&mut self, who: &str, relay: &Relay) {
        self.note(who, relay.log());
        for path in ["/metrics", "/livez", "/readyz", "/nowhere"] {
            self.note(&format!("{who} {path}"), relay.get(path).unwrap_or_default());
        }
    }

    /// No secret is in anything that was noted.
    pub fn assert_unseen(&self) {
        assert!(
            !self.secrets.is_empty() && !self.written.is_empty(),
            "nothing to look for, or nowhere"
        );
        for (who, text) in &self.written {
            let seen = self.secrets.iter().find(|secret| text.contains(*secret));
            assert!(seen.is_none(), "{who} has written {seen:?}:\n{text}");
        }
    }
}
