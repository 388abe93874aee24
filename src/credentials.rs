//! Secrets that come from outside: files, commands, and what they print.
//!
//! Invariant: no secret is in a `Debug`, in an error or in a log. Errors name the flag and the reason.

pub mod command;
pub mod file;
pub mod oidc;
pub mod password;
pub mod pgpass;
pub mod token;
pub mod ui_token;

use secrecy::SecretString;

/// More than any password or token needs.
const SIZE_MAX: usize = 64 << 10;

/// The secret in these bytes, without the newline with which files and programs end their text.
fn secret(bytes: Vec<u8>) -> Result<SecretString, &'static str> {
    if bytes.len() > SIZE_MAX {
        return Err("more than 64 KiB");
    }
    let text = String::from_utf8(bytes).map_err(|_| "something that is not UTF-8 text")?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() {
        return Err("nothing");
    }
    Ok(SecretString::from(line))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn one_newline_is_cut_and_nothing_is_no_secret() {
        for (bytes, text) in [
            ("a b", "a b"),
            ("a\n", "a"),
            ("a\r\n", "a"),
            ("a\n\n", "a\n"),
            (" a ", " a "),
        ] {
            let secret = secret(bytes.into()).expect(bytes);
            assert_eq!(secret.expose_secret(), text);
        }
        for nothing in ["", "\n", "\r\n"] {
            assert_eq!(secret(nothing.into()).map(drop).expect_err("empty"), "nothing");
        }
        assert!(secret(vec![0xff]).is_err() && secret(vec![b'a'; SIZE_MAX + 1]).is_err());
        assert!(secret(vec![b'a'; SIZE_MAX]).is_ok());
    }
}
