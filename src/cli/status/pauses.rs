//! What operators have paused, in `outboxd status`.

use std::fmt::Write as _;

use super::render::{age, plain};
use crate::cli::pause::describe;
use crate::outbox::PauseStatus;

pub fn write_pauses(out: &mut String, pauses: &[PauseStatus]) -> std::fmt::Result {
    if !pauses.is_empty() {
        writeln!(out, "\nPaused")?;
    }
    for pause in pauses {
        writeln!(
            out,
            "  {}: {}, by {}, {} ago",
            describe(pause.topic.as_deref(), pause.key.as_deref()),
            plain(&pause.reason),
            plain(&pause.login),
            age(pause.age_seconds)
        )?;
    }
    Ok(())
}

/// How to end the pause that covers most.
pub fn advice(pauses: &[PauseStatus]) -> Option<String> {
    let pause = pauses.first()?;
    let what = describe(pause.topic.as_deref(), pause.key.as_deref());
    let flags = match (&pause.topic, &pause.key) {
        (None, _) => "--all".to_owned(),
        (Some(topic), None) => format!("--topic {}", shell_words::quote(topic)),
        (Some(topic), Some(key)) => format!(
            "--topic {} --key {}",
            shell_words::quote(topic),
            shell_words::quote(key)
        ),
    };
    let more = match pauses.len() {
        1 => String::new(),
        count => format!(" ({} more are paused)", count - 1),
    };
    let flags = plain(&flags);
    Some(format!(
        "An operator has paused {what}: once the reason is gone, outboxd resume {flags}{more}."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(topic: Option<&str>, key: Option<&str>) -> PauseStatus {
        PauseStatus {
            topic: topic.map(str::to_owned),
            key: key.map(str::to_owned),
            reason: "broken consumer".to_owned(),
            login: "alice".to_owned(),
            age_seconds: 90.0,
        }
    }

    #[test]
    fn a_pause_is_shown_with_its_reason_and_age_and_the_command_that_ends_it() {
        let shown = |pauses: &[PauseStatus]| {
            let mut out = String::new();
            write_pauses(&mut out, pauses).expect("written");
            out
        };
        assert_eq!(shown(&[]), "");
        assert_eq!(advice(&[]), None);
        let pauses = [pause(None, None), pause(Some("orders"), Some("o'brien"))];
        assert_eq!(
            shown(&pauses),
            "\nPaused\n  everything: broken consumer, by alice, 1m 30s ago\n  \
             key \"o'brien\" of topic orders: broken consumer, by alice, 1m 30s ago\n"
        );
        let said = advice(&pauses).expect("advice");
        assert!(said.contains("outboxd resume --all (1 more"), "{said}");
        let said = advice(&pauses[1..]).expect("advice");
        let flags = said.split("outboxd resume ").nth(1).expect("a command");
        let flags = shell_words::split(flags.trim_end_matches('.')).expect("words");
        assert_eq!(flags, ["--topic", "orders", "--key", "o'brien"]);
    }
}
