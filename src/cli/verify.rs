//! `outboxd verify`: did everything arrive, once, unaltered, in order?

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;

use super::Failure;
use super::progress::bar;
use crate::config::{Check, DatabaseArgs, KafkaArgs};
use crate::outbox::Outbox;
use crate::verify::findings::{Finding, Findings, Verdict};
use crate::verify::{self, Error, Settings};

#[derive(Args, Debug)]
pub struct VerifyArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    kafka: KafkaArgs,

    /// Only this topic; may be repeated [default: every topic that rows name]
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,

    /// Only what was published since, e.g. 2h, 7days or 2026-01-31T12:00:00Z
    #[arg(long, value_name = "DURATION|TIMESTAMP")]
    since: Option<String>,

    /// No two transactions of one key ever overlap and no row is delayed, so rows of a key must arrive in the order of ids
    #[arg(long)]
    serialized_keys: bool,

    /// Directory for temporary files, about 250 bytes per row [default: $TMPDIR, else /tmp]
    #[arg(long, env = "OUTBOXD_TEMP_DIR", value_name = "DIR")]
    temp_dir: Option<PathBuf>,

    /// Print one JSON object, for programs
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    verdict: Verdict,
    reason: String,
    #[serde(flatten)]
    findings: Findings,
    seconds: f64,
}

const BAR: &str = "{prefix:<10} {bar:40.green} {pos}/{len} rows and records";

pub async fn verify(args: &VerifyArgs) -> Result<(), Failure> {
    let settings = args.settings()?;
    let started = Instant::now();
    let bar = bar(0, BAR).with_prefix("verify");
    let compared = compare(&settings, &bar).await;
    bar.finish_and_clear();
    let (verdict, reason, findings) = match compared {
        Ok(findings) => {
            let (verdict, reason) = findings.verdict();
            (verdict, reason, findings)
        }
        Err(error) => (Verdict::Undecided, error.to_string(), Findings::default()),
    };
    let report = Report {
        verdict,
        reason,
        findings,
        seconds: started.elapsed().as_secs_f64(),
    };
    print(&report, args.json, &settings.schema)?;
    match report.verdict {
        Verdict::Holds => Ok(()),
        Verdict::Broken => Err(Failure::PromiseBroken(report.reason)),
        Verdict::Undecided => Err(Failure::Undecided(report.reason)),
    }
}

/// For the check of the schema. Reading the rows has no timeout.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

async fn compare(settings: &Settings, bar: &ProgressBar) -> Result<Findings, Error> {
    Outbox::open(&settings.database, &settings.schema, STATEMENT_TIMEOUT).await?;
    verify::verify(settings, bar).await
}

impl VerifyArgs {
    fn settings(&self) -> Result<Settings, Failure> {
        Ok(Check::run(|check| {
            let (database, kafka) = (self.database.database(check), self.kafka.consumer(check));
            Some(Settings {
                since: match &self.since {
                    Some(since) => Some(check.moment("--since", since)?),
                    None => None,
                },
                database: database?,
                kafka: kafka?,
                schema: self.database.schema.clone(),
                topics: Some(self.topics.clone()).filter(|topics| !topics.is_empty()),
                serialized_keys: self.serialized_keys,
                temp_dir: self.temp_dir.clone().unwrap_or_else(std::env::temp_dir),
            })
        })?)
    }
}

fn print(report: &Report, json: bool, schema: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let printed = if json {
        let json = serde_json::to_writer_pretty(&mut out, report).map_err(io::Error::from);
        json.and_then(|()| writeln!(out))
    } else {
        write_report(&mut out, report, schema)
    };
    printed.map_err(|error| Failure::Unavailable(format!("cannot write to stdout: {error}")))
}

fn write_report(out: &mut impl Write, report: &Report, schema: &str) -> io::Result<()> {
    let verdict = match report.verdict {
        Verdict::Holds => "The promises held",
        Verdict::Broken => "A promise was BROKEN",
        Verdict::Undecided => "It cannot be told whether the promises held",
    };
    writeln!(out, "{verdict}: {}.\n", report.reason)?;
    let findings = &report.findings;
    let counts = &findings.counts;
    let mut line = |name: &str, count: u64, note: &str| {
        let line = format!("{name:<16} {count:>12}  {note}");
        writeln!(out, "{}", line.trim_end())
    };
    line(
        "Rows",
        counts.rows,
        &format!("{} pending, {} dead", counts.pending, counts.dead),
    )?;
    line(
        "Records",
        counts.records,
        &format!("and {} of somebody else", counts.foreign),
    )?;
    for (name, finding, _) in sections(findings) {
        line(name, finding.count, "")?;
    }
    let copies = &findings.duplicated.copies;
    let flagged = format!("{} flagged as possible duplicates", findings.duplicated.flagged);
    line("Duplicated", copies.count, &flagged)?;
    line("Outside", counts.outside, "records older than the rows still kept")?;
    writeln!(out, "Seconds          {:>12.1}", report.seconds)?;
    for topic in &findings.grown {
        writeln!(
            out,
            "\nTopic {topic} got more partitions meanwhile: older records of a key lie where they belonged then."
        )?;
    }
    for (name, finding, advice) in sections(findings) {
        write_offenders(out, name, finding, advice)?;
    }
    if findings.duplicated.unflagged > 0 {
        let advice = "An unflagged duplicate is a bug of the relay, or another program wrote it. Report it.";
        write_offenders(out, "Duplicated", copies, advice)?;
    }
    if report.verdict != Verdict::Holds && counts.rows > 0 {
        writeln!(
            out,
            "\nTo see a row: SELECT * FROM {schema}.message WHERE id = …, or {schema}.history where rows are archived."
        )?;
    }
    Ok(())
}

/// Each finding and what to do about it.
fn sections(findings: &Findings) -> [(&'static str, &Finding, &'static str); 7] {
    [
        (
            "Missing",
            &findings.missing,
            "Send it again with `outboxd replay`, and report it.",
        ),
        (
            "Phantom",
            &findings.phantom,
            "Its row was rolled back, deleted by hand, or is in another database that writes to this topic.",
        ),
        (
            "Out of order",
            &findings.out_of_order,
            "Was the row delayed? Then it was sent when it was due. Otherwise report it.",
        ),
        (
            "May overlap",
            &findings.may_overlap,
            "Right if their transactions overlapped, or if the row was delayed. See --serialized-keys.",
        ),
        (
            "Wrong partition",
            &findings.wrong_partition,
            "Was the topic deleted and made anew with another count? Otherwise report it.",
        ),
        (
            "Altered",
            &findings.altered,
            "Was the row changed by hand after it was published? Otherwise report it.",
        ),
        (
            "Cannot tell",
            &findings.cannot_tell,
            "The topic keeps less than the table, or is compacted: leave those rows out with --since.",
        ),
    ]
}

fn write_offenders(out: &mut impl Write, name: &str, finding: &Finding, advice: &str) -> io::Result<()> {
    if finding.count == 0 {
        return Ok(());
    }
    writeln!(out, "\n{name} ({} of {})", finding.first.len(), finding.count)?;
    let or_dash = |number: Option<i64>| number.map_or("-".to_owned(), |number| number.to_string());
    for offender in &finding.first {
        let row = offender.id.map_or("no row".to_owned(), |id| format!("row {id}"));
        let (partition, offset) = (or_dash(offender.partition.map(i64::from)), or_dash(offender.offset));
        let (message, topic, what) = (&offender.message_id, &offender.topic, &offender.what);
        writeln!(out, "  {row} message {message} at {topic}/{partition}/{offset}: {what}")?;
    }
    writeln!(out, "  → {advice}")
}
