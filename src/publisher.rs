//! The only user of the Kafka client. Takes rows, answers what became of each.
//!
//! Three producers: the *main* one carries batches; a warm *spare* stands by, because building one takes half a second
//! and every lane would wait; the *quarantine* sends single records whose acceptance is in doubt, so that a refusal there
//! disturbs nobody. Probes of paused topics and partitions have producers of their own, each for one probe at a time. Another client
//! looks topics up and sends nothing. None of them is trusted to come back by itself: one
//! that gives no answer is replaced. The rules that keep a key in order through a partial failure:
//!
//! - the partition is computed here, as the Java client would;
//! - a producer's first record to a partition goes alone and is waited for, since a broker takes any first sequence
//!   number from a producer it does not know, and would accept row 2 after refusing row 1;
//! - after that, the gapless guarantee: behind a refused record nothing of that producer gets through;
//! - an acknowledgement has an offset: one without is the client's own conclusion, and several tasks may send their first
//!   record at once;
//! - a deadline of our own, inside the lease and shorter than the client's timeout: an expired record could be
//!   overtaken by the one behind it.

mod admin;
mod outcome;
mod paused;
mod probes;
mod producer;
pub mod properties;
mod quarantine;
mod topics;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::jitter::jittered;
use crate::message::{Outcome, Partition, Row, TopicFault};
use crate::metrics;
use paused::{PausedPartitions, Reasons};
use probes::Probes;
use producer::{Producer, Report, Wave};
use quarantine::Turn;
use topics::{Topic, Topics};

pub use producer::headers;

/// After the deadline, healthy answers still have this long before everything is purged.
const LATE_ANSWERS: Duration = Duration::from_secs(1);
/// After a fatal error some reports come only after a purge, but answers that are on their way should come first: a record
/// purged in flight has to be sent again, as a possible duplicate.
const ANSWERS_AFTER_FATAL: Duration = Duration::from_millis(250);
/// Reports of purged records come at once; this is for the machine that does not.
const PURGE_PATIENCE: Duration = Duration::from_secs(1);

/// Thousands of keys of one topic may be tried again together: what was asked about it for one of them is fresh for the others.
const JUST_NOW: Duration = Duration::from_secs(1);

/// How long a publish can overrun its deadline: what the lease must allow for.
pub const OVERRUN: Duration = Duration::from_secs(2);

/// How long a record may live in the client, counted from when it was handed over. Longer than a batch and its overrun, whose own
/// deadlines therefore come first.
pub fn record_lifetime(batch_deadline: Duration) -> Duration {
    batch_deadline + OVERRUN + Duration::from_millis(500)
}

/// The times of a publish.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Until {
    /// No record is handed to the client later: what sleeps there with the process must be dead when the lease is over.
    pub handed_over: Instant,
    /// Answers are awaited so long, and [`OVERRUN`].
    pub answered: Instant,
}

/// Where a record goes and how.
#[derive(Clone, Copy, Debug)]
struct Route {
    partition: Partition,
    /// Larger than its topic is known to take: in quarantine, alone.
    alone: bool,
}

/// The rows of one batch for one partition, in order.
struct Group {
    rows: Vec<usize>,
    next: usize,
    /// How many bytes of it may be under way at once: below the topic's limit, a refusal cannot hit innocents.
    limit: Option<usize>,
}

pub struct Publisher {
    config: ClientConfig,
    clock: Arc<Clock>,
    main: RwLock<Arc<Producer>>,
    spare: Mutex<Option<Arc<Producer>>>,
    quarantine: tokio::sync::Mutex<Arc<Producer>>,
    /// Per topic and partition, whose turn it is to send there alone.
    alone: Mutex<HashMap<(String, i32), Turn>>,
    topics: Topics,
    paused_partitions: PausedPartitions,
    probes: Probes,
    paused: watch::Sender<bool>,
    started: Instant,
    /// When Kafka last acknowledged anything, in milliseconds since `started`; plus one, so that 0 is never.
    last_ack: AtomicU64,
}

