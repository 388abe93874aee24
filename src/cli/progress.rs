//! The progress bar of subcommands, benches and soak. It is drawn on stderr, and only in a terminal.

use indicatif::{ProgressBar, ProgressStyle};

pub fn bar(length: u64, template: &str) -> ProgressBar {
    // The templates are constants. If one is wrong, a plain bar is shown.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style.progress_chars("━╸ "))
}
