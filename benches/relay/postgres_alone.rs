//! The limit that PostgreSQL sets: exactly the statements of the product, from one client, with nothing in between. Nobody writes
//! meanwhile, so each lane simply goes on where its last claim ended.

use std::time::{Duration, Instant, SystemTime};

use outboxd::outbox::{PLANNER_SETTINGS, statement};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};
use uuid::Uuid;

use crate::Outcome;
use crate::backlog::Shape;
use crate::on_published::OnPublished;
use crate::workspace::Workspace;

/// The product's defaults: rows in a batch, and three tasks that share the lanes.
pub const BATCH: usize = 2_000;
pub const TASKS: usize = 3;
const LEASE_SECONDS: f64 = 3_600.0;

pub struct PostgresAlone {
    db: Client,
    worker: Uuid,
    incarnation: SystemTime,
    mark: Statement,
    claim_lock: String,
}

struct Lane {
    lane: i16,
    epoch: i64,
    floor: i64,
}

impl PostgresAlone {
    pub async fn new(workspace: &Workspace, mode: OnPublished, shape: Shape) -> Outcome<Self> {
        let (db, connection) = tokio_postgres::connect(&workspace.url, NoTls).await?;
        tokio::spawn(connection);
        let plans = PLANNER_SETTINGS.map(|(name, value)| format!("SET {name} = {value}"));
        db.batch_execute(&plans.join("; ")).await?;
        let worker = Uuid::new_v4();
        // It says nothing of its process: nobody succeeds it.
        let (no_text, no_number) = (None::<&str>, None::<i64>);
        let register: &[&(dyn ToSql + Sync)] = &[
            &worker,
            &"bench",
            &"bench",
            &LEASE_SECONDS,
            &no_text,
            &no_text,
            &no_number,
            &no_number,
            &no_number,
            &outboxd::outbox::known_version(),
        ];
        let registered = db.query_one(&statement::text("register"), register).await?;
        let mark = if shape == Shape::Unordered {
            mode.mark_unordered()
        } else {
            mode.mark_lanes()
        };
        Ok(PostgresAlone {
            mark: db.prepare(&mark).await?,
            claim_lock: statement::text("lock_unordered_claims"),
            db,
            worker,
            incarnation: registered.get("incarnation"),
        })
    }

    /// From the first claim to the last mark.
    pub async fn drain(&self, shape: Shape, rows: i64) -> Outcome<Duration> {
        let began = Instant::now();
        let marked = if shape == Shape::Unordered {
            self.drain_unordered().await?
        } else {
            self.drain_lanes().await?
        };
        if marked != rows as u64 {
            return Err(format!("postgres alone marked {marked} of {rows} rows").into());
        }
        Ok(began.elapsed())
    }

    async fn take_lanes(&self) -> Outcome<Vec<Lane>> {
        let taken = self
            .db
            .query(
                &statement::text("take_lanes"),
                &[&self.worker, &64_i64, &self.incarnation, &LEASE_SECONDS],
            )
            .await?;
        let lane = |row: &tokio_postgres::Row| Lane {
            lane: row.get("lane"),
            epoch: row.get("epoch"),
            floor: row.get("floor"),
        };
        Ok(taken.iter().map(lane).collect())
    }

    async fn drain_lanes(&self) -> Outcome<u64> {
        let claim = self.db.prepare(&statement::text("claim_lanes")).await?;
        let mut lanes = self.take_lanes().await?;
        let mut marked = 0;
        while !lanes.is_empty() {
            let rest = lanes.split_off(lanes.len().div_ceil(TASKS).min(lanes.len()));
            let (done, left) = self.relay_lanes(&claim, lanes).await?;
            marked += done;
            lanes = rest;
            lanes.extend(left);
        }
        Ok(marked)
    }

    /// One batch of these lanes: how many rows were marked, and the lanes that may have more.
    async fn relay_lanes(&self, claim: &Statement, mut lanes: Vec<Lane>) -> Outcome<(u64, Vec<Lane>)> {
        let limit = (BATCH / lanes.len()).max(1);
        let names: Vec<i16> = lanes.iter().map(|lane| lane.lane).collect();
        let epochs: Vec<i64> = lanes.iter().map(|lane| lane.epoch).collect();
        let floors: Vec<i64> = lanes.iter().map(|lane| lane.floor).collect();
        let limits = vec![limit as i32; lanes.len()];
        let uptos = vec![i64::MAX; lanes.len()];
        let most = BATCH as i64;
        // Nothing is held.
        let (no_lanes, no_topics): (&[i16], &[&str]) = (&[], &[]);
        let rows = self
            .db
            .query(
                claim,
                &[
                    &names,
                    &floors,
                    &limits,
                    &no_lanes,
                    &no_topics,
                    &most,
                    &self.incarnation,
                    &uptos,
                ],
            )
            .await?;
        if rows.is_empty() {
            return Ok((0, Vec::new()));
        }
        let mut counts = vec![0; lanes.len()];
        let mut ids: Vec<i64> = Vec::with_capacity(rows.len());
        for row in &rows {
            let (id, name): (i64, i16) = (row.get(0), row.get(1));
            let at = names
                .iter()
                .position(|lane| *lane == name)
                .ok_or("a row of another lane")?;
            counts[at] += 1;
            lanes[at].floor = lanes[at].floor.max(id);
            ids.push(id);
        }
        // Nothing is sent, so there is no record of what is in flight.
        let no_records: &[i64] = &[];
        let mark: &[&(dyn ToSql + Sync)] = &[&self.worker, &names, &epochs, &self.incarnation, &ids, &no_records];
        let marked = self.db.execute(&self.mark, mark).await?;
        let full = counts.into_iter().map(|count| count >= limit);
        let left = lanes
            .into_iter()
            .zip(full)
            .filter_map(|(lane, full)| full.then_some(lane));
        Ok((marked, left.collect()))
    }

    async fn drain_unordered(&self) -> Outcome<u64> {
        let claim = self.db.prepare(&statement::text("claim_unordered")).await?;
        let read = self.db.prepare(&statement::text("read_claim")).await?;
        let (mut floor, mut claims_from, mut marked) = (0_i64, 0, 0);
        while let Some(number) = self.claim_unordered(&claim, claims_from, floor).await? {
            let rows = self.db.query(&read, &[&number, &self.incarnation]).await?;
            let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            floor = ids.iter().copied().max().unwrap_or(floor);
            claims_from = number;
            let mark: &[&(dyn ToSql + Sync)] = &[&ids, &number, &self.worker, &self.incarnation];
            let row = self.db.query_one(&self.mark, mark).await?;
            marked += row.get::<_, i64>("marked") as u64;
        }
        Ok(marked)
    }

    /// One claim behind its lock, sent at once as the product does.
    async fn claim_unordered(&self, claim: &Statement, claims_from: i64, floor: i64) -> Outcome<Option<i64>> {
        let (most, topic) = (BATCH as i64, None::<&str>);
        let params: &[&(dyn ToSql + Sync)] = &[
            &claims_from,
            &floor,
            &most,
            &most,
            &topic,
            &false,
            &self.worker,
            &LEASE_SECONDS,
            &self.incarnation,
            // No hold's rows alone, and no end but that of the rows.
            &None::<i32>,
            &None::<i32>,
            &None::<&str>,
            &i64::MAX,
        ];
        let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED;\n{}", self.claim_lock);
        let ((), row, ()) = tokio::try_join!(
            self.db.batch_execute(&begin),
            self.db.query_one(claim, params),
            self.db.batch_execute("COMMIT"),
        )?;
        Ok(row.get("claim"))
    }
}
