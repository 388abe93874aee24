//! The binary. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    outboxd::cli::main()
}
