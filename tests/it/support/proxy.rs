//! A TCP proxy between a relay and a server: slow, silent or cut, as the test wishes, each direction by itself.
//!
//! It runs on a thread of its own: a test that blocks does not hold up the traffic.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::wiretap::{Wiretap, ends_an_answer};

/// What is read at once, and what a throttled line carries at once: small, so that connections share it fairly.
const CHUNK: usize = 16 * 1024;
const SLICE: usize = 1024;
/// Chunks under way in one direction of a connection, before its sender has to wait.
const WINDOW: usize = 16;

/// How bytes travel in one direction; by default at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line {
    pub delay: Duration,
    /// Shared by all connections.
    pub bytes_per_second: Option<u32>,
    /// Accepted and never delivered. A connection that has lost a byte stays silent for good, as one whose way a
    /// firewall has forgotten.
    pub is_hole: bool,
}

impl Line {
    pub const HOLE: Line = Line {
        delay: Duration::ZERO,
        bytes_per_second: None,
        is_hole: true,
    };
}

/// What follows an answer that was swallowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Cut,
    Silence,
}

pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

#[derive(Default)]
struct Shared {
    server: OnceLock<SocketAddr>,
    speaks_postgres: AtomicBool,
    to_server: Way,
    to_client: Way,
    /// Every connection of now; cutting them leaves a fresh one for those to come.
    alive: Mutex<CancellationToken>,
    accepted: Mutex<Vec<Instant>>,
    /// So many of them are silent.
    forgotten: AtomicUsize,
    /// The answer to the next statement with this text is to be swallowed.
    wanted: Mutex<Option<(String, Then)>>,
    swallowed: AtomicBool,
}

impl Shared {
    /// Counts a client in; answers its number.
    fn admit(&self) -> usize {
        let mut accepted = self.accepted.lock().expect("a list");
        accepted.push(Instant::now());
        accepted.len()
    }
}

/// One direction, and when a throttled one is free again.
#[derive(Default)]
struct Way {
    line: Mutex<Line>,
    free_at: Mutex<Option<Instant>>,
}

impl Proxy {
    /// Listens; see [`Proxy::forward_to`].
    pub fn listen() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket for tokio");
        let port = listener.local_addr().expect("bound").port();
        let (shared, stop) = (Arc::<Shared>::default(), CancellationToken::new());
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
        Proxy { port, shared, stop }
    }

    /// Stands before the PostgreSQL of this URL.
    pub fn to_postgres(url: &str) -> Self {
        let proxy = Proxy::listen();
        proxy.shared.speaks_postgres.store(true, Ordering::Relaxed);
        proxy.forward_to(host_of(url));
        proxy
    }

    pub fn forward_to(&self, server: &str) {
        let server = server.parse().expect("an address");
        self.shared.server.set(server).expect("one server");
    }

    /// The same database by way of this proxy.
    pub fn url(&self, url: &str) -> String {
        url.replacen(host_of(url), &self.address(), 1)
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn to_server(&self, line: Line) {
        *self.shared.to_server.line.lock().expect("a line") = line;
    }

    pub fn to_client(&self, line: Line) {
        *self.shared.to_client.line.lock().expect("a line") = line;
    }

    pub fn both_ways(&self, line: Line) {
        self.to_server(line);
        self.to_client(line);
    }

    /// Every connection of now goes silent, for good; new ones get through.
    pub fn forget(&self) {
        self.shared.forgotten.store(self.accepted().len(), Ordering::Relaxed);
    }

    /// Ends every connection of now.
    pub fn cut(&self) {
        std::mem::take(&mut *self.shared.alive.lock().expect("a token")).cancel();
    }

    /// When each client came, refused or not.
    pub fn accepted(&self) -> Vec<Instant> {
        self.shared.accepted.lock().expect("a list").clone()
    }

    /// PostgreSQL will execute the next statement with this text; its answer will not arrive.
    pub fn swallow_answer(&self, text: &str, then: Then) {
        self.shared.swallowed.store(false, Ordering::SeqCst);
        *self.shared.wanted.lock().expect("a wish") = Some((text.to_owned(), then));
    }

    /// Waits until that has happened.
    pub async fn swallowed(&self) {
        super::eventually(super::SOON, "an answer to be swallowed", async || {
            self.shared.swallowed.load(Ordering::SeqCst).then_some(())
        })
        .await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// host:port of a URL.
fn host_of(url: &str) -> &str {
    let (_, rest) = url.split_once('@').expect("a user in the URL");
    rest.split_once('/').expect("a database in the URL").0
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let (client, _) = listener.accept().await.expect("a client");
        let number = shared.admit();
        let alive = shared.alive.lock().expect("a token").clone();
        let shared = shared.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = carry(client, number, &shared) => {}
                () = alive.cancelled() => {}
            }
        });
    }
}

