//! `outboxd run`: checks the settings, listens for signals, and runs the daemon.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Failure;
use crate::config::RunArgs;
use crate::daemon;

pub async fn run(args: &RunArgs) -> Result<(), Failure> {
    let config = args.validate()?;
    let signals = Signals::listen().map_err(|error| Failure::Broken(error.to_string()))?;
    Ok(daemon::run(config, signals.stop.clone(), signals.now.clone()).await?)
}

/// The first SIGTERM or SIGINT starts draining, the second exits at once.
struct Signals {
    stop: CancellationToken,
    now: CancellationToken,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        let signals = Signals {
            stop: CancellationToken::new(),
            now: CancellationToken::new(),
        };
        let (stop, now) = (signals.stop.clone(), signals.now.clone());
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::spawn(async move {
            for token in [stop, now] {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                token.cancel();
            }
        });
        Ok(signals)
    }
}