impl Publisher {
    /// Connects lazily: an unreachable Kafka is found out by the first batch, not here.
    /// Records are stamped by `clock`.
    pub fn new(config: &ClientConfig, clock: Arc<Clock>) -> Result<Arc<Self>, rdkafka::error::KafkaError> {
        let main = Producer::new(config, true, &clock)?;
        let spare = Producer::new(config, true, &clock)?;
        let quarantine = Producer::new(config, false, &clock)?;
        Ok(Arc::new(Publisher {
            config: config.clone(),
            clock,
            main: RwLock::new(main),
            spare: Mutex::new(Some(spare)),
            topics: Topics::new(config)?,
            quarantine: tokio::sync::Mutex::new(quarantine),
            alone: Mutex::default(),
            paused_partitions: PausedPartitions::default(),
            probes: Probes::default(),
            paused: watch::channel(false).0,
            started: Instant::now(),
            last_ack: AtomicU64::new(0),
        }))
    }

    /// Resolves while Kafka is believed to be there.
    pub async fn ready(&self) {
        let mut paused = self.paused.subscribe();
        // The sender lives as long as we do.
        let _ = paused.wait_for(|paused| !paused).await;
    }

    pub fn is_paused(&self) -> bool {
        *self.paused.borrow()
    }

    /// Has anything been acknowledged, by anyone in this process, since then?
    pub fn answered_since(&self, then: Instant) -> bool {
        let last = self.last_ack.load(Ordering::Relaxed);
        last > 0 && self.started + Duration::from_millis(last - 1) >= then
    }

    fn acknowledged(&self) {
        let now = self.started.elapsed().as_millis() as u64 + 1;
        self.last_ack.fetch_max(now, Ordering::Relaxed);
    }

    /// Publishes rows, which must be in row order, and answers what became of each.
    pub async fn publish(self: &Arc<Self>, rows: &[Row], until: Until) -> Vec<Outcome> {
        let mut outcomes = vec![Outcome::Unsent; rows.len()];
        let routes = self.route(rows, &mut outcomes, until.answered, true).await;
        let mut groups: BTreeMap<(&str, Partition), Group> = BTreeMap::new();
        let mut alone = Vec::new();
        for (index, route) in routes.iter().enumerate() {
            match route {
                None => {}
                Some(route) if route.alone => alone.push((index, route.partition)),
                Some(route) => {
                    let topic = rows[index].topic.as_str();
                    let group = groups.entry((topic, route.partition)).or_insert_with(|| Group {
                        rows: Vec::new(),
                        next: 0,
                        limit: self.topics.limit(topic),
                    });
                    group.rows.push(index);
                }
            }
        }
        let quarantined = self.send_each_alone(rows, &alone, until);
        let sent = self.send_groups(rows, groups, until);
        let (sent, quarantined) = tokio::join!(sent, quarantined);
        for (index, outcome) in sent.into_iter().chain(quarantined) {
            outcomes[index] = outcome;
        }
        outcomes
    }

    /// Sends one row alone, in quarantine, with fresh knowledge of its topic.
    pub async fn send_head(self: &Arc<Self>, row: &Row, until: Until) -> Outcome {
        match self.route_one(row, until, true).await {
            Ok(partition) => self.send_alone(row, partition, until, &AtomicBool::new(false)).await,
            Err(outcome) => outcome,
        }
    }

    /// Sends one row of a paused topic or partition, by a producer that carries nothing else meanwhile.
    pub async fn probe(self: &Arc<Self>, row: &Row, until: Until) -> Outcome {
        let partition = match self.route_one(row, until, false).await {
            Ok(partition) => partition,
            Err(outcome) => return outcome,
        };
        let outcome = if self.topics.has_leader(&row.topic, partition.number) {
            self.send_probe(row, partition, until).await
        } else {
            outcome::transient(&row.topic, partition, "it has no leader", false)
        };
        match &outcome {
            Outcome::Sick { reason, .. } => self.pause_partition(&row.topic, partition, reason),
            Outcome::Acked | Outcome::Refused { .. } => {
                self.paused_partitions.resume(&row.topic, partition.number);
            }
            _ => {}
        }
        outcome
    }

    /// The partition took nothing while others answered: until a probe of it is taken, nothing is sent there.
    pub fn pause_partition(&self, topic: &str, partition: Partition, reason: &str) {
        self.paused_partitions
            .pause(topic, partition.number, reason, Instant::now());
    }

