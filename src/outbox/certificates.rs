//! The certificates by which this process and the server know each other.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use super::Outbox;
use super::database::{Database, Server};
use crate::tls::{self, InUse, Peer, Validity, Verify};

/// The message by which a client asks for TLS (`SSLRequest`), and the answer of a server that speaks it.
const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
const TLS_ACCEPTED: [u8; 1] = *b"S";

impl Outbox {
    /// The certificates in use, and when they expire. Each server that the connection string names is asked for its own, by a handshake
    /// without a login. `None`: the connection string cannot be read now, which is reported when a connection is opened.
    pub async fn certificates(&self) -> Option<InUse> {
        let database = self.pool.database().clone();
        let read = tokio::task::spawn_blocking(move || in_use(&database).ok());
        read.await.ok().flatten()
    }
}

/// What servers show is read whether or not it is trusted. Blocks.
fn in_use(database: &Database) -> Result<InUse, String> {
    let Server { config, tls } = database.server()?;
    if config.get_ssl_mode() == SslMode::Disable {
        return Ok(InUse::default());
    }
    let settings = tls::Settings {
        verify: Verify::Nothing,
        ca: None,
        identity: tls.identity.clone(),
    };
    let servers = addresses(&config).map(|(host, port)| Peer {
        address: (host, port),
        host,
        settings: &settings,
    });
    let shown = servers.map(|server| server.certificates(ask_for_tls)).collect();
    Ok(InUse {
        ca: tls.ca.as_deref().map(Validity::of_cas),
        client: tls.identity.map(|identity| Validity::of_file(&identity.certificate)),
        server: Validity::of_servers(shown),
    })
}

/// The hosts with their ports. There is no TLS on a Unix socket.
fn addresses(config: &Config) -> impl Iterator<Item = (&str, u16)> {
    let ports = config.get_ports();
    let hosts = config.get_hosts().iter().enumerate();
    hosts.filter_map(move |(at, host)| match host {
        Host::Tcp(name) => Some((name.as_str(), ports.get(at).or(ports.first()).copied().unwrap_or(5432))),
        Host::Unix(_) => None,
    })
}

fn ask_for_tls(stream: &mut TcpStream) -> io::Result<()> {
    let mut answer = [0];
    stream.write_all(&TLS_REQUEST)?;
    stream.read_exact(&mut answer)?;
    if answer == TLS_ACCEPTED {
        Ok(())
    } else {
        Err(io::Error::other("the server does not speak TLS"))
    }
}
