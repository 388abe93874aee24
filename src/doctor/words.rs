//! How quantities and names are written in a diagnosis.

use std::time::Duration;

/// A time span to the second, or below ten seconds to the millisecond.
pub fn span(seconds: f64) -> String {
    let exact = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
    let rounded = if exact < Duration::from_secs(10) {
        Duration::from_millis(exact.as_millis() as u64)
    } else {
        Duration::from_secs(exact.as_secs())
    };
    humantime::format_duration(rounded).to_string()
}

/// A size in the largest unit of which there is at least one.
pub fn size(bytes: i64) -> String {
    const UNITS: [(i64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

/// A number with its noun, whose plural takes an s.
pub fn count(number: usize, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

/// A name as SQL takes it: in quotes where it needs them.
pub fn ident(name: &str) -> String {
    let is_plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if is_plain {
        name.to_owned()
    } else {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}

/// A text as SQL takes it.
pub fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') {
        format!("E'{}'", quoted.replace('\\', r"\\"))
    } else {
        format!("'{quoted}'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_rounded_for_a_reader() {
        assert_eq!(span(0.0123), "12ms");
        assert_eq!(span(7_200.4), "2h");
        assert_eq!(span(-1.0), "0s");
        assert_eq!((size(0), size(1023)), ("0 bytes".to_owned(), "1023 bytes".to_owned()));
        assert_eq!(
            (size(1 << 20), size(3 << 29)),
            ("1.0 MiB".to_owned(), "1.5 GiB".to_owned())
        );
        assert_eq!(
            (count(1, "row"), count(2, "row")),
            ("1 row".to_owned(), "2 rows".to_owned())
        );
    }

    #[test]
    fn names_can_be_pasted() {
        assert_eq!(ident("relay_1"), "relay_1");
        assert_eq!(ident("Relay"), "\"Relay\"");
        assert_eq!(ident("1\"x"), "\"1\"\"x\"");
        assert_eq!(literal("o'brien"), "'o''brien'");
        assert_eq!(literal(r"a\b"), r"E'a\\b'");
    }
}
