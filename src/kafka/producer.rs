//! One producer of the client library. It hands records over, and remembers which partitions have acknowledged some.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::client::OAuthToken;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{DeliveryResult, Header, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::clients::{Clients, TakesTokens};
use super::context::Context;
use super::reports::{Report, Reports, SentRecords};
use super::{ANSWERS_AFTER_FATAL, Deadlines, PURGE_TIMEOUT, delivery, lock, statistics};
use crate::clock::Clock;
use crate::domain::delivery::Delivery;
use crate::domain::partition::Partition;
use crate::domain::row::Row;
use crate::failpoint;

/// A broker forgets a producer that sends nothing for long. We assume that it has after a much shorter time than brokers need.
const KNOWN_FOR: Duration = Duration::from_secs(600);

const METADATA_TIMEOUT: Duration = Duration::from_secs(3);

/// How long one wait for reports lasts. The binding spins through the last millisecond of each wait. Its own polling thread waits
/// for 100 ms at a time, and would cost an idle process 1 % of a core for every producer.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);

/// Passes delivery reports on.
struct ReportingContext {
    context: Context,
    reports: Arc<Reports>,
    /// After how long without statistics a client is gone.
    gone_after: Duration,
}

impl ClientContext for ReportingContext {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = Context::ENABLE_REFRESH_OAUTH_TOKEN;

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.context.log(level, facility, message);
    }

    fn stats_raw(&self, json: &[u8]) {
        statistics::record(json, self.gone_after);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.context.error(error, reason);
    }

    fn generate_oauth_token(&self, properties: Option<&str>) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        self.context.generate_oauth_token(properties)
    }
}

impl ProducerContext for ReportingContext {
    /// The number of the records that were sent together, and the slot among them, in one integer: no allocation per record.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let code = match result {
            // No broker acknowledged it. The client infers the acknowledgement because a later record was accepted, but a broker
            // that does not know the producer accepts the later record without this one.
            Ok(message) if message.offset() < 0 => Code::Unknown,
            Ok(_) => Code::NoError,
            Err((error, _)) => error.rdkafka_error_code().unwrap_or(Code::Unknown),
        };
        let report = Report {
            code,
            handed_over: true,
        };
        failpoint::hit_blocking("delivery_report");
        self.reports.report((opaque >> 32) as u32, opaque & 0xffff_ffff, report);
    }
}

/// What a producer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Whole batches. Nothing is written behind a record that was refused.
    Batches,
    /// Single records that may be refused.
    SingleRecords,
    /// A probe. The client retries it only once, because its result is wanted soon and the next probe follows anyway.
    Probes,
}

impl Purpose {
    /// Added to the settings of all clients.
    pub fn properties(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Purpose::Batches => &[("enable.gapless.guarantee", "true")],
            Purpose::SingleRecords => &[],
            Purpose::Probes => &[("message.send.max.retries", "1")],
        }
    }
}

/// The settings of a producer.
#[derive(Clone)]
pub struct ProducerSettings {
    pub clients: Arc<Clients>,
    pub purpose: Purpose,
    /// The source of record timestamps.
    pub clock: Arc<Clock>,
    /// When Kafka last acknowledged a record, to any producer of this process.
    pub last_ack: Arc<Mutex<Option<Instant>>>,
}

pub struct Producer {
    client: Arc<BaseProducer<ReportingContext>>,
    clients: Arc<Clients>,
    reports: Arc<Reports>,
    clock: Arc<Clock>,
    last_ack: Arc<Mutex<Option<Instant>>>,
    /// Partitions that have acknowledged a record of this producer, and when last.
    known: Mutex<HashMap<String, HashMap<i32, Instant>>>,
    failures: AtomicU32,
    retired: AtomicBool,
}

impl Producer {
    /// Builds a producer, which takes half a second.
    pub fn new(settings: &ProducerSettings) -> KafkaResult<Arc<Self>> {
        let reports = Arc::new(Reports::default());
        let (config, context) = settings.clients.of_producer(settings.purpose);
        let context = ReportingContext {
            context,
            reports: reports.clone(),
            gone_after: statistics::gone_after(&config),
        };
        let client = Arc::new(BaseProducer::from_config_and_context(&config, context)?);
        serve_reports(client.clone())?;
        settings.clients.keep_logged_in(&client);
        Ok(Arc::new(Producer {
            client,
            clients: settings.clients.clone(),
            reports,
            clock: settings.clock.clone(),
            last_ack: settings.last_ack.clone(),
            known: Mutex::default(),
            failures: AtomicU32::new(0),
            retired: AtomicBool::new(false),
        }))
    }

    /// Builds a producer on a thread that may block.
    pub async fn build(settings: &ProducerSettings) -> KafkaResult<Arc<Self>> {
        let settings = settings.clone();
        let built = tokio::task::spawn_blocking(move || Producer::new(&settings)).await;
        built.unwrap_or_else(|error| Err(KafkaError::ClientCreation(error.to_string())))
    }

