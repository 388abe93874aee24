//! `outboxd healthcheck`: the container's health check, so that the image needs no shell and no curl.

use std::time::Duration;

use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Failure;

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

pub async fn healthcheck(args: &HealthcheckArgs) -> Result<(), Failure> {
    // "Listen on all addresses" is reached through loopback.
    let address = args
        .http_listen
        .replace("0.0.0.0", "127.0.0.1")
        .replace("[::]", "[::1]");
    let answer = tokio::time::timeout(PATIENCE, ask(&address)).await;
    match answer {
        Ok(Ok(status)) if status.contains(" 200 ") => Ok(()),
        Ok(Ok(status)) => Err(Failure::Unavailable(format!("{address} answers {status}"))),
        Ok(Err(error)) => Err(Failure::Unavailable(format!("{address}: {error}"))),
        Err(_) => Err(Failure::Unavailable(format!("{address} does not answer"))),
    }
}

/// The status line of `/livez`.
async fn ask(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}
