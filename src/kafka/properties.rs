//! The properties that the user gives, by flags and in a file, and those that we do not accept.

use std::collections::HashSet;

use secrecy::{ExposeSecret as _, SecretString};

/// Properties that would break a promise, with the reason and what to use instead.
const REFUSED: &[(&[&str], &str)] = &[
    (&["bootstrap.servers", "metadata.broker.list"], "use --kafka-brokers"),
    (
        &["acks", "request.required.acks"],
        "always all: an acknowledged row must survive the loss of a broker",
    ),
    (
        &["enable.idempotence"],
        "always on: a retry inside the client must not make a duplicate or break order",
    ),
    (
        &["enable.gapless.guarantee"],
        "always on for batches: nothing may pass a refused row of its key",
    ),
    (
        &["max.in.flight", "max.in.flight.requests.per.connection"],
        "set by outboxd: more than five in flight breaks order",
    ),
    (
        &["retries", "message.send.max.retries"],
        "the batch deadline decides how long is retried: use --batch-deadline",
    ),
    (
        &["message.timeout.ms", "delivery.timeout.ms"],
        "derived from --batch-deadline, so that a send never outlives its lease",
    ),
    (&["transactional.id"], "outboxd owns transactions"),
    (
        &["partitioner"],
        "outboxd computes the partition as the Java client does",
    ),
    (&["queue.buffering.max.messages"], "sized by outboxd: use --batch-rows"),
    (
        &["queue.buffering.max.kbytes"],
        "sized by outboxd: use --max-in-flight-bytes",
    ),
    (&["queuing.strategy"], "always fifo: order"),
    (
        &["batch.size"],
        "fixed by outboxd: the search for a refused row relies on it",
    ),
    (&["message.max.bytes"], "the topic's own limit decides"),
    (&["delivery.report.only.error"], "every row needs its report"),
    (
        &["sasl.oauthbearer.config", "enable.sasl.oauthbearer.unsecure.jwt"],
        "tokens come from --kafka-token-file, --kafka-token-command or sasl.oauthbearer.method=oidc",
    ),
    (
        &["sasl.oauthbearer.extensions"],
        "the client library cannot send extensions with a token that it was given",
    ),
    (
        &["sasl.oauthbearer.metadata.authentication.type"],
        "a cloud's own token is fetched by a program: use --kafka-token-command",
    ),
    (
        &["https.ca.pem"],
        "the CA of the token's issuer is read from a file: use https.ca.location",
    ),
];

/// Properties that have two names: the other name, and the one by which the client library knows it.
const ALIASES: [(&str, &str); 3] = [
    ("sasl.mechanism", "sasl.mechanisms"),
    (
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.id",
    ),
    (
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.client.secret",
    ),
];

/// Why the user may not set this property, if so.
fn refusal(name: &str) -> Option<&'static str> {
    let (_, reason) = REFUSED.iter().find(|(names, _)| names.contains(&name))?;
    Some(reason)
}

/// Where the user gave a property.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Origin {
    Flag,
    File,
}

/// A property that the user gave. Its value may be a secret.
#[derive(Clone, Debug)]
pub struct Property {
    /// As the user wrote it.
    pub name: String,
    pub value: SecretString,
    origin: Origin,
}

impl Property {
    /// One that was given by flag.
    pub fn flag(name: &str, value: &str) -> Self {
        Property {
            name: name.to_owned(),
            value: value.into(),
            origin: Origin::Flag,
        }
    }

    /// The name by which the client library knows it.
    pub fn canonical(&self) -> &str {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == self.name);
        alias.map_or(&self.name, |(_, canonical)| canonical)
    }

    pub fn value(&self) -> &str {
        self.value.expose_secret()
    }

    /// How a problem with it begins.
    pub fn label(&self) -> String {
        self.origin.label(&self.name)
    }
}

impl Origin {
    fn label(self, name: &str) -> String {
        match self {
            Origin::Flag => format!("--kafka-property {name}"),
            Origin::File => format!("--kafka-properties-file: {name}"),
        }
    }
}

/// The value of a property by the name that the client library uses, if the user gave one.
pub fn value<'a>(own: &'a [Property], canonical: &str) -> Option<&'a str> {
    find(own, canonical).map(Property::value)
}

/// The property with this name, which is the one that the client library uses.
pub fn find<'a>(own: &'a [Property], canonical: &str) -> Option<&'a Property> {
    own.iter().find(|property| property.canonical() == canonical)
}

/// Parses properties given as `name=value`, by flags. Also returns the problems of those that we do not accept.
pub fn of_flags(given: &[SecretString]) -> (Vec<Property>, Vec<String>) {
    let given = given.iter().map(|property| property.expose_secret().trim());
    let form = |_| "--kafka-property needs the form name=value".to_owned();
    parse(given.filter(|property| !property.is_empty()), Origin::Flag, form)
}

