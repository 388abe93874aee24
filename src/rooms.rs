//! Reads every file of `src` and fails on an import that points up, or between rooms that must not know each other.
//!
//! A room is a file at the root of `src` together with the directory of the same name. `ARCHITECTURE.md` draws the arrows.

use std::fs;
use std::path::{Path, PathBuf};

/// Each room, and the rooms it may use beside itself. `leaf` stands for all of [`LEAVES`].
const ROOMS: [(&str, &str); 14] = [
    ("domain", ""),
    ("leaf", "leaf domain"),
    ("lanes", "leaf domain"),
    ("outbox", "leaf domain"),
    ("kafka", "leaf domain"),
    ("tasks", "lanes outbox kafka leaf domain"),
    ("verify", "outbox kafka leaf domain"),
    ("advice", "outbox leaf domain"),
    ("http", "health http_server metrics"),
    ("config", "tasks outbox kafka leaf domain"),
    ("ui", "advice config outbox leaf domain"),
    ("daemon", "config http ui tasks lanes outbox kafka leaf domain"),
    ("doctor", "config outbox kafka leaf domain"),
    (
        "cli",
        "advice daemon doctor config http verify outbox kafka leaf domain",
    ),
];

const LEAVES: [&str; 12] = [
    "boottime",
    "clock",
    "credentials",
    "failpoint",
    "health",
    "http_server",
    "jitter",
    "memory",
    "metrics",
    "process",
    "tls",
    "words",
];

/// Files at the root that are no room: they name all of them.
const ROOTS: [&str; 3] = ["lib", "main", "rooms"];

/// Client libraries, and the only room that may use each.
const CLIENTS: [(&str, &str); 5] = [
    ("hyper_rustls", "credentials"),
    ("hyper_util::client", "credentials"),
    ("oauth2", "credentials"),
    ("rdkafka", "kafka"),
    ("tokio_postgres", "outbox"),
];

/// What `domain` is given and never asks for itself: the time, random numbers, I/O.
const IMPURE: [&str; 9] = [
    "Instant::now",
    "SystemTime::now",
    "fastrand",
    "tokio",
    "tracing",
    "std::env",
    "std::fs",
    "std::net",
    "std::process",
];

/// The one directory of `src/outbox/` that its siblings may use: marks and leases write and read holds in their own transactions.
const SHARED_SUBJECT: &str = "hold";

#[test]
fn imports_follow_the_arrows() {
    let findings: Vec<String> = files(Path::new("src"))
        .iter()
        .flat_map(|file| check(file, &fs::read_to_string(file).expect("a source file is text")))
        .collect();
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

#[test]
fn every_room_exists() {
    let rooms = ROOMS.iter().map(|(room, _)| *room).filter(|room| *room != "leaf");
    for room in rooms.chain(LEAVES) {
        assert!(Path::new("src").join(room).with_extension("rs").exists(), "{room}");
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("src can be read");
    let paths = entries.map(|entry| entry.expect("src can be read").path());
    let mut files: Vec<PathBuf> = paths
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect();
    files.sort();
    files
}

/// What is wrong with the imports of one file, a line each.
fn check(file: &Path, source: &str) -> Vec<String> {
    let module = module_of(file);
    let room = module[0].as_str();
    if ROOTS.contains(&room) {
        return Vec::new();
    }
    let Some(allowed) = allowed(room) else {
        return vec![format!(
            "{}: no entry in ROOMS says what {room} may use",
            file.display()
        )];
    };
    let paths = paths(&without_tests(source));
    let findings = paths.iter().filter_map(|path| {
        let offence = client(room, path)
            .or_else(|| impurity(room, path))
            .or_else(|| arrow(&module, allowed, path))?;
        Some(format!("{}:{}: {offence}", file.display(), path.line))
    });
    findings.collect()
}

/// `src/outbox/mark/mod.rs` is the module `outbox::mark`.
fn module_of(file: &Path) -> Vec<String> {
    let path = file.strip_prefix("src").unwrap_or(file).with_extension("");
    let names = path.iter().map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| name != "mod").collect()
}

fn allowed(room: &str) -> Option<&'static str> {
    ROOMS
        .iter()
        .find(|(name, _)| *name == kind(room))
        .map(|(_, allowed)| *allowed)
}

fn kind(room: &str) -> &str {
    if LEAVES.contains(&room) { "leaf" } else { room }
}

