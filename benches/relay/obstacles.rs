//! What stands in the way of a drain: rows in front or behind, transactions left open, rows that Kafka refuses. It stays for the
//! whole run, and every round adds its own rows to it.

use std::time::Duration;

use rdkafka::admin::{AdminOptions, AlterConfig, ResourceSpecifier};
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::backlog::{FILLER, Shape};
use crate::load;
use crate::on_published::OnPublished;
use crate::process::Process;
use crate::servers::{Servers, connect};
use crate::workspace::Workspace;
use crate::{Deadline, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    None,
    /// So many pending rows before those of a round.
    Backlog(i64),
    /// So many rows that were published and are kept.
    Kept(i64),
    /// A snapshot as old as the run.
    PinnedHorizon,
    /// A transaction that has inserted a row and does not end.
    OpenWriter,
    /// So many rows behind one that Kafka refuses.
    HeldKey(i64),
    /// One partition takes nothing, and so many keys, a row each, wait for it.
    PausedPartition(i64),
    /// One topic in twenty refuses whatever it is sent.
    PoisonedTopic,
}

pub struct Setup {
    pub workspace: Workspace,
    obstacle: Obstacle,
    shape: Shape,
    /// Open for as long as it lives.
    _session: Option<Client>,
}

/// A refused row stays refused for longer than any run.
const HELD_FOR_LONG: [&str; 6] = [
    "--max-attempts",
    "100",
    "--retry-backoff-min",
    "1h",
    "--retry-backoff-max",
    "1h",
];

/// Neither the busiest of the topics nor the quietest.
const POISONED: usize = 10;

impl Setup {
    pub async fn prepare(servers: &Servers, obstacle: Obstacle, shape: Shape) -> Outcome<Self> {
        let workspace = Workspace::new(servers, shape).await?;
        let mut session = None;
        match obstacle {
            Obstacle::None | Obstacle::OpenWriter => {}
            Obstacle::Backlog(rows) => workspace.insert(shape, rows).await?,
            Obstacle::Kept(rows) => keep(&workspace, shape, rows).await?,
            Obstacle::PinnedHorizon => session = Some(pin_horizon(&workspace).await?),
            Obstacle::HeldKey(rows) => hold(&workspace, rows).await?,
            Obstacle::PausedPartition(keys) => pause(&workspace, keys).await?,
            Obstacle::PoisonedTopic => poison(&workspace).await?,
        }
        Ok(Setup {
            workspace,
            obstacle,
            shape,
            _session: session,
        })
    }

    pub fn flags(&self, mode: OnPublished) -> Vec<&'static str> {
        let mut flags = vec!["--on-published", mode.name()];
        if let Obstacle::HeldKey(_) = self.obstacle {
            flags.extend(HELD_FOR_LONG);
        }
        flags
    }

    /// A writer is left open for its own measurement only: while a transaction has an id, no session of the whole server prunes
    /// what was written after it, in other databases either. It ends with what is answered.
    pub async fn leave_open(&self) -> Outcome<Option<Client>> {
        match self.obstacle {
            Obstacle::OpenWriter => Ok(Some(leave_open(&self.workspace).await?)),
            _ => Ok(None),
        }
    }

    /// Rows for one short drain. A backlog is as deep as before, and not vacuumed for so few.
    pub async fn top_up(&self, rows: i64) -> Outcome<()> {
        if let Obstacle::Backlog(_) = self.obstacle {
            self.workspace.insert(self.shape, rows).await?;
            return self.workspace.checkpoint().await;
        }
        self.add(rows).await.map(drop)
    }

    /// The rows of one round; answers how many of them can be published.
    pub async fn add(&self, rows: i64) -> Outcome<i64> {
        // What was published stays where a case beside it keeps it too: rows put into the room between old ones cost more to mark.
        if self.obstacle == Obstacle::None && self.shape != Shape::Mixed {
            self.workspace.db.batch_execute("TRUNCATE outbox.message").await?;
        }
        self.workspace.insert(self.shape, rows).await?;
        self.workspace.vacuum_analyze("outbox.message").await?;
        // A deep backlog is older than the last checkpoint: so are the rows it is compared with.
        self.workspace.checkpoint().await?;
        let db = &self.workspace.db;
        let row = match self.obstacle {
            Obstacle::PoisonedTopic => {
                let healthy = "SELECT count(*) FROM outbox.message WHERE topic <> $1 AND published_at IS NULL";
                db.query_one(healthy, &[&poisoned(&self.workspace)]).await?
            }
            Obstacle::PausedPartition(_) => {
                let healthy =
                    "SELECT count(*) FROM outbox.message WHERE published_at IS NULL AND outbox.murmur2(key) % $1 <> 0";
                db.query_one(healthy, &[&self.workspace.partitions()]).await?
            }
            _ => return Ok(rows),
        };
        Ok(row.get(0))
    }
}

