//! One producer of the client library, and the delivery reports of what it was given.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{DeliveryResult, Header, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::failpoint;
use crate::message::Row;

/// Brokers forget a producer that was silent for long; we assume it much sooner than they do.
const KNOWN_FOR: Duration = Duration::from_secs(600);

const LOOK_TIMEOUT: Duration = Duration::from_secs(3);

/// How long one wait for reports lasts. The binding spins through the last millisecond of each: its own thread, which waits for
/// a tenth of a second at a time, costs an idle process one percent of a core for every producer.
const REPORTS_WAIT: Duration = Duration::from_secs(5);

/// No report yet. The client's codes are small numbers.
const UNREPORTED: i32 = i32::MAX;

/// What was said of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub code: Code,
    /// The client had taken it, and may have sent it. Whether it did is not to be learned from the client: it takes a
    /// broker that leads no more for one that wrote nothing, which may have written the record before it stepped down.
    pub handed_over: bool,
}

impl Report {
    /// In one word: codes are written by one thread and read by another.
    fn packed(self) -> i32 {
        self.code as i32 * 2 + i32::from(self.handed_over)
    }

    fn unpacked(packed: i32) -> Self {
        Report {
            code: Code::from(to_native(packed >> 1)),
            handed_over: packed & 1 == 1,
        }
    }
}

/// Records sent together, and what was reported of each. One wake-up for all of them.
#[derive(Debug)]
pub struct Wave {
    reports: Vec<AtomicI32>,
    left: AtomicUsize,
    changed: Notify,
}

impl Wave {
    fn new(size: usize) -> Self {
        Wave {
            reports: (0..size).map(|_| AtomicI32::new(UNREPORTED)).collect(),
            left: AtomicUsize::new(size),
            changed: Notify::new(),
        }
    }

    /// Returns whether this was the last report.
    fn report(&self, slot: usize, report: Report) -> bool {
        self.reports[slot].store(report.packed(), Ordering::Relaxed);
        let last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        if last || report.code != Code::NoError {
            self.changed.notify_one();
        }
        last
    }

    /// Waits for all reports. False: the deadline passed, or a failure was reported and `hopeless` says that the rest
    /// will not come by itself.
    pub async fn done_by(&self, deadline: Instant, hopeless: impl Fn() -> bool) -> bool {
        loop {
            if self.left.load(Ordering::Acquire) == 0 {
                return true;
            }
            if hopeless() {
                return false;
            }
            if tokio::time::timeout_at(deadline.into(), self.changed.notified())
                .await
                .is_err()
            {
                return self.left.load(Ordering::Acquire) == 0;
            }
        }
    }

    /// What was reported for the record in this slot.
    pub fn reported(&self, slot: usize) -> Option<Report> {
        let packed = self.reports[slot].load(Ordering::Relaxed);
        (packed != UNREPORTED).then(|| Report::unpacked(packed))
    }
}

/// The client hands codes out as its own enum and takes them back as the native one.
fn to_native(code: i32) -> rdkafka::types::RDKafkaRespErr {
    rdkafka::types::RDKafkaRespErr::try_from(code).unwrap_or(rdkafka::types::RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN)
}

#[derive(Debug, Default)]
struct Reports {
    waves: Mutex<HashMap<u32, Arc<Wave>>>,
    next: AtomicU32,
}

impl Reports {
    fn open(&self, size: usize) -> (u32, Arc<Wave>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let wave = Arc::new(Wave::new(size));
        self.waves
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number, wave.clone());
        (number, wave)
    }

    fn report(&self, number: u32, slot: usize, report: Report) {
        let mut waves = self.waves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wave) = waves.get(&number)
            && wave.report(slot, report)
        {
            waves.remove(&number);
        }
    }
}

/// Complaints about TLS or SASL that come within this time of each other belong to one outage. The client repeats the same one
/// every half a minute.
const OUTAGE_ENDS_AFTER: Duration = Duration::from_secs(120);

/// When a client of this process last could not prove who it is, or was not shown who the broker is.
static LAST_COMPLAINT: Mutex<Option<Instant>> = Mutex::new(None);

/// Is this the first complaint of an outage? Every client has one for every broker, again and again.
fn is_news(last: &Mutex<Option<Instant>>, now: Instant) -> bool {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    last.replace(now).is_none_or(|last| now - last > OUTAGE_ENDS_AFTER)
}

/// What a client of this process was last told about a connection, and when.
static LAST_ERROR: Mutex<Option<(Instant, String)>> = Mutex::new(None);

/// Why a connection failed last, if that was lately: the client's answers to requests say only that one did.
pub fn last_error() -> Option<String> {
    let last = LAST_ERROR.lock().unwrap_or_else(PoisonError::into_inner);
    let lately = |(at, _): &&(Instant, String)| at.elapsed() < OUTAGE_ENDS_AFTER;
    last.as_ref().filter(lately).map(|(_, reason)| reason.clone())
}

fn note_error(reason: &str) {
    let mut last = LAST_ERROR.lock().unwrap_or_else(PoisonError::into_inner);
    *last = Some((Instant::now(), reason.to_owned()));
}

/// What the client library says is for debugging: connection errors come again and again during an outage, and the relay
/// says once that Kafka is away. Why TLS or SASL failed is said once, too: it does not pass by itself.
pub struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::error!(facility, said = message, "librdkafka");
            }
            RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning => {
                tracing::debug!(facility, said = message, "librdkafka")
            }
            _ => tracing::trace!(facility, said = message, "librdkafka"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        // That all are down follows from the others, and says nothing of why.
        if code != Some(Code::AllBrokersDown) {
            note_error(reason);
        }
        if matches!(code, Some(Code::SSL | Code::Authentication)) && is_news(&LAST_COMPLAINT, Instant::now()) {
            tracing::warn!(
                reason,
                "Kafka cannot be reached securely: see security.protocol and its properties"
            );
        } else {
            tracing::debug!(%error, reason, "librdkafka");
        }
    }
}

