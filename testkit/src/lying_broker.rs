//! A broker that writes what it is sent and then says that it does not lead the partition, or that gets a request garbled and takes
//! the next.
//!
//! A real one answers so when leadership goes between its write and its answer, or comes between two requests: too short a moment
//! for a test to hit. So a real broker stands behind a proxy that changes what it is told, or what it says.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::kafka_frames::{PRODUCE, read_frame, write_frame};
use crate::{OwnKafka, SOON, eventually};

/// From this version on the protocol writes lengths in as few bytes as they need.
const COMPACT_SINCE: i16 = 9;
const NOT_LEADER: i16 = 6;
/// So long the answer to a garbled request waits for the request behind it.
const OTHER_REQUEST: Duration = Duration::from_secs(1);

pub struct LyingBroker {
    /// Lives as long as we do.
    _kafka: OwnKafka,
    pub address: String,
    serving: JoinHandle<()>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    demoted: AtomicBool,
    denied: AtomicBool,
    garbling: AtomicBool,
    garbled: AtomicBool,
}

/// What has come by on one connection.
#[derive(Default)]
struct Connection {
    /// Produce requests without an answer: how many came up to this one, and was it garbled.
    produced: Mutex<HashMap<[u8; 4], (usize, bool)>>,
    /// How many produce requests have come.
    requests: watch::Sender<usize>,
}

impl LyingBroker {
    /// It leads, for now.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let kafka = OwnKafka::advertising(address.port());
        let server = kafka.address.parse().expect("an address");
        let shared = Arc::<Shared>::default();
        LyingBroker {
            _kafka: kafka,
            address: address.to_string(),
            serving: tokio::spawn(serve(listener, server, shared.clone())),
            shared,
        }
    }

    /// From now on what it writes is denied, until [`LyingBroker::lead`].
    pub fn step_down(&self) {
        self.shared.demoted.store(true, Ordering::Relaxed);
    }

    pub fn lead(&self) {
        self.shared.demoted.store(false, Ordering::Relaxed);
    }

    /// Waits until something was written and denied.
    pub async fn denied(&self) {
        happened(&self.shared.denied, "an answer to be changed").await;
    }

    /// The next produce request arrives garbled, and its answer not before the next request is under way, if there is one.
    pub fn garble_next(&self) {
        self.shared.garbling.store(true, Ordering::Relaxed);
    }

    /// Waits until that has happened.
    pub async fn garbled(&self) {
        happened(&self.shared.garbled, "a request to be garbled").await;
    }
}

impl Drop for LyingBroker {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn happened(what: &AtomicBool, said: &str) {
    eventually(SOON, said, async || what.load(Ordering::Relaxed).then_some(())).await;
}

async fn serve(listener: TcpListener, server: SocketAddr, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let shared = shared.clone();
        connections.spawn(async move {
            let Ok(server) = TcpStream::connect(server).await else {
                return;
            };
            let connection = Connection::default();
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            // Either end ends both.
            tokio::select! {
                _ = connection.requests(from_client, to_server, &shared) => {}
                _ = connection.answers(from_server, to_client, &shared) => {}
            }
        });
    }
}

impl Connection {
    /// Remembers the produce requests by their correlation ids.
    async fn requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) -> io::Result<()> {
        loop {
            let mut frame = read_frame(&mut from).await?;
            let (api, version) = (i16_at(&frame, 0), i16_at(&frame, 2));
            let is_produce = api == PRODUCE;
            if is_produce {
                assert!(version >= COMPACT_SINCE, "produce requests of version {version}");
                let garbled = shared.garbling.swap(false, Ordering::Relaxed);
                if garbled {
                    garble(&mut frame);
                    shared.garbled.store(true, Ordering::Relaxed);
                }
                let correlation = frame[4..8].try_into().expect("four bytes");
                let number = *self.requests.borrow() + 1;
                self.produced
                    .lock()
                    .expect("no panic")
                    .insert(correlation, (number, garbled));
            }
            write_frame(&mut to, &frame).await?;
            if is_produce {
                self.requests.send_modify(|requests| *requests += 1);
            }
        }
    }

    async fn answers(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) -> io::Result<()> {
        loop {
            let mut frame = read_frame(&mut from).await?;
            let produced = self.produced.lock().expect("no panic").remove(&frame[..4]);
            if let Some((number, garbled)) = produced {
                if garbled {
                    let mut requests = self.requests.subscribe();
                    let another = requests.wait_for(|requests| *requests > number);
                    let _ = tokio::time::timeout(OTHER_REQUEST, another).await;
                } else if shared.demoted.load(Ordering::Relaxed) {
                    deny(&mut frame);
                    shared.denied.store(true, Ordering::Relaxed);
                }
            }
            write_frame(&mut to, &frame).await?;
        }
    }
}

/// Behind the records come only the tags of partition, topic and request, of which there are none: a byte each.
fn garble(request: &mut [u8]) {
    let last_of_records = request.len() - 4;
    request[last_of_records] ^= 0xff;
}

/// The client asks for one partition at a time: the first error is the only one.
fn deny(answer: &mut [u8]) {
    let (correlation, no_tags, one_topic) = (4, 1, 1);
    let name = correlation + no_tags + one_topic;
    let (length, width) = compact_length(&answer[name..]);
    let (one_partition, index) = (1, 4);
    let error = name + width + length + one_partition + index;
    assert_eq!(i16_at(answer, error), 0, "the broker wrote it");
    answer[error..error + 2].copy_from_slice(&NOT_LEADER.to_be_bytes());
}

/// The length of what follows, and how many bytes it took to say so.
fn compact_length(bytes: &[u8]) -> (usize, usize) {
    let width = 1 + bytes.iter().take_while(|byte| **byte >= 0x80).count();
    let bits = |sum, byte: &u8| sum << 7 | usize::from(byte & 0x7f);
    (bytes[..width].iter().rev().fold(0, bits) - 1, width)
}

fn i16_at(bytes: &[u8], at: usize) -> i16 {
    i16::from_be_bytes([bytes[at], bytes[at + 1]])
}
