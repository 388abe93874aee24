//! Polls and claims.

use std::time::Duration;

use futures_util::TryStreamExt;
use tokio_postgres::RowStream;

use super::from_row::{FromRow, from_row};
use super::{ANOTHER_SERVER, Error, Outbox, Params, Result, row};
use crate::domain::checkout::{CheckedOutLane, PollCheckout};
use crate::domain::hold::Hold;
use crate::domain::lease::Term;
use crate::domain::row::Row;

/// The rows of a claim, and those dropped because the byte budget was used up.
#[derive(Debug, Default)]
pub struct ClaimedRows {
    pub rows: Vec<Row>,
    pub dropped: Vec<DroppedRow>,
}

impl ClaimedRows {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.dropped.is_empty()
    }

    /// How many of the rows were delayed. They share one limit for all lanes.
    pub fn delayed(&self) -> usize {
        let claimed = self.rows.iter().filter(|row| row.delayed).count();
        claimed + self.dropped.iter().filter(|row| row.delayed).count()
    }
}

/// A row that was claimed and whose content was dropped.
#[derive(Clone, Copy, Debug)]
pub struct DroppedRow {
    pub id: i64,
    pub lane: Option<i16>,
    pub possible_duplicate: bool,
    pub delayed: bool,
}

impl From<&Row> for DroppedRow {
    fn from(row: &Row) -> Self {
        DroppedRow {
            id: row.id,
            lane: row.lane,
            possible_duplicate: row.possible_duplicate,
            delayed: row.delayed,
        }
    }
}

/// Why a message cannot be sent, for its `last_error`. `None` if it can.
fn unreadable(bytes: Option<i64>, problem: Option<&str>, bytes_max: usize) -> Option<String> {
    match (bytes, problem) {
        (_, Some(problem)) => Some(format!(
            "PostgreSQL cannot read this message: {problem}. Its text is longer than 1 GB, or it is damaged. Discard it"
        )),
        (Some(bytes), None) if bytes > bytes_max as i64 => Some(format!(
            "this message has {bytes} bytes, and --max-message-bytes is {bytes_max}: raise that and redrive the row, or discard it"
        )),
        _ => None,
    }
}

/// The answer to a poll.
#[derive(Debug, Default)]
pub struct PollAnswer {
    /// All pending rows of the polled lanes.
    pub claim: ClaimedRows,
    /// Are there unclaimed unordered rows?
    pub unordered: bool,
    /// There are more rows than a poll returns. The rest of the answer then means nothing.
    pub cut: bool,
    /// The lowest unordered row that is neither published, dead, held nor delayed, claimed or not.
    pub lowest_unordered: Option<i64>,
}

/// Collects rows until the byte budget is used up and drops the rest, so that memory is bounded. The first row is always kept.
struct BudgetedRows {
    claim: ClaimedRows,
    budget: usize,
}

impl BudgetedRows {
    fn push(&mut self, row: Row) {
        let size = row.size();
        if !self.claim.dropped.is_empty() || (size > self.budget && !self.claim.rows.is_empty()) {
            self.claim.dropped.push(DroppedRow::from(&row));
            return;
        }
        self.budget = self.budget.saturating_sub(size);
        self.claim.rows.push(row);
    }
}

/// Which unordered rows to claim.
#[derive(Clone, Copy, Debug)]
pub struct UnorderedFilter<'a> {
    /// No claim has a lower id.
    pub claims_from: i64,
    /// Rows at or below this id are not claimed, unless they are delayed.
    pub start: i64,
    pub scan_end: Option<i64>,
    /// The limit of the rows above `start`, and that of the delayed rows.
    pub most: usize,
    pub most_in_total: usize,
    /// Claims only rows that this hold keeps back: those of its topic, or of one partition.
    pub of_hold: Option<&'a Hold>,
    /// Leaves out rows that any other hold keeps back.
    pub skip_held: bool,
}

/// A claim of unordered rows.
#[derive(Clone, Copy, Debug)]
pub struct UnorderedClaim {
    /// The id of the claim, which fences its mark. `None` if no row was free.
    pub claim: Option<i64>,
    /// The lowest id of any claim.
    pub lowest: i64,
}

// The columns of a poll that are the same in each of its rows.
from_row!(PollAnswer: unordered, cut, lowest_unordered .. PollAnswer::default());

