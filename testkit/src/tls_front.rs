//! TLS in front of a server that speaks none. It shows whatever certificate the test wants.
//!
//! It runs on a thread of its own: a test that blocks does not hold up the traffic.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::certificates::Certificates;

pub struct TlsFront {
    pub port: u16,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

struct Shared {
    server: OnceLock<SocketAddr>,
    /// What is shown, and what ends the connections that were shown it.
    shown: Mutex<(Arc<ServerConfig>, CancellationToken)>,
}

impl TlsFront {
    /// Listens with this certificate; see [`TlsFront::forward_to`].
    pub fn listen(certificates: &Certificates, leaf: &str) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket for tokio");
        let port = listener.local_addr().expect("bound").port();
        let shared = Arc::new(Shared {
            server: OnceLock::new(),
            shown: Mutex::new((config(certificates, leaf), CancellationToken::new())),
        });
        let stop = CancellationToken::new();
        let (serving, stopped) = (shared.clone(), stop.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    () = accept(listener, serving) => {}
                    () = stopped.cancelled() => {}
                }
            });
        });
        TlsFront { port, shared, stop }
    }

    pub fn forward_to(&self, server: &str) {
        let server = server.parse().expect("an address");
        self.shared.server.set(server).expect("one server");
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Shows this certificate from now on, and ends the connections that were shown another.
    pub fn show(&self, certificates: &Certificates, leaf: &str) {
        let shown = (config(certificates, leaf), CancellationToken::new());
        let (_, connections) = std::mem::replace(&mut *self.shared.shown.lock().expect("a certificate"), shown);
        connections.cancel();
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn config(certificates: &Certificates, leaf: &str) -> Arc<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(certificates.path(&format!("{leaf}.pem")))
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .expect("issued");
    let key = PrivateKeyDer::from_pem_file(certificates.path(&format!("{leaf}.key"))).expect("issued");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key);
    Arc::new(config.expect("a pair"))
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let (config, ended) = shared.shown.lock().expect("a certificate").clone();
        let server = *shared.server.get().expect("forward_to comes first");
        tokio::spawn(async move {
            tokio::select! {
                () = forward(client, server, config) => {}
                () = ended.cancelled() => {}
            }
        });
    }
}

/// Ends when either side does, or if the client does not like the certificate.
async fn forward(client: TcpStream, server: SocketAddr, config: Arc<ServerConfig>) {
    let Ok(mut client) = TlsAcceptor::from(config).accept(client).await else {
        return;
    };
    if let Ok(mut server) = TcpStream::connect(server).await {
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}
