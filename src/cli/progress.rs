//! How progress looks: the same in every subcommand, in the bench and in the soak. On stderr, and only in a terminal.

use indicatif::{ProgressBar, ProgressStyle};

pub fn bar(length: u64, template: &str) -> ProgressBar {
    // The templates are ours and known to be right; a plain bar is no reason to stop.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style.progress_chars("━╸ "))
}
