//! The closing table.

use std::fmt::Write as _;
use std::time::Duration;

use crate::ledger::{Latency, Tally};

pub fn render(tally: &Tally) -> String {
    let mut out = String::new();
    // WriterSnapshot to a String cannot fail.
    let _ = write_table(&mut out, tally);
    out
}

fn write_table(out: &mut String, tally: &Tally) -> std::fmt::Result {
    let orders = grouped(tally.orders_committed);
    row(
        out,
        "committed",
        tally.committed,
        &format!(" messages in {orders} orders"),
    )?;
    row(out, "rolled back", tally.orders_rolled_back, " orders")?;
    row(out, "delivered", tally.delivered, "")?;
    row(out, "missing", tally.missing, "")?;
    row(out, "phantom", tally.phantom, "")?;
    row(out, "duplicates", tally.duplicates, &about_duplicates(tally))?;
    row(out, "order violations", tally.order_violations, "")?;
    row(out, "throughput", tally.messages_per_second as usize, " messages/s")?;
    write_latency(out, "commit to consume", tally.latency)?;
    if tally.killed {
        write_latency(out, "  before the kill", tally.latency_before_kill)?;
    }
    let broken = tally.broken();
    if broken.is_empty() {
        writeln!(out, "\nThe promises held.")
    } else {
        writeln!(out, "\nThe promises did NOT hold: {}.", broken.join(", "))
    }
}

fn row(out: &mut String, name: &str, count: usize, rest: &str) -> std::fmt::Result {
    writeln!(out, "{name:<19}{:>9}{rest}", grouped(count))
}

fn about_duplicates(tally: &Tally) -> String {
    let why = if tally.killed { ": one worker was killed" } else { "" };
    match tally.duplicates {
        0 => String::new(),
        _ => format!(" ({} flagged{why})", grouped(tally.duplicates_flagged)),
    }
}

fn write_latency(out: &mut String, name: &str, latency: Option<Latency>) -> std::fmt::Result {
    let Some(latency) = latency else { return Ok(()) };
    let (p50, p99) = (short(latency.p50), short(latency.p99));
    writeln!(out, "{name:<22}p50 {p50}, p99 {p99}")
}

fn short(duration: Duration) -> String {
    match duration.as_millis() {
        0..1000 => format!("{:.0} ms", duration.as_secs_f64() * 1000.0),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

/// 12 345: digits in threes.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally() -> Tally {
        let latency = Latency {
            p50: Duration::from_millis(4),
            p99: Duration::from_millis(5100),
        };
        Tally {
            orders_committed: 4512,
            orders_rolled_back: 488,
            committed: 9412,
            delivered: 9412,
            missing: 0,
            phantom: 0,
            duplicates: 37,
            duplicates_flagged: 37,
            order_violations: 0,
            killed: true,
            messages_per_second: 812.4,
            latency: Some(latency),
            latency_before_kill: None,
        }
    }

    #[test]
    fn the_table_lines_up_and_ends_with_the_verdict() {
        let text = render(&tally());
        assert!(
            text.contains("committed              9 412 messages in 4 512 orders\n"),
            "{text}"
        );
        assert!(
            text.contains("duplicates                37 (37 flagged: one worker was killed)\n"),
            "{text}"
        );
        assert!(text.contains("commit to consume     p50 4 ms, p99 5.1 s\n"), "{text}");
        assert!(text.ends_with("The promises held.\n"), "{text}");
    }

    #[test]
    fn a_broken_promise_is_named() {
        let text = render(&Tally { missing: 3, ..tally() });
        assert!(
            text.ends_with("The promises did NOT hold: 3 committed but missing.\n"),
            "{text}"
        );
    }

    #[test]
    fn digits_come_in_threes() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1 234 567");
    }
}
