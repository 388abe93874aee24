//! `outboxd run`: checks the settings, listens for signals, and runs the daemon.

use super::Failure;
use super::signals::Signals;
use crate::config::RunArgs;
use crate::daemon;

/// The first SIGTERM or SIGINT starts draining, the second exits at once.
pub async fn run(args: &RunArgs) -> Result<(), Failure> {
    let config = args.validate()?;
    let signals = Signals::listen()?;
    Ok(daemon::run(config, signals.stop, signals.now).await?)
}