fn client(room: &str, path: &ModulePath) -> Option<String> {
    let (library, owner) = CLIENTS.iter().find(|(library, _)| path.contains(library))?;
    (room != *owner).then(|| format!("{room} → {library}, which only {owner} may use"))
}

fn impurity(room: &str, path: &ModulePath) -> Option<String> {
    let impure = IMPURE.iter().find(|impure| path.contains(impure))?;
    (room == "domain").then(|| format!("domain → {impure}, which it must be given"))
}

/// An arrow to another room, or in `outbox` to another subject.
fn arrow(module: &[String], allowed: &str, path: &ModulePath) -> Option<String> {
    let target = path.absolute(module)?;
    let (from, to) = (&module[0], target.first()?);
    if from != to {
        let is_allowed = allowed.split(' ').any(|room| room == to || room == kind(to));
        return (!is_allowed).then(|| format!("{from} → {to} ({})", path.text()));
    }
    let (own, other) = (module.get(1)?, target.get(1)?);
    let is_sibling = from == "outbox" && own != other && is_subject(own) && is_subject(other);
    (is_sibling && other != SHARED_SUBJECT).then(|| format!("outbox::{own} → outbox::{other} ({})", path.text()))
}

/// Is this one of the directories of `src/outbox/`?
fn is_subject(name: &str) -> bool {
    Path::new("src/outbox").join(name).is_dir()
}

/// A path as it is written: `crate::outbox::Error`.
struct ModulePath {
    line: usize,
    segments: Vec<String>,
}

impl ModulePath {
    fn text(&self) -> String {
        self.segments.join("::")
    }

    /// Does it name this module or item, anywhere?
    fn contains(&self, name: &str) -> bool {
        let wanted: Vec<&str> = name.split("::").collect();
        self.segments.windows(wanted.len()).any(|some| some == wanted)
    }

    /// The same from the root of the crate; `None` if it leads to another crate, or is no more than a name.
    fn absolute(&self, module: &[String]) -> Option<Vec<String>> {
        let rest = |skipped: usize| self.segments[skipped..].iter().cloned();
        let supers = self.segments.iter().take_while(|segment| *segment == "super").count();
        let parent = &module[..module.len().saturating_sub(supers)];
        match self.segments[0].as_str() {
            "crate" => Some(rest(1).collect()),
            "super" => Some(parent.iter().cloned().chain(rest(supers)).collect()),
            _ => None,
        }
    }
}

/// The source without its test modules. The lines keep their numbers.
fn without_tests(source: &str) -> String {
    let mut lines: Vec<&str> = source.lines().collect();
    let mut in_tests = false;
    for at in 1..lines.len() {
        let opens_module = lines[at].contains("mod ") && lines[at].ends_with('{');
        in_tests |= lines[at - 1] == "#[cfg(test)]" && opens_module;
        if in_tests {
            in_tests = lines[at] != "}";
            lines[at] = "";
        }
    }
    lines.join("\n")
}

/// Every path in the source, those in groups one by one.
fn paths(source: &str) -> Vec<ModulePath> {
    let tokens = tokens(source);
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        at = match tokens[at].text.as_str() {
            text if is_name(text) => read_path(&tokens, at, &[], &mut paths),
            _ => at + 1,
        };
    }
    paths
}

/// Reads the path that begins here, below `prefix`. Returns where it ends.
fn read_path(tokens: &[Token], mut at: usize, prefix: &[String], paths: &mut Vec<ModulePath>) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let mut path = ModulePath {
        line: tokens[at].line,
        segments: prefix.to_vec(),
    };
    while is_name(text(at)) || text(at) == "*" {
        path.line = tokens[at].line;
        path.segments.push(text(at).to_owned());
        at += 1;
        if text(at) != "::" {
            paths.push(path);
            return at;
        }
        at += 1;
    }
    if text(at) == "{" {
        return read_group(tokens, at + 1, &path.segments, paths);
    }
    paths.push(path);
    at
}

/// Reads the paths up to the brace that closes their group.
fn read_group(tokens: &[Token], mut at: usize, prefix: &[String], paths: &mut Vec<ModulePath>) -> usize {
    while at < tokens.len() && tokens[at].text != "}" {
        at = read_path(tokens, at, prefix, paths);
        // `as name` does not belong to the path.
        while at < tokens.len() && !matches!(tokens[at].text.as_str(), "," | "}") {
            at += 1;
        }
        at += usize::from(at < tokens.len() && tokens[at].text == ",");
    }
    at + 1
}