impl Outbox {
    /// Polls the lanes of a checkout for pending rows above its start. Scans at most `scan_max` rows.
    pub async fn poll(&self, poll: &PollCheckout, scan_max: usize, bytes: usize) -> Result<PollAnswer> {
        let lanes: Vec<i16> = poll.lanes.iter().map(|lane| lane.lane).collect();
        let (scan_max, most) = (scan_max as i64, poll.most as i64);
        let params: Params<'_> = &[
            &poll.start,
            &lanes,
            &scan_max,
            &poll.has_holds,
            &most,
            &poll.term.incarnation,
            &poll.claims_from,
        ];
        let mut answer = None;
        let read = |row: &tokio_postgres::Row| {
            if answer.is_none() {
                answer = Some(PollAnswer::from_row(row)?);
            }
            let has_message = row.try_get::<_, Option<i64>>("id")?.is_some();
            has_message.then(|| row::ordered(row)).transpose()
        };
        let claim = self.read_claimed(&self.statements.poll, params, bytes, read).await?;
        let answer = answer.ok_or(ANOTHER_SERVER)?;
        Ok(PollAnswer { claim, ..answer })
    }

    pub async fn claim_lanes<'a>(
        &self,
        term: &Term,
        checked_out: &'a [CheckedOutLane],
        most: usize,
        bytes: usize,
    ) -> Result<ClaimedRows> {
        let lanes: Vec<i16> = checked_out.iter().map(|lane| lane.lane).collect();
        let starts: Vec<i64> = checked_out.iter().map(|lane| lane.start).collect();
        let limits: Vec<i32> = checked_out.iter().map(|lane| lane.most as i32).collect();
        let scan_ends: Vec<i64> = checked_out
            .iter()
            .map(|lane| lane.scan_end.unwrap_or(i64::MAX))
            .collect();
        let held = |lane: &'a CheckedOutLane| lane.held_topics.iter().map(|topic| (lane.lane, topic.as_str()));
        let (held_lanes, held_topics): (Vec<i16>, Vec<&str>) = checked_out.iter().flat_map(held).unzip();
        self.read_claimed(
            &self.statements.claim_lanes,
            &[
                &lanes,
                &starts,
                &limits,
                &held_lanes,
                &held_topics,
                &(most as i64),
                &term.incarnation,
                &scan_ends,
            ],
            bytes,
            |row| row::ordered(row).map(Some),
        )
        .await
    }

    /// Claims unordered rows for `lease`. Waits until no other claim of them is being made.
    pub async fn claim_unordered(
        &self,
        term: &Term,
        filter: &UnorderedFilter<'_>,
        lease: Duration,
    ) -> Result<UnorderedClaim> {
        let (partition, partitions) = filter.of_hold.map_or((None, None), Hold::partition);
        let params: Params<'_> = &[
            &filter.claims_from,
            &filter.start,
            &(filter.most as i64),
            &(filter.most_in_total as i64),
            &filter.of_hold.map(|hold| hold.topic.as_str()),
            &filter.skip_held,
            &term.worker,
            &lease.as_secs_f64(),
            &term.incarnation,
            &partition,
            &partitions,
            &filter.of_hold.map(|hold| hold.unit.as_str()),
            &filter.scan_end.unwrap_or(i64::MAX),
        ];
        let (lock, claim) = (&self.statements.lock_unordered_claims, &self.statements.claim_unordered);
        let rows = self
            .with_session(async |session| session.query_after(lock, claim, params).await)
            .await?;
        let &(claim, lowest): &(Option<i64>, Option<i64>) =
            rows.first().ok_or(Error::Unexpected("a claim returned no row"))?;
        Ok(UnorderedClaim {
            claim,
            lowest: lowest.or(claim).unwrap_or(filter.claims_from),
        })
    }

    /// Reads the rows of a claim. Those dropped are claimed, too, and the caller must return them.
    pub async fn read_claim(&self, term: &Term, claim: i64, bytes: usize) -> Result<ClaimedRows> {
        let params: Params<'_> = &[&claim, &term.incarnation];
        let read = |row: &_| row::unordered(row).map(Some);
        self.read_claimed(&self.statements.read_claim, params, bytes, read)
            .await
    }

    /// Reads rows until the byte budget is used up, and finds out why some cannot be sent.
    async fn read_claimed(
        &self,
        sql: &str,
        params: Params<'_>,
        bytes: usize,
        mut read: impl FnMut(&tokio_postgres::Row) -> Result<Option<Row>>,
    ) -> Result<ClaimedRows> {
        let collect = async |rows: RowStream| {
            futures_util::pin_mut!(rows);
            let claim = ClaimedRows::default();
            let mut budgeted = BudgetedRows { claim, budget: bytes };
            while let Some(row) = rows.try_next().await? {
                if let Some(row) = read(&row)? {
                    budgeted.push(row);
                }
            }
            Ok(budgeted.claim)
        };
        let mut claim = self
            .with_session(async |session| session.run(sql, params, collect).await)
            .await?;
        self.explain_unreadable(&mut claim).await?;
        Ok(claim)
    }

    /// Finds out why rows cannot be sent. A row for which no reason is found is dropped, and is claimed again later.
    async fn explain_unreadable(&self, claim: &mut ClaimedRows) -> Result<()> {
        // Rows are large, so none is moved in the usual case that all of them are whole.
        if claim.rows.iter().all(|row| self.is_whole(row)) {
            return Ok(());
        }
        let mut explained = Vec::with_capacity(claim.rows.len());
        for mut row in std::mem::take(&mut claim.rows) {
            if self.explain_row(&mut row).await? {
                explained.push(row);
            } else {
                claim.dropped.push(DroppedRow::from(&row));
            }
        }
        claim.rows = explained;
        Ok(())
    }

    fn is_whole(&self, row: &Row) -> bool {
        row.unreadable.is_none() && row.bytes() <= self.message_bytes_max
    }

    /// Is the row whole, or is it known why not? If neither, it was not read whole, and nothing is wrong with it now.
    pub(super) async fn explain_row(&self, row: &mut Row) -> Result<bool> {
        if self.is_whole(row) {
            return Ok(true);
        }
        let size: Option<(Option<i64>, Option<String>)> =
            self.query_opt(&self.statements.why_unreadable, &[&row.id]).await?;
        let Some((bytes, problem)) = size else { return Ok(false) };
        row.unreadable = unreadable(bytes, problem.as_deref(), self.message_bytes_max);
        Ok(row.unreadable.is_some())
    }
}
