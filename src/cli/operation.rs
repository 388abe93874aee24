//! A command by which an operator changes something. It counts what it would change, asks, changes it in small transactions, and
//! says what it did.
//!
//! It may be killed at any moment: each transaction is whole, and the same command again does what is left.

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Map, Value, json};

use super::Failure;
use super::progress::bar;
use super::signals::Signals;
use crate::config::Check;
use crate::domain::filter::Filter;
use crate::failpoint;
use crate::outbox::operator::{Purpose, REASON_BYTES_MAX, Step};
use crate::outbox::{self, Database, Kind, Outbox};
use crate::words::operation::{Matched, Words};
use crate::words::{counted, grouped, plain};

/// A transaction never takes long. The count reads all dead letters, or all holds.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// How many topics are listed before it is asked.
const TOPICS_SHOWN: usize = 10;

/// The flags of everything that counts and asks before it changes something.
#[derive(Args, Clone, Copy, Debug)]
pub struct ConfirmArgs {
    /// Count what would be changed, and change nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Do not ask; for scripts
    #[arg(long)]
    pub yes: bool,
}

/// The flags of every operation.
#[derive(Args, Clone, Debug)]
pub struct OperationArgs {
    /// Why; kept in the audit
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,

    #[command(flatten)]
    pub confirm: ConfirmArgs,

    /// Print one JSON object, for programs
    #[arg(long)]
    pub json: bool,
}

impl OperationArgs {
    /// What the audit keeps of a change of what `filter` names.
    pub fn purpose(&self, check: &mut Check, filter: &Filter) -> Purpose {
        check_reason(check, self.reason.as_deref().unwrap_or_default());
        Purpose {
            reason: self.reason.clone(),
            filter: filter.to_json().to_string(),
        }
    }
}

/// The audit refuses a longer one.
pub fn check_reason(check: &mut Check, reason: &str) {
    let bytes = reason.len();
    check.ensure(
        bytes <= REASON_BYTES_MAX,
        format!("--reason has {bytes} bytes; {REASON_BYTES_MAX} are allowed"),
    );
}

/// What a command has to say about its operation besides counts. It may add to this while the operation runs.
#[derive(Debug, Default)]
pub struct Details {
    /// Lines for people, shown before it is asked and after a dry run.
    pub preview: String,
    /// Members of the JSON object.
    pub json: Map<String, Value>,
}

/// An operation in progress.
pub struct Operation<'a> {
    words: &'a Words,
    args: &'a OperationArgs,
    matched: Matched,
    details: Option<&'a RefCell<Details>>,
    began: Instant,
    /// Its id in the audit, once something has been changed.
    id: Option<i64>,
    changed: u64,
    stopped: bool,
}

impl<'a> Operation<'a> {
    pub fn new(words: &'a Words, args: &'a OperationArgs, matched: Matched) -> Self {
        Operation {
            words,
            args,
            matched,
            details: None,
            began: Instant::now(),
            id: None,
            changed: 0,
            stopped: false,
        }
    }

    pub fn with_details(self, details: &'a RefCell<Details>) -> Self {
        Operation {
            details: Some(details),
            ..self
        }
    }

    /// Confirms the operation, and then runs `change` on each chunk, a transaction each. It is given the operation's id, once there
    /// is one.
    pub async fn run<T>(
        mut self,
        chunks: impl IntoIterator<Item = T>,
        mut change: impl AsyncFnMut(T, Option<i64>) -> outbox::Result<Step>,
    ) -> Result<(), Failure> {
        if self.matched.rows() == 0 || self.args.confirm.dry_run || !self.is_confirmed()? {
            return self.report();
        }
        let stop = Signals::listen()?.stop;
        let bar = bar(self.matched.rows(), BAR).with_prefix(self.words.command);
        for chunk in chunks {
            failpoint::hit("before_chunk").await;
            if stop.is_cancelled() {
                self.stopped = true;
                break;
            }
            match change(chunk, self.id).await {
                Ok(step) => self.note(step),
                Err(error) => {
                    bar.finish_and_clear();
                    self.say_how_far();
                    return Err(failure(error));
                }
            }
            bar.set_position(self.changed);
        }
        bar.finish_and_clear();
        self.report()
    }

    fn note(&mut self, step: Step) {
        self.id = step.operation.or(self.id);
        self.changed += u64::from(step.changed.unsigned_abs());
    }

    /// Asks, unless told not to.
    fn is_confirmed(&self) -> Result<bool, Failure> {
        if self.args.confirm.yes {
            return Ok(true);
        }
        let matched = self.matched.describe(self.words);
        is_confirmed(&matched, &self.preview(), &format!("{} {matched}?", self.words.verb))
    }

    /// What an operator should see before anything is changed.
    fn preview(&self) -> String {
        let details = self.details.map(|details| details.borrow().preview.clone());
        let preview = by_topic(&self.matched) + details.as_deref().unwrap_or_default();
        preview.trim_end().to_owned()
    }

