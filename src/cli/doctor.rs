//! `outboxd doctor`: what is wrong with PostgreSQL, Kafka and the settings, why, and which command fixes it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use clap::Args;

use super::Failure;
use crate::config::{Check, Problems, RunArgs};
use crate::daemon::connections_max;
use crate::doctor::check::{Diagnosis, Verdict};
use crate::doctor::report::Report;
use crate::doctor::{Settings, examine};
use crate::words::plain;

#[derive(Args, Debug)]
pub struct DoctorArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Check this topic even if no row names it; may be repeated
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,

    /// Transactions and snapshots that are older than this are a problem
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    max_transaction_age: String,

    /// Print one JSON object, for programs
    #[arg(long)]
    json: bool,
}

pub async fn doctor(args: &DoctorArgs) -> Result<(), Failure> {
    let report = examine(&args.settings()?).await;
    print(&report, args.json).map_err(|error| Failure::Unavailable(format!("cannot write to stdout: {error}")))?;
    match report.verdict {
        Verdict::Problem => Err(Failure::Found(format!(
            "a problem with {}",
            report.names(Verdict::Problem)
        ))),
        Verdict::Unknown => Err(Failure::Undecided(report.names(Verdict::Unknown))),
        Verdict::Ok | Verdict::Skipped | Verdict::Advice => Ok(()),
    }
}

impl DoctorArgs {
    fn settings(&self) -> Result<Settings, Problems> {
        let mut args = self.run.clone();
        let brokers = args.kafka.kafka_brokers.get_or_insert_default();
        let has_brokers = !brokers.trim().is_empty();
        if !has_brokers {
            // Nobody is asked there, but the other settings are checked all the same.
            *brokers = "127.0.0.1:9092".to_owned();
        }
        Check::run(|check| {
            let transaction_age_max = check.duration("--max-transaction-age", &self.max_transaction_age);
            match args.validate_but_lease() {
                Ok(run) => Some(Settings {
                    connections: connections_max(&run),
                    run,
                    has_brokers,
                    topics: self.topics.clone(),
                    transaction_age_max,
                }),
                Err(Problems(problems)) => {
                    check.problems(problems);
                    None
                }
            }
        })
    }
}

fn print(report: &Report, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, report)?;
        return writeln!(out);
    }
    write_report(&mut out, report)
}

/// What is fine comes first and what is gravest last, because the end is what a terminal shows.
fn write_report(out: &mut impl Write, report: &Report) -> io::Result<()> {
    write_ok(out, report)?;
    write_skipped(out, report)?;
    let verdicts = [
        (Verdict::Advice, "ADVICE"),
        (Verdict::Unknown, "UNKNOWN"),
        (Verdict::Problem, "PROBLEM"),
    ];
    for (verdict, word) in verdicts {
        for diagnosis in report.of(verdict) {
            write_diagnosis(out, word, diagnosis)?;
        }
    }
    writeln!(out, "\n{}.", report.summary())
}

/// A line for each check, and one for all checks of a topic.
fn write_ok(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let (of_topics, others): (Vec<_>, Vec<_>) = report.of(Verdict::Ok).partition(|diagnosis| diagnosis.topic.is_some());
    for diagnosis in others {
        writeln!(out, "ok       {:<26} {}", diagnosis.id.name(), plain(&diagnosis.found))?;
    }
    let topics: BTreeSet<&str> = of_topics
        .iter()
        .filter_map(|diagnosis| diagnosis.topic.as_deref())
        .collect();
    for topic in topics {
        let of_it = of_topics
            .iter()
            .filter(|diagnosis| diagnosis.topic.as_deref() == Some(topic));
        let found: Vec<&str> = of_it.map(|diagnosis| diagnosis.found.as_str()).collect();
        writeln!(out, "ok       topic {}: {}", plain(topic), plain(&found.join("; ")))?;
    }
    Ok(())
}

/// A line for each reason to skip checks.
fn write_skipped(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let mut by_reason: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for diagnosis in report.of(Verdict::Skipped) {
        by_reason
            .entry(&diagnosis.found)
            .or_default()
            .insert(diagnosis.id.name());
    }
    for (reason, checks) in by_reason {
        let checks: Vec<&str> = checks.into_iter().collect();
        writeln!(out, "skipped  {}: {}", checks.join(", "), plain(reason))?;
    }
    Ok(())
}

fn write_diagnosis(out: &mut impl Write, word: &str, diagnosis: &Diagnosis) -> io::Result<()> {
    let topic = diagnosis.topic.as_ref().map(|topic| format!(" of {}", plain(topic)));
    let (id, topic) = (diagnosis.id.name(), topic.unwrap_or_default());
    writeln!(out, "\n{word:<8} {id}{topic}: {}", plain(&diagnosis.found))?;
    if let Some(why) = &diagnosis.why {
        writeln!(out, "         {}", plain(why))?;
    }
    if let Some(fix) = &diagnosis.fix {
        writeln!(out, "         → {}", plain(fix))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::CheckId;

    fn written(checks: Vec<Diagnosis>) -> String {
        let mut out = Vec::new();
        write_report(&mut out, &Report::new(checks)).expect("written to memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn what_is_gravest_is_written_last_with_its_fix() {
        let text = written(vec![
            CheckId::DbGrants.problem("relay lacks all", "It ends.", "GRANT outbox_relay TO relay"),
            CheckId::DbConnect.ok("there"),
            CheckId::DbTls.advice("plain text", "It is read.", "Encrypt it"),
            CheckId::KafkaTopicExists.ok("it exists").of_topic("orders"),
            CheckId::KafkaTopicWrite.ok("may be written").of_topic("orders"),
            CheckId::KafkaAuth.skipped("no brokers"),
            CheckId::KafkaConnect.skipped("no brokers"),
        ]);
        let expected = "\
ok       db.connect                 there
ok       topic orders: it exists; may be written
skipped  kafka.auth, kafka.connect: no brokers

ADVICE   db.tls: plain text
         It is read.
         → Encrypt it

PROBLEM  db.grants: relay lacks all
         It ends.
         → GRANT outbox_relay TO relay

1 problem, 0 unknown, 1 to improve, 3 as they should be, 2 skipped.
";
        assert_eq!(text, expected);
    }

    #[test]
    fn no_text_of_others_reaches_the_terminal_raw() {
        let text = written(vec![
            CheckId::DbOldSnapshot.problem("pid 7 (\u{1b}[31mevil)", "why", "fix \u{7}"),
            CheckId::KafkaTopicExists
                .problem("gone\r", "why", "fix")
                .of_topic("t\u{1b}"),
            CheckId::DbConnect.ok("\u{9b}31m"),
        ]);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }
}
