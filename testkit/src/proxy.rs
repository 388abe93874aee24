//! A TCP proxy between a relay and a server: slow, silent or cut, as the test wishes, each direction by itself.
//!
//! It runs on a thread of its own: a test that blocks does not hold up the traffic.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::statement_log::{StatementLog, ends_an_answer};

/// What is read at once, and what a throttled link carries at once: small, so that connections share it fairly.
const CHUNK: usize = 16 * 1024;
const SLICE: usize = 1024;
/// Chunks under way in one direction of a connection, before its sender has to wait.
const WINDOW: usize = 16;

/// How bytes travel in one direction; by default at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    pub delay: Duration,
    /// Shared by all connections.
    pub bytes_per_second: Option<u32>,
    /// Accepted and never delivered. A connection that has lost a byte stays silent for good, as one whose route a
    /// firewall has forgotten.
    pub is_black_hole: bool,
}

impl Link {
    pub const BLACK_HOLE: Link = Link {
        delay: Duration::ZERO,
        bytes_per_second: None,
        is_black_hole: true,
    };
}

/// What becomes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is lost, and the connection ends.
    Cut,
    /// It is lost, and nothing arrives any more.
    Silenced,
    Late(Duration),
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
    to_server: Direction,
    to_client: Direction,
    accepted: Mutex<Vec<Instant>>,
    /// So many of them are silent.
    forgotten: AtomicUsize,
    /// The statements that clients have executed, and how often.
    executed_statements: Mutex<HashMap<String, usize>>,
    /// What is to become of the answer to the next statement with this text.
    wanted: Mutex<Option<(String, Answer)>>,
    answered: AtomicBool,
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
struct Direction {
    link: Mutex<Link>,
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

    pub fn to_server(&self, link: Link) {
        *self.shared.to_server.link.lock().expect("a link") = link;
    }

    pub fn to_client(&self, link: Link) {
        *self.shared.to_client.link.lock().expect("a link") = link;
    }

    pub fn both_ways(&self, link: Link) {
        self.to_server(link);
        self.to_client(link);
    }

    /// Every connection of now goes silent, for good; new ones get through.
    pub fn forget(&self) {
        self.shared.forgotten.store(self.accepted().len(), Ordering::Relaxed);
    }

    /// When each client came, refused or not.
    pub fn accepted(&self) -> Vec<Instant> {
        self.shared.accepted.lock().expect("a list").clone()
    }

    /// How often statements with this text were executed.
    pub fn times_executed(&self, text: &str) -> usize {
        let counts = self.shared.executed_statements.lock().expect("a count");
        let with_text = counts.iter().filter(|(sql, _)| sql.contains(text));
        with_text.map(|(_, times)| times).sum()
    }

    /// PostgreSQL will execute the next statement with this text; its answer will not arrive, or late.
    pub fn spoil_answer(&self, text: &str, answer: Answer) {
        self.shared.answered.store(false, Ordering::SeqCst);
        *self.shared.wanted.lock().expect("a wish") = Some((text.to_owned(), answer));
    }

    /// Waits until that has happened: PostgreSQL has answered.
    pub async fn spoiled(&self) {
        crate::eventually(crate::SOON, "an answer to be spoiled", async || {
            self.shared.answered.load(Ordering::SeqCst).then_some(())
        })
        .await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Whole words: "COMMIT" is not in "READ COMMITTED".
fn has_words(sql: &str, text: &str) -> bool {
    sql.match_indices(text)
        .any(|(at, _)| !sql[at + text.len()..].starts_with(char::is_alphanumeric))
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
        let shared = shared.clone();
        tokio::spawn(async move { carry(client, number, &shared).await });
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
        connection.delay(shared, &shared.to_server)
    });
    let answers = pump(from_server, to_client, &shared.to_client, |bytes| {
        let late = connection.spoil(shared, bytes)?;
        Some(late + connection.delay(shared, &shared.to_client)?)
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
    log: Mutex<StatementLog>,
    spoiling: Mutex<Option<Answer>>,
    lost: AtomicBool,
    cut: CancellationToken,
}

impl Connection {
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// How long bytes take in this direction; `None`: they never arrive.
    fn delay(&self, shared: &Shared, direction: &Direction) -> Option<Duration> {
        let is_forgotten = self.number <= shared.forgotten.load(Ordering::Relaxed);
        let link = *direction.link.lock().expect("a link");
        if is_forgotten || link.is_black_hole {
            self.lost.store(true, Ordering::Relaxed);
        }
        (!self.is_lost()).then_some(link.delay)
    }

    /// Counts the statements, and notes when the one whose answer is to be spoiled has been executed.
    fn request(&self, shared: &Shared, bytes: &[u8]) {
        let mut wanted = shared.wanted.lock().expect("a wish");
        let executed = self.log.lock().expect("a log").read(bytes);
        let mut counts = shared.executed_statements.lock().expect("a count");
        for sql in &executed {
            *counts.entry(sql.clone()).or_default() += 1;
        }
        drop(counts);
        if let Some((text, answer)) = &*wanted
            && executed.iter().any(|sql| has_words(sql, text))
        {
            *self.spoiling.lock().expect("a wish") = Some(*answer);
            *wanted = None;
        }
    }

    /// How much later an answer comes for being spoiled; `None`: never.
    fn spoil(&self, shared: &Shared, bytes: &[u8]) -> Option<Duration> {
        let mut spoiling = self.spoiling.lock().expect("a wish");
        let Some(answer) = *spoiling else {
            return Some(Duration::ZERO);
        };
        let is_whole = ends_an_answer(bytes);
        if is_whole {
            *spoiling = None;
            shared.answered.store(true, Ordering::SeqCst);
        }
        match answer {
            Answer::Late(delay) => return Some(delay),
            Answer::Cut if is_whole => self.cut.cancel(),
            Answer::Silenced if is_whole => self.lost.store(true, Ordering::Relaxed),
            Answer::Cut | Answer::Silenced => {}
        }
        None
    }
}

/// Carries bytes one way until their sender ends and all is delivered, or nobody receives.
/// `delay` says how long bytes are under way, if they arrive at all.
async fn pump(
    mut from: OwnedReadHalf,
    to: OwnedWriteHalf,
    direction: &Direction,
    delay: impl Fn(&[u8]) -> Option<Duration>,
) {
    let (queue, arrivals) = mpsc::channel(WINDOW);
    let reading = async move {
        let mut buffer = vec![0; CHUNK];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let bytes = &buffer[..count];
            let Some(delay) = delay(bytes) else { continue };
            let due = Instant::now() + delay;
            if queue.send((due, bytes.to_vec())).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(reading, deliver(arrivals, to, direction));
}

async fn deliver(mut arrivals: mpsc::Receiver<(Instant, Vec<u8>)>, mut to: OwnedWriteHalf, direction: &Direction) {
    while let Some((due, bytes)) = arrivals.recv().await {
        tokio::time::sleep_until(due.into()).await;
        for slice in bytes.chunks(SLICE) {
            direction.wait_for_capacity(slice.len()).await;
            if to.write_all(slice).await.is_err() {
                return;
            }
        }
    }
}

impl Direction {
    /// Waits until so many bytes have had their time on the link.
    async fn wait_for_capacity(&self, bytes: usize) {
        let Some(rate) = self.link.lock().expect("a link").bytes_per_second else {
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