/// The same for the text of a file: one property a line, with `#` or `!` before comments. A value is taken as it is written, so a
/// backslash is a backslash.
pub fn of_file(text: &SecretString) -> (Vec<Property>, Vec<String>) {
    let lines = text.expose_secret().lines().map(|line| match line.trim() {
        comment if comment.starts_with(['#', '!']) => "",
        line => line,
    });
    let form = |line| format!("--kafka-properties-file, line {line}: needs the form name=value");
    parse(lines, Origin::File, form)
}

/// Parses each text that is not empty. `form` is the problem of one that is no property, by its number.
fn parse<'a>(
    texts: impl Iterator<Item = &'a str>,
    origin: Origin,
    form: impl Fn(usize) -> String,
) -> (Vec<Property>, Vec<String>) {
    let (mut own, mut problems) = (Vec::new(), Vec::new());
    for (text, number) in texts.zip(1..).filter(|(text, _)| !text.is_empty()) {
        // The value may be a secret: only the name is ever repeated. A line of a key in PEM may end in an equals sign, too.
        let named = text.split_once('=').map(|(name, value)| (name.trim(), value));
        let Some((name, value)) = named.filter(|(name, _)| is_name(name)) else {
            problems.push(form(number));
            continue;
        };
        match refusal(name) {
            Some(reason) => problems.push(format!("{} is not yours to set: {reason}", origin.label(name))),
            None => own.push(Property {
                name: name.to_owned(),
                value: value.trim_start().into(),
                origin,
            }),
        }
    }
    (own, problems)
}

/// Can this be the name of a property?
fn is_name(text: &str) -> bool {
    let is_of_names = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_');
    !text.is_empty() && text.bytes().all(is_of_names)
}

/// Each property once. What is given later wins, and a flag wins over the file.
pub fn merge(file: Vec<Property>, flags: Vec<Property>) -> Vec<Property> {
    let mut seen = HashSet::new();
    let mut merged: Vec<Property> = file
        .into_iter()
        .chain(flags)
        .rev()
        .filter(|property| seen.insert(property.canonical().to_owned()))
        .collect();
    merged.reverse();
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_key_is_no_property_and_is_never_repeated() {
        let pem = "ssl.key.pem=-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANs3cret\nQ0Fz/s3cret+==\n=s3cret\n";
        let (own, problems) = of_file(&pem.into());
        assert_eq!(
            own.iter().map(|own| own.name.as_str()).collect::<Vec<_>>(),
            ["ssl.key.pem"]
        );
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(
            problems.iter().all(|problem| !problem.contains("s3cret")),
            "{problems:?}"
        );
        let (_, problems) = of_flags(&["s3cret/+Q==".into()]);
        assert_eq!(problems, ["--kafka-property needs the form name=value"]);
    }

    #[test]
    fn what_breaks_a_promise_is_refused_with_a_reason_and_the_rest_is_not() {
        assert!(refusal("acks").is_some_and(|why| why.contains("survive")));
        assert!(refusal("enable.idempotence").is_some());
        assert!(refusal("message.timeout.ms").is_some());
        assert_eq!(refusal("sasl.username"), None);
        assert_eq!(refusal("compression.type"), None);
    }

    fn pairs(own: &[Property]) -> Vec<(&str, &str)> {
        own.iter()
            .map(|property| (property.name.as_str(), property.value()))
            .collect()
    }

    #[test]
    fn a_file_has_a_property_a_line_and_comments() {
        let text = "# comment\n\nsasl.username = relay\r\n! comment\nsasl.password=a=b\\c # d\nacks=1\nhunter2\n";
        let (own, problems) = of_file(&text.into());
        assert_eq!(
            pairs(&own),
            [("sasl.username", "relay"), ("sasl.password", "a=b\\c # d")]
        );
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].starts_with("--kafka-properties-file: acks"), "{problems:?}");
        assert!(problems[1].contains("line 7"), "{problems:?}");
        assert!(
            !format!("{own:?}{problems:?}").contains("hunter2"),
            "{own:?}{problems:?}"
        );
        assert!(!format!("{own:?}").contains("a=b"), "{own:?}");
    }

    #[test]
    fn a_flag_wins_over_the_file_under_either_name() {
        let (file, _) = of_file(&"sasl.mechanism=PLAIN\nsasl.username=a\nsasl.username=b".into());
        let (flags, _) = of_flags(&["sasl.mechanisms=SCRAM-SHA-512".into()]);
        let own = merge(file, flags);
        assert_eq!(
            pairs(&own),
            [("sasl.username", "b"), ("sasl.mechanisms", "SCRAM-SHA-512")]
        );
        assert_eq!(value(&own, "sasl.mechanisms"), Some("SCRAM-SHA-512"));
        assert_eq!(value(&own, "sasl.password"), None);
    }
}
