//! The files by which a failpoint of another process says that it was reached, and is told to continue. See `src/failpoint.rs`.

use std::fs;
use std::path::Path;

/// The value of `OUTBOXD_FAILPOINTS` that stops a process there.
pub fn armed(dir: &Path, name: &str) -> String {
    format!("{name}={}", dir.display())
}

pub fn is_reached(dir: &Path, name: &str) -> bool {
    dir.join(format!("{name}.ready")).exists()
}

/// Waits until it is.
pub async fn reached(dir: &Path, name: &str) {
    let what = format!("failpoint {name}");
    crate::eventually(crate::SOON, &what, async || is_reached(dir, name).then_some(())).await;
}

/// Lets the process continue.
pub fn continue_from(dir: &Path, name: &str) {
    fs::write(dir.join(format!("{name}.continue")), b"").expect("a file");
}

/// Arms it again: the process stops at its next arrival.
pub fn arm_again(dir: &Path, name: &str) {
    // In this order: it says that it is ready only while it may not continue.
    for end in ["ready", "continue"] {
        fs::remove_file(dir.join(format!("{name}.{end}"))).expect("it has been there");
    }
}