pub struct Context(Arc<Reports>);

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        Quiet.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        Quiet.error(error, reason);
    }
}

impl ProducerContext for Context {
    /// Wave number and slot in one word: no allocation per record.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let code = match result {
            // Said by no broker: the client concludes it from a later record that was taken. A broker that does not know the producer
            // takes that one without this one.
            Ok(message) if message.offset() < 0 => Code::Unknown,
            Ok(_) => Code::NoError,
            Err((error, _)) => error.rdkafka_error_code().unwrap_or(Code::Unknown),
        };
        let report = Report {
            code,
            handed_over: true,
        };
        failpoint::hit_blocking("delivery_report");
        self.0.report((opaque >> 32) as u32, opaque & 0xffff_ffff, report);
    }
}

pub struct Producer {
    client: Arc<BaseProducer<Context>>,
    reports: Arc<Reports>,
    clock: Arc<Clock>,
    /// Partitions that have acknowledged something from this very producer, and when last.
    known: Mutex<HashMap<String, HashMap<i32, Instant>>>,
    failures: AtomicU32,
    retired: AtomicBool,
}

impl Producer {
    pub fn new(config: &ClientConfig, gapless: bool, clock: &Arc<Clock>) -> KafkaResult<Arc<Self>> {
        let mut config = config.clone();
        config.set("enable.gapless.guarantee", if gapless { "true" } else { "false" });
        let reports = Arc::new(Reports::default());
        let client = Arc::new(BaseProducer::from_config_and_context(
            &config,
            Context(reports.clone()),
        )?);
        serve_reports(client.clone())?;
        Ok(Arc::new(Producer {
            client,
            reports,
            clock: clock.clone(),
            known: Mutex::default(),
            failures: AtomicU32::new(0),
            retired: AtomicBool::new(false),
        }))
    }

    pub fn client(&self) -> &BaseProducer<Context> {
        &self.client
    }

    /// Hands records over: row indexes with their partitions. What cannot even be queued is reported at once, and so is
    /// what would have followed it to its partition: nothing may overtake it. Nothing is handed over after the deadline, but for the
    /// one record that the process may have slept over: the client counts a record's time from here on, the lease does not.
    pub fn send(self: &Arc<Self>, rows: &[Row], picked: &[(usize, i32)], deadline: Instant) -> Arc<Wave> {
        let (number, wave) = self.reports.open(picked.len());
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
            if let Err((error, _)) = self.client().send(record) {
                let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
                if code == Code::UnknownPartition && !stopped.iter().any(|(topic, _)| *topic == row.topic) {
                    self.look_again(&row.topic);
                }
                not_taken(slot, code);
                stopped.push((&row.topic, *partition));
            }
        }
        wave
    }

    /// The topic has partitions this client has not heard of, and would not for up to a minute: it asks now.
    fn look_again(self: &Arc<Self>, topic: &str) {
        let (producer, topic) = (self.clone(), topic.to_owned());
        tokio::task::spawn_blocking(move || {
            let client = producer.client().client();
            if let Err(error) = client.fetch_metadata(Some(&topic), LOOK_TIMEOUT) {
                tracing::debug!(topic, %error, "cannot look a topic up");
            }
        });
    }

    /// Has this partition acknowledged a record of ours lately? Otherwise the next one must go alone.
    pub fn knows(&self, topic: &str, partition: i32) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(topic)
            .and_then(|partitions| partitions.get(&partition))
            .is_some_and(|at| at.elapsed() < KNOWN_FOR)
    }

    pub fn acknowledged(&self, topic: &str, partition: i32) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(partitions) = known.get_mut(topic) {
            partitions.insert(partition, Instant::now());
        } else {
            known.insert(topic.to_owned(), HashMap::from([(partition, Instant::now())]));
        }
    }

    /// How many records of ours are neither reported nor purged.
    pub fn in_flight(&self) -> i32 {
        self.client().in_flight_count()
    }

    /// A record of ours was not acknowledged.
    pub fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    pub fn is_fatal(&self) -> bool {
        self.client().client().fatal_error().is_some()
    }

    /// Takes no new work; what it has is finished or purged.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Gives up everything queued and in flight: each record is reported as one or the other.
    pub fn purge(&self) {
        self.client()
            .purge(PurgeConfig::default().queue().inflight().non_blocking());
    }
}

/// On a thread of its own, until nobody else uses the client. It is closed there as well, which waits for threads and sockets.
fn serve_reports(client: Arc<BaseProducer<Context>>) -> KafkaResult<()> {
    let thread = std::thread::Builder::new().name("reports".to_owned());
    let served = thread.spawn(move || {
        while Arc::strong_count(&client) > 1 {
            client.poll(REPORTS_WAIT);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_complained_about_once() {
        let (last, now) = (Mutex::new(None), Instant::now());
        assert!(is_news(&last, now));
        assert!(!is_news(&last, now + OUTAGE_ENDS_AFTER));
        assert!(!is_news(&last, now + 2 * OUTAGE_ENDS_AFTER), "it goes on");
        assert!(is_news(&last, now + 3 * OUTAGE_ENDS_AFTER + Duration::from_millis(1)));
    }

    #[test]
    fn a_report_survives_its_packing() {
        for code in [
            Code::NoError,
            Code::PurgeInflight,
            Code::NotLeaderForPartition,
            Code::Fatal,
        ] {
            for handed_over in [false, true] {
                let report = Report { code, handed_over };
                assert_eq!(Report::unpacked(report.packed()), report);
            }
        }
    }
}
