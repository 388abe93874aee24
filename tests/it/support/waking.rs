//! A broker that has just been started and has not heard of its cluster yet: it knows topics, and no broker that has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::{SOON, eventually};

const PRODUCE: i16 = 0;
const FETCH: i16 = 1;
const METADATA: i16 = 3;
const API_VERSIONS: i16 = 18;
const INIT_PRODUCER_ID: i16 = 22;
const LEADER_NOT_AVAILABLE: i16 = 5;
const UNSUPPORTED_VERSION: i16 = 35;

/// Speaks as much of Kafka's protocol as a client needs to ask for a topic. A real broker is in this state for some
/// milliseconds of its start.
pub struct WakingBroker {
    serving: JoinHandle<()>,
    answered: Arc<AtomicUsize>,
}

impl WakingBroker {
    /// In the place of a broker that is down.
    pub async fn at(address: &str) -> Self {
        let listener = eventually(SOON, "the broker's port", async || {
            TcpListener::bind(address).await.ok()
        })
        .await;
        let answered = Arc::new(AtomicUsize::new(0));
        let count = answered.clone();
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let count = count.clone();
                connections.spawn(async move { while serve(&mut client, &count).await.is_ok() {} });
            }
        });
        WakingBroker { serving, answered }
    }

    /// How often it was asked for a topic.
    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// The port is free again.
    pub async fn leave(self) {
        self.serving.abort();
        let _ = self.serving.await;
    }
}

/// One request and its answer.
async fn serve(client: &mut TcpStream, answered: &AtomicUsize) -> std::io::Result<()> {
    let size = client.read_i32().await?;
    let mut request = vec![0; usize::try_from(size).expect("a length")];
    client.read_exact(&mut request).await?;
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
            answer.extend(topics_without_brokers(topics.max(0), request));
            answered.fetch_add(usize::from(topics > 0), Ordering::Relaxed);
        }
        // What needs a cluster waits for one.
        _ => return Ok(()),
    }
    client.write_i32(answer.len() as i32).await?;
    client.write_all(&answer).await
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

fn topics_without_brokers(topics: i32, mut names: &[u8]) -> Vec<u8> {
    let (no_brokers, no_controller) = (0i32, -1i32);
    let mut answer = [no_brokers, no_controller, topics].map(i32::to_be_bytes).concat();
    for _ in 0..topics {
        let length = 2 + usize::from(u16::from_be_bytes([names[0], names[1]]));
        let (name, rest) = names.split_at(length);
        answer.extend(LEADER_NOT_AVAILABLE.to_be_bytes());
        answer.extend(name);
        // Not internal, and no partitions.
        answer.extend([0; 5]);
        names = rest;
    }
    answer
}
