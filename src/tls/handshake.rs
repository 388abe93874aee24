//! A TLS handshake for its own sake, after which nothing is sent.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};

use super::Settings;

/// Longest wait for the server, at each step.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A server to shake hands with.
pub struct Peer<'a, A> {
    /// Where it is.
    pub address: A,
    /// What it is called in its certificate.
    pub host: &'a str,
    pub settings: &'a Settings,
}

impl<A: ToSocketAddrs> Peer<'_, A> {
    /// Returns the certificates that the server shows, its own first. `begin` says on the plain connection what comes before TLS.
    /// Blocks.
    pub fn certificates(
        &self,
        begin: impl FnOnce(&mut TcpStream) -> io::Result<()>,
    ) -> io::Result<Vec<CertificateDer<'static>>> {
        let name = ServerName::try_from(self.host.to_owned()).map_err(io::Error::other)?;
        let config = self.settings.client_config().map_err(io::Error::other)?;
        let mut connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        let mut stream = self.connect()?;
        begin(&mut stream)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        let shown = connection.peer_certificates().unwrap_or_default();
        Ok(shown.to_vec())
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(TIMEOUT))?;
                    stream.set_write_timeout(Some(TIMEOUT))?;
                    return Ok(stream);
                }
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }
}
