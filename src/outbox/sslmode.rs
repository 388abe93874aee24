//! Reads `sslmode` from a connection string, because the client library knows neither `verify-ca` nor `verify-full`.

use std::ops::Range;

const NAME: &str = "sslmode";

/// Returns the string in a form that the client library can parse, and all modes in it, in their order.
pub fn extract(text: &str) -> (String, Vec<&str>) {
    let mut parsable = text.to_owned();
    let ranges = mode_ranges(text);
    for range in ranges.iter().rev() {
        if verifies(&text[range.clone()]) {
            parsable.replace_range(range.clone(), "require");
        }
    }
    (parsable, ranges.into_iter().map(|range| &text[range]).collect())
}

/// Must the server prove its identity?
pub fn verifies(mode: &str) -> bool {
    matches!(mode, "verify-ca" | "verify-full")
}

/// Where the modes are. Searching for the name alone is not enough, because a password may contain it.
fn mode_ranges(text: &str) -> Vec<Range<usize>> {
    let schemes = ["postgres://", "postgresql://"];
    match schemes.iter().find(|scheme| text.starts_with(**scheme)) {
        Some(scheme) => ranges_in_url(text, scheme.len()),
        None => ranges_in_pairs(text),
    }
}

/// Follows the client library: the login ends at the first `@`, and the parameters follow the next `?`.
fn ranges_in_url(text: &str, begin: usize) -> Vec<Range<usize>> {
    let host = text[begin..].find('@').map_or(begin, |at| begin + at + 1);
    let Some(query) = text[host..].find('?') else {
        return Vec::new();
    };
    let mut ranges = Vec::new();
    let mut begin = host + query + 1;
    for parameter in text[begin..].split('&') {
        let end = begin + parameter.len();
        if let Some((NAME, value)) = parameter.split_once('=') {
            ranges.push(end - value.len()..end);
        }
        begin = end + 1;
    }
    ranges
}

/// Pairs such as `name=value` and `name = 'value'`, separated by white space. A backslash escapes the next character.
fn ranges_in_pairs(text: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut rest = text;
    while let Some((name, value)) = rest.split_once('=') {
        let value = value.trim_start();
        let quoted = value.starts_with('\'');
        let value = &value[usize::from(quoted)..];
        let length = value_length(value, quoted);
        let begin = text.len() - value.len();
        if name.trim() == NAME {
            ranges.push(begin..begin + length);
        }
        rest = value[length..].strip_prefix('\'').unwrap_or(&value[length..]);
    }
    ranges
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
        for (text, parsable, modes) in [
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
            assert_eq!(extract(text), (parsable.to_owned(), modes.to_vec()), "{text}");
        }
    }
}
