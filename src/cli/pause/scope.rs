//! What is paused or resumed, as flags.

use clap::Args;

use crate::config::Check;
use crate::domain::pause::{KEY_BYTES_MAX, is_topic_name};
use crate::outbox::PauseScope;

/// A topic, a key of it, or everything.
#[derive(Args, Clone, Debug)]
pub struct ScopeArgs {
    /// The topic
    #[arg(long, value_name = "TOPIC", required_unless_present = "all")]
    topic: Option<String>,

    /// One key of the topic; other keys, and rows without a key, are not affected
    #[arg(long, value_name = "KEY", requires = "topic", conflicts_with = "all")]
    key: Option<String>,

    /// Everything
    #[arg(long, conflicts_with = "topic")]
    all: bool,
}

impl ScopeArgs {
    pub fn scope(&self, check: &mut Check) -> PauseScope<'_> {
        if let Some(topic) = &self.topic {
            check.ensure(
                is_topic_name(topic),
                format!("--topic {topic:?} is not a name that a Kafka topic can have"),
            );
        }
        if let Some(key) = &self.key {
            check.ensure(
                key.len() <= KEY_BYTES_MAX,
                format!("--key is not a key that a message can have: at most {KEY_BYTES_MAX} bytes of text"),
            );
        }
        PauseScope {
            topic: self.topic.as_deref(),
            key: self.key.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        scope: ScopeArgs,
    }

    fn parsed(args: &[&str]) -> Option<ScopeArgs> {
        let args = ["outboxd"].into_iter().chain(args.iter().copied());
        Some(Command::try_parse_from(args).ok()?.scope)
    }

    #[test]
    fn a_scope_is_a_topic_a_key_of_it_or_everything() {
        let said = |args: &[&str]| {
            let scope = parsed(args)?;
            let scope = Check::run(|check| Some(scope.scope(check))).ok()?;
            Some(crate::words::paused(scope.topic, scope.key))
        };
        let is = |said: Option<String>, expected: &str| assert_eq!(said.as_deref(), Some(expected));
        is(said(&["--topic", "orders"]), "topic orders");
        is(
            said(&["--topic", "orders", "--key", "a\u{7}b"]),
            r#"key "a\u{7}b" of topic orders"#,
        );
        is(said(&["--topic", "orders", "--key", ""]), r#"key "" of topic orders"#);
        is(said(&["--all"]), "everything");
        let long = "k".repeat(1025);
        for refused in [
            &[] as &[&str],
            &["--key", "7"],
            &["--all", "--topic", "orders"],
            &["--all", "--key", "7"],
            &["--topic", "no topic"],
            &["--topic", ".."],
            &["--topic", ""],
            &["--topic", "orders", "--key", long.as_str()],
        ] {
            assert_eq!(said(refused), None, "{refused:?}");
        }
    }
}
