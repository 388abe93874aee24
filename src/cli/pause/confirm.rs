//! Asks before something is paused or resumed, with the number of rows that it is about.

use serde_json::{Value, json};

use crate::cli::Failure;
use crate::cli::operation::{ConfirmArgs, is_confirmed};
use crate::outbox::{PauseScope, PendingRows};
use crate::words::{counted, paused};

/// What a command is about to do.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// As the command line and the audit name it.
    pub command: &'static str,
    /// As a question begins: "Pause".
    pub verb: &'static str,
    pub scope: PauseScope<'a>,
    pub pending: PendingRows,
}

impl Change<'_> {
    /// "topic orders, with 1,234 pending rows"
    fn describe(self) -> String {
        let what = paused(self.scope.topic, self.scope.key);
        let rows = counted(self.pending.rows.unsigned_abs(), "pending row", "pending rows");
        let at_least = if self.pending.is_all { "" } else { "at least " };
        format!("{what}, with {at_least}{rows}")
    }

    pub fn as_json(self) -> Value {
        json!({
            "command": self.command, "topic": self.scope.topic, "key": self.scope.key,
            "pending": self.pending.rows, "pending_is_all": self.pending.is_all, "dry_run": false,
        })
    }

    /// Is the change to be made? If not, says what would have been changed.
    pub fn confirm(self, args: ConfirmArgs, as_json: bool) -> Result<bool, Failure> {
        let what = self.describe();
        if args.dry_run {
            if as_json {
                let mut said = self.as_json();
                said["dry_run"] = json!(true);
                println!("{said}");
            } else {
                println!("Would {} {what}.", self.verb.to_lowercase());
            }
            return Ok(false);
        }
        let is_confirmed = args.yes || is_confirmed(&what, "", &format!("{} {what}?", self.verb))?;
        if !is_confirmed {
            println!("Nothing was changed.");
        }
        Ok(is_confirmed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_what_is_paused_and_how_many_rows_that_is_about() {
        let described = |rows, is_all| {
            let change = Change {
                command: "pause",
                verb: "Pause",
                scope: PauseScope {
                    topic: Some("orders"),
                    key: None,
                },
                pending: PendingRows { rows, is_all },
            };
            change.describe()
        };
        assert_eq!(described(0, true), "topic orders, with 0 pending rows");
        assert_eq!(described(1, true), "topic orders, with 1 pending row");
        assert_eq!(
            described(100_000, false),
            "topic orders, with at least 100,000 pending rows"
        );
    }
}