    /// Hands records to the client; `picked` has the indexes of their rows and their partitions. A record that cannot be queued
    /// is reported at once, and so are the records behind it for the same partition, because nothing may overtake it. No record
    /// is handed over after the deadline, except for one if the process is suspended just after the check: the client counts a
    /// record's lifetime from here on, the lease does not.
    pub fn send(&self, rows: &[Row], picked: &[(usize, i32)], deadline: Instant) -> Arc<SentRecords> {
        let (number, sent) = self.reports.open(picked.len());
        let mut stopped: Vec<(&str, i32)> = Vec::new();
        let not_taken = |slot, code| {
            let report = Report {
                code,
                handed_over: false,
            };
            self.reports.report(number, slot, report);
        };
        let now_ms = self.clock.now_ms();
        for (slot, (index, partition)) in picked.iter().enumerate() {
            let row = &rows[*index];
            failpoint::hit_blocking("before_produce");
            if Instant::now() >= deadline || stopped.contains(&(row.topic.as_str(), *partition)) {
                not_taken(slot, Code::PurgeQueue);
                continue;
            }
            let opaque = (number as usize) << 32 | slot;
            let key = row.record_key();
            let mut record = BaseRecord::with_opaque_to(&row.topic, opaque)
                .partition(*partition)
                .key(key.as_bytes())
                .timestamp(now_ms)
                .headers(headers(row));
            if let Some(body) = row.body.as_bytes() {
                record = record.payload(body);
            }
            if let Err((error, _)) = self.client.send(record) {
                let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
                if code == Code::UnknownPartition && !stopped.iter().any(|(topic, _)| *topic == row.topic) {
                    self.refresh_metadata(&row.topic);
                }
                not_taken(slot, code);
                stopped.push((&row.topic, *partition));
            }
        }
        sent
    }

    /// Sends one record. Returns its delivery, and whether the deadline passed before it was reported; then everything is purged.
    /// If the producer `is_shared`, other tasks get another one from then on, and the records that they have handed to this one
    /// get some time for their answers.
    pub async fn send_alone(
        &self,
        row: &Row,
        partition: Partition,
        deadlines: Deadlines,
        is_shared: bool,
    ) -> (Delivery, bool) {
        let picked = [(0, partition.number)];
        let sent = self.send(std::slice::from_ref(row), &picked, deadlines.handed_over);
        let overdue = !sent.all_reported_by(deadlines.answered, || false).await;
        if overdue {
            if is_shared {
                self.retire();
                if self.client.in_flight_count() > 1 {
                    tokio::time::sleep(ANSWERS_AFTER_FATAL).await;
                }
            }
            self.purge();
            sent.all_reported_by(Instant::now() + PURGE_TIMEOUT, || false).await;
        }
        let delivery = delivery::of_report(sent.reports()[0], &row.topic, partition, overdue, || {
            self.clients.principal()
        });
        if delivery == Delivery::Acked {
            self.acknowledged(&row.topic, partition.number);
        } else {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        (delivery, overdue)
    }

    /// Asks the brokers about a topic that has partitions which this client does not know yet. Otherwise it would ask in up to a
    /// minute.
    fn refresh_metadata(&self, topic: &str) {
        let (client, topic) = (self.client.clone(), topic.to_owned());
        tokio::task::spawn_blocking(move || {
            if let Err(error) = client.client().fetch_metadata(Some(&topic), METADATA_TIMEOUT) {
                tracing::debug!(topic, %error, "cannot look a topic up");
            }
        });
    }

    /// Has this partition acknowledged a record of this producer recently? Otherwise the next one must be sent alone.
    pub fn knows(&self, topic: &str, partition: i32) -> bool {
        lock(&self.known)
            .get(topic)
            .and_then(|partitions| partitions.get(&partition))
            .is_some_and(|at| at.elapsed() < KNOWN_FOR)
    }

    /// The partition has acknowledged everything that was sent to it together.
    pub fn acknowledged(&self, topic: &str, partition: i32) {
        let now = Instant::now();
        let mut known = lock(&self.known);
        known.entry(topic.to_owned()).or_default().insert(partition, now);
        // Another producer may have noted a later one.
        let mut last_ack = lock(&self.last_ack);
        *last_ack = (*last_ack).max(Some(now));
    }

    /// How many records that were sent alone have not been acknowledged.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    pub fn is_fatal(&self) -> bool {
        self.client.client().fatal_error().is_some()
    }

    /// Have the settings changed since it was built?
    pub fn is_outdated(&self) -> bool {
        self.client.client().context().context.generation != self.clients.generation()
    }

    /// The producer gets no new records. Those that it has are finished or purged.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Gives up on everything queued and in flight. Each record is reported as purged from one or the other.
    pub fn purge(&self) {
        self.client
            .purge(PurgeConfig::default().queue().inflight().non_blocking());
    }
}

impl TakesTokens for BaseProducer<ReportingContext> {
    fn refresh_token(&self) {
        self.client()
            .context()
            .context
            .refresh_token(self.client().native_client());
    }
}

/// Polls for reports on a separate thread until nothing else uses the client. The client is also closed there, because that waits
/// for threads and sockets.
fn serve_reports(client: Arc<BaseProducer<ReportingContext>>) -> KafkaResult<()> {
    let thread = std::thread::Builder::new().name("reports".to_owned());
    let served = thread.spawn(move || {
        while Arc::strong_count(&client) > 1 {
            client.poll(POLL_TIMEOUT);
        }
    });
    let no_thread = |error| KafkaError::ClientCreation(format!("no thread for delivery reports: {error}"));
    served.map(drop).map_err(no_thread)
}

/// The headers of a row's record.
pub fn headers(row: &Row) -> OwnedHeaders {
    let mut headers = Some(OwnedHeaders::new_with_capacity(4));
    row.each_header(|key, value| {
        headers = headers.take().map(|headers| headers.insert(Header { key, value }));
    });
    headers.expect("put back after every header")
}
