//! A world of its own for each test: a database, topics, relay processes; gone when the test is.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::LEASE;
use crate::database_template;
use crate::paths::outboxd;
use crate::pooler::PgBouncer;
use crate::proxy::Proxy;
use crate::relay::RelayBuilder;
use crate::servers::Stack;
use crate::test_slots::wait_for_slot;
use crate::topics::create_topic;

pub struct World {
    pub database_url: String,
    pub kafka: String,
    /// Unique to this world: topics begin with it.
    pub name: String,
    pub db: Client,
    /// What the relays of this world connect through.
    pub pooler: Option<PgBouncer>,
    server_url: Option<String>,
}

impl World {
    /// A migrated database of its own on the shared stack.
    pub async fn new() -> Self {
        World::with_kafka(&Stack::get().kafka).await
    }

    /// The same with another Kafka.
    pub async fn with_kafka(kafka: &str) -> Self {
        let stack = Stack::get();
        let template = database_template::of(&stack.database_url).await;
        World::copied(&stack.database_url, kafka, template).await
    }

    /// The same on servers of the test's choice.
    pub async fn on(server_url: &str, kafka: &str) -> Self {
        let world = World::empty_on(server_url, kafka).await;
        migrate(&world.database_url);
        world
    }

    /// The same as [`World::new`], with a transaction pooler between the relays and the server.
    pub async fn pooled() -> Self {
        let mut world = World::new().await;
        world.pooler = Some(PgBouncer::before(&world.database_url));
        world
    }

    /// A database of its own without the schema.
    pub async fn empty() -> Self {
        let stack = Stack::get();
        World::empty_on(&stack.database_url, &stack.kafka).await
    }

    /// The same on servers of the test's choice.
    pub async fn empty_on(server_url: &str, kafka: &str) -> Self {
        World::copied(server_url, kafka, "template1").await
    }

    async fn copied(server_url: &str, kafka: &str, template: &str) -> Self {
        wait_for_slot();
        let name = format!("t{}", &Uuid::new_v4().simple().to_string()[..12]);
        let server = connect(server_url).await;
        server
            .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE {template}"))
            .await
            .expect("a fresh database");
        let database_url = with_database(server_url, &name);
        World {
            db: connect(&database_url).await,
            pooler: PgBouncer::is_wanted_before(server_url).then(|| PgBouncer::before(&database_url)),
            database_url,
            kafka: kafka.to_owned(),
            name,
            server_url: Some(server_url.to_owned()),
        }
    }

    /// Runs a subcommand against this world's database, to its end: one word, or two as in "dead list".
    pub fn outboxd(&self, subcommand: &str, args: &[&str]) -> Output {
        self.command(subcommand).args(args).output().expect("outboxd runs")
    }

    /// The same, not yet started. A migration takes the direct way.
    pub fn command(&self, subcommand: &str) -> Command {
        let mut command = outboxd();
        command.args(subcommand.split(' '));
        match &self.pooler {
            Some(pooler) if subcommand != "migrate" => {
                let url = pooler.through(&self.database_url);
                command.args(["--database-url", &url, "--database-pooler", "transaction"])
            }
            _ => command.args(["--database-url", &self.database_url]),
        };
        command
    }

    /// What `outboxd status` says to a login that is an operator's and nothing else.
    pub async fn status_to_an_operator(&self) -> serde_json::Value {
        let operator = self.login("operator", &["outbox_operator"]).await;
        let status = outboxd()
            .args(["status", "--json", "--database-url", &operator])
            .output()
            .expect("runs");
        serde_json::from_slice(&status.stdout).expect("JSON")
    }

    /// A login of this world with these roles, and nothing else; answers its URL.
    pub async fn login(&self, name: &str, roles: &[&str]) -> String {
        let login = format!("{}_{name}", self.name);
        self.execute(&format!("CREATE ROLE {login} LOGIN")).await;
        for role in roles {
            self.execute(&format!("GRANT {role} TO {login}")).await;
        }
        self.database_url.replacen("postgres@", &format!("{login}@"), 1)
    }

    /// Creates a topic of this world; answers its full name.
    pub async fn topic(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) -> String {
        let full = format!("{}.{name}", self.name);
        create_topic(&self.kafka, &full, partitions, settings).await;
        full
    }

    /// A relay process of this world, not yet started. Leases are short, so that recovery is quick.
    pub fn relay(&self) -> RelayBuilder {
        self.relay_as(&self.database_url)
    }

    /// The same under another login.
    pub fn relay_as(&self, url: &str) -> RelayBuilder {
        match &self.pooler {
            Some(pooler) => RelayBuilder::new(&pooler.through(url), &self.kafka).pooled(),
            None => RelayBuilder::new(url, &self.kafka),
        }
    }

    /// The same, with a proxy before its PostgreSQL.
    pub fn relay_through(&self, proxy: &Proxy) -> RelayBuilder {
        RelayBuilder::new(&proxy.url(&self.database_url), &self.kafka)
    }

    /// One number from the database.
    pub async fn count(&self, sql: &str) -> i64 {
        self.db.query_one(sql, &[]).await.expect(sql).get(0)
    }

    /// Rows neither published nor dead.
    pub async fn pending(&self) -> i64 {
        self.count("SELECT count(*) FROM outbox.message WHERE published_at IS NULL AND dead_at IS NULL")
            .await
    }

