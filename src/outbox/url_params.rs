//! Takes the TLS parameters out of a connection string, because the client library knows only some of them.

use tokio_postgres::Config;

/// The TLS parameters of a connection string, decoded.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TlsParams {
    pub sslmode: Option<String>,
    pub sslrootcert: Option<String>,
    pub sslcert: Option<String>,
    pub sslkey: Option<String>,
}

/// Returns the string without its TLS parameters, and these.
pub fn take(text: &str) -> Result<(String, TlsParams), String> {
    let schemes = ["postgres://", "postgresql://"];
    match schemes.iter().find(|scheme| text.starts_with(**scheme)) {
        Some(scheme) => take_from_url(text, scheme.len()),
        None => take_from_pairs(text),
    }
}

/// Follows the client library: the login ends at the first `@`, and the parameters follow the next `?`. Searching for a name alone
/// is not enough, because a password may contain it.
fn take_from_url(text: &str, begin: usize) -> Result<(String, TlsParams), String> {
    let mut params = TlsParams::default();
    let host = text[begin..].find('@').map_or(begin, |at| begin + at + 1);
    let Some(query) = text[host..].find('?') else {
        return Ok((text.to_owned(), params));
    };
    let (address, query) = text.split_at(host + query);
    let mut others = Vec::new();
    for parameter in query[1..].split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if !params.set(name, || decode(&format!("postgres://h?application_name={value}")))? {
            others.push(parameter);
        }
    }
    let separator = if others.is_empty() { "" } else { "?" };
    Ok((format!("{address}{separator}{}", others.join("&")), params))
}

/// Pairs such as `name=value` and `name = 'value'`, separated by white space.
fn take_from_pairs(text: &str) -> Result<(String, TlsParams), String> {
    let mut params = TlsParams::default();
    let mut others = Vec::new();
    let mut rest = text;
    while let Some((name, value)) = rest.split_once('=') {
        let (name, value) = (name.trim(), value.trim_start());
        let (value, after) = value.split_at(value_length(value));
        if !params.set(name, || decode(&format!("application_name={value}")))? {
            others.push(format!("{name}={value}"));
        }
        rest = after;
    }
    // What is no pair is for the client library to refuse.
    if !rest.trim().is_empty() {
        others.push(rest.trim().to_owned());
    }
    Ok((others.join(" "), params))
}

/// The length of a value as it is written, with its quotes. A backslash escapes the next character.
fn value_length(value: &str) -> usize {
    let quoted = value.starts_with('\'');
    let mut escaped = false;
    let end = value.char_indices().skip(usize::from(quoted)).find(|(_, c)| {
        let literal = std::mem::replace(&mut escaped, false);
        escaped = !literal && *c == '\\';
        !literal && if quoted { *c == '\'' } else { c.is_whitespace() }
    });
    // The closing quote belongs to the value.
    end.map_or(value.len(), |(at, _)| at + usize::from(quoted))
}

/// Lets the client library decode a value, as that of a parameter which may be any text.
fn decode(connection_string: &str) -> Option<String> {
    let config: Config = connection_string.parse().ok()?;
    config.get_application_name().map(str::to_owned)
}

impl TlsParams {
    /// Sets a parameter. False if it has nothing to do with TLS files or modes.
    fn set(&mut self, name: &str, value: impl FnOnce() -> Option<String>) -> Result<bool, String> {
        let param = match name {
            "sslmode" => &mut self.sslmode,
            "sslrootcert" => &mut self.sslrootcert,
            "sslcert" => &mut self.sslcert,
            "sslkey" => &mut self.sslkey,
            "sslpassword" => return Err("it has sslpassword, which is not supported: decrypt the key".to_owned()),
            "sslcrl" | "sslcrldir" => {
                return Err(format!(
                    "it has {name}, but lists of revoked certificates are not supported"
                ));
            }
            _ => return Ok(false),
        };
        if param.is_some() {
            return Err(format!("it has {name} twice"));
        }
        *param = Some(value().ok_or_else(|| format!("the value of {name} cannot be read"))?);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(sslmode: &str) -> TlsParams {
        TlsParams {
            sslmode: Some(sslmode.to_owned()),
            ..TlsParams::default()
        }
    }

    #[test]
    fn parameters_are_taken_from_where_they_are_parameters() {
        for (text, rest, params) in [
            ("postgres://u@h/db", "postgres://u@h/db", TlsParams::default()),
            (
                "postgres://u@h/db?sslmode=verify-full&application_name=a",
                "postgres://u@h/db?application_name=a",
                mode("verify-full"),
            ),
            ("postgresql://h?sslmode=verify-ca", "postgresql://h", mode("verify-ca")),
            (
                "postgres://u:?sslmode=verify-full@h/db?sslmode=disable",
                "postgres://u:?sslmode=verify-full@h/db",
                mode("disable"),
            ),
            (
                "postgres://u@h/db?application_name=sslmode=verify-full",
                "postgres://u@h/db?application_name=sslmode=verify-full",
                TlsParams::default(),
            ),
            (
                "host=h sslmode=verify-full user=u",
                "host=h user=u",
                mode("verify-full"),
            ),
            ("host=h sslmode = 'verify-ca'", "host=h", mode("verify-ca")),
            (
                r"host=h password='it\'s sslmode=verify-full' user=u",
                r"host=h password='it\'s sslmode=verify-full' user=u",
                TlsParams::default(),
            ),
            (
                r"host=h password=a\ sslmode=verify-full sslmode=disable",
                r"host=h password=a\ sslmode=verify-full",
                mode("disable"),
            ),
            ("host=h nonsense", "host=h nonsense", TlsParams::default()),
        ] {
            assert_eq!(take(text), Ok((rest.to_owned(), params)), "{text}");
        }
    }

    #[test]
    fn the_names_of_files_are_decoded() {
        let files = TlsParams {
            sslmode: None,
            sslrootcert: Some("/my certs/ca.pem".to_owned()),
            sslcert: Some("a&b.pem".to_owned()),
            sslkey: Some("it's.key".to_owned()),
        };
        for text in [
            "postgres://u@h/db?sslrootcert=/my%20certs/ca.pem&sslcert=a%26b.pem&sslkey=it's.key",
            r"sslrootcert = '/my certs/ca.pem' sslcert=a&b.pem sslkey='it\'s.key' host=h",
        ] {
            assert_eq!(take(text).map(|(_, params)| params).as_ref(), Ok(&files), "{text}");
        }
    }

    #[test]
    fn what_would_be_ignored_is_refused() {
        for (text, word) in [
            ("postgres://h?sslmode=disable&sslmode=verify-full", "sslmode twice"),
            ("host=h sslcert=a sslcert=b", "sslcert twice"),
            ("host=h sslpassword=s3cret", "sslpassword"),
            ("postgres://h?sslcrl=crl.pem", "sslcrl"),
            ("host=h sslmode=", "sslmode cannot be read"),
        ] {
            let problem = take(text).expect_err(text);
            assert!(problem.contains(word) && !problem.contains("s3cret"), "{problem}");
        }
    }
}
