//! `outboxd replay`: sends published messages again.
//!
//! A replay notes its messages when it begins, and each step takes the next of them in one transaction. So it may be stopped or
//! killed anywhere: the same command again continues it.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::Failure;
use super::operation::{Details, Operation, OperationArgs, failure};
use crate::config::{Check, DatabaseArgs, ReplayFilterArgs};
use crate::domain::filter::Filter;
use crate::domain::replay::{Rate, ReplayFilter};
use crate::outbox::operator::{CHUNK_ROWS, Step};
use crate::outbox::{self, Outbox, ReplayStep, ReplayableTopic, UnfinishedReplay};
use crate::words::operation::{Matched, Words};
use crate::words::{age, grouped, time};

#[derive(Args, Debug)]
pub struct ReplayArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    filter: ReplayFilterArgs,

    /// At most so many messages a second
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,

    /// Begin another replay even if one with this filter was stopped before its end, which is then never finished
    #[arg(long)]
    new: bool,

    #[command(flatten)]
    operation: OperationArgs,
}

const REPLAY: Words = Words {
    command: "replay",
    verb: "Replay",
    done: "Replayed",
    nouns: ("message", "messages"),
};

/// The count reads both tables, and so does the begin. A step never takes long.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(3600);
/// While more rows than this are due, no more become pending: every claim reads past those of other workers.
const DUE_MAX: i64 = 10_000;
/// Longest wait before a signal is noticed.
const NOTICE_AFTER: Duration = Duration::from_millis(250);
/// Longest wait for messages that were published just now before it is asked again whether they are old enough.
const ASK_AFTER: Duration = Duration::from_secs(2);
/// A longer wait is explained.
const EXPLAINED_WAIT: Duration = Duration::from_secs(2);
/// After this long without room for more rows it is said what may be wrong.
const EXPLAINED_BACKLOG: Duration = Duration::from_secs(30);
/// How many messages that cannot be replayed are named.
const NAMED_MAX: usize = 10;

pub async fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    let (database, filter, reason) = Check::run(|check| {
        let database = args.database.database(check);
        let filter = args.filter.filter(check);
        let reason = args.operation.purpose(check, &Filter::default()).reason;
        Some((database?, filter, reason))
    })?;
    let outbox = Outbox::open(&database, &args.database.schema, STATEMENT_TIMEOUT).await;
    let outbox = outbox.map_err(failure)?;
    let plan = Plan::of(&outbox, &filter, args.new).await.map_err(failure)?;
    let rate = Rate(args.rate);
    let details = RefCell::new(plan.details(rate));
    let operation = Operation::new(&REPLAY, &args.operation, plan.matched()).with_details(&details);
    let mut replay = Replay {
        outbox: &outbox,
        filter: &filter,
        reason: reason.as_deref(),
        operation: plan.unfinished.map(|unfinished| unfinished.operation),
        left: plan.messages(),
        reached: 0,
        pace: Pace::new(rate),
        stays: Stays::default(),
        details: &details,
    };
    let finished = Cell::new(false);
    let steps = std::iter::from_fn(|| (!finished.get()).then_some(()));
    let step = async |(): (), _: Option<i64>| {
        let (step, is_last) = replay.step().await?;
        finished.set(is_last);
        Ok(step)
    };
    let done = operation.run(steps, step).await;
    replay.stays.say();
    done
}

/// What is going to be replayed.
struct Plan {
    /// The replay that is continued.
    unfinished: Option<UnfinishedReplay>,
    topics: Vec<ReplayableTopic>,
}

impl Plan {
    async fn of(outbox: &Outbox, filter: &ReplayFilter, is_new: bool) -> outbox::Result<Self> {
        let unfinished = match is_new {
            true => None,
            false => outbox.unfinished_replay(filter).await?,
        };
        let topics = match unfinished {
            Some(replay) => outbox.replay_left(replay.operation).await?,
            None => outbox.replayable(filter).await?,
        };
        Ok(Plan { unfinished, topics })
    }

    fn messages(&self) -> i64 {
        self.topics.iter().map(|topic| topic.messages).sum()
    }

    fn matched(&self) -> Matched {
        let topics = self.topics.iter();
        let topics = topics.map(|topic| (topic.topic.clone(), topic.messages.unsigned_abs()));
        Matched {
            topics: topics.collect(),
        }
    }