/// As the relay leaves them: marked, and its floors above them.
async fn keep(workspace: &Workspace, shape: Shape, rows: i64) -> Outcome<()> {
    let select = shape.select(&workspace.name, rows);
    let insert = format!(
        "INSERT INTO outbox.message (topic, key, payload, published_at)
         SELECT made.*, clock_timestamp() FROM ({select}) AS made (topic, key, payload)"
    );
    workspace.db.execute(&insert, &[&FILLER.as_bytes()]).await?;
    let floors = "UPDATE outbox.lane SET floor = (SELECT max(id) FROM outbox.message)";
    workspace.db.batch_execute(floors).await?;
    Ok(())
}

async fn pin_horizon(workspace: &Workspace) -> Outcome<Client> {
    let session = connect(&workspace.url).await?;
    session
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.lane")
        .await?;
    Ok(session)
}

async fn leave_open(workspace: &Workspace) -> Outcome<Client> {
    let session = connect(&workspace.url).await?;
    session.batch_execute("BEGIN").await?;
    session
        .execute(load::INSERT, &[&workspace.name, &"left open", &load::payload(0)])
        .await?;
    Ok(session)
}

/// A row too large for its topic, whatever compresses it, and others of its key behind it. A relay has met it already.
async fn hold(workspace: &Workspace, rows: i64) -> Outcome<()> {
    let too_large = "INSERT INTO outbox.message (topic, key, payload_bytes)
                     SELECT $1, 'held', decode(string_agg(replace(gen_random_uuid()::text, '-', ''), ''), 'hex')
                     FROM generate_series(1, 200000)";
    workspace.db.execute(too_large, &[&workspace.name]).await?;
    let behind = format!(
        "INSERT INTO outbox.message (topic, key, payload)
         SELECT topic, 'held', payload FROM ({}) AS made (topic, key, payload)",
        Shape::Keyed.select(&workspace.name, rows)
    );
    workspace.db.execute(&behind, &[&FILLER.as_bytes()]).await?;
    let process = Process::start(workspace, &HELD_FOR_LONG)?;
    let deadline = Deadline::new(Duration::from_secs(60));
    while !workspace
        .db
        .query_one("SELECT EXISTS (SELECT FROM outbox.hold)", &[])
        .await?
        .get::<_, bool>(0)
    {
        deadline.or("a refused row to hold its key")?;
        sleep(Duration::from_millis(20)).await;
    }
    process.stop().await
}

/// Its first partition, in every lane, as if probes had found it without a leader for long.
async fn pause(workspace: &Workspace, keys: i64) -> Outcome<()> {
    let partitions = workspace.partitions();
    let waiting = "INSERT INTO outbox.message (topic, key, payload)
                   SELECT $1, 'paused-' || i, '{}' FROM generate_series(1, $2::bigint * $3::integer * 2) i
                   WHERE outbox.murmur2('paused-' || i) % $3::integer = 0 LIMIT $2";
    workspace
        .db
        .execute(waiting, &[&workspace.name, &keys, &partitions])
        .await?;
    let hold = "INSERT INTO outbox.hold (lane, topic, unit, resume_floor, reason, retry_at)
                SELECT lane, $1, 's:0/' || $2::integer, 0, 'no leader', clock_timestamp() + interval '1 day' FROM outbox.lane";
    workspace.db.execute(hold, &[&workspace.name, &partitions]).await?;
    Ok(())
}

fn poisoned(workspace: &Workspace) -> String {
    workspace.topics().nth(POISONED).unwrap_or_default().to_owned()
}

async fn poison(workspace: &Workspace) -> Outcome<()> {
    let topic = poisoned(workspace);
    let tiny = AlterConfig::new(ResourceSpecifier::Topic(&topic)).set("max.message.bytes", "100");
    for answer in workspace
        .servers
        .admin
        .alter_configs([&tiny], &AdminOptions::new())
        .await?
    {
        answer.map_err(|(_, error)| format!("{topic}: {error}"))?;
    }
    Ok(())
}
