//! SIGTERM and SIGINT.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Failure;

/// The first signal asks to stop, the second to stop at once.
pub struct Signals {
    pub stop: CancellationToken,
    pub now: CancellationToken,
}

impl Signals {
    /// From now on neither signal ends the process by itself.
    pub fn listen() -> Result<Self, Failure> {
        let signals = Signals {
            stop: CancellationToken::new(),
            now: CancellationToken::new(),
        };
        let (stop, now) = (signals.stop.clone(), signals.now.clone());
        let broken = |error: std::io::Error| Failure::Broken(error.to_string());
        let mut terminate = signal(SignalKind::terminate()).map_err(broken)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(broken)?;
        tokio::spawn(async move {
            for token in [stop, now] {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                token.cancel();
                debug!("told to stop");
            }
        });
        Ok(signals)
    }
}
