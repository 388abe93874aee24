//! The PostgreSQL and the Kafka that everything runs against, and whether they keep what they were given.

use std::sync::Arc;

use rdkafka::ClientConfig;
use rdkafka::admin::AdminClient;
use rdkafka::client::DefaultClientContext;
use tokio_postgres::{Client, NoTls};

use crate::Outcome;
use crate::machine::Fact;

#[derive(Clone)]
pub struct Servers {
    pub database_url: String,
    pub kafka: String,
    /// One for all: each takes a tenth of a second to close.
    pub admin: Arc<AdminClient<DefaultClientContext>>,
}

impl Servers {
    /// The one that `deploy/dev/with-stack` names.
    pub fn running() -> Outcome<Self> {
        let named = |name| std::env::var(name).map_err(|_| format!("{name} is not set: run `make bench`"));
        let kafka = named("OUTBOXD_TEST_KAFKA")?;
        let admin = ClientConfig::new().set("bootstrap.servers", &kafka).create()?;
        Ok(Servers {
            database_url: named("OUTBOXD_TEST_DATABASE_URL")?,
            kafka,
            admin: Arc::new(admin),
        })
    }

    /// Where work is counted, autovacuum must not add its own. For the whole server.
    pub async fn without_autovacuum<T>(&self, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        self.set_autovacuum(false).await?;
        let done = work.await;
        self.set_autovacuum(true).await?;
        done
    }

    async fn set_autovacuum(&self, on: bool) -> Outcome<()> {
        let value = if on { "DEFAULT" } else { "off" };
        let db = connect(&self.database_url).await?;
        db.execute(&format!("ALTER SYSTEM SET autovacuum = {value}"), &[])
            .await?;
        db.execute("SELECT pg_reload_conf()", &[]).await?;
        Ok(())
    }

    pub fn url_of(&self, database: &str) -> Outcome<String> {
        let (server, _) = self.database_url.rsplit_once('/').ok_or("a database in the URL")?;
        Ok(format!("{server}/{database}"))
    }

    /// The settings of PostgreSQL that decide what a row costs. Refuses a server that may lose what it has acknowledged, or on which an
    /// interrupted run left autovacuum off: its figures would mean nothing.
    pub async fn settings(&self) -> Outcome<Vec<Fact>> {
        let db = connect(&self.database_url).await?;
        let mut facts = Vec::new();
        for (name, wanted) in [
            ("fsync", Some("on")),
            ("synchronous_commit", Some("on")),
            ("full_page_writes", Some("on")),
            ("wal_level", None),
            ("shared_buffers", None),
            ("max_wal_size", None),
            ("autovacuum", Some("on")),
        ] {
            let row = db.query_one("SELECT current_setting($1)", &[&name]).await?;
            let value: String = row.get(0);
            if wanted.is_some_and(|wanted| wanted != value) {
                return Err(format!("PostgreSQL has {name} = {value}: nothing measured on it would count").into());
            }
            facts.push(Fact::new(name, value));
        }
        Ok(facts)
    }
}

pub async fn connect(url: &str) -> Outcome<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
