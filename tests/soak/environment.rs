//! Everything that is broken and everything that breaks: servers of the soak's own, topics, replicas.

use std::path::Path;

use testkit::{OwnKafka, OwnPostgres, World, connect};
use tokio_postgres::Client;

use crate::replicas::{REPLICAS, Replica};

/// Keys the writers share. Each is a row of `soak_key`, locked by the transaction that writes to the key: so transactions that write to
/// one key do not overlap, and its rows have one order.
pub const KEYS: usize = 400;

pub struct Topics {
    /// Takes everything.
    pub orders: String,
    /// Takes small rows only: the others are poison.
    pub small: String,
    /// Now and then takes only small batches; each of its rows fits at any time.
    pub narrow: String,
}

pub struct Environment {
    // Dropped in this order: the processes before the servers they talk to.
    pub replicas: Vec<Replica>,
    pub topics: Topics,
    /// As the relays log in.
    pub relay_login: String,
    pub world: World,
    pub kafka: OwnKafka,
    pub postgres: OwnPostgres,
}

impl Environment {
    pub async fn start(logs: &Path) -> Self {
        let kafka = OwnKafka::start();
        let postgres = OwnPostgres::start();
        let world = World::on(&postgres.url, &kafka.address).await;
        world
            .execute(&format!(
                "CREATE TABLE soak_key (key text PRIMARY KEY);
                 INSERT INTO soak_key SELECT 'key-' || n FROM generate_series(0, {KEYS} - 1) n"
            ))
            .await;
        let topics = Topics {
            orders: world.topic("orders", 8, &[]).await,
            small: world.topic("small", 4, &[("max.message.bytes", "2000")]).await,
            narrow: world.topic("narrow", 4, &[]).await,
        };
        let relay_url = world.login("relay", &["outbox_relay"]).await;
        let mut replicas = Vec::new();
        for number in 0..REPLICAS {
            replicas.push(Replica::start(number, &relay_url, &kafka.address, logs).await);
        }
        Environment {
            replicas,
            topics,
            relay_login: format!("{}_relay", world.name),
            world,
            kafka,
            postgres,
        }
    }

    /// A session of its own: the world's first one does not outlive a crash of the server.
    pub async fn session(&self) -> Client {
        connect(&self.world.database_url).await
    }
}
