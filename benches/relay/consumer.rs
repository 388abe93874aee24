//! A consumer that notes when which row arrived.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use tokio::time::sleep;

use crate::workspace::Workspace;
use crate::{Deadline, Outcome};

#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub number: u64,
    pub at: Instant,
}

pub struct TimingConsumer {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicUsize>,
    thread: JoinHandle<Vec<Arrival>>,
}

impl TimingConsumer {
    /// Receives every record of the workspace's topics, each partition from its beginning.
    pub fn start(workspace: &Workspace) -> Outcome<Self> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &workspace.servers.kafka)
            // Never joined; the client wants a name all the same.
            .set("group.id", "bench")
            .set("enable.auto.commit", "false")
            // The broker answers as soon as there is one record.
            .set("fetch.min.bytes", "1")
            .set("fetch.wait.max.ms", "100")
            .create()?;
        let mut partitions = TopicPartitionList::new();
        for topic in workspace.topics() {
            for partition in 0..workspace.partitions() {
                partitions.add_partition_offset(topic, partition, Offset::Beginning)?;
            }
        }
        consumer.assign(&partitions)?;
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counter) = (stop.clone(), received.clone());
        let thread = std::thread::spawn(move || consume(&consumer, &stopped, &counter));
        Ok(TimingConsumer { stop, received, thread })
    }

    /// Waits for so many records, and then a moment for those that nobody expects.
    pub async fn receive(self, records: usize) -> Outcome<Vec<Arrival>> {
        let deadline = Deadline::new(Duration::from_secs(120));
        while self.received.load(Ordering::Acquire) < records {
            deadline.or("every committed row to arrive")?;
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_millis(200)).await;
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the consumer panicked".into())
    }
}

/// When the first copy of each row arrived.
pub fn first_copies(arrivals: &[Arrival]) -> HashMap<u64, Instant> {
    let mut first = HashMap::with_capacity(arrivals.len());
    for arrival in arrivals {
        first.entry(arrival.number).or_insert(arrival.at);
    }
    first
}

fn consume(consumer: &BaseConsumer, stop: &AtomicBool, received: &AtomicUsize) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        // An error is a broker that is busy: the client goes on by itself.
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(50)) else {
            continue;
        };
        let at = Instant::now();
        if let Some(number) = message.payload().and_then(number) {
            arrivals.push(Arrival { number, at });
            received.fetch_add(1, Ordering::Release);
        }
    }
    arrivals
}

/// The number that PostgreSQL puts first when it prints a payload of ours.
fn number(payload: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(payload).ok()?;
    let rest = text.strip_prefix(r#"{"n": "#)?;
    rest.split(',').next()?.parse().ok()
}
