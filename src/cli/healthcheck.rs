//! `outboxd healthcheck`: the container's health check, so that the image needs no shell and no curl.

use std::io::ErrorKind;
use std::time::Duration;

use clap::Args;

use super::Failure;
use crate::http::ask;

#[derive(Args, Debug)]
pub struct HealthcheckArgs {
    /// Where the daemon listens
    #[arg(
        long,
        env = "OUTBOXD_HTTP_LISTEN",
        default_value = "0.0.0.0:9090",
        value_name = "ADDRESS"
    )]
    http_listen: String,
}

const PATIENCE: Duration = Duration::from_secs(3);

pub fn healthcheck(args: &HealthcheckArgs) -> Result<(), Failure> {
    // A daemon that listens on all addresses is reached through loopback.
    let address = args
        .http_listen
        .replace("0.0.0.0", "127.0.0.1")
        .replace("[::]", "[::1]");
    let unavailable = |why: String| Err(Failure::Unavailable(format!("{address} {why}")));
    match ask(&address, "/livez", PATIENCE) {
        Ok(answer) => match answer.lines().next().unwrap_or_default() {
            status if status.contains(" 200 ") => Ok(()),
            status => unavailable(format!("answers {status}")),
        },
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            unavailable("does not answer".to_owned())
        }
        Err(error) => unavailable(format!("cannot be asked: {error}")),
    }
}