    /// One text from the database.
    pub async fn text(&self, sql: &str) -> String {
        self.db.query_one(sql, &[]).await.expect(sql).get(0)
    }

    /// The ids of rows of which this is true.
    pub async fn ids_where(&self, condition: &str) -> Vec<i64> {
        let sql = format!("SELECT id FROM outbox.message WHERE {condition} ORDER BY id");
        let rows = self.db.query(&sql, &[]).await.expect(&sql);
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Registers a worker by hand whose lease ends after so many seconds.
    pub async fn insert_worker(&self, name: &str, version: &str, lease_seconds: i32) {
        self.execute(&format!(
            "INSERT INTO outbox.worker (id, name, version, lease_until, incarnation)
             SELECT gen_random_uuid(), '{name}', '{version}', now() + interval '{lease_seconds} s', incarnation FROM outbox.server"
        ))
        .await;
    }

    /// Does the condition hold, in SQL?
    pub async fn is_true(&self, condition: &str) -> bool {
        self.db
            .query_one(&format!("SELECT coalesce(({condition}), false)"), &[])
            .await
            .expect(condition)
            .get(0)
    }

    /// Waits until it does.
    pub async fn until(&self, condition: &str) {
        crate::eventually(crate::SOON, condition, async || {
            self.is_true(condition).await.then_some(())
        })
        .await;
    }

    /// Waits until so many sessions wait for another one.
    pub async fn blocked(&self, sessions: usize) {
        self.until(&format!(
            "SELECT count(*) = {sessions} FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ))
        .await;
    }

    pub async fn execute(&self, sql: &str) {
        self.db.batch_execute(sql).await.expect(sql);
    }

    /// Waits until nothing is pending any more.
    pub async fn drained(&self, within: Duration) {
        crate::eventually(within, "the backlog to drain", async || {
            (self.pending().await == 0).then_some(())
        })
        .await;
    }

    /// How many lanes each live worker owns, fewest first.
    pub async fn lanes_per_worker(&self) -> Vec<i64> {
        let sql = "SELECT count(l.lane) FROM outbox.worker w LEFT JOIN outbox.lane l ON l.owner = w.id
                   WHERE w.stopped_at IS NULL GROUP BY w.id ORDER BY 1";
        let rows = self.db.query(sql, &[]).await.expect(sql);
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Waits until the worker that registered last has renewed its lease twice, and has taken the lanes it could take in between.
    pub async fn lease_is_renewed_twice(&self) {
        let lease = "SELECT (extract(epoch FROM lease_until) * 1000)::bigint FROM outbox.worker
                     ORDER BY started_at DESC LIMIT 1";
        let goal = self.count(lease).await + LEASE.as_millis() as i64 / 3;
        crate::eventually(crate::SOON, "two renewals", async || {
            (self.count(lease).await >= goal).then_some(())
        })
        .await;
    }

    /// How often a lane has changed hands so far.
    pub async fn takes(&self) -> i64 {
        self.count("SELECT sum(epoch)::bigint FROM outbox.lane WHERE lane >= 0")
            .await
    }

    /// Another session on this world's database.
    pub async fn session(&self) -> Client {
        connect(&self.database_url).await
    }

    /// The same, if the server is there.
    pub async fn try_session(&self) -> Option<Client> {
        try_connect(&self.database_url).await.ok()
    }

    /// Ends the relays' sessions, and lets nobody log in to this world's database any more; or lets them again.
    pub async fn lock_out(&self, is_locked: bool) {
        let server = connect(self.server_url.as_ref().unwrap_or(&Stack::get().database_url)).await;
        let (name, allow) = (&self.name, !is_locked);
        let statement = format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {allow}");
        server.batch_execute(&statement).await.expect(&statement);
        if is_locked {
            let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outboxd' AND datname = ";
            server.batch_execute(&format!("{end}'{name}'")).await.expect("ended");
        }
    }
}

impl Drop for World {
    /// Nobody waits for it: a database that goes costs the server a checkpoint.
    fn drop(&mut self) {
        // Relays are killed by their own guards first or last; FORCE ends those that are left.
        if let Some(server) = &self.server_url {
            let drop_database = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
            // Roles outlive their database: those of this world go with it.
            let drop_logins = format!(
                "DO $$ DECLARE login name; BEGIN
                     FOR login IN SELECT rolname FROM pg_roles WHERE rolname LIKE '{}\\_%'
                     LOOP EXECUTE format('DROP ROLE %I', login); END LOOP;
                 END $$",
                self.name
            );
            let _ = Command::new("psql")
                .args([server, "-qc", &drop_database, "-c", &drop_logins])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
        }
    }
}

pub fn migrate(database_url: &str) {
    let output = outboxd().args(["migrate", "--database-url", database_url]).output();
    let output = output.expect("outboxd runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub async fn connect(url: &str) -> Client {
    try_connect(url).await.expect("PostgreSQL answers")
}

async fn try_connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

pub fn with_database(url: &str, database: &str) -> String {
    let (server, old) = url.rsplit_once('/').expect("a database in the URL");
    let settings = old.find('?').map_or("", |from| &old[from..]);
    format!("{server}/{database}{settings}")
}
