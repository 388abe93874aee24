//! The application: takes orders, and writes each with its messages in one transaction. Some it rolls back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use outboxd::outbox::{Database, Result, connect};
use tokio::task::JoinSet;
use tokio_postgres::{Client, Statement};

use crate::ledger::{Id, Ledger};

const WRITERS: u32 = 4;
const CUSTOMERS_PER_WRITER: u32 = 40;
const EVENTS: [&str; 3] = ["order.placed", "order.paid", "order.shipped"];

#[derive(Clone)]
pub struct Application {
    pub database: Database,
    pub schema: String,
    pub topic: String,
    pub orders: u32,
    pub orders_per_second: u32,
    pub ledger: Arc<Mutex<Ledger>>,
}

/// One connection and the customers that only it writes for: the order of their messages is the order it writes them.
struct Writer {
    application: Application,
    number: u32,
    client: Client,
    insert: Statement,
    enqueue: Statement,
    /// The last number given to each customer's messages.
    sequences: Vec<u32>,
}

impl Application {
    /// The application's own table, beside the outbox.
    pub async fn create_table(&self, client: &Client) -> Result<()> {
        let table = format!(
            "CREATE TABLE {}.demo_order (number integer PRIMARY KEY, customer text NOT NULL, cents integer NOT NULL)",
            self.schema
        );
        Ok(client.batch_execute(&table).await?)
    }

    /// Starts the writers; each ends when its share of the orders is done.
    pub async fn start(&self) -> Result<JoinSet<Result<()>>> {
        let mut writers = JoinSet::new();
        let mut ready = Vec::new();
        for number in 0..WRITERS {
            ready.push(Writer::new(self.clone(), number).await?);
        }
        let begin = Instant::now();
        for writer in ready {
            writers.spawn(writer.write(begin));
        }
        Ok(writers)
    }

    fn record<T>(&self, write: impl FnOnce(&mut Ledger) -> T) -> T {
        write(&mut self.ledger.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Writer {
    async fn new(application: Application, number: u32) -> Result<Self> {
        let client = connect(&application.database).await?;
        let schema = &application.schema;
        let insert = format!("INSERT INTO {schema}.demo_order (number, customer, cents) VALUES ($1, $2, $3)");
        let enqueue =
            format!("SELECT {schema}.enqueue(topic => $1, key => $2, payload => $3::text::jsonb, event_type => $4)");
        Ok(Writer {
            insert: client.prepare(&insert).await?,
            enqueue: client.prepare(&enqueue).await?,
            application,
            number,
            client,
            sequences: vec![0; CUSTOMERS_PER_WRITER as usize],
        })
    }

    /// Every fourth order is ours; each has its time, so that together they keep the rate.
    async fn write(mut self, begin: Instant) -> Result<()> {
        for order in (self.number..self.application.orders).step_by(WRITERS as usize) {
            let due = Duration::from_secs_f64(f64::from(order) / f64::from(self.application.orders_per_second));
            tokio::time::sleep_until((begin + due).into()).await;
            self.take_order(order).await?;
        }
        Ok(())
    }

    async fn take_order(&mut self, order: u32) -> Result<()> {
        let slot = fastrand::u32(..CUSTOMERS_PER_WRITER);
        let key = self.number * CUSTOMERS_PER_WRITER + slot;
        let customer = customer(key);
        let event_count = fastrand::usize(1..=EVENTS.len());
        let mut messages = Vec::with_capacity(event_count);
        let transaction = self.client.transaction().await?;
        let cents = fastrand::i32(100..100_000);
        transaction
            .execute(&self.insert, &[&(order as i32), &customer, &cents])
            .await?;
        for event in &EVENTS[..event_count] {
            let sequence = &mut self.sequences[slot as usize];
            *sequence += 1;
            let id = Id {
                key,
                sequence: *sequence,
            };
            let payload = payload(order, id);
            transaction
                .execute(&self.enqueue, &[&self.application.topic, &customer, &payload, event])
                .await?;
            messages.push(id);
        }
        if fastrand::u32(..10) == 0 {
            transaction.rollback().await?;
            self.application.record(Ledger::rolled_back);
        } else {
            transaction.commit().await?;
            let now = Instant::now();
            self.application.record(|ledger| ledger.committed(&messages, now));
        }
        Ok(())
    }
}

fn customer(key: u32) -> String {
    format!("customer-{key}")
}

fn payload(order: u32, id: Id) -> String {
    serde_json::json!({ "order": order, "customer": id.key, "sequence": id.sequence }).to_string()
}

/// Which message this is; `None` if it is not one of ours.
pub fn read(payload: &[u8]) -> Option<Id> {
    let payload: serde_json::Value = serde_json::from_slice(payload).ok()?;
    let number = |name: &str| u32::try_from(payload.get(name)?.as_u64()?).ok();
    Some(Id {
        key: number("customer")?,
        sequence: number("sequence")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let id = Id { key: 7, sequence: 3 };
        assert_eq!(read(payload(1, id).as_bytes()), Some(id));
        assert_eq!(read(b"{}"), None);
        assert_eq!(read(b"\xff"), None);
    }
}
