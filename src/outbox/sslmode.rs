//! What a connection string says of `sslmode`. The client library knows no `verify-ca` and no `verify-full`, so these are ours.

use std::ops::Range;

const NAME: &str = "sslmode";

/// The string as the client library can read it, and every mode that was asked for, in the order of the string.
pub fn read(text: &str) -> (String, Vec<&str>) {
    let mut readable = text.to_owned();
    let places = places(text);
    for place in places.iter().rev() {
        if verifies(&text[place.clone()]) {
            readable.replace_range(place.clone(), "require");
        }
    }
    (readable, places.into_iter().map(|place| &text[place]).collect())
}

/// Must the server prove who it is?
pub fn verifies(mode: &str) -> bool {
    matches!(mode, "verify-ca" | "verify-full")
}

/// Where the modes stand. Not wherever their name does: a password may contain it.
fn places(text: &str) -> Vec<Range<usize>> {
    let schemes = ["postgres://", "postgresql://"];
    match schemes.iter().find(|scheme| text.starts_with(**scheme)) {
        Some(scheme) => places_in_url(text, scheme.len()),
        None => places_in_words(text),
    }
}

/// As the client library reads a URL: the login ends at the first `@`, and what follows the next `?` are parameters.
fn places_in_url(text: &str, begin: usize) -> Vec<Range<usize>> {
    let host = text[begin..].find('@').map_or(begin, |at| begin + at + 1);
    let Some(query) = text[host..].find('?') else {
        return Vec::new();
    };
    let mut places = Vec::new();
    let mut begin = host + query + 1;
    for parameter in text[begin..].split('&') {
        let end = begin + parameter.len();
        if let Some((NAME, value)) = parameter.split_once('=') {
            places.push(end - value.len()..end);
        }
        begin = end + 1;
    }
    places
}

/// `name=value` and `name = 'value'`, apart by white space; a backslash makes what follows it part of the value.
fn places_in_words(text: &str) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let mut rest = text;
    while let Some((name, value)) = rest.split_once('=') {
        let value = value.trim_start();
        let quoted = value.starts_with('\'');
        let value = &value[usize::from(quoted)..];
        let length = value_length(value, quoted);
        let begin = text.len() - value.len();
        if name.trim() == NAME {
            places.push(begin..begin + length);
        }
        rest = value[length..].strip_prefix('\'').unwrap_or(&value[length..]);
    }
    places
}

fn value_length(value: &str, quoted: bool) -> usize {
    let mut escaped = false;
    let end = value.find(|c: char| {
        let literal = std::mem::replace(&mut escaped, false);
        escaped = !literal && c == '\\';
        !literal && if quoted { c == '\'' } else { c.is_whitespace() }
    });
    end.unwrap_or(value.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_where_they_are_parameters() {
        for (text, readable, modes) in [
            ("postgres://u@h/db", "postgres://u@h/db", &[][..]),
            (
                "postgres://u@h/db?sslmode=verify-full&application_name=a",
                "postgres://u@h/db?sslmode=require&application_name=a",
                &["verify-full"],
            ),
            (
                "postgresql://h?application_name=a&sslmode=verify-ca",
                "postgresql://h?application_name=a&sslmode=require",
                &["verify-ca"],
            ),
            (
                "postgres://u:?sslmode=verify-full@h/db?sslmode=disable",
                "postgres://u:?sslmode=verify-full@h/db?sslmode=disable",
                &["disable"],
            ),
            (
                "postgres://u@h/db?application_name=sslmode=verify-full",
                "postgres://u@h/db?application_name=sslmode=verify-full",
                &[],
            ),
            (
                "host=h sslmode=verify-full user=u",
                "host=h sslmode=require user=u",
                &["verify-full"],
            ),
            (
                "host=h sslmode = 'verify-ca' sslmode=prefer",
                "host=h sslmode = 'require' sslmode=prefer",
                &["verify-ca", "prefer"],
            ),
            (
                r"host=h password='it\'s sslmode=verify-full' user=u",
                r"host=h password='it\'s sslmode=verify-full' user=u",
                &[],
            ),
            (
                r"host=h password=a\ sslmode=verify-full sslmode=disable",
                r"host=h password=a\ sslmode=verify-full sslmode=disable",
                &["disable"],
            ),
        ] {
            assert_eq!(read(text), (readable.to_owned(), modes.to_vec()), "{text}");
        }
    }
}
