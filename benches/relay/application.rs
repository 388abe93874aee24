//! What the application pays: a single-row INSERT and its commit, against the same into a table that has nothing but a primary key.

use std::time::Instant;

use tokio_postgres::{Client, Statement};

use crate::Outcome;
use crate::backlog::Shape;
use crate::load::{INSERT, payload};
use crate::rounds::Spread;
use crate::servers::{Servers, connect};
use crate::workspace::Workspace;

const BARE: &str = "
    CREATE TABLE bare (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        topic text NOT NULL, key text, payload jsonb
    )";
const INSERT_BARE: &str = "INSERT INTO bare (topic, key, payload) VALUES ($1, $2, $3::text::jsonb)";

/// Medians, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    pub outbox: f64,
    pub bare: f64,
}

/// One after the other, so that whatever else goes on meets both.
pub async fn measure(servers: &Servers, commits: usize) -> Outcome<Commit> {
    let workspace = Workspace::new(servers, Shape::Keyed).await?;
    workspace.db.batch_execute(BARE).await?;
    let db = connect(&workspace.url).await?;
    let (outbox, bare) = (db.prepare(INSERT).await?, db.prepare(INSERT_BARE).await?);
    let (mut of_outbox, mut of_bare): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for number in 0..commits as u64 {
        of_outbox.push(commit(&db, &outbox, &workspace.name, number).await?);
        of_bare.push(commit(&db, &bare, &workspace.name, number).await?);
    }
    drop(db);
    workspace.remove().await?;
    let median = |values| Spread::of(values).map_or(0.0, |spread| spread.median);
    Ok(Commit {
        outbox: median(of_outbox),
        bare: median(of_bare),
    })
}

async fn commit(db: &Client, insert: &Statement, topic: &str, number: u64) -> Outcome<f64> {
    let (key, payload) = (format!("key-{}", number % 1000), payload(number));
    let began = Instant::now();
    db.execute(insert, &[&topic, &key, &payload]).await?;
    Ok(began.elapsed().as_secs_f64() * 1e6)
}
