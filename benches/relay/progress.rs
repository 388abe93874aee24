//! What the viewer sees while it runs: a bar in a terminal, a line for each step otherwise.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

pub struct Progress {
    bar: Option<ProgressBar>,
    scenario: &'static str,
}

impl Progress {
    /// Of one scenario with so many steps.
    pub fn new(scenario: &'static str, steps: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{elapsed_precise} {bar:30.green} {pos}/{len} {msg}")
                .expect("a template of ours");
            ProgressBar::new(steps as u64).with_style(style.progress_chars("━╸ "))
        });
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