/// One connection, until either side ends it. A server that is away ends it at once.
async fn carry(client: TcpStream, number: usize, shared: &Shared) {
    let Ok(server) = TcpStream::connect(shared.server.get().expect("a server")).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let connection = Connection {
        number,
        ..Connection::default()
    };
    let requests = pump(from_client, to_server, &shared.to_server, |bytes| {
        if shared.speaks_postgres.load(Ordering::Relaxed) {
            connection.request(shared, bytes);
        }
        connection.passes(shared, &shared.to_server)
    });
    let answers = pump(from_server, to_client, &shared.to_client, |bytes| {
        !connection.answer(shared, bytes) && connection.passes(shared, &shared.to_client)
    });
    tokio::select! {
        () = requests => {}
        () = answers => {}
        () = connection.cut.cancelled() => return,
    }
    if connection.is_lost() {
        // Nobody hears of the end of a silent connection.
        std::future::pending::<()>().await;
    }
}

/// What has happened to one connection.
#[derive(Default)]
struct Connection {
    /// The first client is number 1.
    number: usize,
    tap: Mutex<Wiretap>,
    swallowing: Mutex<Option<Then>>,
    lost: AtomicBool,
    cut: CancellationToken,
}

impl Connection {
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// May bytes go on, that way?
    fn passes(&self, shared: &Shared, way: &Way) -> bool {
        let is_forgotten = self.number <= shared.forgotten.load(Ordering::Relaxed);
        if is_forgotten || way.line.lock().expect("a line").is_hole {
            self.lost.store(true, Ordering::Relaxed);
        }
        !self.is_lost()
    }

    /// Listens for the statement whose answer is wanted.
    fn request(&self, shared: &Shared, bytes: &[u8]) {
        let mut wanted = shared.wanted.lock().expect("a wish");
        let executed = self.tap.lock().expect("a tap").hear(bytes);
        if let Some((text, then)) = &*wanted
            && executed.iter().any(|sql| sql.contains(text))
        {
            *self.swallowing.lock().expect("a wish") = Some(*then);
            *wanted = None;
        }
    }

    /// True: swallowed.
    fn answer(&self, shared: &Shared, bytes: &[u8]) -> bool {
        let swallowing = self.swallowing.lock().expect("a wish");
        let Some(then) = *swallowing else { return false };
        if ends_an_answer(bytes) {
            match then {
                Then::Cut => self.cut.cancel(),
                Then::Silence => self.lost.store(true, Ordering::Relaxed),
            }
            shared.swallowed.store(true, Ordering::SeqCst);
        }
        true
    }
}

/// Carries bytes one way until their sender ends and all is delivered, or nobody receives.
async fn pump(mut from: OwnedReadHalf, to: OwnedWriteHalf, way: &Way, passes: impl Fn(&[u8]) -> bool) {
    let (queue, arrivals) = mpsc::channel(WINDOW);
    let reading = async move {
        let mut buffer = vec![0; CHUNK];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let bytes = &buffer[..count];
            if !passes(bytes) {
                continue;
            }
            let due = Instant::now() + way.line.lock().expect("a line").delay;
            if queue.send((due, bytes.to_vec())).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(reading, deliver(arrivals, to, way));
}

async fn deliver(mut arrivals: mpsc::Receiver<(Instant, Vec<u8>)>, mut to: OwnedWriteHalf, way: &Way) {
    while let Some((due, bytes)) = arrivals.recv().await {
        tokio::time::sleep_until(due.into()).await;
        for slice in bytes.chunks(SLICE) {
            way.turn(slice.len()).await;
            if to.write_all(slice).await.is_err() {
                return;
            }
        }
    }
}

impl Way {
    /// Waits until so many bytes have had their time on the line.
    async fn turn(&self, bytes: usize) {
        let Some(rate) = self.line.lock().expect("a line").bytes_per_second else {
            return;
        };
        let through = {
            let mut free_at = self.free_at.lock().expect("a time");
            let start = free_at.unwrap_or_else(Instant::now).max(Instant::now());
            *free_at.insert(start + Duration::from_secs_f64(bytes as f64 / f64::from(rate)))
        };
        tokio::time::sleep_until(through.into()).await;
    }
}
