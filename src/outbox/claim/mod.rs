//! What is there to publish, and the horizon that decides where to look for it.

use std::time::Duration;

use futures_util::TryStreamExt;
use tokio_postgres::RowStream;

use super::{Error, Outbox, Params, Result, row};
use crate::domain::checkout::{CheckedOutLane, PollCheckout};
use crate::domain::hold::Hold;
use crate::domain::lease::Term;
use crate::domain::row::Row;
use crate::domain::watermark::{Sequence, WriterSnapshot};

/// Rows claimed, and those left behind because the byte budget was full.
#[derive(Debug, Default)]
pub struct Claim {
    pub rows: Vec<Row>,
    pub dropped: Vec<LeftBehind>,
}

impl Claim {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.dropped.is_empty()
    }

    /// How many rows came because they were due: their limit is one for all lanes.
    pub fn delayed(&self) -> usize {
        let kept = self.rows.iter().filter(|row| row.delayed).count();
        kept + self.dropped.iter().filter(|row| row.delayed).count()
    }
}

/// What is kept of a row left behind.
#[derive(Clone, Copy, Debug)]
pub struct LeftBehind {
    pub id: i64,
    pub lane: Option<i16>,
    pub possible_duplicate: bool,
    pub delayed: bool,
}

impl From<&Row> for LeftBehind {
    fn from(row: &Row) -> Self {
        LeftBehind {
            id: row.id,
            lane: row.lane,
            possible_duplicate: row.possible_duplicate,
            delayed: row.delayed,
        }
    }
}

/// Why a message is not to be sent, for its `last_error`. `None`: nothing is wrong with it.
fn unreadable(bytes: Option<i64>, problem: Option<&str>, most: usize) -> Option<String> {
    match (bytes, problem) {
        (_, Some(problem)) => Some(format!(
            "PostgreSQL cannot read this message: {problem}. Its text is longer than 1 GB, or it is damaged. Discard it"
        )),
        (Some(bytes), None) if bytes > most as i64 => Some(format!(
            "this message has {bytes} bytes, and --max-message-bytes is {most}: raise that and redrive the row, or discard it"
        )),
        _ => None,
    }
}

/// What a look found.
#[derive(Debug, Default)]
pub struct Found {
    /// All that its lanes have.
    pub claim: Claim,
    /// There are unordered rows.
    pub unordered: bool,
    /// There is more than a look takes along: nothing is known.
    pub cut: bool,
    /// The lowest unordered row that is neither published, dead, held nor delayed, claimed or not.
    pub lowest_unordered: Option<i64>,
}

/// A claim in the making: rows are kept as they come until the byte budget is full, so that memory stays bounded whatever they
/// weigh. The first row is always kept.
struct BudgetedRows {
    claim: Claim,
    budget: usize,
}

impl BudgetedRows {
    fn within(budget: usize) -> Self {
        BudgetedRows {
            claim: Claim::default(),
            budget,
        }
    }

    fn keep(&mut self, row: Row) {
        let size = row.size();
        if !self.claim.dropped.is_empty() || (size > self.budget && !self.claim.rows.is_empty()) {
            self.claim.dropped.push(LeftBehind::from(&row));
            return;
        }
        self.budget = self.budget.saturating_sub(size);
        self.claim.rows.push(row);
    }
}

/// Which unordered rows to claim.
#[derive(Clone, Copy, Debug)]
pub struct UnorderedFilter<'a> {
    /// No record of a claim has a lower number.
    pub claims_from: i64,
    pub start: i64,
    pub scan_end: Option<i64>,
    /// Of those above `start`, and of those that were delayed.
    pub most: usize,
    pub most_in_all: usize,
    /// Only what this hold keeps back: rows of its topic, or of one partition of that.
    pub of_hold: Option<&'a Hold>,
    /// Not what others keep back.
    pub skip_held: bool,
}

/// What was written down of a claim of unordered rows.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// Its number, and the token that fences its mark. `None`: no row was free.
    pub claim: Option<i64>,
    /// The lowest number of any claim that is left.
    pub lowest: i64,
}

