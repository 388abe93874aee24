//! Which series and labels a PromQL expression names.

/// What an expression names.
#[derive(Debug, Default, PartialEq)]
pub struct Named<'a> {
    /// Each series, and the labels that are matched.
    pub series: Vec<(&'a str, Vec<&'a str>)>,
    /// The labels that are grouped or joined by.
    pub labels: Vec<&'a str>,
}

/// Words before a list of labels.
const BEFORE_LABELS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Other words that may stand without parentheses behind them. An aggregation may have its labels between.
const WORDS: [&str; 11] = [
    "and", "or", "unless", "bool", "offset", "sum", "min", "max", "avg", "count", "group",
];

pub fn named(expression: &str) -> Named<'_> {
    let mut named = Named::default();
    let mut rest = expression;
    while let Some(c) = rest.chars().next() {
        if c.is_ascii_alphabetic() || c == '_' {
            let (word, after) = rest.split_at(word_length(rest));
            rest = note(&mut named, word, after.trim_start());
        } else if c.is_ascii_digit() {
            rest = &rest[number_length(rest)..];
        } else if let Some(end) = end_of(c) {
            // A text, or a range.
            rest = after(&rest[1..], end);
        } else {
            rest = &rest[c.len_utf8()..];
        }
    }
    named
}

/// Notes a word that is followed by this, and returns what is left.
fn note<'a>(named: &mut Named<'a>, word: &'a str, next: &'a str) -> &'a str {
    if BEFORE_LABELS.contains(&word) && next.starts_with('(') {
        let end = next.find(')').expect("a closed list");
        named.labels.extend(next[1..end].split(',').map(str::trim));
        return &next[end..];
    }
    if WORDS.contains(&word) || BEFORE_LABELS.contains(&word) || next.starts_with('(') {
        return next;
    }
    let Some(mut matchers) = next.strip_prefix('{') else {
        named.series.push((word, Vec::new()));
        return next;
    };
    let mut labels = Vec::new();
    while let Some(at) = matchers.find(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '}') {
        matchers = &matchers[at..];
        if matchers.starts_with('}') {
            break;
        }
        labels.push(&matchers[..word_length(matchers)]);
        // The value may have anything in it.
        matchers = after(after(matchers, '"'), '"');
    }
    named.series.push((word, labels));
    matchers
}

fn word_length(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':')
        .unwrap_or(text.len())
}

fn number_length(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '.')
        .unwrap_or(text.len())
}

/// Where what begins with this ends, if it is left out.
fn end_of(begin: char) -> Option<char> {
    match begin {
        '"' => Some('"'),
        '\'' => Some('\''),
        '[' => Some(']'),
        _ => None,
    }
}

/// What follows the next one of these.
fn after(text: &str, end: char) -> &str {
    text.split_once(end).map_or("", |(_, rest)| rest)
}

#[test]
fn series_and_labels_are_found() {
    let of_an_alert =
        "max by (job, topic) (rate(a_total{reason=~\"x|y{\", job='z'}[1h:5m])) > 5e3\nunless on (job) b:c == 0";
    assert_eq!(
        named(&of_an_alert.replace('\'', "\"")),
        Named {
            series: vec![("a_total", vec!["reason", "job"]), ("b:c", vec![])],
            labels: vec!["job", "topic", "job"],
        }
    );
    let of_a_panel = "histogram_quantile(0.99, sum by (le)(rate(h_bucket[$__rate_interval]))) - time()";
    assert_eq!(
        named(of_a_panel),
        Named {
            series: vec![("h_bucket", vec![])],
            labels: vec!["le"],
        }
    );
}
