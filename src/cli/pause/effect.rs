//! Waits until every live worker obeys what was paused or resumed, and says so.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::cli::Failure;
use crate::config::Check;
use crate::outbox::{Outbox, WorkerAndPauses};

/// A pause is a few rows, so it is stored at once or not at all.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(25);
/// How often the workers are asked for.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// After this long it is said who is waited for.
const SAY_AFTER: Duration = Duration::from_secs(5);

#[derive(Args, Clone, Debug)]
pub struct EffectArgs {
    /// Do not wait until every live worker obeys
    #[arg(long)]
    no_wait: bool,

    /// How long to wait for the workers at most
    #[arg(long, default_value = "60s", value_name = "DURATION", conflicts_with = "no_wait")]
    timeout: String,

    /// Print one JSON object, for programs
    #[arg(long)]
    pub json: bool,
}

impl EffectArgs {
    /// `None`: do not wait.
    pub fn longest_wait(&self, check: &mut Check) -> Option<Duration> {
        let timeout = check.duration("--timeout", &self.timeout);
        (!self.no_wait).then_some(timeout)
    }
}

/// Which workers obey, and after how long.
#[derive(Debug)]
pub struct Effect {
    workers: Vec<WorkerAndPauses>,
    took: Duration,
    waited: bool,
}

impl Effect {
    /// Waits until every live worker obeys the pauses of this version, for as long as that may take.
    pub async fn wait(outbox: &Outbox, version: i64, longest: Option<Duration>) -> Result<Self, Failure> {
        let began = Instant::now();
        let mut is_said = false;
        loop {
            let effect = Effect {
                workers: outbox.workers_and_pauses(version).await?,
                took: began.elapsed(),
                waited: longest.is_some(),
            };
            if effect.is_everywhere() || longest.is_none_or(|longest| effect.took >= longest) {
                return Ok(effect);
            }
            if effect.took >= SAY_AFTER && !is_said {
                is_said = true;
                eprintln!("outboxd: waiting for {}", effect.others());
            }
            sleep(ASK_EVERY).await;
        }
    }

    fn is_everywhere(&self) -> bool {
        self.workers.iter().all(|worker| worker.obeys)
    }

    /// The workers that do not obey yet.
    fn waiting_for(&self) -> impl Iterator<Item = &str> {
        let others = self.workers.iter().filter(|worker| !worker.obeys);
        others.map(|worker| worker.name.as_str())
    }

    fn others(&self) -> String {
        let names: Vec<String> = self.waiting_for().map(|name| name.escape_debug().to_string()).collect();
        names.join(", ")
    }

    /// `own` with what is known of the workers.
    pub fn as_json(&self, mut own: Value) -> Value {
        own["workers"] = json!(self.workers.len());
        own["in_effect"] = json!(self.is_everywhere());
        own["waiting_for"] = json!(self.waiting_for().collect::<Vec<_>>());
        own["seconds"] = json!(self.took.as_secs_f64());
        own
    }

    pub fn summary(&self) -> String {
        let (count, seconds) = (self.workers.len(), self.took.as_secs_f64());
        let workers = if count == 1 { "worker" } else { "workers" };
        if count == 0 {
            return "no relay is running, and one that starts obeys it".to_owned();
        }
        if self.is_everywhere() {
            return format!("in effect on {count} {workers} after {seconds:.1} s");
        }
        format!("not yet in effect on {}, of {count} {workers}", self.others())
    }

    /// Fails if it was waited for in vain.
    pub fn require(&self, command: &str) -> Result<(), Failure> {
        if !self.waited || self.is_everywhere() {
            return Ok(());
        }
        Err(Failure::Unavailable(format!(
            "the {command} is stored, but after {:.0} s these workers have not said that they obey it: {}. They do so with the next \
             renewal of their lease, once their batches in flight are over. To wait again, run the same command again",
            self.took.as_secs_f64(),
            self.others()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(workers: &[(&str, bool)], waited: bool) -> Effect {
        let workers = workers.iter().map(|(name, obeys)| WorkerAndPauses {
            name: (*name).to_owned(),
            obeys: *obeys,
        });
        Effect {
            workers: workers.collect(),
            took: Duration::from_millis(2140),
            waited,
        }
    }

    #[test]
    fn it_is_said_which_workers_do_not_obey_and_that_is_a_failure_if_it_was_waited_for() {
        let all = effect(&[("a", true), ("b", true)], true);
        assert_eq!(all.summary(), "in effect on 2 workers after 2.1 s");
        assert!(all.require("pause").is_ok());
        let some = effect(&[("a", true), ("b\u{7}", false)], true);
        let failure = some.require("pause").expect_err("waited in vain");
        assert_eq!(failure.exit_code(), 69);
        assert!(failure.to_string().contains(r"b\u{7}"), "{failure}");
        assert!(effect(&[("a", false)], false).require("resume").is_ok());
        let none = effect(&[], true);
        assert!(none.summary().contains("no relay is running") && none.require("pause").is_ok());
        let json = some.as_json(json!({ "command": "pause" }));
        assert_eq!(
            (
                &json["in_effect"],
                &json["waiting_for"],
                &json["workers"],
                &json["command"]
            ),
            (&json!(false), &json!(["b\u{7}"]), &json!(2), &json!("pause"))
        );
    }
}