struct Token {
    line: usize,
    text: String,
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Names, `::` and single signs. Comments and literals are left out.
fn tokens(source: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (source, 1);
    while !rest.is_empty() {
        let (length, is_code) = next(rest);
        let (text, after) = rest.split_at(length);
        if is_code && !text.trim().is_empty() {
            let text = text.to_owned();
            tokens.push(Token { line, text });
        }
        line += text.matches('\n').count();
        rest = after;
    }
    tokens
}

/// How many bytes come next as one piece, and whether they are code.
fn next(rest: &str) -> (usize, bool) {
    let until = |end: &str, from: usize| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    let first = rest.chars().next().map_or(1, char::len_utf8);
    if rest.starts_with("//") {
        return (until("\n", 0), false);
    }
    if rest.starts_with("/*") {
        return (until("*/", 2), false);
    }
    if let Some(hashes) = raw_string(rest) {
        return (until(&format!("\"{}", "#".repeat(hashes)), hashes + 2), false);
    }
    if rest.starts_with('"') {
        return (string(rest), false);
    }
    if rest.starts_with("'\\") {
        return (until("'", 3), false);
    }
    if rest.starts_with('\'') && rest.chars().nth(2) == Some('\'') {
        return (until("'", 1), false);
    }
    if rest.starts_with("::") {
        return (2, true);
    }
    let name = rest.find(|next: char| !next.is_alphanumeric() && next != '_');
    match name.unwrap_or(rest.len()) {
        0 => (first, true),
        length => (length, true),
    }
}

/// The number of hashes, if a raw string begins here.
fn raw_string(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix('r')?;
    let opening = after.trim_start_matches('#');
    opening.starts_with('"').then(|| after.len() - opening.len())
}

/// The length of the string that begins here.
fn string(rest: &str) -> usize {
    let mut escaped = false;
    let end = rest.char_indices().skip(1).find(|(_, next)| {
        let ends = *next == '"' && !escaped;
        escaped = *next == '\\' && !escaped;
        ends
    });
    end.map_or(rest.len(), |(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings in a file of this name with this source.
    fn found(file: &str, source: &str) -> Vec<String> {
        check(&Path::new("src").join(file), source)
    }

    #[test]
    fn an_arrow_that_points_up_is_found() {
        assert_eq!(
            found("outbox/mark/mod.rs", "\nuse crate::tasks::relay;\n"),
            ["src/outbox/mark/mod.rs:2: outbox → tasks (crate::tasks::relay)"]
        );
        assert_eq!(found("domain/row.rs", "use crate::clock;").len(), 1);
        assert_eq!(found("metrics.rs", "use crate::outbox::Outbox;").len(), 1);
        assert_eq!(found("verify/judge.rs", "use crate::tasks::fenced;").len(), 1);
        assert_eq!(found("http.rs", "use crate::domain::row::Row;").len(), 1);
        assert_eq!(found("config/args.rs", "use crate::lanes::Lanes;").len(), 1);
        assert_eq!(found("daemon.rs", "use crate::verify::Judge;").len(), 1);
        assert_eq!(found("cli/run.rs", "use crate::tasks::relay;").len(), 1);
    }

    #[test]
    fn rooms_beside_each_other_do_not_know_each_other() {
        for (file, other) in [("lanes.rs", "outbox"), ("kafka.rs", "lanes"), ("outbox.rs", "kafka")] {
            assert_eq!(found(file, &format!("use crate::{other}::Thing;")).len(), 1, "{file}");
        }
    }

    #[test]
    fn an_arrow_that_points_down_is_allowed() {
        let nothing: [&str; 0] = [];
        assert_eq!(
            found("tasks/relay.rs", "use crate::{lanes, outbox, kafka, jitter, domain};"),
            nothing
        );
        assert_eq!(
            found("kafka/topics.rs", "use crate::clock::Clock; use super::Error;"),
            nothing
        );
        assert_eq!(
            found("metrics.rs", "use crate::domain::sample; use crate::clock::Clock;"),
            nothing
        );
        assert_eq!(found("http.rs", "use crate::{health, metrics};"), nothing);
        assert_eq!(
            found("domain/row.rs", "pub(crate) use crate::domain::partition::Partition;"),
            nothing
        );
    }

    #[test]
    fn every_way_to_write_a_path_is_read() {
        let group = "use crate::{\n    domain::row,\n    lanes::{self as here, Lanes},\n    kafka,\n};";
        assert_eq!(
            found("outbox.rs", group),
            [
                "src/outbox.rs:3: outbox → lanes (crate::lanes::self)",
                "src/outbox.rs:3: outbox → lanes (crate::lanes::Lanes)",
                "src/outbox.rs:4: outbox → kafka (crate::kafka)",
            ]
        );
        assert_eq!(
            found("lanes.rs", "fn f(x: Vec<crate::outbox::Row>) {}").len(),
            1,
            "inline"
        );
        assert_eq!(
            found("lanes.rs", "fn f() { crate::outbox::read::<u8>() }").len(),
            1,
            "a call"
        );
        assert_eq!(
            found("lanes.rs", "use super::outbox;").len(),
            1,
            "above a file at the root"
        );
        assert_eq!(
            found("lanes/floors.rs", "use super::super::outbox;").len(),
            1,
            "above a room"
        );
        assert_eq!(found("lanes/floors.rs", "use crate::*;").len(), 1, "everything");
    }

    #[test]
    fn what_is_no_code_of_the_product_is_skipped() {
        let source = r###"
            /// See [crate::tasks].
            /* crate::tasks */
            const TEXTS: [&str; 3] = ["crate::tasks", "\"crate::tasks", r#""crate::tasks"#];
            fn quote<'a>(_: &'a u8) -> [char; 2] { ['"', '\''] }
        "###;
        assert_eq!(
            paths(source)
                .iter()
                .filter(|path| path.text() == "crate::tasks")
                .count(),
            0
        );
        let tests = "#[cfg(test)]\nmod tests {\n    use crate::tasks;\n}\n";
        assert!(found("outbox.rs", tests).is_empty());
        assert_eq!(
            found("outbox.rs", &format!("{tests}use crate::tasks;")).len(),
            1,
            "what follows"
        );
    }

    #[test]
    fn subjects_of_the_outbox_do_not_know_each_other() {
        assert_eq!(
            found("outbox/claim/mod.rs", "use super::mark::Mark;"),
            ["src/outbox/claim/mod.rs:1: outbox::claim → outbox::mark (super::mark::Mark)"]
        );
        assert_eq!(found("outbox/hold/mod.rs", "use crate::outbox::lease::Peer;").len(), 1);
        assert!(found("outbox/claim/mod.rs", "use super::row; use super::hold::insert_holds;").is_empty());
        assert!(
            found(
                "outbox.rs",
                "use self::claim::ClaimedRows; use crate::outbox::mark::Mark;"
            )
            .is_empty()
        );
    }

    #[test]
    fn a_client_library_has_one_user() {
        assert_eq!(
            found("tasks/relay.rs", "use rdkafka::ClientConfig;"),
            ["src/tasks/relay.rs:1: tasks → rdkafka, which only kafka may use"]
        );
        assert_eq!(found("config.rs", "type Row = tokio_postgres::Row;").len(), 1);
        assert!(found("kafka/admin.rs", "use rdkafka::admin;").is_empty());
        assert!(found("outbox/row.rs", "use tokio_postgres::Row;").is_empty());
    }

    #[test]
    fn the_domain_is_pure() {
        assert_eq!(
            found("domain/retry.rs", "fn now() { std::time::Instant::now() }"),
            ["src/domain/retry.rs:1: domain → Instant::now, which it must be given"]
        );
        assert_eq!(found("domain/retry.rs", "fn now() { SystemTime::now() }").len(), 1);
        assert_eq!(found("domain/retry.rs", "fn wait() { fastrand::f64() }").len(), 1);
        assert_eq!(found("domain/retry.rs", "use std::{collections, fs};").len(), 1);
        assert!(found("tasks/relay.rs", "fn now() { Instant::now() }").is_empty());
    }

    #[test]
    fn a_file_that_no_room_names_is_found() {
        assert_eq!(
            found("helpers.rs", ""),
            ["src/helpers.rs: no entry in ROOMS says what helpers may use"]
        );
        assert_eq!(found("helpers/mod.rs", "").len(), 1);
    }
}