    /// Where a row goes by fresh knowledge of its topic; or why it is not to be sent now.
    async fn route_one(&self, row: &Row, until: Until, heeds_paused: bool) -> Result<Partition, Outcome> {
        self.topics.forget(&row.topic, JUST_NOW);
        let mut outcomes = [Outcome::Unsent];
        let rows = std::slice::from_ref(row);
        let routes = self.route(rows, &mut outcomes, until.answered, heeds_paused).await;
        let [outcome] = outcomes;
        routes
            .first()
            .copied()
            .flatten()
            .map(|route| route.partition)
            .ok_or(outcome)
    }

    /// Kafka is away: everybody waits until it answers again.
    pub fn pause(self: &Arc<Self>, reason: &str, topic: &str) {
        if self.paused.send_replace(true) {
            return;
        }
        metrics::publisher_paused(true);
        warn!(
            reason,
            connection = producer::last_error(),
            "Kafka does not answer; publishing is paused until it does. No attempt is counted"
        );
        let publisher = self.clone();
        let topic = topic.to_owned();
        tokio::spawn(async move { publisher.wait_for_kafka(&topic).await });
    }

    async fn wait_for_kafka(&self, topic: &str) {
        let since = Instant::now();
        let mut wait = Duration::from_millis(200);
        while !self.topics.reachable(topic).await {
            tokio::time::sleep(jittered(wait)).await;
            wait = (wait * 2).min(Duration::from_secs(3));
        }
        info!(
            seconds = since.elapsed().as_secs(),
            "Kafka answers again; publishing goes on"
        );
        metrics::publisher_paused(false);
        self.paused.send_replace(false);
    }

    /// Finds each row's partition. `None` where the row is not to be sent now; its outcome says why. Whoever heeds paused partitions
    /// sends nothing there.
    async fn route(
        &self,
        rows: &[Row],
        outcomes: &mut [Outcome],
        deadline: Instant,
        heeds_paused: bool,
    ) -> Vec<Option<Route>> {
        let mut names: Vec<&str> = rows.iter().map(|row| row.topic.as_str()).collect();
        // First as they stand: most rows have their neighbour's topic.
        names.dedup();
        names.sort_unstable();
        names.dedup();
        let lookups = names.iter().map(|name| self.topics.get(name, deadline));
        let known: Vec<Result<Topic, Outcome>> = futures_util::future::join_all(lookups).await;
        let now = Instant::now();
        let paused_of = |name: &&str| self.paused_partitions.of_topic(name, now);
        let paused: Vec<Reasons> = names.iter().filter(|_| heeds_paused).map(paused_of).collect();
        let mut routes = Vec::with_capacity(rows.len());
        // Units with a row that does not go the ordinary way: what is behind it waits for the next batch.
        let mut stopped: HashSet<(&str, String)> = HashSet::new();
        for (index, row) in rows.iter().enumerate() {
            let behind = !stopped.is_empty()
                && !row.has_lost_its_line()
                && row
                    .unit()
                    .is_some_and(|unit| stopped.contains(&(row.topic.as_str(), unit)));
            if behind {
                routes.push(None);
                continue;
            }
            let topic = names.partition_point(|name| *name < row.topic.as_str());
            let route = match (&row.withheld, &known[topic]) {
                (Some(reason), _) => Err(Outcome::Refused { reason: reason.clone() }),
                (None, Ok(known)) => route_in(known, row).and_then(|route| unless_paused(route, paused.get(topic))),
                (None, Err(sick)) => Err(sick.clone()),
            };
            let ordinary = matches!(route, Ok(Route { alone: false, .. }));
            if !ordinary && let Some(unit) = row.unit() {
                stopped.insert((&row.topic, unit));
            }
            routes.push(match route {
                // On two producers the later could overtake the earlier: it goes when that one is done.
                Ok(Route { alone: true, .. }) if earlier_of_unit(rows, index).next().is_some() => None,
                // Should its key be held for it, what came before it must be through.
                Err(_) if row.withheld.is_some() && earlier_of_unit(rows, index).next().is_some() => None,
                Ok(route) => Some(route),
                Err(outcome) => {
                    outcomes[index] = outcome;
                    None
                }
            });
        }
        routes
    }

