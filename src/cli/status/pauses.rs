//! What operators have paused, in `outboxd status`.

use std::fmt::Write as _;

use crate::outbox::PauseStatus;
use crate::words::{age, paused, plain};

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
    fn a_pause_is_shown_with_its_reason_and_age() {
        let shown = |pauses: &[PauseStatus]| {
            let mut out = String::new();
            write_pauses(&mut out, pauses).expect("written");
            out
        };
        assert_eq!(shown(&[]), "");
        let pauses = [pause(None, None), pause(Some("orders"), Some("o'brien"))];
        assert_eq!(
            shown(&pauses),
            "\nPaused\n  everything: broken consumer, by alice, 1m 30s ago\n  \
             key \"o'brien\" of topic orders: broken consumer, by alice, 1m 30s ago\n"
        );
    }
}
