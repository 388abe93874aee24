//! The route of each row of a batch: to which partition it is sent, with others or alone, or why it is not sent now.

use std::collections::HashSet;
use std::time::Instant;

use super::paused_partitions::{PausedPartitions, Reasons};
use super::topics::{Topic, Topics};
use crate::domain::delivery::{Delivery, Unavailability};
use crate::domain::partition::Partition;
use crate::domain::row::Row;

/// To which partition a record is sent, and how.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub partition: Partition,
    /// It is larger than its topic is known to accept, so it is sent alone, in quarantine.
    pub alone: bool,
}

/// What is known of the topics of some rows.
pub struct KnownTopics<'a> {
    /// Sorted. The other lists are in the same order.
    names: Vec<&'a str>,
    topics: Vec<Result<Topic, Delivery>>,
    /// Empty where paused partitions are not skipped.
    paused: Vec<Reasons>,
}

impl<'a> KnownTopics<'a> {
    pub async fn of(rows: &'a [Row], topics: &Topics, deadline: Instant) -> Self {
        let mut names: Vec<&str> = rows.iter().map(|row| row.topic.as_str()).collect();
        // Deduplicating before sorting, too, is faster: most rows have the same topic as the row before them.
        names.dedup();
        names.sort_unstable();
        names.dedup();
        let lookups = names.iter().map(|name| topics.get(name, deadline));
        KnownTopics {
            topics: futures_util::future::join_all(lookups).await,
            names,
            paused: Vec::new(),
        }
    }

    /// From now on no route leads to a paused partition.
    pub fn skip_paused(&mut self, partitions: &PausedPartitions) {
        let now = Instant::now();
        let paused_of = |name: &&str| partitions.of_topic(name, now);
        self.paused = self.names.iter().map(paused_of).collect();
    }

    /// The route of one row by itself, or why it must not be sent now.
    pub fn route(&self, row: &Row) -> Result<Route, Delivery> {
        let topic = self.names.partition_point(|name| *name < row.topic.as_str());
        match (&row.unreadable, &self.topics[topic]) {
            (Some(reason), _) => Err(Delivery::Refused { reason: reason.clone() }),
            (None, Ok(known)) => route_in(known, row).and_then(|route| unless_paused(route, self.paused.get(topic))),
            (None, Err(delivery)) => Err(delivery.clone()),
        }
    }

    /// Finds the route of each row of a batch. `None` if the row must not be sent now; its delivery says why.
    pub fn routes(&self, rows: &[Row], deliveries: &mut [Delivery]) -> Vec<Option<Route>> {
        let mut routes = Vec::with_capacity(rows.len());
        // Units with a row that is sent alone or not at all. The rows behind it wait for the next batch.
        let mut stopped: HashSet<(&str, String)> = HashSet::new();
        for (index, row) in rows.iter().enumerate() {
            let behind = !stopped.is_empty()
                && !row.lacks_its_lane()
                && row
                    .unit()
                    .is_some_and(|unit| stopped.contains(&(row.topic.as_str(), unit)));
            if behind {
                routes.push(None);
                continue;
            }
            let route = self.route(row);
            let ordinary = matches!(route, Ok(Route { alone: false, .. }));
            if !ordinary && let Some(unit) = row.unit() {
                stopped.insert((&row.topic, unit));
            }
            routes.push(match route {
                // The later row could overtake an earlier one that another producer sends. It is sent once the earlier one is
                // done.
                Ok(Route { alone: true, .. }) if earlier_of_unit(rows, index).next().is_some() => None,
                // This row is going to be the head of a hold, so the earlier rows of its key must have been sent.
                Err(_) if row.unreadable.is_some() && earlier_of_unit(rows, index).next().is_some() => None,
                Ok(route) => Some(route),
                Err(delivery) => {
                    deliveries[index] = delivery;
                    None
                }
            });
        }
        routes
    }
}

fn route_in(topic: &Topic, row: &Row) -> Result<Route, Delivery> {
    if row.lacks_its_lane() {
        return Err(Delivery::Refused {
            reason: "it has a key or a partition but no lane, so its order is unknown: it was inserted without the trigger \
                     zz_message_before_insert. See that the trigger is enabled (ENABLE ALWAYS) and the last to fire; then delete \
                     the row and insert its message again, in one transaction. Redriving it does not help"
                .into(),
        });
    }
    let partition = row
        .partition_choice()
        .partition(topic.partitions)
        .ok_or_else(|| Delivery::Refused {
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

/// The route, unless its partition is known to be paused.
fn unless_paused(route: Route, paused: Option<&Reasons>) -> Result<Route, Delivery> {
    match paused.and_then(|paused| paused.get(&route.partition.number)) {
        None => Ok(route),
        Some(reason) => Err(Delivery::Unavailable {
            fault: Unavailability::Paused,
            partition: Some(route.partition),
            reason: reason.clone(),
            maybe_landed: false,
        }),
    }
}

/// The rows of the batch that must be acknowledged before this one.
pub fn earlier_of_unit(rows: &[Row], index: usize) -> impl Iterator<Item = usize> {
    let unit = rows[index].unit();
    let same = move |row: &Row| unit.is_some() && row.topic == rows[index].topic && row.unit() == unit;
    (0..index).filter(move |earlier| same(&rows[*earlier]))
}