    /// When the messages were published, how long the replay takes, and whether it is one that was begun before.
    fn details(&self, rate: Rate) -> Details {
        let oldest = self.topics.iter().map(|topic| topic.oldest).min();
        let newest = self.topics.iter().map(|topic| topic.newest).max();
        let seconds = rate.time_of(self.messages().unsigned_abs()).as_secs_f64();
        let mut preview = String::new();
        if let (Some(oldest), Some(newest)) = (oldest, newest) {
            preview += &format!("  published from {} to {}\n", time(oldest), time(newest));
        }
        let per_second = grouped(rate.0.into());
        preview += &format!("  takes about {} at {per_second} messages a second\n", age(seconds));
        if let Some(replay) = self.unfinished {
            let (operation, began) = (replay.operation, time(replay.began_at));
            preview += &format!("  the rest of operation {operation}, begun at {began}; --new begins another replay\n");
        }
        let json: [(&str, Value); 7] = [
            ("oldest", json!(oldest.map(time))),
            ("newest", json!(newest.map(time))),
            ("rate", json!(rate.0)),
            ("estimated_seconds", json!(seconds)),
            ("continued", json!(self.unfinished.map(|replay| replay.operation))),
            ("gone", json!(0)),
            ("conflicts", json!([])),
        ];
        Details {
            preview,
            json: Map::from_iter(json.map(|(name, value)| (name.to_owned(), value))),
        }
    }
}

/// A replay in progress.
struct Replay<'a> {
    outbox: &'a Outbox,
    filter: &'a ReplayFilter,
    reason: Option<&'a str>,
    /// `None` until it has begun.
    operation: Option<i64>,
    /// How many of its messages are not taken yet.
    left: i64,
    /// All of its messages up to this id are taken.
    reached: i64,
    pace: Pace,
    stays: Stays,
    details: &'a RefCell<Details>,
}

impl Replay<'_> {
    /// Takes the next messages if it is time for them. Returns what was changed, and whether nothing is left.
    async fn step(&mut self) -> outbox::Result<(Step, bool)> {
        let Some(operation) = self.operation().await? else {
            return Ok((Step::default(), true));
        };
        let nothing = Step {
            operation: Some(operation),
            changed: 0,
        };
        if !self.pace.wait(self.outbox).await? {
            return Ok((nothing, false));
        }
        let most = self.pace.rate.chunk(CHUNK_ROWS);
        let step = self.outbox.replay_step(operation, most, self.reached).await?;
        self.reached = step.reached;
        self.pace.note(&step);
        self.stays.note(&step);
        self.stays.add_to(&mut self.details.borrow_mut().json);
        self.left -= step.taken();
        if step.finished && self.left > 0 {
            self.stays.taken_by_others = self.left.unsigned_abs();
        }
        let changed = step.changed;
        Ok((Step { changed, ..nothing }, step.finished))
    }

    /// The operation, which begins now if it has not. `None` if nothing matches any more.
    async fn operation(&mut self) -> outbox::Result<Option<i64>> {
        if self.operation.is_none() {
            let begun = self.outbox.begin_replay(self.filter, self.reason).await?;
            self.operation = begun.map(|begun| begun.operation);
            self.left = begun.map_or(0, |begun| begun.matched);
        }
        Ok(self.operation)
    }
}

/// When the next messages may be taken.
struct Pace {
    rate: Rate,
    not_before: Instant,
    /// Since when the relay has had as much to send as it should.
    full_since: Option<Instant>,
    is_explained: bool,
}

impl Pace {
    fn new(rate: Rate) -> Self {
        Pace {
            rate,
            not_before: Instant::now(),
            full_since: None,
            is_explained: false,
        }
    }

    /// Waits for the next messages, but not so long that a signal would go unnoticed. Is it time for them?
    async fn wait(&mut self, outbox: &Outbox) -> outbox::Result<bool> {
        let left = self.not_before.saturating_duration_since(Instant::now());
        sleep(left.min(NOTICE_AFTER)).await;
        if left > NOTICE_AFTER {
            return Ok(false);
        }
        let is_full = outbox.due_rows(DUE_MAX).await? >= DUE_MAX.unsigned_abs();
        if is_full {
            self.note_full();
            sleep(NOTICE_AFTER).await;
        } else {
            self.full_since = None;
        }
        Ok(!is_full)
    }

    fn note(&mut self, step: &ReplayStep) {
        let now = Instant::now();
        let until_published = Duration::try_from_secs_f64(step.wait_seconds.max(0.0)).unwrap_or_default();
        let at_this_rate = self.rate.time_of(u64::from(step.changed.unsigned_abs()));
        self.not_before = now + at_this_rate.max(until_published.min(ASK_AFTER));
        if until_published > EXPLAINED_WAIT {
            let wait = age(until_published.as_secs_f64().ceil());
            self.explain(&format!(
                "waiting {wait}, until the next messages have been published for a minute, and every relay has renewed its lease since"
            ));
        }
    }

