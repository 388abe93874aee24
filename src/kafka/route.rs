//! The route of each row of a batch: to which partition it is sent, with others or alone, or why it is not sent now.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

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
pub struct KnownTopics<'a>(BTreeMap<&'a str, Result<Topic, Delivery>>);

impl<'a> KnownTopics<'a> {
    pub async fn of(rows: &'a [Row], topics: &Topics, deadline: Instant) -> Self {
        let mut names: Vec<&str> = rows.iter().map(|row| row.topic.as_str()).collect();
        // Deduplicating before sorting, too, is faster: most rows have the same topic as the row before them.
        names.dedup();
        names.sort_unstable();
        names.dedup();
        let lookups = names.iter().map(|name| topics.get(name, deadline));
        let topics = futures_util::future::join_all(lookups).await;
        KnownTopics(names.into_iter().zip(topics).collect())
    }

    /// From now on no route leads to a partition that is paused now. A lookup may have taken long, so this comes after all of them.
    pub fn skip_paused(&mut self, topics: &Topics) {
        for (name, topic) in &mut self.0 {
            if let Ok(topic) = topic {
                topic.paused = topics.paused(name);
            }
        }
    }

    /// The route of one row by itself, or why it must not be sent now.
    pub fn route(&self, row: &Row) -> Result<Route, Delivery> {
        match (&row.unreadable, &self.0[row.topic.as_str()]) {
            (Some(reason), _) => Err(Delivery::Refused { reason: reason.clone() }),
            (None, Ok(topic)) => route_in(topic, row),
            (None, Err(delivery)) => Err(delivery.clone()),
        }
    }

    /// The route of each row of a batch, or why it must not be sent now.
    pub fn routes(&self, rows: &[Row]) -> Vec<Result<Route, Delivery>> {
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
                routes.push(Err(Delivery::NotSent));
                continue;
            }
            let route = self.route(row);
            let ordinary = matches!(route, Ok(Route { alone: false, .. }));
            if !ordinary && let Some(unit) = row.unit() {
                stopped.insert((&row.topic, unit));
            }
            let must_be_first = match &route {
                // Another producer sends it, so it could overtake an earlier row.
                Ok(route) => route.alone,
                // It is going to be the head of a hold, so the earlier rows of its key must have been sent.
                Err(_) => row.unreadable.is_some(),
            };
            let must_wait = must_be_first && earlier_of_unit(rows, index).next().is_some();
            routes.push(if must_wait { Err(Delivery::NotSent) } else { route });
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
    let number = row.partition_choice().partition(topic.partitions);
    let number = number.ok_or_else(|| Delivery::Refused {
        reason: format!(
            "partition {} does not exist: topic {} has {} partitions",
            row.partition.unwrap_or_default(),
            row.topic,
            topic.partitions
        ),
    })?;
    let of = topic.partitions;
    let partition = Partition { number, of };
    let alone = topic.limit.is_some_and(|limit| row.size() > limit);
    match topic.paused.get(&number) {
        None => Ok(Route { partition, alone }),
        Some((_, reason)) => Err(Delivery::unavailable(
            Unavailability::Paused,
            Some(partition),
            reason.clone(),
            false,
        )),
    }
}

/// The rows of the batch that must be acknowledged before this one.
pub fn earlier_of_unit(rows: &[Row], index: usize) -> impl Iterator<Item = usize> {
    let unit = rows[index].unit();
    let same = move |row: &Row| unit.is_some() && row.topic == rows[index].topic && row.unit() == unit;
    (0..index).filter(move |earlier| same(&rows[*earlier]))
}
