//! A broker whose metadata names, every other time, topics and no broker at all.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::kafka_frames::{PRODUCE, read_frame, write_frame};
use crate::{SOON, eventually};

const FETCH: i16 = 1;
const METADATA: i16 = 3;
const API_VERSIONS: i16 = 18;
const INIT_PRODUCER_ID: i16 = 22;
const LEADER_NOT_AVAILABLE: i16 = 5;
const UNSUPPORTED_VERSION: i16 = 35;

/// Speaks as much of Kafka's protocol as a client needs to ask for a topic. A real broker gives the second answer for some
/// milliseconds of its start, and librdkafka 2.12 takes it, one time in four, as a reason to forget every broker for good.
/// ReturnedLane again and again it silences every client.
pub struct BrokerlessBroker {
    serving: JoinHandle<()>,
    asked: Arc<Mutex<Asked>>,
}

struct Asked {
    times: usize,
    last: Instant,
}

impl BrokerlessBroker {
    /// In the place of a broker that is down.
    pub async fn at(address: &str) -> Self {
        let listener = eventually(SOON, "the broker's port", async || {
            TcpListener::bind(address).await.ok()
        })
        .await;
        let port = listener.local_addr().expect("an address").port();
        let asked = Arc::new(Mutex::new(Asked {
            times: 0,
            last: Instant::now(),
        }));
        let count = asked.clone();
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let count = count.clone();
                connections.spawn(async move { while serve(&mut client, port, &count).await.is_ok() {} });
            }
        });
        BrokerlessBroker { serving, asked }
    }

    /// Nobody has asked for a topic for so long, after some did.
    pub async fn quiet_for(&self, silence: Duration) {
        eventually(2 * SOON, "every client to fall silent", async || {
            let asked = self.asked.lock().expect("no panic");
            (asked.times > 0 && asked.last.elapsed() > silence).then_some(())
        })
        .await;
    }

    /// The port is free again.
    pub async fn leave(self) {
        self.serving.abort();
        let _ = self.serving.await;
    }
}

/// One request and its answer.
async fn serve(client: &mut TcpStream, port: u16, asked: &Mutex<Asked>) -> std::io::Result<()> {
    let request = read_frame(client).await?;
    let mut request = request.as_slice();
    let (api, version, correlation) = (
        request.read_i16().await?,
        request.read_i16().await?,
        request.read_i32().await?,
    );
    let client_id = request.read_i16().await?;
    request = &request[usize::try_from(client_id).unwrap_or(0)..];

    let mut answer = correlation.to_be_bytes().to_vec();
    match api {
        API_VERSIONS => answer.extend(versions(version)),
        METADATA => {
            let topics = request.read_i32().await?;
            let knows_itself = topics <= 0 || asked.lock().expect("no panic").once_more() % 2 == 1;
            answer.extend(brokers(knows_itself.then_some(port)));
            answer.extend(without_leaders(topics.max(0), request));
        }
        // What needs a cluster waits for one.
        _ => return Ok(()),
    }
    write_frame(client, &answer).await
}

/// The plainest versions only, so that there is little to write, of as much as an idempotent producer insists on.
fn versions(asked: i16) -> Vec<u8> {
    let error = if asked == 0 { 0 } else { UNSUPPORTED_VERSION };
    let apis = [
        [PRODUCE, 3, 7],
        [FETCH, 4, 4],
        [METADATA, 1, 1],
        [API_VERSIONS, 0, 0],
        [INIT_PRODUCER_ID, 0, 0],
    ];
    let mut answer = error.to_be_bytes().to_vec();
    answer.extend((apis.len() as i32).to_be_bytes());
    answer.extend(apis.iter().flatten().flat_map(|number| number.to_be_bytes()));
    answer
}

/// The broker at this port or none, and no controller.
fn brokers(port: Option<u16>) -> Vec<u8> {
    let mut answer = i32::from(port.is_some()).to_be_bytes().to_vec();
    if let Some(port) = port {
        let (id, host, no_rack) = (1i32, b"127.0.0.1", -1i16);
        answer.extend(id.to_be_bytes());
        answer.extend((host.len() as i16).to_be_bytes());
        answer.extend(host);
        answer.extend(i32::from(port).to_be_bytes());
        answer.extend(no_rack.to_be_bytes());
    }
    answer.extend((-1i32).to_be_bytes());
    answer
}

fn without_leaders(topics: i32, mut names: &[u8]) -> Vec<u8> {
    let mut answer = topics.to_be_bytes().to_vec();
    for _ in 0..topics {
        let length = 2 + usize::from(u16::from_be_bytes([names[0], names[1]]));
        let (name, rest) = names.split_at(length);
        answer.extend(LEADER_NOT_AVAILABLE.to_be_bytes());
        answer.extend(name);
        // Not internal, and no partitions.
        answer.extend([0; 5]);
        names = rest;
    }
    // The client guesses the memory it needs from the answer's length, and too little from a short one.
    answer.extend([0; 300]);
    answer
}

impl Asked {
    fn once_more(&mut self) -> usize {
        self.last = Instant::now();
        self.times += 1;
        self.times
    }
}
