//! Payloads as they are shown: a document with a line for each member, a text, or bytes. Pure.

use std::fmt::Write as _;

use crate::domain::row::Body;
use crate::words::plain;

/// How much of a document or text is shown, in bytes.
const TEXT_MAX: usize = 64 << 10;
/// How many bytes are shown that are no text.
const BYTES_MAX: usize = 4 << 10;
/// Members deeper than this are not indented further, so that a deep document does not grow when it is shown.
const DEPTH_MAX: usize = 20;

/// A payload, or its beginning.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    pub kind: &'static str,
    /// Its lines.
    pub text: String,
    /// How large all of it is.
    pub bytes: usize,
    pub is_cut: bool,
}

/// `None` for a tombstone.
pub fn shown(body: &Body) -> Option<Shown> {
    match body {
        Body::Tombstone => None,
        Body::Json(json) => Some(text("JSON", &String::from_utf8_lossy(json), indented)),
        Body::Bytes(bytes) => Some(match std::str::from_utf8(bytes) {
            Ok(content) => text("text", content, lines),
            Err(_) => Shown {
                kind: "bytes",
                text: dump(&bytes[..bytes.len().min(BYTES_MAX)]),
                bytes: bytes.len(),
                is_cut: bytes.len() > BYTES_MAX,
            },
        }),
    }
}

fn text(kind: &'static str, content: &str, write: impl Fn(&str) -> String) -> Shown {
    let end = (0..=content.len().min(TEXT_MAX))
        .rev()
        .find(|end| content.is_char_boundary(*end));
    let end = end.unwrap_or_default();
    Shown {
        kind,
        text: write(&content[..end]),
        bytes: content.len(),
        is_cut: end < content.len(),
    }
}

/// The lines of a text, without what nobody sees.
fn lines(text: &str) -> String {
    let line = |line: &str| line.split('\t').map(plain).collect::<Vec<_>>().join("\t");
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// The document with a line for each member. Numbers and texts stay as they are written.
fn indented(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_text, mut is_escaped) = (0usize, false, false);
    for c in json.chars() {
        if in_text {
            in_text = is_escaped || c != '"';
            is_escaped = !is_escaped && c == '\\';
            out.push(c);
            continue;
        }
        match c {
            '{' | '[' => {
                depth += 1;
                out.push(c);
                end_line(&mut out, depth);
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                close(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                end_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_whitespace() => {}
            c => {
                in_text = c == '"';
                out.push(c);
            }
        }
    }
    lines(&out)
}

fn end_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.push_str(&"  ".repeat(depth.min(DEPTH_MAX)));
}

/// What has no members is closed on its line.
fn close(out: &mut String, depth: usize) {
    let written = out.trim_end().len();
    if out[..written].ends_with(['{', '[']) {
        out.truncate(written);
    } else {
        end_line(out, depth);
    }
}

/// Bytes in hexadecimal, sixteen in a line, with the characters that they are in ASCII.
fn dump(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (number, line) in bytes.chunks(16).enumerate() {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let ascii = line.iter().map(|byte| {
            if byte.is_ascii_graphic() {
                char::from(*byte)
            } else {
                '.'
            }
        });
        let ascii: String = ascii.collect();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{:08x}  {:<47}  {ascii}", number * 16, hex.join(" "));
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_document_has_a_line_for_each_member() {
        let json = r#"{"a": {}, "b": [1.50, "x, {\"y\": 2}\\"], "c": [ ], "d": 12345678901234567890.10}"#;
        let expected = r#"{
  "a": {},
  "b": [
    1.50,
    "x, {\"y\": 2}\\"
  ],
  "c": [],
  "d": 12345678901234567890.10
}"#;
        assert_eq!(indented(json), expected);
    }

    #[test]
    fn a_deep_document_does_not_grow_without_end() {
        let deep = "[".repeat(TEXT_MAX);
        assert!(indented(&deep).len() < TEXT_MAX * (DEPTH_MAX * 2 + 3));
    }

    #[test]
    fn a_payload_is_shown_as_what_it_is() {
        assert_eq!(shown(&Body::Tombstone), None);
        let text = shown(&Body::Bytes(b"a\tb\n\x1b[31m".to_vec())).expect("a payload");
        assert_eq!((text.kind, text.text.as_str()), ("text", "a\tb\n\\u{1b}[31m"));
        let bytes = shown(&Body::Bytes(b"\xff\x00<b>".to_vec())).expect("a payload");
        assert_eq!(bytes.kind, "bytes");
        assert!(bytes.text.starts_with("00000000  ff 00 3c 62 3e "), "{}", bytes.text);
        assert!(bytes.text.ends_with("  ..<b>\n"), "{}", bytes.text);
    }

    #[test]
    fn of_a_large_payload_the_beginning_is_shown() {
        let text = shown(&Body::Bytes("ü".repeat(TEXT_MAX).into_bytes())).expect("a payload");
        assert!(text.is_cut && text.bytes == 2 * TEXT_MAX && text.text.len() == TEXT_MAX);
        let bytes = shown(&Body::Bytes(vec![0xff; BYTES_MAX + 1])).expect("a payload");
        assert!(bytes.is_cut && bytes.text.lines().count() == BYTES_MAX / 16);
    }

    proptest! {
        #[test]
        fn lines_change_nothing_in_a_document(words in prop::collection::vec("[a-z\"\\\\ {},:]{0,8}", 0..6), depth in 0..30usize) {
            let nested = (0..depth).fold(serde_json::json!(words), |inner, _| serde_json::json!({ "k": [inner, {}] }));
            let shown = indented(&nested.to_string());
            let read: serde_json::Value = serde_json::from_str(&shown).expect("the same document");
            prop_assert_eq!(read, nested);
        }

        #[test]
        fn no_payload_makes_it_panic(bytes: Vec<u8>) {
            let _ = (shown(&Body::Bytes(bytes.clone())), shown(&Body::Json(bytes)));
        }
    }
}
