//! Dead letters: listed, sent again, corrected, removed.

use serde::Serialize;
use uuid::Uuid;

use super::super::from_row::{FromRow, from_row};
use super::super::param::{Param, multirange};
use super::{Outbox, Params, Purpose, Result, Step};
use crate::domain::filter::Filter;
use crate::domain::row::Row;

/// A dead letter in a list.
#[derive(Debug, Serialize)]
pub struct DeadLetter {
    pub id: i64,
    pub message_id: String,
    pub topic: String,
    pub key: Option<String>,
    pub partition: Option<i32>,
    pub attempts: i16,
    pub error: Option<String>,
    /// Since when it has been dead.
    pub age_seconds: f64,
    /// The operation that sent it again before, in vain.
    pub requeued_by: Option<i64>,
    /// How many match the filter in all, as far as they were counted.
    #[serde(skip)]
    pub matched: i64,
}

from_row!(DeadLetter: id, message_id, topic, key, partition, attempts, error, age_seconds, requeued_by, matched);

/// A dead letter with its content.
#[derive(Debug)]
pub struct DeadMessage {
    pub error: Option<String>,
    pub age_seconds: f64,
    pub requeued_by: Option<i64>,
    pub row: Row,
}

from_row!(DeadMessage: error, age_seconds, requeued_by; row);

/// The dead letters that match a filter.
#[derive(Debug, Default)]
pub struct DeadIds {
    /// How many of each topic.
    pub topics: Vec<(String, u64)>,
    /// In ascending order.
    pub ids: Vec<i64>,
}

/// The parts of a filter as `dead_filter.sql` takes them.
struct Columns<'a> {
    topics: Vec<&'a str>,
    keys: Vec<&'a str>,
    error: Option<&'a str>,
    older_than: Option<f64>,
    newer_than: Option<f64>,
    ids: Option<String>,
    message_ids: Vec<Uuid>,
    limit: Option<i64>,
}

impl<'a> Columns<'a> {
    fn of(filter: &'a Filter) -> Self {
        Columns {
            topics: filter.topics.iter().map(String::as_str).collect(),
            keys: filter.keys.iter().map(String::as_str).collect(),
            error: filter.error.as_deref(),
            older_than: filter.older_than.map(|age| age.as_secs_f64()),
            newer_than: filter.newer_than.map(|age| age.as_secs_f64()),
            ids: multirange(&filter.ids),
            message_ids: filter.message_ids.clone(),
            limit: filter.limit,
        }
    }

    fn params(&self) -> [&dyn Param; 8] {
        [
            &self.topics,
            &self.keys,
            &self.error,
            &self.older_than,
            &self.newer_than,
            &self.ids,
            &self.message_ids,
            &self.limit,
        ]
    }
}

impl Outbox {
    /// Lists dead letters that match the filter, the newest first, without as many of the newest as `offset` says. No more than
    /// `matched_max` are counted.
    pub async fn dead_list(&self, filter: &Filter, offset: i64, matched_max: Option<i64>) -> Result<Vec<DeadLetter>> {
        let columns = Columns::of(filter);
        let mut params = columns.params().to_vec();
        params.extend([&offset as &dyn Param, &matched_max]);
        self.query(&self.statements.dead_list, &params).await
    }

    pub async fn dead_ids(&self, filter: &Filter) -> Result<DeadIds> {
        let columns = Columns::of(filter);
        let topics: Vec<(String, Vec<i64>)> = self.query(&self.statements.dead_ids, &columns.params()).await?;
        let mut dead = DeadIds::default();
        for (topic, ids) in topics {
            dead.topics.push((topic, ids.len() as u64));
            dead.ids.extend(ids);
        }
        dead.ids.sort_unstable();
        Ok(dead)
    }

    /// `None` if there is no such dead letter.
    pub async fn dead_message(&self, id: i64) -> Result<Option<DeadMessage>> {
        self.query_opt(&self.statements.dead_show, &[&id]).await
    }

    /// Sends these dead letters again.
    pub async fn dead_redrive(&self, ids: &[i64], purpose: &Purpose, operation: Option<i64>) -> Result<Step> {
        let params: Params<'_> = &[&ids, &purpose.reason.as_deref(), &operation, &purpose.filter];
        self.step(&self.statements.dead_redrive, params).await
    }

    /// Removes these dead letters.
    pub async fn dead_discard(&self, ids: &[i64], purpose: &Purpose, operation: Option<i64>) -> Result<Step> {
        let params: Params<'_> = &[&ids, &purpose.reason.as_deref(), &operation, &purpose.filter];
        self.step(&self.statements.dead_discard, params).await
    }

    /// Replaces the payload of a dead letter and sends it again.
    pub async fn dead_correct(&self, id: i64, payload: &[u8], purpose: &Purpose) -> Result<Step> {
        let params: Params<'_> = &[&id, &payload, &purpose.reason.as_deref(), &purpose.filter];
        self.step(&self.statements.dead_correct, params).await
    }
}
