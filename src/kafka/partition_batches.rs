//! The rows of one batch by partition, and how they are sent in order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use rdkafka::types::RDKafkaErrorCode as Code;
use tracing::warn;

use super::main_producer::MainProducer;
use super::producer::Producer;
use super::reports::Report;
use super::topics::Topics;
use super::{Deadlines, delivery};
use crate::domain::delivery::Delivery;
use crate::domain::partition::Partition;
use crate::domain::row::Row;

/// A topic and one of its partitions.
type Destination<'a> = (&'a str, Partition);

/// The rows of one batch for one partition, in order.
struct PartitionBatch {
    rows: Vec<usize>,
    next: usize,
    /// How many of its bytes may be in flight at once. Below the topic's limit a refusal cannot affect other records.
    limit: Option<usize>,
}

/// The rows that may be sent together now.
#[derive(Default)]
struct Picked<'a> {
    /// Their indexes in the batch, and their partitions.
    rows: Vec<(usize, i32)>,
    /// For each partition, which of `rows` are sent to it.
    slots: Vec<(Destination<'a>, Range<usize>)>,
}

pub struct PartitionBatches<'a> {
    rows: &'a [Row],
    topics: &'a Topics,
    batches: BTreeMap<Destination<'a>, PartitionBatch>,
}

impl<'a> PartitionBatches<'a> {
    pub fn new(rows: &'a [Row], topics: &'a Topics) -> Self {
        let batches = BTreeMap::new();
        PartitionBatches { rows, topics, batches }
    }

    /// Adds the row with this index; the rows of a partition must come in their order.
    pub fn push(&mut self, index: usize, partition: Partition) {
        let topic = self.rows[index].topic.as_str();
        let batch = self.batches.entry((topic, partition));
        let batch = batch.or_insert_with(|| PartitionBatch {
            rows: Vec::new(),
            next: 0,
            limit: self.topics.limit(topic),
        });
        batch.rows.push(index);
    }

    /// Sends a whole partition batch at once if the producer knows the partition and the topic's limit allows it. Otherwise it
    /// sends as many records as is safe, waits for them, and sends the next ones. A partition gets nothing more after a record
    /// that was not acknowledged, and rows that were not sent are not among the deliveries.
    pub async fn send(mut self, main: &MainProducer, deadlines: Deadlines) -> Vec<(usize, Delivery)> {
        let mut deliveries = Vec::new();
        let producer = main.get();
        while !self.batches.is_empty() && !producer.is_retired() && Instant::now() < deadlines.handed_over {
            let picked = self.pick(&producer);
            let sent = producer.send(self.rows, &picked.rows, deadlines.handed_over);
            let overdue = !main.finish(&producer, &sent, deadlines.answered).await;
            let reports = sent.reports();
            for (destination, slots) in picked.slots {
                let indexes = picked.rows[slots.clone()].iter().map(|(index, _)| *index);
                let reported: Vec<_> = indexes.zip(reports[slots].iter().copied()).collect();
                let results = self.deliveries(&reported, destination, overdue);
                let all_acked = results.iter().all(|(_, delivery)| *delivery == Delivery::Acked);
                if all_acked {
                    producer.acknowledged(destination.0, destination.1.number);
                }
                if !all_acked || self.batches[&destination].is_sent() {
                    self.batches.remove(&destination);
                }
                deliveries.extend(results);
            }
            main.replace_if_fatal(&producer);
        }
        deliveries
    }

    fn pick(&mut self, producer: &Producer) -> Picked<'a> {
        let mut picked = Picked::default();
        for (destination, batch) in &mut self.batches {
            let (topic, partition) = (destination.0, destination.1.number);
            let from = batch.next;
            batch.next += batch.safe_count(self.rows, producer.knows(topic, partition));
            let slots = picked.rows.len()..picked.rows.len() + (batch.next - from);
            picked.slots.push((*destination, slots));
            let rows = batch.rows[from..batch.next].iter();
            picked.rows.extend(rows.map(|index| (*index, partition)));
        }
        picked
    }

    /// The deliveries of records of one partition that were sent together, by the indexes of their rows.
    fn deliveries(
        &self,
        reported: &[(usize, Option<Report>)],
        (topic, partition): Destination<'_>,
        overdue: bool,
    ) -> Vec<(usize, Delivery)> {
        let is_unknown = |report: Report| report.code == Code::UnknownPartition;
        if reported.iter().any(|(_, report)| report.is_some_and(is_unknown)) {
            // The client may be right: the topic may have been recreated with fewer partitions.
            self.topics.expire(topic, Duration::ZERO);
        }
        let refused = reported.iter().filter(|(_, report)| delivery::is_refusal(*report));
        let records = refused.clone().count();
        if records > 1 {
            // A produce batch fails as a whole, though only one of its records may be the cause. Smaller batches narrow it down.
            let bytes: usize = refused.map(|(index, _)| self.rows[*index].size()).sum();
            self.topics.narrow(topic, bytes / 2);
            warn!(
                topic,
                partition = partition.number,
                records,
                "Kafka refused a batch; sending smaller ones to find the record"
            );
        }
        let delivery = |(index, report): &(usize, Option<Report>)| {
            let delivery = if records > 1 && delivery::is_refusal(*report) {
                Delivery::NotSent
            } else {
                delivery::of_report(*report, topic, partition, overdue, || self.topics.principal())
            };
            (*index, delivery)
        };
        reported.iter().map(delivery).collect()
    }
}

impl PartitionBatch {
    fn is_sent(&self) -> bool {
        self.next == self.rows.len()
    }

    /// How many of the next rows may be sent together.
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