    /// Sends groups in waves: a whole group at once where the producer knows its partition and the topic's limit
    /// allows it, else as much as is safe, waiting in between.
    async fn send_groups(
        self: &Arc<Self>,
        rows: &[Row],
        mut groups: BTreeMap<(&str, Partition), Group>,
        until: Until,
    ) -> Vec<(usize, Outcome)> {
        let mut outcomes = Vec::new();
        let mut doubted = Vec::new();
        let mut producer = self.main();
        if producer.is_retired() {
            // No other could be built when it was given up.
            self.replace(&producer, "the producer had been given up");
            producer = self.main();
        }
        while !groups.is_empty() && !producer.is_retired() && Instant::now() < until.handed_over {
            let mut picked = Vec::new();
            let mut wave_groups = Vec::new();
            for (place, group) in &mut groups {
                let from = group.next;
                group.next += group.safe_count(rows, producer.knows(place.0, place.1.number));
                wave_groups.push((*place, picked.len()..picked.len() + (group.next - from)));
                picked.extend(
                    group.rows[from..group.next]
                        .iter()
                        .map(|index| (*index, place.1.number)),
                );
            }
            let wave = producer.send(rows, &picked, until.handed_over);
            let overdue = !self.finish(&producer, &wave, until.answered).await;
            for (place, range) in wave_groups {
                let reports: Vec<_> = range.clone().map(|slot| wave.reported(slot)).collect();
                let judged = self.judge_group(rows, &picked[range], &reports, place, overdue);
                let all_acked = judged.iter().all(|(_, outcome)| *outcome == Outcome::Acked);
                if all_acked {
                    producer.acknowledged(place.0, place.1.number);
                    self.acknowledged();
                }
                if !all_acked || groups[&place].next == groups[&place].rows.len() {
                    groups.remove(&place);
                }
                for (index, outcome) in judged {
                    match outcome {
                        Outcome::Refused { .. } => doubted.push((index, place.1)),
                        outcome => outcomes.push((index, outcome)),
                    }
                }
            }
            if producer.is_fatal() {
                self.replace(&producer, "the producer hit a fatal error");
                purge_later(producer.clone());
            }
        }
        // The client puts records of several tasks into one produce batch, which fails as a whole: a refusal by the main
        // producer may be meant for somebody else's record. Alone in quarantine the answer is about this one. Order
        // holds: gapless let nothing behind it through.
        if !doubted.is_empty() {
            let acked: HashSet<usize> = outcomes
                .iter()
                .filter(|(_, outcome)| *outcome == Outcome::Acked)
                .map(|(index, _)| *index)
                .collect();
            doubted.retain(|(index, _)| earlier_of_unit(rows, *index).all(|earlier| acked.contains(&earlier)));
            outcomes.extend(self.send_each_alone(rows, &doubted, until).await);
        }
        outcomes
    }

    /// What became of the records of one partition in one wave.
    fn judge_group(
        &self,
        rows: &[Row],
        picked: &[(usize, i32)],
        reports: &[Option<Report>],
        (topic, partition): (&str, Partition),
        overdue: bool,
    ) -> Vec<(usize, Outcome)> {
        let is_uncounted = |report: &Report| report.code == Code::UnknownPartition;
        if reports.iter().flatten().any(is_uncounted) {
            // The client may be the one who is right: the topic was made anew with fewer partitions.
            self.topics.forget(topic, Duration::ZERO);
        }
        let refused = reports.iter().filter(|report| outcome::is_refusal(**report)).count();
        if refused > 1 {
            // A produce batch fails as a whole: at most one of them is guilty. Smaller batches will tell which.
            let bytes = picked
                .iter()
                .zip(reports)
                .filter(|(_, report)| outcome::is_refusal(**report))
                .map(|((index, _), _)| rows[*index].size())
                .sum::<usize>();
            self.topics.narrow(topic, bytes / 2);
            warn!(
                topic,
                partition = partition.number,
                records = refused,
                "Kafka refused a batch; sending smaller ones to find the record"
            );
        }
        picked
            .iter()
            .zip(reports)
            .map(|((index, _), report)| {
                let innocent = refused > 1 && outcome::is_refusal(*report);
                let outcome = if innocent {
                    Outcome::Unsent
                } else {
                    outcome::of_report(*report, topic, partition, overdue)
                };
                (*index, outcome)
            })
            .collect()
    }

