//! Reads topics back for `outboxd verify`: without a group and without commits, up to the end that a topic had when reading
//! began.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminOptions, ResourceSpecifier};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedHeaders, Headers as _};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Message, Offset, TopicPartitionList};

use super::admin::Admin;
use super::clients::Clients;
use super::context::Context;

/// How long Kafka may give no answer before reading fails.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How many reports of failed connections are read at most, and how long each is waited for.
const FAILURES_MAX: usize = 100;
const REPORTS_WITHIN: Duration = Duration::from_millis(100);

/// The wait before a partition whose leader moves is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// What is to be read of one partition: the offsets from `from` up to but excluding `to`.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// The first offset that the partition still has.
    pub low: i64,
    pub from: i64,
    pub to: i64,
}

/// A record as it was read.
pub struct Record<'a> {
    pub partition: i32,
    pub offset: i64,
    /// In milliseconds since 1970.
    pub timestamp: Option<i64>,
    pub key: Option<&'a [u8]>,
    pub payload: Option<&'a [u8]>,
    /// Names and values, in their order.
    pub headers: Vec<(&'a str, Option<&'a [u8]>)>,
}

pub struct Consumer {
    client: BaseConsumer<Context>,
}

impl Consumer {
    /// Connects lazily.
    pub fn new(clients: &Clients) -> KafkaResult<Self> {
        Ok(Consumer {
            client: clients.consumer()?,
        })
    }

    /// The client for a call that does not poll: it is given its token here.
    fn client(&self) -> &BaseConsumer<Context> {
        let client = self.client.client();
        client.context().refresh_token(client.native_client());
        &self.client
    }

    /// Lets the client report why connections failed. It does so only when it is polled. Nothing is assigned, so there are no
    /// records.
    fn note_failures(&self) {
        for _ in 0..FAILURES_MAX {
            if self.client.poll(REPORTS_WITHIN).is_none() {
                return;
            }
        }
    }

    /// What to read of each partition of a topic, as it is now, from the time `since` (in milliseconds) on. Empty if there is no
    /// such topic.
    pub fn extents(&self, topic: &str, since: Option<i64>) -> KafkaResult<Vec<Extent>> {
        let extents = self.ask_extents(topic, since);
        if extents.is_err() {
            self.note_failures();
        }
        extents
    }

    fn ask_extents(&self, topic: &str, since: Option<i64>) -> KafkaResult<Vec<Extent>> {
        let count = self.partition_count(topic)?;
        let mut extents = Vec::new();
        for partition in 0..count {
            let (low, to) = self.offsets(topic, partition)?;
            extents.push(Extent { low, from: low, to });
        }
        if let Some(since) = since {
            self.start_at(topic, since, &mut extents)?;
        }
        Ok(extents)
    }

    fn partition_count(&self, topic: &str) -> KafkaResult<i32> {
        let metadata = self.client().fetch_metadata(Some(topic), TIMEOUT)?;
        let Some(topic) = metadata.topics().first() else {
            return Ok(0);
        };
        match topic.error().map(Code::from) {
            None => Ok(topic.partitions().len() as i32),
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Ok(0),
            Some(code) => Err(KafkaError::MetadataFetch(code)),
        }
    }

    /// The first offset of a partition and its end. Asks again while the partition has no leader, or a new one.
    fn offsets(&self, topic: &str, partition: i32) -> KafkaResult<(i64, i64)> {
        let until = Instant::now() + TIMEOUT;
        loop {
            let offsets = self.client().fetch_watermarks(topic, partition, TIMEOUT);
            let code = offsets.as_ref().err().and_then(KafkaError::rdkafka_error_code);
            let is_moving = matches!(code, Some(Code::NotLeaderForPartition | Code::LeaderNotAvailable));
            if !is_moving || Instant::now() >= until {
                return offsets;
            }
            std::thread::sleep(ASK_AGAIN);
        }
    }

    fn start_at(&self, topic: &str, since: i64, extents: &mut [Extent]) -> KafkaResult<()> {
        let mut times = TopicPartitionList::new();
        for partition in 0..extents.len() {
            times.add_partition_offset(topic, partition as i32, Offset::Offset(since))?;
        }
        for found in self.client().offsets_for_times(times, TIMEOUT)?.elements() {
            let extent = &mut extents[found.partition() as usize];
            extent.from = match found.offset() {
                Offset::Offset(offset) => offset.clamp(extent.low, extent.to),
                // All of its records are older.
                _ => extent.to,
            };
        }
        Ok(())
    }

    /// Hands every record to `each`, in order within a partition. Blocks.
    pub fn read<E: From<KafkaError>>(
        &self,
        topic: &str,
        extents: &[Extent],
        mut each: impl FnMut(&Record<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut unread: Vec<bool> = extents.iter().map(|extent| extent.from < extent.to).collect();
        self.client.assign(&assignment(topic, extents)?)?;
        let mut last_answer = Instant::now();
        while unread.contains(&true) {
            match self.client.poll(Duration::from_millis(100)) {
                None if last_answer.elapsed() < TIMEOUT => continue,
                None => return Err(KafkaError::MessageConsumption(Code::OperationTimedOut).into()),
                // The last records before the end may have been compacted away, and then their offsets never arrive.
                Some(Err(KafkaError::PartitionEOF(partition))) => unread[partition as usize] = false,
                // The outage may pass; `last_answer` decides when it has lasted too long.
                Some(Err(KafkaError::MessageConsumption(Code::BrokerTransportFailure | Code::AllBrokersDown))) => {
                    continue;
                }
                // The group is never joined, so no permission for it is needed.
                Some(Err(KafkaError::MessageConsumption(Code::GroupAuthorizationFailed))) => continue,
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(message)) => {
                    let partition = message.partition() as usize;
                    let to = extents[partition].to;
                    if message.offset() < to {
                        let headers = message.headers().into_iter().flat_map(BorrowedHeaders::iter);
                        each(&Record {
                            partition: message.partition(),
                            offset: message.offset(),
                            timestamp: message.timestamp().to_millis(),
                            key: message.key(),
                            payload: message.payload(),
                            headers: headers.map(|header| (header.key, header.value)).collect(),
                        })?;
                    }
                    if message.offset() + 1 >= to {
                        unread[partition] = false;
                    }
                }
            }
            last_answer = Instant::now();
        }
        Ok(self.client.unassign()?)
    }
}

fn assignment(topic: &str, extents: &[Extent]) -> KafkaResult<TopicPartitionList> {
    let mut assignment = TopicPartitionList::new();
    for (partition, extent) in extents.iter().enumerate() {
        if extent.from < extent.to {
            assignment.add_partition_offset(topic, partition as i32, Offset::Offset(extent.from))?;
        }
    }
    Ok(assignment)
}

/// Is the topic compacted? `None` if we have no permission to ask.
pub async fn is_compacted(clients: &Clients, topic: &str) -> Option<bool> {
    let admin = Admin::new(clients).ok()?;
    let options = AdminOptions::new().request_timeout(Some(TIMEOUT));
    let topic = ResourceSpecifier::Topic(topic);
    let described = admin.client().describe_configs([&topic], &options).await;
    let resource = described.ok()?.pop()?.ok()?;
    let policy = resource.get("cleanup.policy")?.value.clone()?;
    Some(policy.split(',').any(|policy| policy.trim() == "compact"))
}
