//! Writes the outcome of a batch of either kind, without the rows that another session has locked.

use std::collections::HashMap;
use std::time::Instant;

use super::Relay;
use super::ordered::LaneBatch;
use super::unordered::UnorderedBatch;
use crate::domain::batch_outcome::BatchOutcome;
use crate::domain::decision::Refusal;
use crate::domain::lease::Term;
use crate::domain::row::Row;
use crate::metrics::{self, Stream};
use crate::tasks::report::report_unless_locked;

#[derive(Clone, Copy)]
pub(super) enum Batch<'a> {
    Lanes(&'a LaneBatch<'a>),
    Unordered(&'a UnorderedBatch<'a>),
}

impl<'a> Batch<'a> {
    fn parts(self) -> (Stream, &'a Term, &'a [Row]) {
        match self {
            Batch::Lanes(batch) => (Stream::Ordered, batch.term, &batch.rows),
            Batch::Unordered(batch) => (Stream::Unordered, batch.term, &batch.rows),
        }
    }
}

impl Relay {
    /// Writes the outcome of a batch. Returns how many rows were marked. `None`: fenced, or the term is over.
    pub(super) async fn write(&self, batch: Batch<'_>, outcome: &mut BatchOutcome) -> Option<u64> {
        let (stream, _, rows) = batch.parts();
        let began = Instant::now();
        let written = self.write_unlocked(batch, outcome).await;
        metrics::mark_took(stream, began.elapsed());
        let marked = written?;
        metrics::rows_marked(marked);
        // A row that was delayed, redriven or replayed has waited on purpose.
        let published = rows.iter().filter(|row| !row.delayed && outcome.has_published(row.id));
        let created = published.map(|row| (row.topic.as_str(), row.created_at));
        metrics::end_to_end(created, |created_at| self.lanes.clock.age(created_at));
        Some(marked)
    }

    async fn write_unlocked(&self, batch: Batch<'_>, outcome: &mut BatchOutcome) -> Option<u64> {
        let (_, term, rows) = batch.parts();
        loop {
            let tried = &*outcome;
            let write = || async {
                match batch {
                    Batch::Lanes(batch) => self.write_lanes(batch, tried).await,
                    Batch::Unordered(batch) => self.write_unordered(batch, tried).await,
                }
            };
            let written = self.writer.unless_locked(term, write).await;
            report_unless_locked(&written, with_topics(&tried.refused, rows));
            if let Some(marked) = written? {
                return Some(marked);
            }
            self.leave_locked(term, outcome).await?;
        }
    }

    /// Takes rows out of the outcome that another session has locked. `None`: the term is over.
    async fn leave_locked(&self, term: &Term, outcome: &mut BatchOutcome) -> Option<()> {
        let refused = outcome.refused.iter().map(|refusal| refusal.id);
        let ids: Vec<i64> = outcome.published.iter().copied().chain(refused).collect();
        let locked = self.writer.locked(term, &ids).await?;
        outcome.leave_locked(&locked, &self.settings.policy);
        Some(())
    }
}

/// Refusals of rows, each with the topic of its row.
fn with_topics<'a>(refusals: &'a [Refusal], rows: &'a [Row]) -> impl Iterator<Item = (&'a str, &'a Refusal)> {
    let some: &[Row] = if refusals.is_empty() { &[] } else { rows };
    let topics: HashMap<i64, &str> = some.iter().map(|row| (row.id, row.topic.as_str())).collect();
    refusals
        .iter()
        .map(move |refusal| (topics.get(&refusal.id).copied().unwrap_or_default(), refusal))
}