    /// Waits for a wave. False: the deadline passed; what was not answered by then has been purged.
    async fn finish(self: &Arc<Self>, producer: &Arc<Producer>, wave: &Wave, deadline: Instant) -> bool {
        if wave.done_by(deadline, || producer.is_fatal()).await {
            return true;
        }
        let fatal = producer.is_fatal();
        let why = if fatal {
            "the producer hit a fatal error"
        } else {
            "a batch got no answer before its deadline"
        };
        self.replace(producer, why);
        // Counted from the deadline, not from now: a process that slept over it has no time left.
        let patience = if fatal {
            Instant::now() + ANSWERS_AFTER_FATAL
        } else {
            deadline + LATE_ANSWERS
        };
        if wave.done_by(patience, || false).await {
            return true;
        }
        producer.purge();
        wave.done_by(Instant::now() + PURGE_PATIENCE, || false).await;
        fatal
    }

    fn main(&self) -> Arc<Producer> {
        self.main.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts the spare in the producer's place and builds a new spare in the background.
    fn replace(self: &Arc<Self>, old: &Arc<Producer>, why: &str) {
        old.retire();
        let mut main = self.main.write().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&main, old) {
            return;
        }
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        let next = match spare.map_or_else(|| Producer::new(&self.config, true, &self.clock), Ok) {
            Ok(next) => next,
            Err(error) => {
                // The settings made a producer before; whatever is short now (memory, threads) may be back next time.
                warn!(%error, "cannot build a producer; keeping the old one");
                return;
            }
        };
        *main = next;
        drop(main);
        metrics::producer_rebuilt();
        warn!(why, "replaced the Kafka producer");
        let publisher = self.clone();
        tokio::task::spawn_blocking(move || match Producer::new(&publisher.config, true, &publisher.clock) {
            Ok(spare) => {
                *publisher.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(spare);
            }
            Err(error) => warn!(%error, "cannot build a spare producer; the next one is built when needed"),
        });
    }
}

/// Other tasks may wait for reports of this producer that only a purge brings.
fn purge_later(producer: Arc<Producer>) {
    tokio::spawn(async move {
        tokio::time::sleep(ANSWERS_AFTER_FATAL).await;
        producer.purge();
    });
}

fn route_in(topic: &Topic, row: &Row) -> Result<Route, Outcome> {
    if row.has_lost_its_line() {
        return Err(Outcome::Refused {
            reason: "it has a key or a partition but no lane, so its place in line is not known: it came in past the trigger \
                     zz_message_before_insert. See that the trigger is enabled (ENABLE ALWAYS) and the last to fire; then delete the row \
                     and insert its message again, in one transaction. Redriving it does not help"
                .into(),
        });
    }
    let partition = row
        .place()
        .partition(topic.partitions)
        .ok_or_else(|| Outcome::Refused {
            reason: format!(
                "partition {} does not exist: topic {} has {} partitions",
                row.partition.unwrap_or_default(),
                row.topic,
                topic.partitions
            ),
        })?;
    Ok(Route {
        partition: Partition {
            number: partition,
            of: topic.partitions,
        },
        alone: topic.limit.is_some_and(|limit| row.size() > limit),
    })
}

/// Nothing is sent to a partition that is known to be paused.
fn unless_paused(route: Route, paused: Option<&Reasons>) -> Result<Route, Outcome> {
    match paused.and_then(|paused| paused.get(&route.partition.number)) {
        None => Ok(route),
        Some(reason) => Err(Outcome::Sick {
            fault: TopicFault::Paused,
            partition: Some(route.partition),
            reason: reason.clone(),
            maybe_landed: false,
        }),
    }
}

/// The rows of the batch that must be there before this one.
fn earlier_of_unit(rows: &[Row], index: usize) -> impl Iterator<Item = usize> {
    let unit = rows[index].unit();
    let same = move |row: &Row| unit.is_some() && row.topic == rows[index].topic && row.unit() == unit;
    (0..index).filter(move |earlier| same(&rows[*earlier]))
}

impl Group {
    /// How many of the next rows may go together.
    fn safe_count(&self, rows: &[Row], partition_is_known: bool) -> usize {
        let left = &self.rows[self.next..];
        if !partition_is_known {
            return 1;
        }
        let Some(limit) = self.limit else { return left.len() };
        let mut bytes = 0;
        let fitting = left.iter().take_while(|index| {
            bytes += rows[**index].size();
            bytes <= limit
        });
        fitting.count().max(1)
    }
}

/// What a topic that cannot be looked up means for a row.
fn sick(fault: TopicFault, reason: String) -> Outcome {
    Outcome::Sick {
        fault,
        partition: None,
        reason,
        maybe_landed: false,
    }
}
