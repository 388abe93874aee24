//! A database and topics of one measurement's own, so that none finds what another left.

use std::process::{Command, Stdio};
use std::time::Duration;

use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::backlog::{FILLER, Shape};
use crate::cpu::Postgres;
use crate::servers::{Servers, connect};
use crate::{Deadline, Outcome};

pub const OUTBOXD: &str = env!("CARGO_BIN_EXE_outboxd");

/// Of a workspace's only topic; where there are many, each has fewer.
const PARTITIONS: i32 = 8;
const PARTITIONS_OF_MANY: i32 = 4;

pub struct Workspace {
    pub servers: Servers,
    pub name: String,
    pub url: String,
    pub db: Client,
    pub postgres: Postgres,
    topics: Vec<(String, i32)>,
}

/// What every workspace's database is a copy of: migrating each anew would take longer than many a measurement in small.
const TEMPLATE: &str = "bench_template";

/// Once for all places of a run; one that another run left behind may have another schema.
pub async fn make_template(servers: &Servers) -> Outcome<()> {
    let server = connect(&servers.database_url).await?;
    server
        .batch_execute(&format!("DROP DATABASE IF EXISTS {TEMPLATE}"))
        .await?;
    server.batch_execute(&format!("CREATE DATABASE {TEMPLATE}")).await?;
    migrate(&servers.url_of(TEMPLATE)?)
}

impl Workspace {
    /// With the topics that rows of this shape go to.
    pub async fn new(servers: &Servers, shape: Shape) -> Outcome<Self> {
        let name = format!("bench_{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        let server = connect(&servers.database_url).await?;
        server
            .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE {TEMPLATE}"))
            .await?;
        let url = servers.url_of(&name)?;
        let db = connect(&url).await?;
        let topics = match shape.topics() {
            1 => vec![(name.clone(), PARTITIONS)],
            many => (0..many)
                .map(|number| (format!("{name}.{number}"), PARTITIONS_OF_MANY))
                .collect(),
        };
        let workspace = Workspace {
            servers: servers.clone(),
            name,
            url,
            postgres: Postgres::of(&db).await?,
            db,
            topics,
        };
        workspace.create_topics().await?;
        Ok(workspace)
    }

    async fn create_topics(&self) -> Outcome<()> {
        let new: Vec<_> = self
            .topics
            .iter()
            .map(|(name, partitions)| NewTopic::new(name, *partitions, TopicReplication::Fixed(1)))
            .collect();
        for answer in self.servers.admin.create_topics(&new, &AdminOptions::new()).await? {
            answer.map_err(|(topic, error)| format!("{topic}: {error}"))?;
        }
        Ok(())
    }

    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.iter().map(|(name, _)| name.as_str())
    }

    pub fn partitions(&self) -> i32 {
        self.topics.first().map_or(0, |(_, partitions)| *partitions)
    }

    /// Rows into the outbox, in one commit.
    pub async fn insert(&self, shape: Shape, rows: i64) -> Outcome<()> {
        let select = shape.select(&self.name, rows);
        let insert = format!("INSERT INTO outbox.message (topic, key, payload) {select}");
        self.db.execute(&insert, &[&FILLER.as_bytes()]).await?;
        Ok(())
    }

    /// A backlog that has just been written, as an outbox's rows mostly are when they are relayed: their pages are already in
    /// the WAL. No checkpoint is due while it is drained, and statistics and hint bits are not left for later.
    pub async fn fill(&self, shape: Shape, rows: i64) -> Outcome<()> {
        self.checkpoint().await?;
        self.insert(shape, rows).await?;
        self.vacuum_analyze("outbox.message").await
    }

    pub async fn checkpoint(&self) -> Outcome<()> {
        Ok(self.db.batch_execute("CHECKPOINT").await?)
    }

    pub async fn vacuum_analyze(&self, table: &str) -> Outcome<()> {
        Ok(self.db.batch_execute(&format!("VACUUM ANALYZE {table}")).await?)
    }

    /// Waits until nobody else is connected.
    pub async fn left_alone(&self) -> Outcome<()> {
        let others = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
        let deadline = Deadline::new(Duration::from_secs(30));
        while self.db.query_one(others, &[]).await?.get::<_, i64>(0) > 0 {
            deadline.or("sessions to end")?;
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// How many transactions PostgreSQL has counted here. Asked from another database, so that this question does not count.
    pub async fn transactions(&self) -> Outcome<i64> {
        let count = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1";
        let server = connect(&self.servers.database_url).await?;
        Ok(server.query_one(count, &[&self.name]).await?.get(0))
    }

    /// Waits until no row is pending, without asking the relay.
    pub async fn drained(&self) -> Outcome<()> {
        let deadline = Deadline::new(Duration::from_secs(300));
        let any = "SELECT EXISTS (SELECT FROM outbox.message WHERE published_at IS NULL)";
        while self.db.query_one(any, &[]).await?.get(0) {
            deadline.or("every row to be published")?;
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// How many records the topics have.
    pub fn delivered(&self) -> Outcome<i64> {
        let kafka = self.servers.admin.inner();
        let mut delivered = 0;
        for (topic, partitions) in &self.topics {
            for partition in 0..*partitions {
                let (low, high) = kafka.fetch_watermarks(topic, partition, Duration::from_secs(10))?;
                delivered += high - low;
            }
        }
        Ok(delivered)
    }

    /// A figure is worth nothing if rows were lost or repeated on the way to it.
    pub fn expect_delivered(&self, rows: i64) -> Outcome<()> {
        match self.delivered()? {
            delivered if delivered == rows => Ok(()),
            delivered => Err(format!("{rows} rows, {delivered} records").into()),
        }
    }

    pub async fn remove(self) -> Outcome<()> {
        let server = connect(&self.servers.database_url).await?;
        let topics: Vec<&str> = self.topics.iter().map(|(name, _)| name.as_str()).collect();
        // Before the database goes: where somebody is connected, PostgreSQL waits for a while.
        drop(self.db);
        self.servers.admin.delete_topics(&topics, &AdminOptions::new()).await?;
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        server.batch_execute(&drop).await?;
        Ok(())
    }
}

fn migrate(url: &str) -> Outcome<()> {
    let status = Command::new(OUTBOXD)
        .args(["migrate", "--database-url", url])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    status.success().then_some(()).ok_or("outboxd migrate failed".into())
}