const ANOTHER_SERVER: Error = Error::Unexpected("the server is another one than the term began on");

/// What each row of a look's answer says of the whole, before any of them is kept.
fn of_the_whole(row: &tokio_postgres::Row) -> Result<Found> {
    Ok(Found {
        unordered: row.try_get("unordered")?,
        cut: row.try_get("cut")?,
        lowest_unordered: row.try_get("lowest_unordered")?,
        ..Found::default()
    })
}

impl Outbox {
    /// Looks above `lookout.start` for what the lanes of the lookout have, walking at most `walk` rows.
    pub async fn poll(&self, poll: &PollCheckout, walk: usize, bytes: usize) -> Result<Found> {
        let lanes: Vec<i16> = poll.lanes.iter().map(|held| held.lane).collect();
        let (walk, most) = (walk as i64, poll.most as i64);
        let params: Params<'_> = &[
            &poll.start,
            &lanes,
            &walk,
            &poll.has_holds,
            &most,
            &poll.term.incarnation,
            &poll.claims_from,
        ];
        let keep = async |rows: RowStream| {
            futures_util::pin_mut!(rows);
            let mut kept = BudgetedRows::within(bytes);
            let mut found = None;
            while let Some(row) = rows.try_next().await? {
                if found.is_none() {
                    found = Some(of_the_whole(&row)?);
                }
                if row.try_get::<_, Option<i64>>("id")?.is_some() {
                    kept.keep(row::of_lane(&row)?);
                }
            }
            let mut found = found.ok_or(ANOTHER_SERVER)?;
            found.claim = kept.claim;
            Ok(found)
        };
        let mut found = self
            .on_connection(async |session| session.run(&self.statements.poll, params, keep).await)
            .await?;
        self.explain(&mut found.claim).await?;
        Ok(found)
    }

    pub async fn claim_lanes<'a>(
        &self,
        term: &Term,
        held: &'a [CheckedOutLane],
        most: usize,
        bytes: usize,
    ) -> Result<Claim> {
        let lanes: Vec<i16> = held.iter().map(|h| h.lane).collect();
        let floors: Vec<i64> = held.iter().map(|h| h.start).collect();
        let limits: Vec<i32> = held.iter().map(|h| h.most as i32).collect();
        let uptos: Vec<i64> = held.iter().map(|h| h.scan_end.unwrap_or(i64::MAX)).collect();
        let holding = |h: &'a CheckedOutLane| h.held_topics.iter().map(|topic| (h.lane, topic.as_str()));
        let (holding_lanes, held_topics): (Vec<i16>, Vec<&str>) = held.iter().flat_map(holding).unzip();
        self.claim(
            &self.statements.claim_lanes,
            &[
                &lanes,
                &floors,
                &limits,
                &holding_lanes,
                &held_topics,
                &(most as i64),
                &term.incarnation,
                &uptos,
            ],
            bytes,
            row::of_lane,
        )
        .await
    }

    /// Claims unordered rows for `lease`, when it is our turn.
    pub async fn claim_unordered(&self, term: &Term, free: &UnorderedFilter<'_>, lease: Duration) -> Result<Recorded> {
        let (partition, partitions) = free.of_hold.map_or((None, None), Hold::partition);
        let params: Params<'_> = &[
            &free.claims_from,
            &free.start,
            &(free.most as i64),
            &(free.most_in_all as i64),
            &free.of_hold.map(|hold| hold.topic.as_str()),
            &free.skip_held,
            &term.worker,
            &lease.as_secs_f64(),
            &term.incarnation,
            &partition,
            &partitions,
            &free.of_hold.map(|hold| hold.unit.as_str()),
            &free.scan_end.unwrap_or(i64::MAX),
        ];
        let (turn, claim) = (&self.statements.lock_unordered_claims, &self.statements.claim_unordered);
        let rows = self
            .on_connection(async |session| session.query_behind(turn, claim, params).await)
            .await?;
        let row = rows.first().ok_or(Error::Unexpected("a claim answered no row"))?;
        let claim: Option<i64> = row.try_get("claim")?;
        let lowest: Option<i64> = row.try_get("lowest")?;
        Ok(Recorded {
            claim,
            lowest: lowest.or(claim).unwrap_or(free.claims_from),
        })
    }

    /// The rows of a claim. All of them are ours: those beyond the budget are the caller's to give back.
    pub async fn claimed(&self, term: &Term, claim: i64, bytes: usize) -> Result<Claim> {
        let params: Params<'_> = &[&claim, &term.incarnation];
        self.claim(&self.statements.read_claim, params, bytes, row::unordered)
            .await
    }

    async fn claim(
        &self,
        sql: &str,
        params: Params<'_>,
        bytes: usize,
        read: fn(&tokio_postgres::Row) -> Result<Row>,
    ) -> Result<Claim> {
        let keep = async |rows: RowStream| {
            futures_util::pin_mut!(rows);
            let mut kept = BudgetedRows::within(bytes);
            while let Some(row) = rows.try_next().await? {
                kept.keep(read(&row)?);
            }
            Ok(kept.claim)
        };
        let mut claim = self
            .on_connection(async |session| session.run(sql, params, keep).await)
            .await?;
        self.explain(&mut claim).await?;
        Ok(claim)
    }

    /// Says of the rows that cannot be sent why. One that could be read after all is left behind: it comes again.
    async fn explain(&self, claim: &mut Claim) -> Result<()> {
        // Rows are large, and nearly always all of them are whole: none is moved then.
        if claim.rows.iter().all(|row| self.is_whole(row)) {
            return Ok(());
        }
        let mut whole = Vec::with_capacity(claim.rows.len());
        for mut row in std::mem::take(&mut claim.rows) {
            if self.explain_row(&mut row).await? {
                whole.push(row);
            } else {
                claim.dropped.push(LeftBehind::from(&row));
            }
        }
        claim.rows = whole;
        Ok(())
    }

    fn is_whole(&self, row: &Row) -> bool {
        row.unreadable.is_none() && row.bytes() <= self.message_bytes_max
    }

    /// Is it known what to do with this row? Else it could not be read, and now it could.
    pub(super) async fn explain_row(&self, row: &mut Row) -> Result<bool> {
        if self.is_whole(row) {
            return Ok(true);
        }
        let rows = self.query(&self.statements.why_unreadable, &[&row.id]).await?;
        let Some(found) = rows.first() else {
            return Ok(false);
        };
        let bytes: Option<i64> = found.try_get("bytes")?;
        let problem: Option<&str> = found.try_get("problem")?;
        row.unreadable = unreadable(bytes, problem, self.message_bytes_max);
        Ok(row.unreadable.is_some())
    }

    /// The highest id drawn, and then who was writing. In this order: see `domain::watermark`.
    pub async fn writers(&self, term: &Term) -> Result<WriterSnapshot> {
        let highest = self
            .query_one(&self.statements.highest_id, &[&term.incarnation])
            .await?;
        let now = self
            .query_one(&self.statements.open_writers, &[&term.incarnation])
            .await?;
        if !now.try_get::<_, bool>("same_server")? {
            return Err(ANOTHER_SERVER);
        }
        let (names, ids): (Vec<String>, Vec<Option<i64>>) = (now.try_get("writers")?, now.try_get("ids")?);
        Ok(WriterSnapshot {
            highest_id: highest.try_get("id")?,
            writers: names.into_iter().zip(ids).collect(),
            sequence: Sequence {
                cache: now.try_get("cache")?,
                increment: now.try_get("increment")?,
                file: now.try_get("file")?,
            },
        })
    }

    /// Which of these transactions have ended? If any, a claim that relied on them all and came before this call is worth nothing.
    pub async fn ended(&self, bypassed: &[i64]) -> Result<Vec<i64>> {
        if bypassed.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.query(&self.statements.ended_writers, &[&bypassed]).await?;
        rows.iter().map(|row| Ok(row.try_get("writer")?)).collect()
    }
}
