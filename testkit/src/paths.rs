//! Where the repository is, and the binary under test.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository. This package is a folder in it.
pub fn repository() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("a folder of the repository")
}

/// The text of a file of the repository.
pub fn text_of(path: impl AsRef<Path>) -> String {
    let path = repository().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The binary under test. Cargo builds it before the tests of its package, into the folder above theirs. It tells them so in
/// `CARGO_BIN_EXE_outboxd`, which this package cannot read.
pub fn binary() -> PathBuf {
    let test = env::current_exe().expect("this process has an executable");
    let folder = test.ancestors().nth(2).expect("cargo's folder of executables");
    folder.join("outboxd")
}

/// A command that runs it.
pub fn outboxd() -> Command {
    Command::new(binary())
}
