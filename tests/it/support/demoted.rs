//! A broker that writes what it is sent and then says that it does not lead the partition.
//!
//! A real one answers so when leadership goes between its write and its answer: too short a moment for a test to hit.
//! So a real broker stands behind a proxy that changes the answer.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::frames::{PRODUCE, read_frame, write_frame};
use super::{OwnKafka, SOON, eventually};

/// From this version on the protocol writes lengths in as few bytes as they need.
const COMPACT_SINCE: i16 = 9;
const NOT_LEADER: i16 = 6;

pub struct DemotedBroker {
    /// Lives as long as we do.
    _kafka: OwnKafka,
    pub address: String,
    serving: JoinHandle<()>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    demoted: AtomicBool,
    denied: AtomicUsize,
}

impl DemotedBroker {
    /// It leads, for now.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let kafka = OwnKafka::advertising(address.port());
        let server = kafka.address.parse().expect("an address");
        let shared = Arc::<Shared>::default();
        DemotedBroker {
            _kafka: kafka,
            address: address.to_string(),
            serving: tokio::spawn(serve(listener, server, shared.clone())),
            shared,
        }
    }

    /// From now on what it writes is denied, until [`DemotedBroker::lead`].
    pub fn step_down(&self) {
        self.shared.demoted.store(true, Ordering::Relaxed);
    }

    pub fn lead(&self) {
        self.shared.demoted.store(false, Ordering::Relaxed);
    }

    /// Waits until something was written and denied.
    pub async fn denied(&self) {
        eventually(SOON, "an answer to be changed", async || {
            (self.shared.denied.load(Ordering::Relaxed) > 0).then_some(())
        })
        .await;
    }
}

impl Drop for DemotedBroker {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, server: SocketAddr, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let shared = shared.clone();
        connections.spawn(async move {
            let Ok(server) = TcpStream::connect(server).await else {
                return;
            };
            let produced = Mutex::default();
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            // Either end ends both.
            tokio::select! {
                _ = requests(from_client, to_server, &produced) => {}
                _ = answers(from_server, to_client, &produced, &shared) => {}
            }
        });
    }
}

/// Remembers the produce requests by their correlation ids.
async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    produced: &Mutex<HashSet<[u8; 4]>>,
) -> io::Result<()> {
    loop {
        let frame = read_frame(&mut from).await?;
        let (api, version) = (i16_at(&frame, 0), i16_at(&frame, 2));
        if api == PRODUCE {
            assert!(version >= COMPACT_SINCE, "produce requests of version {version}");
            let correlation = frame[4..8].try_into().expect("four bytes");
            produced.lock().expect("no panic").insert(correlation);
        }
        write_frame(&mut to, &frame).await?;
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    produced: &Mutex<HashSet<[u8; 4]>>,
    shared: &Shared,
) -> io::Result<()> {
    loop {
        let mut frame = read_frame(&mut from).await?;
        let is_produce = produced.lock().expect("no panic").remove(&frame[..4]);
        if is_produce && shared.demoted.load(Ordering::Relaxed) {
            deny(&mut frame);
            shared.denied.fetch_add(1, Ordering::Relaxed);
        }
        write_frame(&mut to, &frame).await?;
    }
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
