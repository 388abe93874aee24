//! What the viewer sees while it runs: bars in a terminal, a plain line now and then otherwise.

use std::io::{IsTerminal, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use outboxd::cli::progress::bar;

use crate::ledger::Progress;
use crate::report::grouped;

const LINE_EVERY: Duration = Duration::from_secs(2);

pub enum Display {
    Bars(Box<Bars>),
    Lines { next: Mutex<Instant> },
}

pub struct Bars {
    screen: MultiProgress,
    orders: ProgressBar,
    messages: ProgressBar,
    lanes: ProgressBar,
}

impl Display {
    pub fn new(orders: usize) -> Self {
        if std::io::stderr().is_terminal() {
            Display::Bars(Box::new(Bars::new(orders)))
        } else {
            let next = Mutex::new(Instant::now() + LINE_EVERY);
            Display::Lines { next }
        }
    }

    /// Something happened that is worth a line of its own.
    pub fn note(&self, text: &str) {
        match self {
            // Where nothing can be drawn any more there is nobody to tell.
            Display::Bars(bars) => drop(bars.screen.println(text)),
            Display::Lines { .. } => say(text),
        }
    }

    /// Where things stand; `lanes` says who owns how many.
    pub fn show(&self, progress: &Progress, orders: usize, lanes: &str) {
        match self {
            Display::Bars(bars) => bars.show(progress, lanes),
            Display::Lines { next } => {
                let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
                if Instant::now() >= *next {
                    *next = Instant::now() + LINE_EVERY;
                    say(&line(progress, orders, lanes));
                }
            }
        }
    }

    /// The bars stay as they are: the terminal's own ^C has moved the cursor, and a redraw would miss its lines.
    pub fn freeze(&self) {
        if let Display::Bars(bars) = self {
            bars.screen.set_draw_target(ProgressDrawTarget::hidden());
            say("");
        }
    }

    /// The bars make room for the table.
    pub fn clear(&self) {
        if let Display::Bars(bars) = self {
            for bar in [&bars.orders, &bars.messages, &bars.lanes] {
                bar.finish_and_clear();
            }
        }
    }
}

/// Unlike `eprintln!` it does not panic when the terminal is gone: there is still something to clean up.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn line(progress: &Progress, orders: usize, lanes: &str) -> String {
    format!(
        "orders {}/{}, messages committed {}, delivered {}, waiting {}, duplicates {}; lanes: {lanes}",
        progress.orders,
        orders,
        progress.committed,
        progress.delivered,
        progress.committed - progress.delivered,
        progress.duplicates
    )
}

impl Bars {
    fn new(orders: usize) -> Self {
        let screen = MultiProgress::new();
        let add = |name: &'static str, length: u64, template: &str| screen.add(bar(length, template)).with_prefix(name);
        Bars {
            orders: add("orders", orders as u64, "{prefix:<10} {bar:40.blue} {pos}/{len}"),
            messages: add("delivered", 0, "{prefix:<10} {bar:40.green} {pos}/{len} messages{msg}"),
            lanes: add("lanes", 0, "{prefix:<10} {msg}"),
            screen,
        }
    }

    fn show(&self, progress: &Progress, lanes: &str) {
        self.orders.set_position(progress.orders as u64);
        self.messages.set_length(progress.committed as u64);
        self.messages.set_position(progress.delivered as u64);
        if progress.duplicates > 0 {
            let duplicates = grouped(progress.duplicates);
            self.messages.set_message(format!(", {duplicates} duplicates"));
        }
        self.lanes.set_message(lanes.to_owned());
    }
}
