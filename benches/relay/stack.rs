//! The PostgreSQL and the Kafka that everything runs against, and whether they keep what they were given.

use rdkafka::ClientConfig;
use rdkafka::admin::AdminClient;
use rdkafka::client::DefaultClientContext;
use tokio_postgres::{Client, NoTls};

use crate::Outcome;
use crate::machine::Fact;

#[derive(Clone, Debug)]
pub struct Stack {
    pub database_url: String,
    pub kafka: String,
}

impl Stack {
    /// The one that `deploy/dev/with-stack` names.
    pub fn running() -> Outcome<Self> {
        let named = |name| std::env::var(name).map_err(|_| format!("{name} is not set: run `make bench`"));
        Ok(Stack {
            database_url: named("OUTBOXD_TEST_DATABASE_URL")?,
            kafka: named("OUTBOXD_TEST_KAFKA")?,
        })
    }

    pub fn url_of(&self, database: &str) -> Outcome<String> {
        let (server, _) = self.database_url.rsplit_once('/').ok_or("a database in the URL")?;
        Ok(format!("{server}/{database}"))
    }

    pub fn admin(&self) -> Outcome<AdminClient<DefaultClientContext>> {
        Ok(ClientConfig::new().set("bootstrap.servers", &self.kafka).create()?)
    }

    /// The settings of PostgreSQL that decide what a row costs. Refuses a server that may lose what it has acknowledged:
    /// its figures would mean nothing.
    pub async fn settings(&self) -> Outcome<Vec<Fact>> {
        let db = connect(&self.database_url).await?;
        let mut facts = Vec::new();
        for (name, durable) in [
            ("fsync", Some("on")),
            ("synchronous_commit", Some("on")),
            ("full_page_writes", Some("on")),
            ("wal_level", None),
            ("shared_buffers", None),
            ("max_wal_size", None),
            ("autovacuum", None),
        ] {
            let row = db.query_one("SELECT current_setting($1)", &[&name]).await?;
            let value: String = row.get(0);
            if durable.is_some_and(|durable| durable != value) {
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
