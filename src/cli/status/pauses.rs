//! What operators have paused, in `outboxd status`.

use std::fmt::Write as _;

use super::render::plain;
use crate::outbox::PauseStatus;
use crate::words::{age, paused, resume};

pub fn write_pauses(out: &mut String, pauses: &[PauseStatus]) -> std::fmt::Result {
    if !pauses.is_empty() {
        writeln!(out, "\nPaused")?;
    }
    for pause in pauses {
        writeln!(
            out,
            "  {}: {}, by {}, {} ago",
            paused(pause.topic.as_deref(), pause.key.as_deref()),
            plain(&pause.reason),
            plain(&pause.login),
            age(pause.age_seconds)
        )?;
    }
    Ok(())
}

/// How to end the pause that covers most.
pub fn advice(pauses: &[PauseStatus], schema: &str) -> Option<String> {
    let pause = pauses.first()?;
    let (topic, key) = (pause.topic.as_deref(), pause.key.as_deref());
    let (what, resume) = (paused(topic, key), resume(topic, key, schema));
    let more = match pauses.len() {
        1 => String::new(),
        count => format!(" ({} more are paused)", count - 1),
    };
    Some(format!(
        "An operator has paused {what}: once the reason is gone, {resume}{more}."
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
        assert_eq!(advice(&[], "outbox"), None);
        let pauses = [pause(None, None), pause(Some("orders"), Some("o'brien"))];
        assert_eq!(
            shown(&pauses),
            "\nPaused\n  everything: broken consumer, by alice, 1m 30s ago\n  \
             key \"o'brien\" of topic orders: broken consumer, by alice, 1m 30s ago\n"
        );
        let said = advice(&pauses, "outbox").expect("advice");
        assert!(said.contains("outboxd resume --all (1 more"), "{said}");
        let said = advice(&pauses[1..], "outbox").expect("advice");
        let flags = said.split("outboxd resume ").nth(1).expect("a command");
        let flags = shell_words::split(flags.trim_end_matches('.')).expect("words");
        assert_eq!(flags, ["--topic", "orders", "--key", "o'brien"]);
    }
}
