//! How quantities and errors are written for people, and names, texts and commands so that they can be pasted.

pub mod operation;

use std::error::Error;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use crate::domain::partition::Partition;

/// A time span to the second, or below ten seconds to the millisecond.
pub fn age(seconds: f64) -> String {
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

/// A number with its thousands apart: 1,234,567.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number with what it counts: "1 topic", "1,234 topics".
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// A time, in UTC.
pub fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

/// Escapes the characters that a reader does not see and that change what is shown: a key or a broker's message must neither control
/// the operator's terminal nor seem to be another one.
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_invisible(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Control characters, those without a width, and those that turn the direction of writing.
fn is_invisible(c: char) -> bool {
    const OTHERS: [RangeInclusive<char>; 7] = [
        '\u{ad}'..='\u{ad}',
        '\u{61c}'..='\u{61c}',
        '\u{200b}'..='\u{200b}',
        '\u{200e}'..='\u{200f}',
        '\u{2028}'..='\u{202e}',
        '\u{2060}'..='\u{206f}',
        '\u{feff}'..='\u{feff}',
    ];
    c.is_control() || OTHERS.iter().any(|others| others.contains(&c))
}

/// Bytes as PostgreSQL writes them.
pub fn bytea(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    std::iter::once("\\x".to_owned()).chain(digits).collect()
}

/// What a hold keeps back, by its unit in `outbox.hold`.
pub fn held(unit: &str) -> String {
    match (unit.split_at_checked(2), Partition::of_unit(unit)) {
        (Some(("k:", key)), _) => format!("key {key}"),
        (Some(("p:", partition)), _) => format!("partition {partition}"),
        (_, Some(paused)) => format!("partition {}, paused", paused.number),
        _ => "the topic".to_owned(),
    }
}

/// A number with its noun, whose plural takes an s.
pub fn count(number: usize, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

/// An error and what caused it. A library's own words are often general, and the cause comes last.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source());
    let mut words: Vec<String> = causes.map(ToString::to_string).collect();
    words.dedup();
    words.join(": ")
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

/// A text as SQL takes it, with what nobody sees escaped as in [`plain`].
pub fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if !text.contains(|c: char| c == '\\' || is_invisible(c)) {
        return format!("'{quoted}'");
    }
    format!("E'{}'", escaped(&quoted.replace('\\', r"\\")))
}

/// A word of a shell's command line. What nobody sees is escaped as bash, zsh and ksh read it.
pub fn shell_word(text: &str) -> String {
    if !text.contains(is_invisible) {
        return shell_words::quote(text).into_owned();
    }
    format!("$'{}'", escaped(&text.replace('\\', r"\\").replace('\'', r"\'")))
}

/// The same with each invisible character as `\u` and its number.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if is_invisible(c) {
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// A flag and its value. A value that looks like a flag itself is tied to its own.
pub fn option(flag: &str, value: &str) -> String {
    let separator = if value.starts_with('-') { '=' } else { ' ' };
    format!("{flag}{separator}{}", shell_word(value))
}

/// A command of ours. Where the database is, the environment says.
pub fn command(subcommand: &str, arguments: &str, schema: &str) -> String {
    let schema = match schema {
        "outbox" => String::new(),
        other => format!("--schema {other}"),
    };
    let words = ["outboxd", subcommand, &schema, arguments];
    words
        .into_iter()
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The command that ends a pause: of everything without a topic, of a whole topic without a key.
pub fn resume(topic: Option<&str>, key: Option<&str>, schema: &str) -> String {
    let flags = match (topic, key) {
        (None, _) => "--all".to_owned(),
        (Some(topic), None) => option("--topic", topic),
        (Some(topic), Some(key)) => format!("{} {}", option("--topic", topic), option("--key", key)),
    };
    command("resume", &flags, schema)
}

/// What is paused. Control characters of a key are escaped, since they must not control the terminal.
pub fn paused(topic: Option<&str>, key: Option<&str>) -> String {
    match (topic, key) {
        (None, _) => "everything".to_owned(),
        (Some(topic), None) => format!("topic {}", topic.escape_debug()),
        (Some(topic), Some(key)) => format!("key {key:?} of topic {}", topic.escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_rounded_for_a_reader() {
        assert_eq!(age(0.0123), "12ms");
        assert_eq!(age(7_200.4), "2h");
        assert_eq!(age(-1.0), "0s");
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
    fn thousands_are_apart() {
        let shown: Vec<String> = [0, 999, 1_000, 1_234_567].map(grouped).to_vec();
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(counted(1, "topic", "topics"), "1 topic");
        assert_eq!(counted(1000, "topic", "topics"), "1,000 topics");
    }

    #[test]
    fn what_nobody_sees_is_escaped() {
        assert_eq!(plain("a\nb\u{9b}"), r"a\u{a}b\u{9b}");
        assert_eq!(plain("gpj.\u{202e}exe\u{200b}"), r"gpj.\u{202e}exe\u{200b}");
        assert_eq!(plain("Zürich, 東京, עברית <b>"), "Zürich, 東京, עברית <b>");
        assert_eq!(bytea(&[0, 255]), r"\x00ff");
    }

    #[test]
    fn each_unit_has_its_words() {
        assert_eq!(held("k:p:1"), "key p:1");
        assert_eq!(held("p:3"), "partition 3");
        assert_eq!(held("s:3/12"), "partition 3, paused");
        assert_eq!(held(""), "the topic");
    }

    #[test]
    fn names_can_be_pasted() {
        assert_eq!(ident("relay_1"), "relay_1");
        assert_eq!(ident("Relay"), "\"Relay\"");
        assert_eq!(ident("1\"x"), "\"1\"\"x\"");
        assert_eq!(literal("o'brien"), "'o''brien'");
        assert_eq!(literal(r"a\b"), r"E'a\\b'");
    }

    #[test]
    fn texts_can_be_pasted_into_sql() {
        assert_eq!(literal("a\\b\n"), r"E'a\\b\u000a'");
        assert_eq!(literal("it's\n"), r"E'it''s\u000a'");
    }

    #[test]
    fn a_held_key_is_a_word_that_can_be_pasted() {
        for key in ["customer-42", "", "o'brien", "a b", "$(id)", "-n", "a\\b"] {
            let words = shell_words::split(&format!("--key {}", shell_word(key)));
            assert_eq!(words.expect("words"), ["--key", key], "{key}");
        }
        assert_eq!(shell_word("it's a\\b\n"), r"$'it\'s a\\b\u000a'");
        assert_eq!(shell_word("a\u{202e}b"), r"$'a\u202eb'");
    }

    #[test]
    fn a_value_that_looks_like_a_flag_is_tied_to_its_own() {
        assert_eq!(option("--key", "-n"), "--key=-n");
        assert_eq!(option("--key", "n"), "--key n");
    }

    #[test]
    fn a_command_names_the_schema_if_it_is_another_one() {
        assert_eq!(command("dead list", "", "outbox"), "outboxd dead list");
        assert_eq!(
            command("dead redrive", "--id 7", "other"),
            "outboxd dead redrive --schema other --id 7"
        );
        assert_eq!(resume(None, None, "outbox"), "outboxd resume --all");
        assert_eq!(
            resume(Some("orders"), Some("-n"), "other"),
            "outboxd resume --schema other --topic orders --key=-n"
        );
    }
}
