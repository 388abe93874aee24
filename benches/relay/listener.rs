//! A consumer that notes when which row arrived.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use tokio::time::sleep;

use crate::place::Place;
use crate::{Outcome, Patience};

#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub number: u64,
    pub at: Instant,
}

pub struct Listener {
    stop: Arc<AtomicBool>,
    heard: Arc<AtomicUsize>,
    thread: JoinHandle<Vec<Arrival>>,
}

impl Listener {
    /// Hears every record of the place's topics, each partition from its beginning.
    pub fn start(place: &Place) -> Outcome<Self> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &place.stack.kafka)
            // Never joined; the client wants a name all the same.
            .set("group.id", "bench")
            .set("enable.auto.commit", "false")
            // The broker answers as soon as there is one record.
            .set("fetch.min.bytes", "1")
            .set("fetch.wait.max.ms", "100")
            .create()?;
        let mut partitions = TopicPartitionList::new();
        for topic in place.topics() {
            for partition in 0..place.partitions() {
                partitions.add_partition_offset(topic, partition, Offset::Beginning)?;
            }
        }
        consumer.assign(&partitions)?;
        let (stop, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counter) = (stop.clone(), heard.clone());
        let thread = std::thread::spawn(move || listen(&consumer, &stopped, &counter));
        Ok(Listener { stop, heard, thread })
    }

    /// Waits for so many records, and then a moment for those that nobody expects.
    pub async fn hear(self, records: usize) -> Outcome<Vec<Arrival>> {
        let patience = Patience::new(Duration::from_secs(120));
        while self.heard.load(Ordering::Acquire) < records {
            patience.or("every committed row to arrive")?;
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_millis(200)).await;
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the listener panicked".into())
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

fn listen(consumer: &BaseConsumer, stop: &AtomicBool, heard: &AtomicUsize) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        // An error is a broker that is busy: the client goes on by itself.
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(50)) else {
            continue;
        };
        let at = Instant::now();
        if let Some(number) = message.payload().and_then(number) {
            arrivals.push(Arrival { number, at });
            heard.fetch_add(1, Ordering::Release);
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