    /// After an error in the middle: what has been changed stays changed.
    fn say_how_far(&self) {
        if let Some(operation) = self.id {
            eprintln!("outboxd: {} as operation {operation} before this error:", self.so_far());
        }
    }

    fn so_far(&self) -> String {
        let (one, many) = self.words.nouns;
        let matched = counted(self.matched.rows(), one, many);
        format!("{} {} of {matched}", self.words.done, grouped(self.changed))
    }

    fn report(&self) -> Result<(), Failure> {
        if self.args.json {
            println!("{}", self.as_json());
        } else {
            println!("{}", self.as_text());
        }
        match self.stopped {
            true => Err(Failure::Stopped(
                "stopped by a signal; the same command again does the rest".to_owned(),
            )),
            false => Ok(()),
        }
    }

    fn as_text(&self) -> String {
        let (matched, words) = (self.matched.describe(self.words), self.words);
        if self.matched.rows() == 0 {
            return format!("Nothing to do: no {} matches.", words.nouns.0);
        }
        if self.args.confirm.dry_run {
            return format!("Would {} {matched}.\n{}", words.verb.to_lowercase(), self.preview());
        }
        let Some(operation) = self.id else {
            return format!("Nothing was changed; {matched} matched.");
        };
        let seconds = self.began.elapsed().as_secs_f64();
        let left = match self.matched.rows().saturating_sub(self.changed) {
            0 => String::new(),
            _ if self.stopped => String::new(),
            left => format!(" {} changed meanwhile, and were left alone.", grouped(left)),
        };
        format!("{} ({seconds:.1} s, operation {operation}).{left}", self.so_far())
    }

    fn as_json(&self) -> Value {
        let topics = self.matched.topics.iter().cloned();
        let topics: Map<String, Value> = topics.map(|(topic, rows)| (topic, json!(rows))).collect();
        let mut json = json!({
            "command": self.words.command,
            "operation": self.id,
            "matched": self.matched.rows(),
            "topics": topics,
            "changed": self.changed,
            "dry_run": self.args.confirm.dry_run,
            "stopped": self.stopped,
            "seconds": self.began.elapsed().as_secs_f64(),
        });
        if let Some(details) = self.details {
            for (name, value) in &details.borrow().json {
                json[name] = value.clone();
            }
        }
        json
    }
}

/// A line for each topic, those with the most rows first.
fn by_topic(matched: &Matched) -> String {
    let topics = matched.by_rows();
    let lines = topics.iter().take(TOPICS_SHOWN);
    let lines = lines.map(|(topic, rows)| format!("  {:>9}  {}\n", grouped(*rows), plain(topic)));
    let mut text: String = lines.collect();
    if topics.len() > TOPICS_SHOWN {
        text += &format!("  {:>9}  of {} more topics\n", "…", topics.len() - TOPICS_SHOWN);
    }
    text
}

const BAR: &str = "{prefix} {bar:40.green} {pos}/{len} rows";

/// Shows what would be changed, and asks. Without a terminal nobody would answer.
pub fn is_confirmed(what: &str, preview: &str, question: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::Usage(format!("nobody can be asked: {what}; add --yes")));
    }
    if !preview.is_empty() {
        eprintln!("{preview}");
    }
    ask(question)
}

/// Asks a question on the terminal. Only "y" and "yes" mean yes.
fn ask(question: &str) -> Result<bool, Failure> {
    let unanswered = |error: io::Error| Failure::Usage(format!("nobody can be asked ({error}); add --yes"));
    eprint!("{question} [y/N] ");
    io::stderr().flush().map_err(unanswered)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(unanswered)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Opens the outbox for an operator.
pub async fn open(database: &Database, schema: &str) -> Result<Outbox, Failure> {
    Outbox::open(database, schema, STATEMENT_TIMEOUT).await.map_err(failure)
}

/// The failure of an operator's command. A privilege that is missing is one of the operators' role.
pub fn failure(error: outbox::Error) -> Failure {
    match error.kind() {
        Kind::Permission => Failure::OperatorOnly(error.to_string()),
        _ => Failure::Database(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(topics: &[(&str, u64)]) -> Matched {
        let topics = topics.iter().map(|(topic, rows)| ((*topic).to_owned(), *rows));
        Matched {
            topics: topics.collect(),
        }
    }

    #[test]
    fn what_matches_is_listed_by_topic() {
        let two = matched(&[("orders", 234), ("pay\nments", 1_000)]);
        assert_eq!(by_topic(&two), "      1,000  pay\\u{a}ments\n        234  orders\n");
        let many: Vec<(String, u64)> = (0..12).map(|n| (format!("t{n}"), 1)).collect();
        let shown = by_topic(&Matched { topics: many });
        assert_eq!(shown.lines().count(), 11);
        assert!(shown.ends_with("…  of 2 more topics\n"), "{shown}");
    }
}
