//! Reads topics back, for `outboxd verify`: no group, no commits, up to where the topic ended when it was asked.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::BorrowedMessage;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

/// How long Kafka may be silent before we give up.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is to be read of one partition: offsets from `from` up to but without `to`.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// The first offset the partition still has.
    pub low: i64,
    pub from: i64,
    pub to: i64,
}

pub struct Consumer {
    client: BaseConsumer,
}

impl Consumer {
    /// Connects lazily.
    pub fn new(config: &ClientConfig) -> KafkaResult<Self> {
        Ok(Consumer {
            client: config.create()?,
        })
    }

    /// The partitions of a topic as they are now, from the time `since` (milliseconds) on. None: there is no such topic.
    pub fn extents(&self, topic: &str, since: Option<i64>) -> KafkaResult<Vec<Extent>> {
        let count = self.partition_count(topic)?;
        let mut extents = Vec::new();
        for partition in 0..count {
            let (low, to) = self.client.fetch_watermarks(topic, partition, PATIENCE)?;
            extents.push(Extent { low, from: low, to });
        }
        if let Some(since) = since {
            self.start_at(topic, since, &mut extents)?;
        }
        Ok(extents)
    }

    fn partition_count(&self, topic: &str) -> KafkaResult<i32> {
        let metadata = self.client.fetch_metadata(Some(topic), PATIENCE)?;
        let Some(topic) = metadata.topics().first() else {
            return Ok(0);
        };
        match topic.error().map(Code::from) {
            None => Ok(topic.partitions().len() as i32),
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Ok(0),
            Some(code) => Err(KafkaError::MetadataFetch(code)),
        }
    }

    fn start_at(&self, topic: &str, since: i64, extents: &mut [Extent]) -> KafkaResult<()> {
        let mut times = TopicPartitionList::new();
        for partition in 0..extents.len() {
            times.add_partition_offset(topic, partition as i32, Offset::Offset(since))?;
        }
        for found in self.client.offsets_for_times(times, PATIENCE)?.elements() {
            let extent = &mut extents[found.partition() as usize];
            extent.from = match found.offset() {
                Offset::Offset(offset) => offset.clamp(extent.low, extent.to),
                // Nothing in it is that young.
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
        mut each: impl FnMut(&BorrowedMessage<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut unread: Vec<bool> = extents.iter().map(|extent| extent.from < extent.to).collect();
        self.client.assign(&assignment(topic, extents)?)?;
        let mut heard = Instant::now();
        while unread.contains(&true) {
            match self.client.poll(Duration::from_millis(100)) {
                None if heard.elapsed() < PATIENCE => continue,
                None => return Err(KafkaError::MessageConsumption(Code::OperationTimedOut).into()),
                // The records before the end may have been compacted away: their offsets never come.
                Some(Err(KafkaError::PartitionEOF(partition))) => unread[partition as usize] = false,
                // An outage that passes; `heard` decides when it does not.
                Some(Err(KafkaError::MessageConsumption(Code::BrokerTransportFailure | Code::AllBrokersDown))) => {
                    continue;
                }
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(message)) => {
                    let partition = message.partition() as usize;
                    let to = extents[partition].to;
                    if message.offset() < to {
                        each(&message)?;
                    }
                    if message.offset() + 1 >= to {
                        unread[partition] = false;
                    }
                }
            }
            heard = Instant::now();
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

/// Is the topic compacted? `None`: we may not ask.
pub async fn is_compacted(config: &ClientConfig, topic: &str) -> Option<bool> {
    let admin: AdminClient<DefaultClientContext> = config.create().ok()?;
    let options = AdminOptions::new().request_timeout(Some(PATIENCE));
    let topic = ResourceSpecifier::Topic(topic);
    let resource = admin.describe_configs([&topic], &options).await.ok()?.pop()?.ok()?;
    let policy = resource.get("cleanup.policy")?.value.clone()?;
    Some(policy.split(',').any(|policy| policy.trim() == "compact"))
}
