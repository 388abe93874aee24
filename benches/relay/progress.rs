//! What the viewer sees while it runs: a bar in a terminal, a line for each step otherwise.

use std::io::IsTerminal;

use indicatif::ProgressBar;
use outboxd::cli::progress::bar;

pub struct Progress {
    bar: Option<ProgressBar>,
    scenario: &'static str,
}

impl Progress {
    /// Of one scenario with so many steps.
    pub fn new(scenario: &'static str, steps: usize) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let bar = is_terminal.then(|| bar(steps as u64, "{elapsed_precise} {bar:30.green} {pos}/{len} {msg}"));
        Progress { bar, scenario }
    }

    pub fn step(&self, doing: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(format!("{}: {doing}", self.scenario));
                bar.tick();
            }
            None => eprintln!("bench: {}: {doing}", self.scenario),
        }
    }

    pub fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
