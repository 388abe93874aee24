//! What the viewer sees while it runs: a bar in a terminal, a plain line now and then otherwise.

use std::io::IsTerminal;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::ProgressBar;
use outboxd::cli::progress::bar;

use crate::sampler::Sample;
use crate::schedule::{Event, Schedule};
use crate::writers::Written;

const LINE_EVERY_SECONDS: u64 = 10;

pub struct Progress {
    bar: Option<ProgressBar>,
    length: Duration,
    written: Arc<Written>,
    fault: Mutex<String>,
}

impl Progress {
    pub fn new(schedule: &Schedule, written: &Arc<Written>) -> Self {
        let length = schedule.length;
        let is_terminal = std::io::stderr().is_terminal();
        let bar = is_terminal.then(|| bar(length.as_secs(), "{elapsed_precise} {bar:30.green} {msg}"));
        Progress {
            bar,
            length,
            written: written.clone(),
            fault: Mutex::new("none yet".to_owned()),
        }
    }

    pub fn fault(&self, event: &Event) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = event.kind.name().to_owned();
    }

    pub fn show(&self, sample: &Sample) {
        let message = self.message(sample);
        let seconds = sample.at.as_secs();
        match &self.bar {
            Some(bar) => {
                bar.set_position(seconds.min(self.length.as_secs()));
                bar.set_message(message);
            }
            None if seconds.is_multiple_of(LINE_EVERY_SECONDS) => {
                eprintln!("{seconds:5}/{} s  {message}", self.length.as_secs());
            }
            None => {}
        }
    }

    /// The bar makes room for the verdict.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn message(&self, sample: &Sample) -> String {
        let written = self.written.committed.load(Ordering::Relaxed);
        let lag = sample
            .backlog
            .map_or("?".to_owned(), |backlog| format!("{:.1}", backlog.lag_seconds));
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        format!(
            "written {written}, published {:.0}, lag {lag} s, last fault: {fault}",
            sample.published
        )
    }
}
