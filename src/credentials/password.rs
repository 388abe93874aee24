//! The password of a database login, from wherever the operator keeps it.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::command::CommandLine;
use super::{file, pgpass};

/// The flags that name a password, for texts.
pub const FILE_FLAG: &str = "--database-password-file";
pub const COMMAND_FLAG: &str = "--database-password-command";

/// Where the password comes from, unless the connection string has one.
#[derive(Clone, Debug)]
pub enum Source {
    Nowhere,
    /// `PGPASSWORD`. It does not change while the process runs.
    Fixed(SecretString),
    Command(CommandLine),
    File(PathBuf),
    /// The password file of libpq.
    Pgpass(PathBuf),
}

/// A password, and until when it may be used. Without an end it is used until the server refuses it.
#[derive(Clone, Debug)]
pub struct Password {
    pub text: SecretString,
    pub expires: Option<SystemTime>,
}

/// A password is not used within this time of its end, since a login takes a moment.
const MARGIN: Duration = Duration::from_secs(10);

impl Source {
    /// The flag that has named this source. `None` for one that gives way to a password in the connection string, as in libpq.
    pub fn flag(&self) -> Option<&'static str> {
        match self {
            Source::Command(_) => Some(COMMAND_FLAG),
            Source::File(_) => Some(FILE_FLAG),
            Source::Nowhere | Source::Fixed(_) | Source::Pgpass(_) => None,
        }
    }

    /// Reads the password of one of these logins. `None` if there is none.
    pub async fn read(&self, logins: &[pgpass::Login]) -> Result<Option<Password>, String> {
        match self {
            Source::Nowhere => Ok(None),
            Source::Fixed(text) => Ok(Some(Password::lasting(text.clone()))),
            Source::File(path) => file::read(FILE_FLAG, path).map(|text| Some(Password::lasting(text))),
            Source::Pgpass(path) => Ok(pgpass::read(path, logins).map(Password::lasting)),
            Source::Command(command) => printed(command.output().await?).map(Some),
        }
    }
}

impl Password {
    fn lasting(text: SecretString) -> Self {
        Password { text, expires: None }
    }
}

/// Must a password with this end be read again before the next login?
pub fn has_expired(expires: Option<SystemTime>) -> bool {
    expires.is_some_and(|end| end <= SystemTime::now() + MARGIN)
}

/// What a command may print instead of the bare password.
#[derive(Deserialize)]
struct Printed {
    password: String,
    expires_at: Option<String>,
}

/// A JSON object with a password, or the password itself, even if it looks like the beginning of one.
fn printed(output: SecretString) -> Result<Password, String> {
    let text = output.expose_secret();
    if serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).is_err() {
        return Ok(Password::lasting(output));
    }
    // The error of the parser could quote the password.
    let printed: Printed = serde_json::from_str(text)
        .map_err(|_| format!("{COMMAND_FLAG} printed a JSON object without a text \"password\""))?;
    if printed.password.is_empty() {
        return Err(format!("{COMMAND_FLAG} printed an empty password"));
    }
    let expires = printed.expires_at.as_deref().map(humantime::parse_rfc3339_weak);
    Ok(Password {
        text: printed.password.into(),
        expires: expires.transpose().map_err(|_| {
            format!("{COMMAND_FLAG} printed an \"expires_at\" that is no time such as 2026-01-31T12:00:00Z")
        })?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Password, String> {
        printed(SecretString::from(text))
    }

    #[test]
    fn a_command_prints_a_password_or_an_object_with_one() {
        for bare in ["s3cret", "{s3cret", "[1]", "\"s3cret\"", "123"] {
            let password = read(bare).expect(bare);
            assert_eq!(password.text.expose_secret(), bare);
            assert!(!has_expired(password.expires));
        }
        let password =
            read(r#"{"password": "s3cret", "expires_at": "2001-01-31T12:00:00Z", "more": 1}"#).expect("valid");
        assert_eq!(password.text.expose_secret(), "s3cret");
        assert!(has_expired(password.expires));
        let later = humantime::format_rfc3339(SystemTime::now() + Duration::from_secs(60));
        let password = read(&format!(r#"{{"password": "s3cret", "expires_at": "{later}"}}"#)).expect("valid");
        assert!(!has_expired(password.expires));
    }

    #[test]
    fn an_object_without_a_usable_password_is_a_problem_that_quotes_nothing() {
        for text in [
            r#"{"token": "s3cret"}"#,
            r#"{"password": ["s3cret"]}"#,
            r#"{"password": ""}"#,
            r#"{"password": "s3cret", "expires_at": "s3cret"}"#,
        ] {
            let problem = read(text).map(drop).expect_err(text);
            assert!(
                problem.starts_with(COMMAND_FLAG) && !problem.contains("s3cret"),
                "{problem}"
            );
        }
    }
}
