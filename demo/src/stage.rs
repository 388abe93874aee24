//! The servers of the demo, ours or the viewer's, and what has to go when it is over.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use outboxd::cli::Failure;
use outboxd::config::Problems;
use outboxd::outbox::{self, Database, connect, schema};
use tokio_postgres::Client;

use crate::DemoArgs;
use crate::application::Application;
use crate::broker::{Broker, OwnTopic};
use crate::display::{Display, say};
use crate::ledger::Ledger;
use crate::postgres::Postgres;
use crate::workers::Setup;

/// The servers. Those that are ours stop when this is dropped.
pub struct Stage {
    pub client: Client,
    database_url: String,
    database: Database,
    pub schema: String,
    pub broker: Broker,
    _postgres: Option<Postgres>,
}

impl Stage {
    pub async fn set(args: &DemoArgs, display: &Display, leftovers: &mut Leftovers) -> Result<Self, Failure> {
        let suffix = format!("{:08x}", fastrand::u32(..));
        let (postgres, database_url) = match &args.database_url {
            Some(url) => (None, url.clone()),
            None => {
                let postgres = start_postgres(display).await?;
                let url = postgres.url();
                (Some(postgres), url)
            }
        };
        let database = Database::at(&database_url);
        database.check().map_err(|problem| Problems(vec![problem]))?;
        let schema = format!("outbox_demo_{suffix}");
        let mut client = connect(&database).await?;
        if postgres.is_none() {
            leftovers.schema = Some((database.clone(), schema.clone()));
        }
        schema::apply(&mut client, &schema).await?;
        Ok(Stage {
            client,
            database_url,
            database,
            schema,
            broker: set_broker(args, &suffix, display, leftovers).await?,
            _postgres: postgres,
        })
    }

    pub fn application(&self, args: &DemoArgs, ledger: &Arc<Mutex<Ledger>>) -> Application {
        Application {
            database: self.database.clone(),
            schema: self.schema.clone(),
            topic: self.broker.topic.clone(),
            orders: args.orders,
            orders_per_second: args.rate,
            ledger: ledger.clone(),
        }
    }

    pub fn workers(&self, display: &Arc<Display>) -> Setup {
        Setup {
            database_url: self.database_url.clone(),
            schema: self.schema.clone(),
            brokers: self.broker.addresses.clone(),
            display: display.clone(),
        }
    }
}

async fn start_postgres(display: &Display) -> Result<Postgres, Failure> {
    let begin = Instant::now();
    let postgres = Postgres::start().await?;
    let (home, seconds) = (postgres.home().display(), begin.elapsed().as_secs_f64());
    display.note(&format!(
        "A throwaway PostgreSQL runs in {home} (after {seconds:.1} s)."
    ));
    Ok(postgres)
}

async fn set_broker(
    args: &DemoArgs,
    suffix: &str,
    display: &Display,
    leftovers: &mut Leftovers,
) -> Result<Broker, Failure> {
    let Some(addresses) = &args.kafka else {
        let broker = Broker::mock()?;
        display.note("A mock Kafka of three brokers runs in this process.");
        return Ok(broker);
    };
    let topic = OwnTopic::new(addresses, suffix);
    // Before it is there: an interruption may come while it is being made.
    leftovers.topic = Some(topic.clone());
    let created = topic.create().await;
    if created.is_err() {
        leftovers.topic = None;
    }
    created
}

/// What we made on servers that are not ours, to be taken away again.
#[derive(Default)]
pub struct Leftovers {
    schema: Option<(Database, String)>,
    topic: Option<OwnTopic>,
}

impl Leftovers {
    pub async fn remove(&self) {
        if let Some((database, schema)) = &self.schema
            && let Err(error) = drop_schema(database, schema).await
        {
            say(&format!("outboxd-demo: left behind: the schema {schema}: {error}"));
        }
        if let Some(topic) = &self.topic
            && let Err(error) = topic.delete().await
        {
            say(&format!("outboxd-demo: left behind: {error}"));
        }
    }
}

async fn drop_schema(database: &Database, schema: &str) -> outbox::Result<()> {
    let client = connect(database).await?;
    let drop = format!("DROP SCHEMA IF EXISTS {schema} CASCADE");
    Ok(client.batch_execute(&drop).await?)
}