    fn note_full(&mut self) {
        let since = *self.full_since.get_or_insert_with(Instant::now);
        if since.elapsed() > EXPLAINED_BACKLOG {
            let due = grouped(DUE_MAX.unsigned_abs());
            self.explain(&format!(
                "waiting, because {due} rows are due and not sent. Does a relay run, and is no topic paused or parked? See `outboxd status`"
            ));
        }
    }

    /// Says once why nothing happens.
    fn explain(&mut self, why: &str) {
        if !self.is_explained {
            self.is_explained = true;
            eprintln!("outboxd: {why}");
        }
    }
}

/// Messages that were to be replayed and are not.
#[derive(Default)]
struct Stays {
    gone: u64,
    conflicts: Vec<i64>,
    taken_by_others: u64,
}

impl Stays {
    fn note(&mut self, step: &ReplayStep) {
        self.gone += u64::from(step.gone.unsigned_abs());
        self.conflicts.extend(&step.conflicts);
    }

    fn add_to(&self, json: &mut Map<String, Value>) {
        json.insert("gone".to_owned(), json!(self.gone));
        json.insert("conflicts".to_owned(), json!(self.conflicts));
    }

    fn say(&self) {
        if self.gone > 0 {
            let gone = grouped(self.gone);
            eprintln!(
                "outboxd: {gone} were removed by retention, or sent again by another replay, before their turn came"
            );
        }
        for id in self.conflicts.iter().take(NAMED_MAX) {
            eprintln!("outboxd: message {id} stays in the history: a newer message has its id or its idempotency key");
        }
        if self.conflicts.len() > NAMED_MAX {
            let more = grouped((self.conflicts.len() - NAMED_MAX) as u64);
            eprintln!("outboxd: and {more} more, for the same reason");
        }
        if self.taken_by_others > 0 {
            let others = grouped(self.taken_by_others);
            eprintln!("outboxd: another `outboxd replay` has sent or dropped the last {others}; see `outboxd audit`");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn topic(name: &str, messages: i64, oldest: u64, newest: u64) -> ReplayableTopic {
        let at = |second| SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        ReplayableTopic {
            topic: name.to_owned(),
            messages,
            oldest: at(oldest),
            newest: at(newest),
        }
    }

    #[test]
    fn a_preview_says_when_messages_were_published_and_how_long_it_takes() {
        let mut plan = Plan {
            unfinished: None,
            topics: vec![topic("orders", 2_000, 60, 120), topic("bills", 1_000, 0, 90)],
        };
        let details = plan.details(Rate(1_000));
        let range = "  published from 1970-01-01T00:00:00Z to 1970-01-01T00:02:00Z\n";
        assert_eq!(
            details.preview,
            format!("{range}  takes about 3s at 1,000 messages a second\n")
        );
        assert_eq!(details.json["estimated_seconds"], 3.0);
        assert_eq!(details.json["continued"], Value::Null);
        plan.unfinished = Some(UnfinishedReplay {
            operation: 17,
            began_at: SystemTime::UNIX_EPOCH,
        });
        let details = plan.details(Rate(1));
        assert!(
            details.preview.contains("the rest of operation 17"),
            "{}",
            details.preview
        );
        assert_eq!(details.json["continued"], 17);
    }

    #[test]
    fn the_next_messages_wait_for_their_turn_and_until_they_are_old_enough() {
        let mut pace = Pace::new(Rate(100));
        let mut left_after = |changed, wait_seconds| {
            pace.is_explained = true;
            pace.note(&ReplayStep {
                changed,
                wait_seconds,
                ..ReplayStep::default()
            });
            pace.not_before.saturating_duration_since(Instant::now()).as_secs_f64()
        };
        assert!((0.4..=0.5).contains(&left_after(50, 0.0)));
        assert!((1.9..=2.0).contains(&left_after(50, 30.0)), "it is asked again before");
        assert!(left_after(0, 0.0) <= 0.0, "what is gone takes no time");
    }

    #[test]
    fn what_stays_is_counted_and_named() {
        let mut stays = Stays::default();
        for id in [3, 4] {
            stays.note(&ReplayStep {
                gone: 2,
                conflicts: vec![id],
                ..ReplayStep::default()
            });
        }
        let mut json = Map::new();
        stays.add_to(&mut json);
        assert_eq!(Value::Object(json), json!({ "gone": 4, "conflicts": [3, 4] }));
    }
}
